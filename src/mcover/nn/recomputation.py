"""Recognises which forward activation checkpointing repeats, so that it takes the same routes.

Torch does not say whether a forward is a recomputation, or of which forward. Two facts do:

- A recomputation happens inside a backward. A forward outside of one is new, whatever its inputs.
- Its inputs have the same memory as those of the forward that it repeats, because the graph keeps
  them alive. So a forward that may be repeated is recorded under the storages of its inputs, and
  the record is removed when one of them is freed. An address or an id alone is not enough: once a
  tensor is freed, another one may get its address.

If several forwards match, the recomputation is refused. A wrong guess would silently compute the
gradients of other routes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from mcover.errors import McoverError
from mcover.nn.lockstep import saved_tensor_hooks_are_active

Number = tuple[int, int]  # step and draw of a forward


class Recomputations:
    """Records step and draw of the forwards that may be computed again."""

    def __init__(self) -> None:
        self._seen: dict[Any, _Seen] = {}  # by whether hooks were active, and by inputs
        self._weights: list[int] = []  # versions of the weights in these forwards

    def number(
        self, given: list[Tensor], parameters: Iterable[Tensor], advance: Callable[[], Number]
    ) -> Number:
        """Step and draw of a forward in training mode: its own, or those of the one it repeats."""
        hooked = saved_tensor_hooks_are_active()
        is_repeated = _inside_backward()
        # With use_reentrant=False, hooks are active in both runs. With use_reentrant=True, hooks
        # are active in neither run, and the first run has gradients turned off.
        if not (is_repeated or hooked or not torch.is_grad_enabled()):
            return advance()
        weights = versions(parameters)
        if weights != self._weights:
            self._weights, self._seen = weights, {}
        storages = _storages(given)
        key = None if storages is None else (hooked, _layout(given))
        if is_repeated:
            return self._repeated(self._seen.get(key))
        number = advance()
        if storages is not None:
            if key not in self._seen:
                self._seen[key] = _Seen(storages, self._seen, key)
            self._seen[key].waiting.append(number)
        return number

    def _repeated(self, seen: _Seen | None) -> Number:
        known = [] if seen is None else (seen.waiting or seen.repeated)
        if seen is None or len(known) != 1:
            why = f"{len(known)} forwards had this input" if known else "none had this input"
            raise McoverError(
                "a backward runs the covered model again in training mode, as activation "
                f"checkpointing does, and which forward it repeats is unknown: {why} since the "
                "weights changed. Checkpoint the covered model itself, checkpoint(covered, x), and "
                "give each forward an input of its own, e.g. x.clone()."
            )
        if seen.waiting:
            seen.repeated, seen.waiting = seen.waiting, []
        return known[0]


class _Seen:
    """The forwards of one input; removed from ``table`` when a storage of the input is freed."""

    def __init__(self, storages: list[Any], table: dict[Any, _Seen], key: Any) -> None:
        self.waiting: list[Number] = []  # not repeated so far
        self.repeated: list[Number] = []  # the last one that was repeated
        # Torch keeps the Python object of a storage for as long as the storage itself.
        self._alive = [weakref.ref(one, lambda _: table.pop(key, None)) for one in storages]


def _inside_backward() -> bool:
    # There is no public function; torch.autograd.graph calls this one.
    return bool(torch._C._current_graph_task_id() != -1)


def versions(tensors: Iterable[Tensor]) -> list[int]:
    """How often each tensor was changed in place; 0 for inference tensors, which do not count."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def watched(tensor: Tensor) -> Tensor:
    """A copy with a version counter, also in inference mode."""
    if not torch.is_inference_mode_enabled():
        return tensor.clone()
    with torch.inference_mode(False):
        return tensor.detach().clone()


def _storages(given: list[Tensor]) -> list[Any] | None:
    """The storages of tensors; None if one has none (sparse, or inside a transform)."""
    try:
        return [tensor.untyped_storage() for tensor in given]
    except (RuntimeError, NotImplementedError):
        return None


def _layout(given: list[Tensor]) -> Any:
    """Storages, positions in them, and versions of tensors."""
    return tuple(
        (id(t.untyped_storage()), t.dtype, t.storage_offset(), t.shape, t.stride(), version)
        for t, version in zip(given, versions(given), strict=True)
    )
