"""Block messages mixed across covers: a[β] = Σ_g Σ_α Q̂[r,g,β,α] C[g,α] (the paper's MLP section).

C[g,α] is what cover α contributes to unit r from its inputs of block g: a product, or a
convolution, of that block alone. Q̂ is constant, so a backward needs activations, weights and Q̂,
but never C: contributions are made for a few units and samples at a time, mixed and dropped,
forward and backward. Three observations make this cheap:

- contributions of all blocks of a panel of units are one batched product for each cover, and
  mixing them is one more, with a matrix of M × M·G for each unit;
- a convolution makes the contributions of all covers and blocks at once if they are its groups,
  with each group's weights reading one block;
- where covers share the input, mixing commutes with the product: weights are mixed instead,
  W_eff[β] = Σ_α Q̂[r,g,β,α] W[α] on block g, at no cost per sample.

Throughout, a mixer is (units, blocks, M, M) with row β the cover that reads and column α the one
that is read, or (1, 1, M, M) where one kernel serves all units and blocks (the exact mode).
Activations come and go as one tensor per cover: no stacked copy is ever kept.

Contributions of a linear layer would take M·G times the memory of its result if all were kept. They
are made in panels of units and pieces of samples whose contributions fit ``WORKSPACE``, so that
they stay in the cache. A backward that is differentiated again cannot use these in-place loops: it
falls back on the sum as written (``_linear_equation``), slow and obviously right.

A mixer need not be square. With fewer columns than rows, the results are sums over the covers that
are there, one for each row. What the missing covers would add is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.func import vjp

from mcover.errors import McoverError

Covers = tuple[Tensor, ...]

WORKSPACE = 2**20  # elements of contributions at a time, about
SAMPLES = 512  # of a linear layer at a time, at most


# --- what layers call -----------------------------------------------------------------------------


class Product(Protocol):
    """A layer that multiplies inputs by weights: what mixing has to know about it."""

    def check(self, x: Tensor, weight: Tensor) -> None:
        """Refuses inputs that do not fit the stack of weights."""

    def of_one_cover(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The base's own layer."""

    def of_messages(self, xs: Covers, weight: Tensor, mixer: Tensor, bias: Tensor | None) -> Covers:
        """The layer of all covers, each with its own input, its block messages mixed."""

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
        return _apply(_MixLinear, weight, mixer, bias, None, *xs)

    def add_bias(self, y: Tensor, bias: Tensor) -> Tensor:
        return y + bias


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
        """Gradients of x and of weight, or None where they are not needed."""
        still = [0] * len(self.stride)
        grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
            grad, x, weight, None, self.stride, self.padding, self.dilation, False, still, groups,
            [*need, False],
        )  # fmt: skip
        return grad_x, grad_weight


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
        return _apply(_MixConvolution, weight, mixer, bias, self.at, *xs)

    def add_bias(self, y: Tensor, bias: Tensor) -> Tensor:
        return y + bias.view(-1, *[1] * (y.ndim - 2))


def mix_product(
    product: Product,
    xs: Covers | Tensor,
    weight: Tensor,
    mixer: Tensor,
    bias: Tensor | None = None,
) -> Covers:
    """A layer of all covers with block messages mixed; each bias stays in its own cover.

    Shape: xs is one tensor a column of the mixer, or one that all covers share; weight is a stack.
    Gives one tensor a row of the mixer.
    """
    product.check(xs if isinstance(xs, Tensor) else xs[0], weight)
    biases = [None] * mixer.shape[2] if bias is None else bias.unbind()
    if isinstance(xs, Tensor):
        mixed = zip(mix_weights(weight, mixer), biases, strict=True)
        return tuple(product.of_one_cover(xs, w, b) for w, b in mixed)
    if not _is_exact(mixer):
        return product.of_messages(xs, weight, mixer, bias)
    own = [product.of_one_cover(x, w, None) for x, w in zip(xs, weight, strict=True)]
    outs = zip(mix_slices(own, mixer), biases, strict=True)
    return tuple(y if b is None else product.add_bias(y, b) for y, b in outs)


