"""The door between covers.

A covered model runs under ``torch.vmap`` over its covers: the user's code, and every layer that
does not mix, sees one cover and the base's own shapes. Where messages cross, a layer needs all
covers at once. The vmap rule of an autograd function is exactly that place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcover.errors import McoverError

Rule = Callable[..., Any]


def across(rule: Rule, *tensors: Tensor | None) -> Any:
    """Calls ``rule(common, *tensors)`` once for all covers, from inside of one.

    ``common[i]`` says that tensor i does not depend on the cover; the others come with the covers
    as first axis. The rule returns tensors with the covers first, and is differentiated through.
    At least one tensor must depend on the cover.
    """
    return _Across.apply(rule, *tensors)  # type: ignore[no-untyped-call]


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
        axes = in_dims[1:]
        covers_first = [
            tensor if tensor is None or axis is None else tensor.movedim(axis, 0)
            for tensor, axis in zip(tensors, axes, strict=True)
        ]
        outputs = rule(tuple(axis is None for axis in axes), *covers_first)
        return outputs, tuple(0 for _ in outputs) if isinstance(outputs, tuple) else 0
