"""Which forward activation checkpointing computes again, so that it takes the routes that it had.

Torch does not tell a forward that it is a recomputation, or of which forward. Two facts do:

- A recomputation happens inside a backward. A forward outside of one is new, whatever it is given.
- It has the same inputs in memory as the forward that it repeats: the graph keeps them for it. So a
  forward that may be repeated is remembered by the storages of its inputs, for as long as they
  live. An address or an id alone would not do: once a tensor is freed, the allocator gives its
  address to another.

Where this leaves a choice, the recomputation is refused. Guessing would give the gradients of other
routes without an error.
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
    """Step and draw of the forwards that may be computed again."""

    def __init__(self) -> None:
        self._seen: dict[Any, _Seen] = {}  # by whether hooks were active, and by inputs
        self._weights: list[int] = []  # versions of the weights that these forwards ran with

    def number(
        self, given: list[Tensor], parameters: Iterable[Tensor], advance: Callable[[], Number]
    ) -> Number:
        """Step and draw of a forward in training mode: its own, or those of the one it repeats."""
        hooked = saved_tensor_hooks_are_active()
        again = _inside_backward()
        # Checkpointing without reentrance has hooks in force both times; with it, neither time, but
        # the first run is without gradients.
        if not (again or hooked or not torch.is_grad_enabled()):
            return advance()
        weights = versions(parameters)
        if weights != self._weights:
            self._weights, self._seen = weights, {}
        storages = _storages(given)
        key = None if storages is None else (hooked, _layout(given))
        if again:
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
    """The forwards that one input had; it leaves ``table`` when a storage of the input is freed."""

    def __init__(self, storages: list[Any], table: dict[Any, _Seen], key: Any) -> None:
        self.waiting: list[Number] = []  # not computed again so far
        self.repeated: list[Number] = []  # the last that was
        # Torch keeps the Python object of a storage for as long as the storage itself.
        self._alive = [weakref.ref(one, lambda _: table.pop(key, None)) for one in storages]


def _inside_backward() -> bool:
    # No public function says so; torch.autograd.graph, which is Python, asks the same one.
    return bool(torch._C._current_graph_task_id() != -1)


def versions(tensors: Iterable[Tensor]) -> list[int]:
    """How often each tensor was changed in place; inference tensors do not count it."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def watched(tensor: Tensor) -> Tensor:
    """A copy that counts how often it is changed, also in inference mode."""
    if not torch.is_inference_mode_enabled():
        return tensor.clone()
    with torch.inference_mode(False):
        return tensor.detach().clone()


def _storages(given: list[Tensor]) -> list[Any] | None:
    """The storages of tensors; None where one has none, as in a transform, or if sparse."""
    try:
        return [tensor.untyped_storage() for tensor in given]
    except (RuntimeError, NotImplementedError):
        return None


def _layout(given: list[Tensor]) -> Any:
    """Where in their storages tensors lie, and how often they were changed."""
    return tuple(
        (id(t.untyped_storage()), t.dtype, t.storage_offset(), t.shape, t.stride(), version)
        for t, version in zip(given, versions(given), strict=True)
    )
