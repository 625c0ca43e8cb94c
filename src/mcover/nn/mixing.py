"""Block messages mixed across covers: a[β] = Σ_g Σ_α Q̂[r,g,β,α] C[g,α] (the paper's MLP section).

Mixers are constants, so backward needs activations, weights and Q̂, but never the contributions C:
they are made for one block at a time, used and dropped, forward and backward. On a processor that
is done by :mod:`mcover.nn.kernels`; the same in torch's own calls serves everything else.

Shapes: x (M, N, inputs), weight (M, units, inputs), mixer (units, blocks, M, M) with row β the
cover that reads, or (1, 1, M, M) where one kernel serves all units and blocks.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from mcover.nn import kernels


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
    def forward(weight: Tensor, mixer: Tensor, taps: int) -> Tensor:
        return _mixed_rows(weight, mixer, block_slices(weight.shape[2], mixer.shape[1], taps))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        weight, mixer, taps = inputs
        ctx.save_for_backward(mixer)
        ctx.spans = block_slices(weight.shape[2], mixer.shape[1], taps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (mixer,) = ctx.saved_tensors
        return _mixed_back(grads[0], mixer, ctx.spans), None, None


class _MixCommon(torch.autograd.Function):
    """Products with mixed weights. Memory lies as in :class:`_MixLinear`."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, mixer: Tensor, bias: Tensor | None) -> Tensor:
        spans = block_slices(x.shape[1], mixer.shape[1])
        if kernels.fits(x, weight, mixer):
            result = kernels.common_forward(
                x, weight.contiguous(), mixer, _contiguous(bias), edges_of(spans)
            )
        else:
            rows = _mixed_rows(weight, mixer, spans)
            result = torch.mm(rows.flatten(0, 1), x.T).unflatten(0, rows.shape[:2])
            if bias is not None:
                result += bias.T.unsqueeze(-1)
        return result.permute(1, 2, 0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, mixer, _ = inputs
        ctx.save_for_backward(x, weight, mixer)
        ctx.spans = block_slices(x.shape[1], mixer.shape[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mixer = ctx.saved_tensors
        grad = grads[0].permute(2, 0, 1).contiguous()
        need_x, need_weight, _, need_bias = ctx.needs_input_grad
        grad_x = grad_weight = None
        if need_weight and once() and kernels.fits(grad, x, mixer):
            grad_weight = kernels.common_backward(grad, x, mixer, edges_of(ctx.spans))
        elif need_weight:
            rows = torch.mm(grad.flatten(0, 1), x).unflatten(0, grad.shape[:2])
            grad_weight = _mixed_back(rows, mixer, ctx.spans)
        if need_x:
            rows = _mixed_rows(weight, mixer, ctx.spans)
            grad_x = torch.mm(grad.flatten(0, 1).T, rows.flatten(0, 1))
        return grad_x, grad_weight, None, grad.sum(2).T if need_bias else None


def _mixed_rows(weight: Tensor, mixer: Tensor, spans: list[slice]) -> Tensor:
    """The mixed weights, shape (units, M, inputs)."""
    covers, units, inputs = weight.shape
    rows = weight.new_empty(units, covers, inputs)
    if once() and kernels.fits(mixer, weight):
        kernels.mix_rows(mixer, weight.contiguous(), rows, edges_of(spans), back=False)
    else:
        for g, span in enumerate(spans):
            rows[:, :, span] = torch.bmm(mixer[:, g], weight[:, :, span].transpose(0, 1))
    return rows


def _mixed_back(rows: Tensor, mixer: Tensor, spans: list[slice]) -> Tensor:
    """The gradient of weights (M, units, inputs) from that of the mixed ones."""
    units, covers, inputs = rows.shape
    grad = rows.new_empty(covers, units, inputs)
    if once() and kernels.fits(mixer, rows):
        kernels.mix_rows(mixer, grad, rows.contiguous(), edges_of(spans), back=True)
    else:
        for g, span in enumerate(spans):
            back = torch.bmm(mixer[:, g].transpose(1, 2), rows[:, :, span])
            grad[:, :, span] = back.transpose(0, 1)
    return grad


class _MixLinear(torch.autograd.Function):
    """Products are (units × inputs)(inputs × N), mixing is a product for each unit.

    In memory activations and their gradients lie as (units, M, N): what one layer writes the next
    one reads, and the elementwise operations between them see one layout.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, mixer: Tensor, bias: Tensor | None) -> Tensor:
        spans = block_slices(x.shape[2], mixer.shape[1])
        if kernels.fits(x, weight, mixer):
            result = kernels.message_forward(
                x, weight.contiguous(), mixer, _contiguous(bias), edges_of(spans)
            )
            return result.permute(1, 2, 0)
        covers, count, _ = x.shape
        columns = x.transpose(1, 2)
        result = x.new_zeros(len(mixer), covers, count)
        for g, span in enumerate(spans):
            c = torch.bmm(weight[:, :, span], columns[:, span])
            torch.baddbmm(result, mixer[:, g], c.transpose(0, 1), out=result)
        if bias is not None:
            result += bias.T.unsqueeze(-1)
        return result.permute(1, 2, 0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, mixer, _ = inputs
        ctx.save_for_backward(x, weight, mixer)
        ctx.spans = block_slices(x.shape[2], mixer.shape[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mixer = ctx.saved_tensors
        grad = grads[0].permute(2, 0, 1).contiguous()
        need_x, need_weight, _, need_bias = ctx.needs_input_grad
        if once() and kernels.fits(grad, x, weight, mixer):
            grad_x, grad_weight = kernels.message_backward(
                grad, x, weight.contiguous(), mixer, edges_of(ctx.spans), (need_x, need_weight)
            )
        else:
            covers, count, inputs = x.shape
            grad_x = x.new_empty(inputs, covers, count) if need_x else None
            grad_weight = torch.empty_like(weight) if need_weight else None
            for g, span in enumerate(ctx.spans):
                errors = torch.bmm(mixer[:, g].transpose(1, 2), grad).transpose(0, 1)
                if grad_weight is not None:
                    grad_weight[:, :, span] = torch.bmm(errors, x[:, :, span])
                if grad_x is not None:
                    to_x = torch.bmm(weight[:, :, span].transpose(1, 2), errors)
                    grad_x[span] = to_x.transpose(0, 1)
        if grad_x is not None:
            grad_x = grad_x.permute(1, 2, 0)
        return grad_x, grad_weight, None, grad.sum(2).T if need_bias else None


def edges_of(spans: list[slice]) -> list[int]:
    """Where blocks begin, and where the last one ends."""
    return [0, *(span.stop for span in spans)]


def once() -> bool:
    """Whether nobody differentiates what is computed: autograd does not see into the kernels.

    In a forward autograd is off; in a backward it is on if gradients are to have gradients.
    """
    return not torch.is_grad_enabled()


def _contiguous(bias: Tensor | None) -> Tensor | None:
    return None if bias is None else bias.contiguous()
