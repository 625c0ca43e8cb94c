"""Block messages: their forward and backward, which never keep the contributions of blocks.

a[β] = Σ_g Σ_α Q̂[r,g,β,α] C[g,α], where C[g,α] is the contribution of cover α to unit r from the
inputs in block g: the product, or convolution, of that block alone. Q̂ is constant, so the backward
needs activations, weights and Q̂, but not C. That is why these are custom autograd functions:
autograd would keep every C, which takes G times the memory of the outputs of all covers.

- Linear layers: the contributions of all blocks to a panel of units are one batched product for
  each cover, and mixing them is one more, with a matrix of M × M·G for each unit. Panels of units
  and chunks of samples are so small that their contributions fit ``WORKSPACE`` and stay in the
  cache between the product that computes them and the one that mixes them.
- Convolutions: one grouped convolution computes the contributions of all covers and blocks, with
  one group for each pair. It takes a few samples at a time, for the same reason.

These loops write into preallocated memory, so autograd cannot differentiate them. For second
derivatives the backward differentiates the paper's sum, written out in ``_linear_equation`` and
``_convolution_equation``, which are slow and easy to check.

A mixer need not be square. With :mod:`mcover.distributed` it has a column only for each cover of
this rank and a row for every cover. The results are then partial sums, which the ranks add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.func import vjp

from mcover.nn.blocks import (
    block_slices,
    by_block,
    by_unit,
    even_slices,
    join,
    length,
    split,
    weights_by_block,
)

Covers = tuple[Tensor, ...]

WORKSPACE = 2**20  # elements of contributions at a time, approximately
SAMPLES = 512  # most samples of a linear layer at a time


@dataclass(frozen=True)
class Geometry:
    """Stride, padding on both sides, dilation and groups of a convolution."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def fits(self, x: Tensor, weight: Tensor) -> bool:
        """Whether a convolution with this weight can take these inputs."""
        if x.ndim != weight.ndim or x.shape[1] != weight.shape[1] * self.groups:
            return False
        return all(size > 0 for size in self.space(x, weight))

    def space(self, x: Tensor, weight: Tensor) -> tuple[int, ...]:
        """The size of the output along each axis."""
        sizes = zip(
            x.shape[2:], weight.shape[2:], self.stride, self.padding, self.dilation, strict=True
        )
        return tuple(
            (size + 2 * pad - reach * (taps - 1) - 1) // step + 1
            for size, taps, step, pad, reach in sizes
        )

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
        convolve: Any = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(self.stride)]
        y: Tensor = convolve(x, weight, bias, self.stride, self.padding, self.dilation, groups)
        return y

    def backward(
        self, grad: Tensor, x: Tensor, weight: Tensor, groups: int, need: tuple[bool, bool]
    ) -> tuple[Any, Any]:
        """Gradients of x and of the weight; None for one that is not needed."""
        still = [0] * len(self.stride)
        grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
            grad, x, weight, None, self.stride, self.padding, self.dilation, False, still, groups,
            [*need, False],
        )  # fmt: skip
        return grad_x, grad_weight


class _Mix(torch.autograd.Function):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Covers) -> None:
        weight, mixer, _, ctx.at, *xs = inputs
        ctx.save_for_backward(weight, mixer, *xs)