def mix_slices(slices: Sequence[Tensor], mixer: Tensor) -> Covers:
    """Σ_α Q̂[r,0,β,α] slices[α] for one block, units last; M tensors (..., units) to the same."""
    return _apply(_MixSlices, mixer[:, 0], *slices)


def mix_weights(weight: Tensor, mixer: Tensor) -> Covers:
    """W_eff[β] = Σ_α Q̂[r,g,β,α] W[α] on block g: all of the mixing where covers share the input.

    Shape: weight (M, units, inputs, ...) to M tensors (units, inputs, ...).
    """
    if _is_exact(mixer):
        return torch.tensordot(mixer[0, 0], weight, dims=1).unbind()
    w = _split(weight, 2, mixer.shape[1])  # (M, units, blocks, width, ...)
    mixed = torch.bmm(mixer.flatten(0, 1), w.flatten(3).flatten(1, 2).transpose(0, 1))
    by_block = [own.reshape(w.shape[1:]) for own in mixed.unbind(1)]
    return tuple(_join(own, 1, weight.shape[2]) for own in by_block)


class Rules:
    """What meetings compute. A subclass may wrap these, e.g. to add what other processes hold."""

    def product(
        self,
        product: Product,
        xs: Covers | Tensor,
        weight: Tensor,
        mixer: Tensor,
        bias: Tensor | None,
    ) -> Covers:
        """A product of inputs with weights, :func:`mix_product`."""
        return mix_product(product, xs, weight, mixer, bias)

    def lookup(self, slices: Sequence[Tensor], mixer: Tensor) -> Covers:
        """What covers looked up in an embedding, :func:`mix_slices`."""
        return mix_slices(slices, mixer)


def _is_exact(mixer: Tensor) -> bool:
    return mixer.shape[0] == mixer.shape[1] == 1


def _apply(function: Any, *given: Any) -> Covers:
    outs: Covers = function.apply(*given)
    return outs


# --- forward and backward -------------------------------------------------------------------------


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
        return None, *_apply(_MixSlices, ctx.saved_tensors[0].mH, *grads)


class _Mix(torch.autograd.Function):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Covers) -> None:
        weight, mixer, _, ctx.at, *xs = inputs
        ctx.save_for_backward(weight, mixer, *xs)


