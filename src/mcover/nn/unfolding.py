"""Mixing convolutions on a processor as mixing products: patches are samples, taps are inputs.

A block of a few channels makes for a thin convolution, which libraries do slowly; as a product it
is one call of :mod:`mcover.nn.kernels` for all blocks. Patches are copied out for a few samples at
a time, so that they stay in the cache, and never kept.

Shapes: x (M, B, channels, *space), weight (M, units, channels, *kernel), one group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.autograd.function import once_differentiable

from mcover.nn import kernels

CACHE = 2**20  # numbers of patches at a time


def convolve_unfolded(
    x: Tensor,
    weight: Tensor,
    mixer: Tensor,
    edges: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """Mixed messages (M, B, units, *space); blocks of channels lie between ``edges``."""
    patches = _Patches(weight.shape[3:], stride, padding, dilation)
    mixed: Tensor = _MixUnfolded.apply(x, weight, mixer, edges, patches)  # type: ignore[no-untyped-call]
    return mixed


class _Patches:
    """Which numbers of an input each tap of a kernel meets."""

    def __init__(
        self,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
    ) -> None:
        self.kernel, self.stride, self.dilation = tuple(kernel), stride, dilation
        self.padding = [side for pad in reversed(padding) for side in (pad, pad)]
        self.inside = [slice(pad, -pad or None) for pad in padding]

    def space(self, x: Tensor) -> list[int]:
        """The sizes of the result."""
        padded = [size + 2 * pad for size, pad in zip(x.shape[3:], self.padding[::-2], strict=True)]
        return [
            (size - reach * (taps - 1) - 1) // step + 1
            for size, reach, taps, step in zip(
                padded, self.dilation, self.kernel, self.stride, strict=True
            )
        ]

    def taps(self, padded: Tensor, space: Sequence[int]) -> Iterator[Tensor]:
        """Views (channels, M, B, *space) of what each tap meets."""
        channels_first = padded.movedim(2, 0)
        for tap in product(*(range(taps) for taps in self.kernel)):
            where: list[Any] = [
                slice(at * reach, at * reach + step * (size - 1) + 1, step)
                for at, reach, step, size in zip(
                    tap, self.dilation, self.stride, space, strict=True
                )
            ]
            yield channels_first[..., *where]

    def unfold(self, x: Tensor, space: Sequence[int]) -> Tensor:
        """Patches (M, samples, channels · taps), of which samples are neighbours in memory."""
        covers, few, channels = x.shape[:3]
        taps = list(self.taps(F.pad(x, self.padding), space))
        patches = x.new_empty(channels, len(taps), covers, few, *space)
        for k, tap in enumerate(taps):
            patches[:, k] = tap
        return patches.view(channels * len(taps), covers, -1).permute(1, 2, 0)

    def fold(self, grad: Tensor, into: Tensor, space: Sequence[int]) -> None:
        """Adds up the gradient of patches, (channels · taps, M, samples), where they came from."""
        covers, few, channels = into.shape[:3]
        padded = F.pad(torch.zeros_like(into), self.padding)
        parts = grad.view(channels, -1, covers, few, *space)
        for k, tap in enumerate(self.taps(padded, space)):
            tap += parts[:, k]
        into.copy_(padded[..., *self.inside])


class _MixUnfolded(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, mixer: Tensor, edges: Sequence[int], patches: _Patches
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mixer)
        ctx.patches = patches
        taps = weight[0, 0, 0].numel()
        ctx.edges = [taps * edge for edge in edges]
        space = patches.space(x)
        flat = weight.flatten(2).contiguous()
        result = x.new_empty(*x.shape[:2], weight.shape[1], *space)
        for few in _samples(x, flat, space):
            y = kernels.message_forward(
                patches.unfold(x[:, few], space), flat, mixer, None, ctx.edges
            )
            result[:, few] = y.unflatten(2, (-1, *space)).movedim(0, 2)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mixer = ctx.saved_tensors
        patches: _Patches = ctx.patches
        need = ctx.needs_input_grad[:2]
        space = patches.space(x)
        flat = weight.flatten(2).contiguous()
        grad_x = torch.empty_like(x) if need[0] else None
        grad_weight = torch.zeros_like(flat) if need[1] else None
        for few in _samples(x, flat, space):
            grad = grads[0][:, few].movedim(2, 0).flatten(2).contiguous()
            to_x, to_weight = kernels.message_backward(
                grad, patches.unfold(x[:, few], space), flat, mixer, ctx.edges, need
            )
            if grad_x is not None and to_x is not None:
                patches.fold(to_x, grad_x[:, few], space)
            if grad_weight is not None and to_weight is not None:
                grad_weight += to_weight
        if grad_weight is not None:
            grad_weight = grad_weight.view(weight.shape)
        return grad_x, grad_weight, None, None, None


def _samples(x: Tensor, flat: Tensor, space: Sequence[int]) -> list[slice]:
    """A few samples at a time."""
    each = len(x) * flat.shape[2]
    for size in space:
        each *= size
    few = max(1, CACHE // max(1, each))
    return [slice(start, start + few) for start in range(0, x.shape[1], few)]
