"""Which forward activation checkpointing computes again, so that it takes the routes that it had.

Torch does not say that a forward is a recomputation, or of which forward. Two things are certain:

- A recomputation happens inside a backward. A forward outside of one is new, whatever it is given.
- Checkpointing without reentrance keeps a frame for each checkpointed call, and both runs see it:
  it is in the closure of the saved-tensor hooks in force. That tells which forward is repeated, also
  when the same input ran twice, or when the input itself is computed again.

Reentrant checkpointing has no frame. There a forward is recognised by the storage of its inputs. The
graph keeps them alive until the recomputation, and an address counts only as long as its storage
has lived since: the allocator may give it to another tensor afterwards. Where that leaves a choice,
the forward is refused.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import checkpoint

from mcover.errors import McoverError
from mcover.nn.lockstep import saved_tensor_hooks_are_active

Number = tuple[int, int]  # step and draw of a forward

_REMEDY = (
    "Checkpoint the covered model, or a function around it, with use_reentrant=False, and not one "
    "checkpoint inside another."
)


class Recomputations:
    """Step and draw of the forwards that may be computed again."""

    def __init__(self) -> None:
        self._frames: weakref.WeakKeyDictionary[Any, _Frame] = weakref.WeakKeyDictionary()
        self._seen: list[_Seen] = []
        self._weights: list[int] = []  # versions of the weights that the seen forwards ran with

    def number(
        self, given: list[Tensor], parameters: Iterable[Tensor], advance: Callable[[], Number]
    ) -> Number:
        """Step and draw of a forward in training mode: its own, or those of the one it repeats."""
        frame, repeats = _checkpoint_frame()
        if frame is not None and repeats is not None:
            return self._frames[frame].again(repeats)
        if not _inside_backward():
            number = advance()
            if frame is not None:
                self._frames.setdefault(frame, _Frame()).numbers.append(number)
            elif not torch.is_grad_enabled() or saved_tensor_hooks_are_active():
                self._forget(parameters)
                self._seen.append(_Seen(_key(given), _storages(given), number))
            return number
        return self._of_same_inputs(given, parameters)

    def _forget(self, parameters: Iterable[Tensor]) -> None:
        """Forgets forwards whose backward cannot come any more: weights or inputs are gone."""
        weights = versions(parameters)
        if weights != self._weights:
            self._weights, self._seen = weights, []
        self._seen = [one for one in self._seen if one.is_alive()]

    def _of_same_inputs(self, given: list[Tensor], parameters: Iterable[Tensor]) -> Number:
        self._forget(parameters)
        key = _key(given)
        same = [one for one in self._seen if one.key == key]
        same = [one for one in same if not one.repeated] or same
        if len({one.number for one in same}) != 1:
            known = "two forwards have had this input" if same else "no forward had this input"
            raise McoverError(
                "a backward runs the covered model again in training mode, and which forward it "
                f"repeats is unknown: {known} since the weights changed. {_REMEDY}"
            )
        same[0].repeated = True
        return same[0].number


class _Frame:
    """The forwards of one checkpointed call, in their order."""

    def __init__(self) -> None:
        self.numbers: list[Number] = []
        self._repeated: dict[Any, int] = {}  # by backward: how many were computed again

    def again(self, backward: Any) -> Number:
        count = self._repeated.get(backward, 0)
        if count == len(self.numbers):
            raise McoverError(
                "a checkpointed function called the covered model more often when it was computed "
                "again; it must do the same both times."
            )
        self._repeated[backward] = count + 1
        return self.numbers[count]


@dataclass
class _Seen:
    """A forward that reentrant checkpointing may compute again."""

    key: Any
    storages: list[StorageWeakRef]
    number: Number
    repeated: bool = False

    def is_alive(self) -> bool:
        return not any(one.expired() for one in self.storages)


def _checkpoint_frame() -> tuple[Any, Any]:
    """The frame of the checkpointed call around this code, and which backward repeats it, if any."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    pack = hooks[0] if hooks else None
    pack = getattr(pack, "_torchdynamo_orig_callable", pack)
    code, cells = getattr(pack, "__code__", None), getattr(pack, "__closure__", None)
    if code is None or not cells:
        return None, None
    held = dict(zip(code.co_freevars, (cell.cell_contents for cell in cells), strict=True))
    for value in held.values():
        if isinstance(value, checkpoint._CheckpointFrame):
            return value, None
        if isinstance(value, weakref.ref) and isinstance(value(), checkpoint._CheckpointFrame):
            return value(), held.get("gid", 0)
    return None, None


def _inside_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def versions(tensors: Iterable[Tensor]) -> list[int]:
    """How often each tensor was changed in place; inference tensors do not count it."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def _key(given: list[Tensor]) -> Any:
    pairs = zip(given, versions(given), strict=True)
    return tuple((_address(tensor), tensor.shape, version) for tensor, version in pairs)


def _address(tensor: Tensor) -> int:
    try:
        return tensor.data_ptr()
    except RuntimeError:  # of a transform, without memory of its own
        return id(tensor)


def _storages(given: list[Tensor]) -> list[StorageWeakRef]:
    """The storages of tensors that have one."""
    found = []
    for tensor in given:
        try:
            found.append(StorageWeakRef(tensor.untyped_storage()))
        except (RuntimeError, NotImplementedError):  # of a transform, or sparse
            continue
    return found
