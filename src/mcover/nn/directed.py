"""The directed lift: whole virtual models, each weight gathered from its routed cover.

For destination p, context α reads weight q from cover ρ_{q→p}(α). It needs no knowledge of layers,
and with all destinations it is the exact M-cover of the loss as one factor over all weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcover.nn.settings import Granularity
from mcover.permutations import Routes


class _Gather(torch.autograd.Function):
    """Reads along routes; errors return along the inverse routes, which is a gather again."""

    @staticmethod
    def forward(stack: Tensor, routes: Tensor, back: Tensor) -> Tensor:
        return _along(stack, routes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return _along(grads[0], back), None, None


def _along(stack: Tensor, routes: Tensor) -> Tensor:
    """stack[routes[α, i], i] over covers α: routes (M, k) with k 1, units or all weights."""
    covers = len(stack)
    if routes.shape[1] == 1:
        return stack[routes[:, 0].long()]
    rows = stack.reshape(covers, routes.shape[1], -1)
    index = routes.long().unsqueeze(-1).expand(rows.shape)
    return rows.gather(0, index).view(stack.shape)


def sources(shape: torch.Size, granularity: Granularity) -> int:
    """How many routes a tensor of one cover takes.

    >>> [sources(torch.Size([4, 3]), g) for g in ("weight", "unit", "tensor")]
    [12, 4, 1]
    """
    if granularity == "tensor" or not shape:
        return 1
    return shape[0] if granularity == "unit" else shape.numel()


def slices(stacks: Mapping[str, Tensor], granularity: Granularity) -> Iterator[tuple[str, slice]]:
    """Where each stacked tensor's routes lie in the bank's row of sources."""
    start = 0
    for name, stack in stacks.items():
        count = sources(stack.shape[1:], granularity)
        yield name, slice(start, start + count)
        start += count


def gather(
    stacks: Mapping[str, Tensor], routes: Tensor, back: Tensor, granularity: Granularity
) -> dict[str, Tensor]:
    """The M virtual models of one destination.

    Shape: stacks (M, *shape) by name, routes and back (sources, M), to the shapes of the stacks.
    """
    return {
        name: _Gather.apply(  # type: ignore[no-untyped-call]
            stacks[name], routes[span].T, back[span].T
        )
        for name, span in slices(stacks, granularity)
    }


def routes_of(routes: Routes) -> Tensor:
    """Routes as a tensor, in the most compact type that torch has."""
    return torch.from_numpy(routes.astype(np.uint8 if routes.dtype == np.uint8 else np.int32))
