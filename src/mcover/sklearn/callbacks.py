"""Callbacks of scikit-learn, or classes that do nothing before version 1.9."""

from __future__ import annotations

from typing import Any

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ModuleNotFoundError:

    class _Silent:
        """A callback context that does nothing."""

        def subcontext(self, **about: Any) -> _Silent:
            return self

        def call_on_fit_task_begin(self, **about: Any) -> None:
            pass

        def call_on_fit_task_end(self, **about: Any) -> bool:
            return False

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Support for no callbacks."""

        def _init_callback_context(self, max_subtasks: int) -> _Silent:
            return _Silent()

    def with_callbacks(fit: Any) -> Any:
        """Returns ``fit`` unchanged."""
        return fit


__all__ = ["CallbackSupportMixin", "with_callbacks"]