class MixLinear(_Mix):
    """A linear layer with an input for each cover: batched products, then one more to mix them.

    Contributions are mixed with samples on the innermost axis, and layers have units there, so
    results and their gradients are transposed.
    """

    @staticmethod
    def forward(
        weight: Tensor, mixer: Tensor, bias: Tensor | None, at: None, *xs: Tensor
    ) -> Covers:
        (covers, units, inputs), blocks = weight.shape, mixer.shape[1]
        q, w = by_unit(mixer), split(weight, 2, blocks).transpose(1, 2)
        hs = [split(x.reshape(-1, inputs), 1, blocks).permute(1, 2, 0) for x in xs]
        readers = mixer.shape[2]
        outs = tuple(xs[0].new_empty(*xs[0].shape[:-1], units) for _ in range(readers))
        shift = weight.new_zeros(readers, units) if bias is None else bias
        for rows in even_slices(hs[0].shape[-1], SAMPLES):
            panels = _panels(units, covers * blocks * length(rows))
            widest = max(map(length, panels), default=0)
            made = weight.new_empty(covers, blocks, widest, length(rows))
            for panel in panels:
                c = made[:, :, : length(panel)]
                for own, h, into in zip(w, hs, c, strict=True):
                    torch.bmm(own[:, panel], h[..., rows], out=into)
                mixed = torch.bmm(q[panel], c.flatten(0, 1).transpose(0, 1))
                for beta, out in enumerate(outs):
                    into = out.view(-1, units)[rows, panel]
                    torch.add(mixed[:, beta].T, shift[beta, panel], out=into)
        return outs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weight, mixer, *xs = ctx.saved_tensors
        need_weight, _, need_bias, _, *need_xs = ctx.needs_input_grad
        grad_bias = _bias_gradient(grads, -1) if need_bias else None
        if torch.is_grad_enabled():
            to_weight, *to_xs = vjp(partial(_linear_equation, mixer), weight, *xs)[1](grads)
            return to_weight, None, grad_bias, None, *to_xs
        (covers, units, inputs), blocks = weight.shape, mixer.shape[1]
        q, w = by_unit(mixer).mH, split(weight, 2, blocks).transpose(1, 2).conj()
        hs = [split(x.reshape(-1, inputs), 1, blocks).transpose(0, 1).conj() for x in xs]
        _, samples, width = hs[0].shape
        to_weight = weight.new_empty(covers, units, blocks, width) if need_weight else None
        to_xs = [x.new_empty(samples, blocks, width) if any(need_xs) else None for x in xs]
        for rows in even_slices(samples, SAMPLES):
            sums = weight.new_empty(covers, blocks, length(rows), width)
            for panel in _panels(units, covers * blocks * length(rows)):
                # A padded stride: rows that lie whole pages apart compete for the same cache sets.
                transposed = weight.new_zeros(length(panel), len(grads), length(rows) | 16)
                for beta, grad in enumerate(grads):
                    transposed[:, beta, : length(rows)] = grad.reshape(-1, units)[rows, panel].T
                errors = torch.bmm(q[panel], transposed)[..., : length(rows)]
                errors = errors.unflatten(1, (covers, blocks)).permute(1, 2, 0, 3)
                # ``sums`` is contiguous for each cover, because writes to distant rows are slow.
                for alpha, error in enumerate(errors):
                    if any(need_xs):  # a sum over panels; the first one overwrites (beta=0)
                        into, own = sums[alpha], w[alpha, :, panel]
                        torch.baddbmm(into, error.mT, own, beta=panel.start > 0, out=into)
                    if to_weight is not None:  # a sum over samples
                        part = torch.bmm(error, hs[alpha][:, rows]).transpose(0, 1)
                        into = to_weight[alpha, panel]
                        into.add_(part) if rows.start else into.copy_(part)
                del errors, error  # free them before those of the next panel are computed
            for to_x, part in zip(to_xs, sums, strict=True):
                if to_x is not None:
                    to_x[rows] = part.transpose(0, 1)
        grad_xs = [
            None if to_x is None else join(to_x, 1, inputs).view(x.shape)
            for to_x, x in zip(to_xs, xs, strict=True)
        ]
        grad_weight = None if to_weight is None else join(to_weight, 2, inputs)
        return grad_weight, None, grad_bias, None, *grad_xs


