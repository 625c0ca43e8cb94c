"""Forwards that are computed twice: checkpointed ones, and those that change their input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from mcover.nn import trees
from mcover.nn.copies import Copies, structure
from mcover.nn.lockstep import saved_tensor_hooks_are_active


class Counted:
    """Which step a training forward was, for one that activation checkpointing computes again.

    Such a forward ran under saved-tensor hooks or without gradients, and comes again with the same
    inputs in memory before any weight has changed.
    """

    def __init__(self) -> None:
        self._weights: list[int] = []
        self._known: dict[Any, tuple[int, int]] = {}
        self._new: Any = None

    def find(self, weights: Iterable[Tensor], inputs: Any) -> tuple[int, int] | None:
        """What :meth:`add` was told of this forward, if it is one that was before."""
        self._new = None
        may_come_again = not torch.is_grad_enabled() or saved_tensor_hooks_are_active()
        if not may_come_again and not self._known:
            return None
        now = versions(weights)
        if now != self._weights:
            self._weights, self._known = now, {}
        given = trees.tensors(inputs)
        key = tuple(
            (_address(t), t.shape, version)
            for t, version in zip(given, versions(given), strict=True)
        )
        if may_come_again:
            self._new = key
        return self._known.get(key)

    def add(self, number: tuple[int, int]) -> None:
        """Says which step and draw the forward just looked for is."""
        if self._new is not None:
            self._known[self._new] = number


class Before:
    """All that a forward may change, as it was before."""

    def __init__(self, inputs: Iterable[Tensor], state: Iterable[Tensor], copies: Copies) -> None:
        copies.follow()
        self._copies, self._modules = copies, [structure(module) for module in copies.modules]
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in (*inputs, *state)]
        self._random = torch.get_rng_state()

    def restore(self) -> None:
        """Undoes a forward."""
        with torch.no_grad():
            for tensor, before in self._tensors:
                tensor.copy_(before)
        torch.set_rng_state(self._random)
        self._copies.replace(self._modules)


def versions(tensors: Iterable[Tensor]) -> list[int]:
    """How often each tensor was changed in place; inference tensors do not count it."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def mark_until_backward(outputs: Iterable[Tensor]) -> list[bool]:
    """A mark that is true until gradients of these outputs arrive."""
    trained = [output for output in outputs if output.requires_grad]
    mark = [bool(trained)]

    def clear(grad: Tensor) -> None:
        mark[0] = False

    for output in trained:
        output.register_hook(clear)
    return mark


def _address(tensor: Tensor) -> int:
    try:
        return tensor.data_ptr()
    except RuntimeError:  # of a transform, without memory of its own
        return id(tensor)
