"""Block messages mixed across covers: a[β] = Σ_g Σ_α Q̂[r,g,β,α] C[g,α] (the paper's MLP section).

Mixers are constants, so backward needs activations, weights and Q̂, but never the contributions C:
they are made for a few output units at a time, used and dropped, forward and backward.

Shapes: x (M, N, inputs), weight (M, units, inputs), mixer (units, blocks, M, M) with row β the
cover that reads, or (1, 1, M, M) where one kernel serves all units and blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

# How many contributions exist at one time, forward and backward: enough for products of good size,
# few enough to stay in cache.
UNITS, BLOCKS = 128, 2


def segments(inputs: int, blocks: int) -> Iterator[tuple[slice, slice]]:
    """Blocks of near-equal size as runs of equal ones: (which blocks, which inputs) of each run.

    >>> list(segments(10, 4))  # 3 + 3 + 2 + 2
    [(slice(0, 2, None), slice(0, 6, None)), (slice(2, 4, None), slice(6, 10, None))]
    """
    size, wider = divmod(inputs, blocks)
    if wider:
        yield slice(0, wider), slice(0, wider * (size + 1))
    if size:
        yield slice(wider, blocks), slice(wider * (size + 1), inputs)


def block_slices(inputs: int, blocks: int) -> list[slice]:
    """The inputs of each block.

    >>> block_slices(5, 2)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    size, wider = divmod(inputs, blocks)
    edges = [g * size + min(g, wider) for g in range(blocks + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def mix_linear(x: Tensor, weight: Tensor, mixer: Tensor) -> Tensor:
    """The routed preactivations, shape (M, N, units), of inputs that differ between covers."""
    if is_shared(mixer):
        return mix_outputs(torch.bmm(x, weight.transpose(1, 2)), mixer)
    mixed: Tensor = _MixLinear.apply(x, weight, mixer)  # type: ignore[no-untyped-call]
    return mixed


def mix_common(x: Tensor, weight: Tensor, mixer: Tensor) -> Tensor:
    """The routed preactivations, shape (M, N, units), of one input (N, inputs) for all covers."""
    if is_shared(mixer):
        return mix_outputs(x @ weight.transpose(1, 2), mixer)
    mixed: Tensor = _MixCommon.apply(x, weight, mixer)  # type: ignore[no-untyped-call]
    return mixed


def mix_outputs(contributions: Tensor, mixer: Tensor) -> Tensor:
    """Σ_α Q̂[r,0,β,α] C[α] for one block, units last: shape (M, ..., units)."""
    if is_shared(mixer):
        return torch.tensordot(mixer[0, 0], contributions, dims=1)
    return torch.einsum("rba,a...r->b...r", mixer[:, 0], contributions)


def mix_weights(weight: Tensor, mixer: Tensor) -> Tensor:
    """W_eff[β] = Σ_α Q̂[r,g,β,α] W[α] on block g: all of the mixing where covers share the input.

    Shape: weight (M, units, inputs, ...) to the same. Costs nothing per sample.
    """
    if is_shared(mixer):
        return torch.tensordot(mixer[0, 0], weight, dims=1)
    parts = []
    for which, span in segments(weight.shape[2], mixer.shape[1]):
        part = weight[:, :, span]
        rows = part.reshape(*part.shape[:2], which.stop - which.start, -1)
        parts.append(torch.einsum("rgba,argi->brgi", mixer[:, which], rows).reshape(part.shape))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def is_shared(mixer: Tensor) -> bool:
    """Whether one kernel serves all units and blocks (the exact-Q mode)."""
    return mixer.shape[0] == mixer.shape[1] == 1


class _MixLinear(torch.autograd.Function):
    """Feature-major throughout, (units, M, N): products are (units × inputs)(inputs × N), mixing is
    one product for each unit, and what comes out is laid out as the next layer reads it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, mixer: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, mixer)
        covers, count, inputs = x.shape
        units, blocks = mixer.shape[:2]
        columns = x.transpose(1, 2)
        kernel = mixer.transpose(1, 2).reshape(units, covers, blocks * covers)
        result = x.new_empty(units, covers, count)
        for rows in _chunks(units):
            c = x.new_empty(blocks, covers, rows.stop - rows.start, count)
            for g, span in enumerate(block_slices(inputs, blocks)):
                torch.bmm(weight[:, rows, span], columns[:, span], out=c[g])
            torch.bmm(kernel[rows], c.flatten(0, 1).transpose(0, 1), out=result[rows])
        return result.permute(1, 2, 0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, mixer = ctx.saved_tensors
        covers, count, inputs = x.shape
        units, blocks = mixer.shape[:2]
        grad = grads[0].permute(2, 0, 1).contiguous()
        kernel = mixer.permute(0, 1, 3, 2).reshape(units, blocks * covers, covers)
        need_x, need_weight = ctx.needs_input_grad[:2]
        grad_x = x.new_empty(inputs, covers, count).transpose(0, 1) if need_x else None
        grad_weight = torch.empty_like(weight) if need_weight else None
        spans = block_slices(inputs, blocks)
        for first in range(0, blocks, BLOCKS):
            there = slice(first * covers, (first + BLOCKS) * covers)
            c = torch.bmm(kernel[:, there], grad).unflatten(1, (-1, covers))
            for g, span in enumerate(spans[first : first + BLOCKS]):
                back = c[:, g].transpose(0, 1)
                if grad_weight is not None:
                    grad_weight[:, :, span] = torch.bmm(back, x[:, :, span])
                if grad_x is not None:
                    torch.bmm(weight[:, :, span].transpose(1, 2), back, out=grad_x[:, span])
        return None if grad_x is None else grad_x.transpose(1, 2), grad_weight, None


class _MixCommon(torch.autograd.Function):
    """One input (N, inputs) for all covers: mix the weights, then one product for all covers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, mixer: Tensor) -> Tensor:
        rows = _mix_rows(weight.transpose(0, 1), mixer)
        ctx.save_for_backward(x, mixer, rows if ctx.needs_input_grad[0] else None)
        y = rows.flatten(0, 1) @ x.T
        return y.unflatten(0, rows.shape[:2]).permute(1, 2, 0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, mixer, rows = ctx.saved_tensors
        grad = grads[0].permute(2, 0, 1).contiguous().flatten(0, 1)
        grad_x = grad.T @ rows.flatten(0, 1) if ctx.needs_input_grad[0] else None
        grad_weight = None
        if ctx.needs_input_grad[1]:
            back = (grad @ x).unflatten(0, mixer.shape[::2])
            like = back.new_empty(back.shape[1], back.shape[0], back.shape[2])
            grad_weight = _mix_rows(back, mixer.transpose(2, 3), like.transpose(0, 1))
            grad_weight = grad_weight.transpose(0, 1)
        return grad_x, grad_weight, None


def _mix_rows(rows: Tensor, mixer: Tensor, out: Tensor | None = None) -> Tensor:
    """Σ_α Q̂[r,g,β,α] W[r,α,i∈g], shape (units, M, inputs): one product for each unit and block."""
    out = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device) if out is None else out
    for g, span in enumerate(block_slices(rows.shape[2], mixer.shape[1])):
        out[:, :, span] = torch.bmm(mixer[:, g], rows[:, :, span])
    return out


def _chunks(units: int) -> Iterator[slice]:
    for start in range(0, units, UNITS):
        yield slice(start, min(start + UNITS, units))