class MixConvolution(_Mix):
    """A convolution with an input for each cover; its groups compute all contributions at once.

    Contributions have shape (samples, M · blocks, units, positions) and are mixed sample by sample.
    """

    @staticmethod
    def forward(
        weight: Tensor, mixer: Tensor, bias: Tensor | None, at: Geometry, *xs: Tensor
    ) -> Covers:
        (covers, units), blocks = weight.shape[:2], mixer.shape[1]
        q, w = by_unit(mixer), weights_by_block(weight, blocks, at.groups)
        readers, x = mixer.shape[2], xs[0]
        outs = tuple(x.new_empty(len(x), units, *at.space(x, weight[0])) for _ in range(readers))
        shift = (weight.new_zeros(readers, units) if bias is None else bias).unsqueeze(-1)
        for rows in _sample_chunks(outs[0], covers * blocks):
            x = by_block([x[rows] for x in xs], blocks, at.groups)
            c = at.convolve(x, w, None, covers * blocks * at.groups).contiguous()
            c = c.flatten(2).unflatten(1, (-1, units)).transpose(1, 2)
            mixed = c.new_empty(*c.shape[:2], readers, c.shape[-1])
            for one, into in zip(c, mixed, strict=True):
                torch.bmm(q, one, out=into)
            for beta, out in enumerate(outs):
                torch.add(mixed[:, :, beta], shift[beta], out=out[rows].flatten(2))
        return outs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weight, mixer, *xs = ctx.saved_tensors
        at: Geometry = ctx.at
        need_weight, _, need_bias, _, *need_xs = ctx.needs_input_grad
        grad_bias = _bias_gradient(grads, 1) if need_bias else None
        if torch.is_grad_enabled() or weight.is_complex():  # convolution_backward is real
            equation = partial(_convolution_equation, mixer, at)
            to_weight, *to_xs = vjp(equation, weight, *xs)[1](grads)
            return to_weight, None, grad_bias, None, *to_xs
        (covers, units), blocks = weight.shape[:2], mixer.shape[1]
        q, w = by_unit(mixer).mT, weights_by_block(weight, blocks, at.groups)
        grad_w = torch.zeros_like(w) if need_weight else None
        need_x = any(need_xs)
        to_xs = tuple(x.new_empty(x.shape) for x in xs if need_x)
        for rows in _sample_chunks(grads[0], covers * blocks):
            g = torch.stack([grad[rows].flatten(2) for grad in grads], 2)
            errors = g.new_empty(len(g), covers * blocks, units, g.shape[-1])
            for one, into in zip(g, errors, strict=True):
                into.copy_(torch.bmm(q, one).transpose(0, 1))
            errors = errors.flatten(1, 2).unflatten(2, grads[0].shape[2:])
            x = by_block([x[rows] for x in xs], blocks, at.groups)
            need = need_x, need_weight
            to_x, part = at.backward(errors, x, w, covers * blocks * at.groups, need)
            if grad_w is not None:
                grad_w += part
            if need_x:
                by_cover = to_x.unflatten(1, (covers, blocks, at.groups, -1)).transpose(2, 3)
                for into, own in zip(to_xs, by_cover.unbind(1), strict=True):
                    into[rows] = join(own, 2, weight.shape[2]).flatten(1, 2)
        grad_weight = None
        if grad_w is not None:
            by_group = grad_w.unflatten(0, (covers, blocks, at.groups, -1)).movedim(1, 3)
            grad_weight = join(by_group, 3, weight.shape[2]).flatten(1, 2)
        return grad_weight, None, grad_bias, None, *(to_xs or [None] * covers)


def _linear_equation(mixer: Tensor, weight: Tensor, *xs: Tensor) -> Covers:
    """The paper's sum as it is written, for second derivatives."""
    parts = []
    for g, span in enumerate(block_slices(weight.shape[2], mixer.shape[1])):
        c = [F.linear(x[..., span], w[:, span]) for x, w in zip(xs, weight, strict=True)]
        parts.append(torch.einsum("rba,a...r->b...r", mixer[:, g], torch.stack(c)))
    return sum(parts[1:], parts[0]).unbind()


def _convolution_equation(mixer: Tensor, at: Geometry, weight: Tensor, *xs: Tensor) -> Covers:
    parts = []
    for g, span in enumerate(block_slices(weight.shape[2], mixer.shape[1])):
        hs = [x.unflatten(1, (at.groups, -1))[:, :, span].flatten(1, 2) for x in xs]
        c = [at.convolve(h, w[:, span], None, at.groups) for h, w in zip(hs, weight, strict=True)]
        parts.append(torch.einsum("rba,anr...->bnr...", mixer[:, g], torch.stack(c)))
    return sum(parts[1:], parts[0]).unbind()


def _bias_gradient(grads: Sequence[Tensor], axis: int) -> Tensor:
    """Sums over all axes except ``axis``, that of the units."""
    others = [k for k in range(grads[0].ndim) if k != axis % grads[0].ndim]
    return torch.stack([grad.sum(others) if others else grad for grad in grads])


def _panels(units: int, contributions: int) -> list[slice]:
    """Panels of units; the contributions to a panel, so many to each unit, fit the workspace.

    Widths are multiples of 16, because products of other widths are slower.
    """
    wide = max(16, WORKSPACE // max(1, contributions) // 16 * 16)
    return [slice(start, min(start + wide, units)) for start in range(0, units, wide)]


def _sample_chunks(out: Tensor, contributions: int) -> list[slice]:
    """Chunks of the samples of a convolution; ``out`` is the output of one cover."""
    workspace = WORKSPACE if out.device.type == "cpu" else 32 * WORKSPACE
    return even_slices(len(out), max(1, workspace // (contributions * max(1, out[:1].numel()))))
