"""Block messages of convolutions: blocks of input channels, mixed per output channel.

Shapes: x (M, B, channels, *space), weight (M, units, channels / groups, *kernel). Blocks divide the
channels that one output channel sees, so that grouped and depthwise convolutions mix too.

On a processor :mod:`mcover.nn.kernels` does it, or torch does the same convolution by convolution
where a mode counts operations. Elsewhere convolutions of thin blocks are slow, and one of all pairs
of covers wins while covers are few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mcover.errors import McoverError
from mcover.nn import kernels
from mcover.nn.mixing import block_slices, edges_of, is_shared, mix_outputs, mix_weights, once

CACHE = 2**19  # numbers that contributions may take on a processor
NARROW = 1200  # covers times numbers in a kernel up to which pairs of covers win
THICK = 64  # numbers in a block's kernel from which a convolution of each block wins


@dataclass(frozen=True)
class Geometry:
    """Stride, dilation and groups; padding is in the input already or a number for each side."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def check(self, x: Tensor, weight: Tensor) -> None:
        """Refuses inputs that a convolution of one cover, with this weight, cannot take."""
        kernel = weight.shape[2:]
        channels = weight.shape[1] * self.groups
        if x.ndim != weight.ndim or x.shape[1] != channels:
            raise McoverError(
                f"a convolution was given inputs of shape {tuple(x.shape)}: they should have "
                f"{channels} channels and {weight.ndim} axes, or {weight.ndim - 1} for one sample."
            )
        space = zip(x.shape[2:], kernel, self.padding, self.dilation, strict=True)
        if any(size + 2 * pad < reach * (taps - 1) + 1 for size, taps, pad, reach in space):
            raise McoverError(
                f"a convolution was given inputs of size {tuple(x.shape[2:])}: with a padding of "
                f"{self.padding} they are smaller than its kernel, {tuple(kernel)} with a dilation "
                f"of {self.dilation}."
            )

    def convolve(self, x: Tensor, weight: Tensor, groups: int) -> Tensor:
        space = len(self.stride)
        return torch.convolution(
            x, weight, None, self.stride, self.padding, self.dilation, False, [0] * space, groups
        )

    def backward(
        self, grad: Tensor, x: Tensor, weight: Tensor, groups: int, need: tuple[bool, bool]
    ) -> tuple[Tensor, Tensor]:
        space = len(self.stride)
        grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
            grad, x, weight, None, self.stride, self.padding, self.dilation, False,
            [0] * space, groups, [*need, False],
        )  # fmt: skip
        return grad_x, grad_weight


