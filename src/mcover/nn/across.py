"""The door between covers.

A covered model runs under ``torch.vmap`` over its covers: the user's code, and every layer that
does not mix, sees one cover and the base's own shapes. Where messages cross, a layer needs all
covers at once. The vmap rule of an autograd function is exactly that place; what torch does to get
there costs as much as a small layer, so that where its inner functions are at hand the step out of
vmap is taken directly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mcover.errors import McoverError

try:
    from torch._C._functorch import (
        TransformType,
        _add_batch_dim,
        _unwrap_batched,
        peek_interpreter_stack,
    )
    from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

    _DIRECT = True
except ImportError:  # a torch that has other inner functions
    _DIRECT = False

Rule = Callable[..., Any]


def across(rule: Rule, *tensors: Tensor | None) -> Any:
    """Calls ``rule(common, *tensors)`` once for all covers, from inside of one.

    ``common[i]`` says that tensor i does not depend on the cover; the others come with the covers
    as first axis. The rule returns tensors with the covers first, and is differentiated through.
    At least one tensor must depend on the cover.
    """
    if getattr(_running, "alone", False):
        outputs = _call(rule, (0,) * len(tensors), [_stacked(tensor) for tensor in tensors])
        if isinstance(outputs, tuple):
            return tuple(output.squeeze(0) for output in outputs)
        return outputs.squeeze(0)
    vmap = None if torch.compiler.is_compiling() else _innermost()
    if vmap is not None:
        level = vmap.level()
        plain, axes = zip(*(_unwrapped(tensor, level) for tensor in tensors), strict=True)
        if any(axis is not None for axis in axes):
            with vmap.lower():
                outputs = _call(rule, axes, plain)
            if isinstance(outputs, tuple):
                return tuple(_add_batch_dim(output, 0, level) for output in outputs)
            return _add_batch_dim(outputs, 0, level)
    return _Across.apply(rule, *tensors)  # type: ignore[no-untyped-call]


@contextmanager
def alone(only: bool) -> Iterator[None]:
    """Whether a model has one cover, and needs no vmap: tensors are those of that cover."""
    before = getattr(_running, "alone", False)
    _running.alone = only
    try:
        yield
    finally:
        _running.alone = before


_running = threading.local()


def _stacked(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.unsqueeze(0)


def _call(rule: Rule, axes: Sequence[int | None], tensors: Sequence[Tensor | None]) -> Any:
    covers_first = [
        tensor if tensor is None or axis is None else tensor.movedim(axis, 0)
        for tensor, axis in zip(tensors, axes, strict=True)
    ]
    return rule(tuple(axis is None for axis in axes), *covers_first)


def _innermost() -> Any:
    """The vmap that runs, if it is the innermost of torch's transforms."""
    if not _DIRECT or peek_interpreter_stack() is None:
        return None
    current = retrieve_current_functorch_interpreter()
    return current if current.key() == TransformType.Vmap else None


def _unwrapped(tensor: Tensor | None, level: int) -> tuple[Tensor | None, int | None]:
    return (None, None) if tensor is None else _unwrap_batched(tensor, level)


class _Across(torch.autograd.Function):
    @staticmethod
    def forward(rule: Rule, *tensors: Tensor | None) -> Any:
        raise McoverError(
            "a layer of a covered model was called by itself; call the covered model, or take "
            "covered.cover(k) or covered.collapse() for a model of plain layers."
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to save: the rule's own operations are recorded."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, rule: Rule, *tensors: Tensor | None) -> Any:
        outputs = _call(rule, in_dims[1:], tensors)
        return outputs, tuple(0 for _ in outputs) if isinstance(outputs, tuple) else 0