class _MixLinear(_Mix):
    """Per-cover inputs: batched products of a panel of units, then one more to mix them.

    Mixing wants samples innermost and layers want units innermost, so results and their gradients
    are transposed.
    """

    @staticmethod
    def forward(
        weight: Tensor, mixer: Tensor, bias: Tensor | None, at: None, *xs: Tensor
    ) -> Covers:
        (covers, units, inputs), blocks = weight.shape, mixer.shape[1]
        q, w = _by_unit(mixer), _split(weight, 2, blocks).transpose(1, 2)
        hs = [_split(x.reshape(-1, inputs), 1, blocks).permute(1, 2, 0) for x in xs]
        readers = mixer.shape[2]
        outs = tuple(xs[0].new_empty(*xs[0].shape[:-1], units) for _ in range(readers))
        shift = weight.new_zeros(readers, units) if bias is None else bias
        for rows in _cut(hs[0].shape[-1], SAMPLES):
            panels = _panels(units, covers * blocks * _length(rows))
            widest = max(map(_length, panels), default=0)
            made = weight.new_empty(covers, blocks, widest, _length(rows))
            for panel in panels:
                c = made[:, :, : _length(panel)]
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
        q, w = _by_unit(mixer).mH, _split(weight, 2, blocks).transpose(1, 2).conj()
        hs = [_split(x.reshape(-1, inputs), 1, blocks).transpose(0, 1).conj() for x in xs]
        _, samples, width = hs[0].shape
        to_weight = weight.new_empty(covers, units, blocks, width) if need_weight else None
        to_xs = [x.new_empty(samples, blocks, width) if any(need_xs) else None for x in xs]
        for rows in _cut(samples, SAMPLES):
            sums = weight.new_empty(covers, blocks, _length(rows), width)
            for panel in _panels(units, covers * blocks * _length(rows)):
                # Padded: with a stride of whole pages, rows would compete for the same cache lines.
                transposed = weight.new_zeros(_length(panel), len(grads), _length(rows) | 16)
                for beta, grad in enumerate(grads):
                    transposed[:, beta, : _length(rows)] = grad.reshape(-1, units)[rows, panel].T
                errors = torch.bmm(q[panel], transposed)[..., : _length(rows)]
                errors = errors.unflatten(1, (covers, blocks)).permute(1, 2, 0, 3)
                # Into memory of their own: two threads write slowly to rows far apart.
                for alpha, error in enumerate(errors):
                    if any(need_xs):  # a sum over panels: the first one starts it
                        into, own = sums[alpha], w[alpha, :, panel]
                        torch.baddbmm(into, error.mT, own, beta=panel.start > 0, out=into)
                    if to_weight is not None:  # a sum over samples
                        part = torch.bmm(error, hs[alpha][:, rows]).transpose(0, 1)
                        into = to_weight[alpha, panel]
                        into.add_(part) if rows.start else into.copy_(part)
                del errors, error  # before those of the next panel are made
            for to_x, part in zip(to_xs, sums, strict=True):
                if to_x is not None:
                    to_x[rows] = part.transpose(0, 1)
        grad_xs = [
            None if to_x is None else _join(to_x, 1, inputs).view(x.shape)
            for to_x, x in zip(to_xs, xs, strict=True)
        ]
        grad_weight = None if to_weight is None else _join(to_weight, 2, inputs)
        return grad_weight, None, grad_bias, None, *grad_xs


class _MixConvolution(_Mix):
    """Per-cover inputs: one convolution makes all contributions of a few samples, as its groups.

    They lie as (samples, M · blocks, units, positions), and are mixed sample by sample.
    """

    @staticmethod
    def forward(
        weight: Tensor, mixer: Tensor, bias: Tensor | None, at: Geometry, *xs: Tensor
    ) -> Covers:
        (covers, units), blocks = weight.shape[:2], mixer.shape[1]
        q, w = _by_unit(mixer), _weights_by_block(weight, blocks, at.groups)
        readers, x = mixer.shape[2], xs[0]
        outs = tuple(x.new_empty(len(x), units, *at.space(x, weight[0])) for _ in range(readers))
        shift = (weight.new_zeros(readers, units) if bias is None else bias).unsqueeze(-1)
        for rows in _few(outs[0], covers * blocks):
            x = _by_block([x[rows] for x in xs], blocks, at.groups)
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
        q, w = _by_unit(mixer).mT, _weights_by_block(weight, blocks, at.groups)
        by_block = torch.zeros_like(w) if need_weight else None
        need_x = any(need_xs)
        to_xs = tuple(x.new_empty(x.shape) for x in xs if need_x)
        for rows in _few(grads[0], covers * blocks):
            g = torch.stack([grad[rows].flatten(2) for grad in grads], 2)
            errors = g.new_empty(len(g), covers * blocks, units, g.shape[-1])
            for one, into in zip(g, errors, strict=True):
                into.copy_(torch.bmm(q, one).transpose(0, 1))
            errors = errors.flatten(1, 2).unflatten(2, grads[0].shape[2:])
            x = _by_block([x[rows] for x in xs], blocks, at.groups)
            need = need_x, need_weight
            to_x, part = at.backward(errors, x, w, covers * blocks * at.groups, need)
            if by_block is not None:
                by_block += part
            if need_x:
                split = to_x.unflatten(1, (covers, blocks, at.groups, -1)).transpose(2, 3)
                for into, own in zip(to_xs, split.unbind(1), strict=True):
                    into[rows] = _join(own, 2, weight.shape[2]).flatten(1, 2)
        grad_weight = None
        if by_block is not None:
            by_group = by_block.unflatten(0, (covers, blocks, at.groups, -1)).movedim(1, 3)
            grad_weight = _join(by_group, 3, weight.shape[2]).flatten(1, 2)
        return grad_weight, None, grad_bias, None, *(to_xs or [None] * covers)