def convolve_common(
    x: Tensor, weight: Tensor, mixer: Tensor, bias: Tensor | None, at: Geometry
) -> Tensor:
    """One input (B, channels, *space) for all covers; without kernels, weights are mixed first."""
    covers, units = weight.shape[:2]
    if not is_shared(mixer) and kernels.takes(x, weight, mixer):
        return _mix(x.expand(covers, *x.shape), weight, mixer, bias, at)
    # Groups come first among output channels, so that one grouped call serves all covers.
    grouped = mix_weights(weight, mixer).unflatten(1, (at.groups, -1)).transpose(0, 1)
    y = at.convolve(x, grouped.flatten(0, 2), at.groups)
    y = y.unflatten(1, (at.groups, covers, units // at.groups))
    return _plus(y.movedim(2, 0).flatten(2, 3), bias)


def convolve(x: Tensor, weight: Tensor, mixer: Tensor, bias: Tensor | None, at: Geometry) -> Tensor:
    """Inputs that differ between covers, shape (M, B, units, *space)."""
    if is_shared(mixer):
        y = at.convolve(_side_by_side(x), weight.flatten(0, 1), len(x) * at.groups)
        y = y.unflatten(1, weight.shape[:2]).movedim(1, 0)
        return _plus(mix_outputs(y, mixer), bias)
    kernel = weight[0, 0].numel()
    thin = kernel < THICK * mixer.shape[1]
    if thin and len(weight) * kernel <= NARROW and not kernels.takes(x, weight, mixer):
        return _plus(_convolve_pairs(x, weight, mixer, at), bias)
    return _mix(x, weight, mixer, bias, at)


def _plus(y: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return y
    return y + bias.view(len(bias), 1, -1, *(1,) * (y.ndim - 3))


def _mix(x: Tensor, weight: Tensor, mixer: Tensor, bias: Tensor | None, at: Geometry) -> Tensor:
    mixed: Tensor = _MixConvolution.apply(x, weight, mixer, bias, at)  # type: ignore[no-untyped-call]
    return mixed


def _convolve_pairs(x: Tensor, weight: Tensor, mixer: Tensor, at: Geometry) -> Tensor:
    """One convolution from the channels of all covers to those of all: each pair has its weights.

    M times the arithmetic of M convolutions, but in one call with wide channels.
    """
    covers, _, channels = weight.shape[:3]
    spans = block_slices(channels, mixer.shape[1])
    sizes = torch.tensor([span.stop - span.start for span in spans], device=mixer.device)
    factors = mixer.repeat_interleave(sizes, 1, output_size=channels).permute(0, 2, 3, 1)
    space = (1,) * len(at.stride)
    # (units, M reading, M read, channels, *kernel)
    pairs = weight.transpose(0, 1).unsqueeze(1) * factors.reshape(*factors.shape, *space)
    grouped = pairs.unflatten(0, (at.groups, -1)).transpose(1, 2).flatten(0, 2).flatten(1, 2)
    inputs = x.unflatten(2, (at.groups, -1)).permute(1, 2, 0, *range(3, x.ndim + 1))
    y = at.convolve(inputs.flatten(1, 3), grouped, at.groups)
    return y.unflatten(1, (at.groups, covers, -1)).movedim(2, 0).flatten(2, 3)


def _side_by_side(x: Tensor) -> Tensor:
    """(M, B, channels, ...) to (B, M · channels, ...): covers as groups of one convolution."""
    return x.transpose(0, 1).flatten(1, 2)


class _MixConvolution(torch.autograd.Function):
    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, mixer: Tensor, bias: Tensor | None, at: Geometry
    ) -> Tensor:
        covers, units = weight.shape[:2]
        if kernels.fits(x, weight, mixer):
            return kernels.convolution_forward(
                _laid(x), weight.contiguous(), mixer, None if bias is None else bias.contiguous(),
                _edges(weight, mixer), (at.stride, at.padding, at.dilation), at.groups,
            )  # fmt: skip
        parts = []
        for few in x.split(_samples(x, units), 1):
            total: Tensor | None = None
            for g, span in enumerate(block_slices(weight.shape[2], mixer.shape[1])):
                part = weight[:, :, span].flatten(0, 1)
                c = at.convolve(_block(few, span, at), part, covers * at.groups)
                mixed = torch.einsum(
                    "rba,nar...->rbn...", mixer[:, g], c.unflatten(1, (covers, -1))
                )
                total = mixed if total is None else total.add_(mixed)
            if total is None:
                raise AssertionError("a mixer has at least one block")
            parts.append(total.movedim(0, 2))
        return _plus(torch.cat(parts, 1), bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.at = inputs[4]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mixer = ctx.saved_tensors
        at: Geometry = ctx.at
        covers, units = weight.shape[:2]
        need = ctx.needs_input_grad[:2]
        grad_bias = None
        if ctx.needs_input_grad[3]:
            grad_bias = grads[0].sum((1, *range(3, x.ndim)))
        if once() and kernels.fits(grads[0], x, weight, mixer):
            grad_x, grad_weight = kernels.convolution_backward(
                _laid(grads[0]), _laid(x), weight.contiguous(), mixer,
                _edges(weight, mixer), (at.stride, at.padding, at.dilation), at.groups, need,
            )  # fmt: skip
            return grad_x, grad_weight, None, grad_bias, None
        size = _samples(x, units)
        grad_x = torch.empty_like(x) if need[0] else None
        grad_weight = torch.zeros_like(weight) if need[1] else None
        for start in range(0, x.shape[1], size):
            few, grad = (t[:, start : start + size] for t in (x, grads[0]))
            into = None if grad_x is None else grad_x[:, start : start + size]
            for g, span in enumerate(block_slices(weight.shape[2], mixer.shape[1])):
                c = torch.einsum("rba,bnr...->nar...", mixer[:, g], grad).flatten(1, 2)
                part = weight[:, :, span]
                to_x, to_weight = at.backward(
                    c, _block(few, span, at), part.flatten(0, 1), covers * at.groups, need
                )
                if into is not None:
                    back = to_x.unflatten(1, (covers, at.groups, -1)).transpose(0, 1)
                    into.unflatten(2, (at.groups, -1))[:, :, :, span] = back
                if grad_weight is not None:
                    grad_weight[:, :, span] += to_weight.view(part.shape)
        return grad_x, grad_weight, None, grad_bias, None


def _laid(x: Tensor) -> Tensor:
    """With each sample of each cover in one piece, wherever it lies."""
    return x if x[0, 0].is_contiguous() else x.contiguous()


def _edges(weight: Tensor, mixer: Tensor) -> list[int]:
    return edges_of(block_slices(weight.shape[2], mixer.shape[1]))


def _samples(x: Tensor, units: int) -> int:
    """How many samples at a time: on a processor, as many as keep contributions in its cache."""
    if x.device.type != "cpu":
        return x.shape[1]
    each = len(x) * units * x[0, 0, 0].numel()
    return max(1, CACHE // each)


def _block(x: Tensor, span: slice, at: Geometry) -> Tensor:
    """One block of channels of each group and cover, as groups of one convolution."""
    return _side_by_side(x.unflatten(2, (at.groups, -1))[:, :, :, span].flatten(2, 3))
