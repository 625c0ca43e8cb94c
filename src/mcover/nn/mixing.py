"""Block messages mixed across covers: a[β] = Σ_g Σ_α Q̂[r,g,β,α] C[g,α] (the paper's MLP section).

Mixers are constants, so backward needs activations, weights and Q̂, but never the contributions C:
they are made for one block at a time, used and dropped, forward and backward.

Shapes: x (M, N, inputs), weight (M, units, inputs), mixer (units, blocks, M, M) with row β the
cover that reads, or (1, 1, M, M) where one kernel serves all units and blocks.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from mcover.nn.mixing_kernels import fits, mix_rows

CACHE = 2**19  # numbers that are worked on at a time on a processor
SMALL = 2**20  # multiplications in a product that costs no more than its call


def block_slices(inputs: int, blocks: int, taps: int = 1) -> list[slice]:
    """The inputs of each block: blocks of near-equal size, inputs of ``taps`` numbers whole.

    >>> block_slices(5, 2)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    size, wider = divmod(inputs // taps, blocks)
    edges = [taps * (g * size + min(g, wider)) for g in range(blocks + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def mix_linear(x: Tensor, weight: Tensor, mixer: Tensor, bias: Tensor | None = None) -> Tensor:
    """The routed preactivations, shape (M, N, units), of inputs that differ between covers."""
    if is_shared(mixer):
        y = mix_outputs(torch.bmm(x, weight.transpose(1, 2)), mixer)
        return y if bias is None else y + bias.unsqueeze(1)
    mixed: Tensor = _MixLinear.apply(x, weight, mixer, bias)  # type: ignore[no-untyped-call]
    return mixed


def mix_common(x: Tensor, weight: Tensor, mixer: Tensor, bias: Tensor | None = None) -> Tensor:
    """The same where all covers share the inputs (N, inputs): products with mixed weights."""
    if is_shared(mixer):
        y = torch.matmul(x, mix_weights(weight, mixer).transpose(1, 2))
        return y if bias is None else y + bias.unsqueeze(1)
    mixed: Tensor = _MixCommon.apply(x, weight, mixer, bias)  # type: ignore[no-untyped-call]
    return mixed


def mix_outputs(contributions: Tensor, mixer: Tensor) -> Tensor:
    """Σ_α Q̂[r,0,β,α] C[α] for one block, units last: shape (M, ..., units)."""
    if is_shared(mixer):
        return torch.tensordot(mixer[0, 0], contributions, dims=1)
    return torch.einsum("rba,a...r->b...r", mixer[:, 0], contributions)


def mix_weights(weight: Tensor, mixer: Tensor) -> Tensor:
    """W_eff[β] = Σ_α Q̂[r,g,β,α] W[α] on block g: all of the mixing where covers share the input.

    Shape: weight (M, units, inputs, ...) to the same, units first in memory. Costs nothing per
    sample.
    """
    if is_shared(mixer):
        return torch.tensordot(mixer[0, 0], weight, dims=1)
    taps = weight[0, 0, 0].numel()
    mixed: Tensor = _MixWeights.apply(weight.flatten(2), mixer, taps)  # type: ignore[no-untyped-call]
    return mixed.view(weight.transpose(0, 1).shape).transpose(0, 1)


def is_shared(mixer: Tensor) -> bool:
    """Whether one kernel serves all units and blocks (the exact-Q mode)."""
    return mixer.shape[0] == mixer.shape[1] == 1


class _MixWeights(torch.autograd.Function):
    """(M, units, inputs) to (units, M, inputs)."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, mixer: Tensor, taps: int) -> Tensor:
        ctx.save_for_backward(mixer)
        ctx.spans = block_slices(weight.shape[2], mixer.shape[1], taps)
        return _mixed_rows(weight, mixer, ctx.spans, slice(0, weight.shape[1]))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (mixer,) = ctx.saved_tensors
        units, covers, inputs = grads[0].shape
        result = mixer.new_empty(covers, units, inputs)
        _mix_back(result, mixer, ctx.spans, slice(0, units), grads[0].contiguous())
        return result, None, None


class _MixCommon(torch.autograd.Function):
    """Mixed weights are made for a few units at a time, multiplied while in the cache, and dropped.

    Memory lies as in :class:`_MixLinear`.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, mixer: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, mixer)
        covers, units, inputs = weight.shape
        spans = block_slices(inputs, mixer.shape[1])
        result = x.new_empty(units, covers, len(x))
        for few in _tiles(weight):
            rows = _mixed_rows(weight, mixer, spans, few)
            torch.mm(rows.flatten(0, 1), x.T, out=result[few].flatten(0, 1))
        if bias is not None:
            result += bias.T.unsqueeze(-1)
        return result.permute(1, 2, 0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mixer = ctx.saved_tensors
        covers, _, inputs = weight.shape
        spans = block_slices(inputs, mixer.shape[1])
        grad = grads[0].permute(2, 0, 1).contiguous()
        need_x, need_weight, _, need_bias = ctx.needs_input_grad
        grad_x = torch.zeros_like(x) if need_x else None
        grad_weight = torch.empty_like(weight) if need_weight else None
        for few in _tiles(weight):
            errors = grad[few].flatten(0, 1)
            if grad_weight is not None:
                rows = torch.mm(errors, x).view(-1, covers, inputs)
                _mix_back(grad_weight, mixer, spans, few, rows)
            if grad_x is not None:
                rows = _mixed_rows(weight, mixer, spans, few)
                grad_x.addmm_(errors.T, rows.flatten(0, 1))
        grad_bias = grad.sum(2).T if need_bias else None
        return grad_x, grad_weight, None, grad_bias


def _tiles(weight: Tensor) -> list[slice]:
    """Units at a time: on a processor, as many as leave the rows of all covers in its cache."""
    covers, units, inputs = weight.shape
    size = units if weight.device.type != "cpu" else max(1, CACHE // (covers * inputs))
    return [slice(start, min(start + size, units)) for start in range(0, units, size)]


def _mixed_rows(weight: Tensor, mixer: Tensor, spans: list[slice], few: slice) -> Tensor:
    """The mixed weights of a few units, shape (few, M, inputs)."""
    covers, _, inputs = weight.shape
    rows = weight.new_empty(few.stop - few.start, covers, inputs)
    if fits(mixer, weight):
        mix_rows(mixer, weight, rows, [0, *(span.stop for span in spans)], few, back=False)
    else:
        for g, span in enumerate(spans):
            rows[:, :, span] = torch.bmm(mixer[few, g], weight[:, few, span].transpose(0, 1))
    return rows


def _mix_back(grad: Tensor, mixer: Tensor, spans: list[slice], few: slice, rows: Tensor) -> None:
    """Fills the gradient of a few units' weights from that of their mixed ones."""
    if fits(mixer, grad, rows):
        mix_rows(mixer, grad, rows, [0, *(span.stop for span in spans)], few, back=True)
    else:
        for g, span in enumerate(spans):
            back = torch.bmm(mixer[few, g].transpose(1, 2), rows[:, :, span])
            grad[:, few, span] = back.transpose(0, 1)


class _MixLinear(torch.autograd.Function):
    """Products are (units × inputs)(inputs × N), mixing is a product for each unit.

    In memory activations and their gradients lie as (units, M, N): what one layer writes the next
    one reads, and the elementwise operations between them see one layout.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, mixer: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight, mixer)
        covers, count, inputs = x.shape
        units, blocks = mixer.shape[:2]
        columns = x.transpose(1, 2)
        c = x.new_empty(covers, units, count)
        result = x.new_empty(units, covers, count)
        if bias is not None:
            result.copy_(bias.T.unsqueeze(-1))
        for g, span in enumerate(block_slices(inputs, blocks)):
            _products(weight[:, :, span], columns[:, span], out=c)
            # beta=0 ignores what is in the fresh memory, even where that is not a number
            fresh = g == 0 and bias is None
            beta = 0 if fresh else 1
            torch.baddbmm(result, mixer[:, g], c.transpose(0, 1), beta=beta, out=result)
        return result.permute(1, 2, 0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mixer = ctx.saved_tensors
        covers, count, inputs = x.shape
        units, blocks = mixer.shape[:2]
        grad = grads[0].permute(2, 0, 1).contiguous()
        need_x, need_weight, _, need_bias = ctx.needs_input_grad
        grad_x = x.new_empty(inputs, covers, count) if need_x else None
        grad_weight = torch.empty_like(weight) if need_weight else None
        c = x.new_empty(units, covers, count)
        for g, span in enumerate(block_slices(inputs, blocks)):
            torch.bmm(mixer[:, g].transpose(1, 2), grad, out=c)
            errors = c.transpose(0, 1)
            if grad_weight is not None:
                _products(errors, x[:, :, span], out=grad_weight[:, :, span])
            if grad_x is not None:
                to_x = weight[:, :, span].transpose(1, 2)
                _products(to_x, errors, out=grad_x[span].transpose(0, 1))
        grad_bias = grad.sum(2).T if need_bias else None
        return None if grad_x is None else grad_x.permute(1, 2, 0), grad_weight, None, grad_bias


def _products(a: Tensor, b: Tensor, out: Tensor) -> None:
    """A matrix product for each cover, into slices of larger tensors.

    On a processor BLAS writes into a slice as it is, where ``bmm`` goes through a copy: worth its
    calls where products are large.
    """
    if out.device.type == "cpu" and a[0].numel() * b.shape[2] > SMALL:
        for left, right, into in zip(a, b, out, strict=True):
            torch.mm(left, right, out=into)
    else:
        out.copy_(torch.bmm(a, b))