def _linear_equation(mixer: Tensor, weight: Tensor, *xs: Tensor) -> Covers:
    """The sum as it is written, for gradients that are differentiated again."""
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
    """Sums over everything but units, which lie along ``axis``."""
    others = [k for k in range(grads[0].ndim) if k != axis % grads[0].ndim]
    return torch.stack([grad.sum(others) if others else grad for grad in grads])


# --- layouts and pieces ---------------------------------------------------------------------------


def block_slices(inputs: int, blocks: int) -> list[slice]:
    """The inputs of each block: blocks of near-equal size, the first ones wider.

    >>> block_slices(5, 2)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    size, wider = divmod(inputs, blocks)
    edges = [g * size + min(g, wider) for g in range(blocks + 1)]
    return [slice(start, stop) for start, stop in pairwise(edges)]


def _by_unit(mixer: Tensor) -> Tensor:
    """(units, M, M · blocks): a unit's mixer as one matrix, columns by cover and then by block."""
    return mixer.permute(0, 2, 3, 1).flatten(2).contiguous()


def _split(t: Tensor, axis: int, blocks: int) -> Tensor:
    """An axis of inputs as (blocks, width); a narrower block ends with a zero."""
    inputs = t.shape[axis]
    if inputs % blocks == 0:
        return t.unflatten(axis, (blocks, -1))
    shape = list(t.shape)
    shape[axis] = blocks * -(-inputs // blocks)
    padded = t.new_zeros(shape).index_copy(axis, _places(inputs, blocks, t.device), t)
    return padded.unflatten(axis, (blocks, -1))


def _join(t: Tensor, axis: int, inputs: int) -> Tensor:
    """Undoes :func:`_split`."""
    flat = t.flatten(axis, axis + 1)
    if flat.shape[axis] == inputs:
        return flat
    return flat.index_select(axis, _places(inputs, t.shape[axis], t.device))


def _places(inputs: int, blocks: int, device: torch.device) -> Tensor:
    """Where inputs lie among blocks that all have the width of the first."""
    spans = block_slices(inputs, blocks)
    width = spans[0].stop
    places = [g * width + i for g, span in enumerate(spans) for i in range(_length(span))]
    return torch.tensor(places, device=device)


def _by_block(xs: Sequence[Tensor], blocks: int, groups: int) -> Tensor:
    """Channels of all covers, by block and then by group: each is a group of one convolution."""
    split = [_split(x.contiguous().unflatten(1, (groups, -1)), 2, blocks) for x in xs]
    return torch.cat([x.transpose(1, 2).flatten(1, 3) for x in split], 1)


def _weights_by_block(weight: Tensor, blocks: int, groups: int) -> Tensor:
    """The weights that go with :func:`_by_block`: (M · blocks · units, width, *kernel)."""
    w = _split(weight.unflatten(1, (groups, -1)), 3, blocks)
    return w.movedim(3, 1).flatten(0, 3)


def _length(part: slice) -> int:
    return int(part.stop - part.start)


def _panels(units: int, contributions: int) -> list[slice]:
    """Units at a time, such that so many contributions to each fit the workspace.

    Panels are a multiple of 16 units wide: products are slower between.
    """
    wide = max(16, WORKSPACE // max(1, contributions) // 16 * 16)
    return [slice(start, min(start + wide, units)) for start in range(0, units, wide)]


def _few(out: Tensor, contributions: int) -> list[slice]:
    """Samples of a convolution at a time; ``out`` is the output of one cover."""
    workspace = WORKSPACE if out.device.type == "cpu" else 32 * WORKSPACE
    return _cut(len(out), max(1, workspace // (contributions * max(1, out[:1].numel()))))


def _cut(count: int, most: int) -> list[slice]:
    """Near-equal slices of at most so many.

    >>> _cut(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return block_slices(count, max(1, -(-count // most)))
