"""Callbacks of scikit-learn, where it has them: they are new in 1.9."""

from __future__ import annotations

from typing import Any

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ModuleNotFoundError:

    class _Silent:
        """A context that tells nobody."""

        def subcontext(self, **about: Any) -> _Silent:
            return self

        def call_on_fit_task_begin(self, **about: Any) -> None:
            pass

        def call_on_fit_task_end(self, **about: Any) -> bool:
            return False

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """No callbacks: an estimator has nobody to tell."""

        def _init_callback_context(self, max_subtasks: int) -> _Silent:
            return _Silent()

    def with_callbacks(fit: Any) -> Any:
        """``fit`` as it is."""
        return fit


__all__ = ["CallbackSupportMixin", "with_callbacks"]
