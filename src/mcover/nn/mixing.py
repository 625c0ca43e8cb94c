"""The layers that covers compute together when they meet, with mixed block messages.

A mixer has shape (units, blocks, M, M), where row β is the cover that reads and column α the cover
that is read, or (1, 1, M, M) if all units and blocks have the same one (the exact mode).
Activations are one tensor per cover; no stacked copy of them is kept.

There are three ways to compute a layer:

- *All covers have the same input tensor*, as in the first layer. Mixing commutes with the product,
  so the weights are mixed instead, W_eff[β] = Σ_α Q̂[r,g,β,α] W[α] on block g, at no cost per
  sample. :mod:`mcover.nn.meetings` recognises a common tensor by its identity or memory, which is
  why inputs are not copied for each cover.
- *The mixer is exact*, that is, the same for all units and blocks. Each cover computes the base's
  layer, and the results are mixed.
- *Otherwise* the messages of each block are mixed (:mod:`mcover.nn.contributions`).

This module knows nothing of ranks: :mod:`mcover.distributed.exchange` wraps :class:`Rules`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mcover.errors import McoverError
from mcover.nn.blocks import join, split
from mcover.nn.contributions import Covers, Geometry, MixConvolution, MixLinear


class Product(Protocol):
    """A layer that multiplies inputs by weights, as mixing needs it."""

    def check(self, x: Tensor, weight: Tensor) -> None:
        """Refuses inputs that do not fit the stack of weights."""

    def of_one_cover(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The base's layer."""

    def of_messages(self, xs: Covers, weight: Tensor, mixer: Tensor, bias: Tensor | None) -> Covers:
        """The layer of all covers, each with its own input, with mixed block messages."""

    def add_bias(self, y: Tensor, bias: Tensor) -> Tensor:
        """Adds a bias to an output that was computed without one."""


class Linear:
    """x W^T + b.

    Shape: x (..., inputs); weight (units, inputs); bias (units,). Stacks have the covers first.
    """

    def check(self, x: Tensor, weight: Tensor) -> None:
        if x.shape[-1:] != weight.shape[-1:]:
            raise McoverError(
                f"a linear layer was given inputs of shape {tuple(x.shape)}: the last axis should "
                f"have {weight.shape[-1]} numbers."
            )

    def of_one_cover(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    def of_messages(self, xs: Covers, weight: Tensor, mixer: Tensor, bias: Tensor | None) -> Covers:
        return apply(MixLinear, weight, mixer, bias, None, *xs)

    def add_bias(self, y: Tensor, bias: Tensor) -> Tensor:
        return y + bias


@dataclass(frozen=True)
class Convolution:
    """A convolution, with blocks of the channels that one output channel reads.

    Shape: x (B, channels, *space); weight (units, channels / groups, *kernel); bias (units,).
    Stacks have the covers first.
    """

    at: Geometry

    def check(self, x: Tensor, weight: Tensor) -> None:
        if not self.at.fits(x, weight[0]):
            raise McoverError(
                f"a convolution with weights of shape {tuple(weight.shape[1:])} was given inputs "
                f"of shape {tuple(x.shape)}."
            )

    def of_one_cover(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.at.convolve(x, weight, bias, self.at.groups)

    def of_messages(self, xs: Covers, weight: Tensor, mixer: Tensor, bias: Tensor | None) -> Covers:
        return apply(MixConvolution, weight, mixer, bias, self.at, *xs)

    def add_bias(self, y: Tensor, bias: Tensor) -> Tensor:
        return y + bias.view(-1, *[1] * (y.ndim - 2))


def mix_product(
    product: Product,
    xs: Covers | Tensor,
    weight: Tensor,
    mixer: Tensor,
    bias: Tensor | None = None,
) -> Covers:
    """A layer of all covers with mixed block messages; biases are not mixed.

    Shape: xs is one tensor for each column of the mixer, or one that all covers share; weight is a
    stack. Returns one tensor for each row of the mixer.
    """
    product.check(xs if isinstance(xs, Tensor) else xs[0], weight)
    if isinstance(xs, Tensor):
        return multiply_shared(product, xs, mix_weights(weight, mixer), bias)
    if not _is_exact(mixer):
        return product.of_messages(xs, weight, mixer, bias)
    own = [product.of_one_cover(x, w, None) for x, w in zip(xs, weight, strict=True)]
    return with_biases(product, mix_slices(own, mixer), bias)


def multiply_shared(product: Product, x: Tensor, mixed: Covers, bias: Tensor | None) -> Covers:
    """The layer of covers that share the input ``x``, given their mixed weights."""
    biases = [None] * len(mixed) if bias is None else bias.unbind()
    return tuple(product.of_one_cover(x, w, b) for w, b in zip(mixed, biases, strict=True))


def with_biases(product: Product, ys: Covers, bias: Tensor | None) -> Covers:
    """Adds the bias of each cover, if there is one, to its output."""
    if bias is None:
        return ys
    return tuple(product.add_bias(y, b) for y, b in zip(ys, bias.unbind(), strict=True))


def mix_slices(slices: Sequence[Tensor], mixer: Tensor) -> Covers:
    """Σ_α Q̂[r,0,β,α] slices[α] for a single block; M tensors (..., units) to M of that shape."""
    return apply(_MixSlices, mixer[:, 0], *slices)


def mix_weights(weight: Tensor, mixer: Tensor) -> Covers:
    """W_eff[β] = Σ_α Q̂[r,g,β,α] W[α] on block g, the mixed weights for covers that share an input.

    Shape: weight (M, units, inputs, ...) to M tensors (units, inputs, ...).
    """
    if _is_exact(mixer):
        return torch.tensordot(mixer[0, 0], weight, dims=1).unbind()
    w = split(weight, 2, mixer.shape[1])  # (M, units, blocks, width, ...)
    mixed = torch.bmm(mixer.flatten(0, 1), w.flatten(3).flatten(1, 2).transpose(0, 1))
    by_block = [own.reshape(w.shape[1:]) for own in mixed.unbind(1)]
    return tuple(join(own, 1, weight.shape[2]) for own in by_block)


class Rules:
    """The computations at meetings. A subclass may wrap them, e.g. to sum over processes."""

    def product(
        self,
        product: Product,
        xs: Covers | Tensor,
        weight: Tensor,
        mixer: Tensor,
        bias: Tensor | None,
    ) -> Covers:
        """A product of inputs with weights: :func:`mix_product`."""
        return mix_product(product, xs, weight, mixer, bias)

    def lookup(self, slices: Sequence[Tensor], mixer: Tensor) -> Covers:
        """Rows that covers looked up in an embedding: :func:`mix_slices`."""
        return mix_slices(slices, mixer)


def _is_exact(mixer: Tensor) -> bool:
    return mixer.shape[0] == mixer.shape[1] == 1


def apply(function: Any, *given: Any) -> Covers:
    """Applies an autograd function; its ``apply`` has no types."""
    outs: Covers = function.apply(*given)
    return outs


class _MixSlices(torch.autograd.Function):
    """Linear in the slices, so its backward is itself with the adjoint of q (units or 1, M, M)."""

    @staticmethod
    def forward(q: Tensor, *slices: Tensor) -> Covers:
        stacked = torch.stack(slices)
        if len(q) == 1:
            mixed = torch.tensordot(q[0], stacked, dims=1)
        else:
            mixed = torch.einsum("rba,a...r->b...r", q, stacked)
        return tuple(own.clone(memory_format=torch.contiguous_format) for own in mixed)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Covers) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *apply(_MixSlices, ctx.saved_tensors[0].mH, *grads)
