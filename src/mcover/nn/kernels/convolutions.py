"""Block messages of a convolution, mixed and summed, without patches: taps read shifted strips."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from numba import carray
from torch import Tensor

from mcover.nn.kernels.dots import dots
from mcover.nn.kernels.laying import add_out, add_shifted, clear, lay, take_out
from mcover.nn.kernels.memory import BYTES, itemsize, pad, pointer, take
from mcover.nn.kernels.regions import parts_of, region, scratch, start, width
from mcover.nn.kernels.strips import Axis, Strips, strips_of
from mcover.nn.kernels.tiles import ROWS, even, product_at

Sizes = tuple[int, ...]

FAR = 2**17  # numbers of errors at a time, which stay in the cache
COLUMNS = 512  # of several samples at a time backward, at most
LINES = 32  # units at a time backward, at least
WIDE = 256  # numbers of a kernel at a time backward, at most
SHARES = 16  # of the samples, of which each has a gradient of the weights to itself
ROOM = 2**22  # numbers that these gradients may take


def convolution_forward(
    x: Tensor,
    weight: Tensor,
    mixer: Tensor,
    bias: Tensor | None,
    edges: Sequence[int],
    where: tuple[Sizes, Sizes, Sizes],
    groups: int,
) -> Tensor:
    """Mixed messages (M, B, units, *space) of inputs (M, B, channels, *space).

    Each sample of each cover is contiguous, and so are weight and bias. Whether covers or samples
    come first in the result's memory is as in that of x. Blocks of a group's channels lie between
    ``edges``; ``where`` is stride, padding and dilation.
    """
    covers, batch = x.shape[:2]
    channels, units, blocks = weight.shape[2], len(mixer) // groups, mixer.shape[1]
    strips = _strips(x, weight, where)
    panel = 2 * width(x)
    flat = weight.flatten(3)
    parts = [flat[:, :, low:high].reshape(-1) for low, high in pairwise(edges)]
    result = _as_laid(x, (len(mixer), *strips.space))
    size = x.element_size()
    room = covers * (channels * strips.room + ROWS * (blocks * panel + strips.columns))
    start(
        _forward,
        edges,
        (
            x,
            torch.cat(parts),
            mixer.transpose(1, 2).contiguous(),
            bias,
            result,
            scratch(x, room),
            _shifts(strips, channels, size),
            torch.arange(0, blocks * covers * ROWS * panel * size, ROWS * panel * size),
            strips.chunks,
            strips.lines_in,
            strips.lines_out,
        ),
        (
            covers, batch, channels, units, flat.shape[3],
            x[0, 0, 0].numel(), result[0, 0, 0].numel(),
            len(strips.chunks), strips.columns, strips.room, strips.step, room,
            *x.stride()[:2], *result.stride()[:2], groups,
        ),
        work=weight.numel() * batch * result[0, 0, 0].numel(),
    )  # fmt: skip
    return result


def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    mixer: Tensor,
    edges: Sequence[int],
    where: tuple[Sizes, Sizes, Sizes],
    groups: int,
    need: tuple[bool, bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of x and weight, as needed; tensors as forward."""
    covers, batch = x.shape[:2]
    channels, units, blocks = weight.shape[2], len(mixer) // groups, mixer.shape[1]
    strips = _strips(x, weight, where)
    taps = weight[0, 0, 0].numel()
    chunks = len(strips.chunks)
    together = 1 if chunks > 1 else max(1, min(batch, COLUMNS // strips.columns))
    # A row has a vector to spare: rows a power of two apart would collide in the cache.
    length = together * strips.columns + width(x)
    few = pad(even(units, max(LINES, FAR // (covers * length))), 4)
    cuts, block_of = parts_of(edges, max(1, WIDE // taps))
    widest = max(high - low for low, high in pairwise(cuts))
    # Shares do not depend on how many threads there are: the sums are the same on any number.
    shares = max(1, min(SHARES, -(-batch // together), ROOM // weight.numel()))
    share = pad(-(-batch // shares), together)
    shares = -(-batch // share)
    ranges = min(len(block_of), -(-SHARES // (shares * groups)))
    padded = pad(units, 4)
    grad_x = _as_laid(x, x.shape[2:]) if need[0] else None
    to_back = (0, 0) if grad_x is None else grad_x.stride()[:2]
    # Rows are written by fours, of each group to its own.
    of_shares = shares, covers, groups, padded, channels * taps
    grad_weight = x.new_zeros(of_shares) if need[1] else None
    size = x.element_size()
    room = 2 * covers * (few * length + together * widest * strips.room) + widest * taps * length
    start(
        _backward,
        [*cuts, *block_of],
        (
            grad,
            x,
            weight,
            mixer.contiguous(),
            grad_x,
            grad_weight,
            scratch(x, room),
            _shifts(strips, widest, size),
            torch.arange(0, max(few, covers) * length * size, length * size),
            strips.chunks,
            strips.lines_in,
            strips.lines_out,
        ),
        (
            covers, batch, channels, units, taps, x[0, 0, 0].numel(), grad[0, 0, 0].numel(),
            chunks, strips.columns, strips.room, strips.step, room, blocks,
            together, share, shares, ranges, widest, length, padded, few,
            *grad.stride()[:2], *x.stride()[:2], *to_back, groups,
        ),
        work=weight.numel() * batch * grad[0, 0, 0].numel(),
    )  # fmt: skip
    if grad_weight is not None:
        total = grad_weight[0] if shares == 1 else grad_weight.sum(0)
        grad_weight = total[:, :, :units].reshape(weight.shape)
    return grad_x, grad_weight


def _as_laid(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Room for samples of this shape, with covers or samples first in memory as in x."""
    covers, batch = x.shape[:2]
    if 0 < x.stride(0) < x.stride(1):
        return x.new_empty(batch, covers, *shape).transpose(0, 1)
    return x.new_empty(covers, batch, *shape)


def _strips(x: Tensor, weight: Tensor, where: tuple[Sizes, Sizes, Sizes]) -> Strips:
    wide = max(8 * width(x), FAR // (len(x) * min(LINES, weight.shape[1])))
    axes = tuple(map(Axis, x.shape[3:], weight.shape[3:], *where))
    return strips_of(axes, min(wide, COLUMNS), width(x))


def _shifts(strips: Strips, channels: int, size: int) -> Tensor:
    """Bytes from the first strip to each tap of each channel."""
    first = torch.arange(channels).unsqueeze(1) * strips.room
    return ((first + strips.taps) * size).flatten()


@region
def _forward(kind: Any) -> Callable[[Any], None]:
    """A piece of work is a chunk of a sample, for one group."""

    def body(given: Any) -> None:
        edges = carray(pointer(given[2], 0), (given[3],))
        x, weight, mixer, bias, result = given[4], given[5], given[6], given[7], given[8]
        shifts, steps, lines_in, lines_out = given[10], given[11], given[13], given[14]
        covers, batch, channels, units, taps = (
            given[15], given[16], given[17], given[18], given[19],
        )  # fmt: skip
        inner, outer, chunks, columns, strip, step, room = (
            given[20], given[21], given[22], given[23], given[24], given[25], given[26],
        )  # fmt: skip
        x_cover, x_sample, result_cover, result_sample, groups = (
            given[27], given[28], given[29], given[30], given[31],
        )  # fmt: skip
        every = units * groups
        chunk = carray(pointer(given[12], 0), (chunks, 5))
        blocks = len(edges) - 1
        size = itemsize(kind(0))
        panel = 2 * BYTES // size
        strips = given[9] + take(given, 0) * room * size
        parts = strips + covers * channels * strip * size
        sums = parts + blocks * covers * ROWS * panel * size
        tall = even(units, ROWS)
        while True:
            piece = take(given, 1)
            group, b, c = piece % groups, piece // groups // chunks, piece // groups % chunks
            if b >= batch:
                break
            lay(
                kind(0), lines_in, chunk[c, 0], chunk[c, 1], step, 1, covers, channels,
                x + (b * x_sample + group * channels * inner) * size, 0, x_cover, inner,
                strips, 0, channels * strip, strip, strip,
            )  # fmt: skip
            for first in range(group * units, (group + 1) * units, tall):
                rows = min(tall, (group + 1) * units - first)
                for p in range(0, chunk[c, 4], panel):
                    wide = min(panel, chunk[c, 4] - p)
                    for g in range(blocks):
                        low, depth = edges[g] * taps, (edges[g + 1] - edges[g]) * taps
                        for of in range(covers):
                            at = low * covers * every + (of * every + first) * depth
                            product_at(
                                kind(0), rows, wide, depth, weight + at * size, depth, 1,
                                strips + (of * channels * strip + p) * size, shifts + low * 8,
                                parts + (g * covers + of) * ROWS * panel * size, panel, False,
                            )  # fmt: skip
                    for r in range(rows):
                        product_at(
                            kind(0), covers, wide, blocks * covers,
                            mixer + (first + r) * covers * blocks * covers * size,
                            blocks * covers, 1, parts + r * panel * size, steps,
                            sums + (r * covers * columns + p) * size, columns, False,
                        )  # fmt: skip
                take_out(
                    kind(0), lines_out, chunk[c, 2], chunk[c, 3], covers, rows,
                    bias + first * size if bias else 0, every, sums, columns, covers * columns,
                    result + (b * result_sample + first * outer) * size, result_cover, outer,
                )  # fmt: skip

    return body


@region
def _backward(kind: Any) -> Callable[[Any], None]:
    """A piece of work is a share of the samples, a group, and a range of its blocks or their parts.

    For a few samples and units at a time the errors of all covers are mixed for one block,
    E[α, r] = Σ_β Q̂[r,g,β,α] δ[r, β], and used for both gradients.
    """

    def body(given: Any) -> None:
        parts = given[3] // 2
        cuts = carray(pointer(given[2], 0), (2 * parts + 1,))
        grad, x, weight, mixer, grad_x, grad_weight = (
            given[4], given[5], given[6], given[7], given[8], given[9],
        )  # fmt: skip
        shifts, steps, lines_in, lines_out = given[11], given[12], given[14], given[15]
        covers, batch, channels, units, taps = (
            given[16], given[17], given[18], given[19], given[20],
        )  # fmt: skip
        inner, outer, chunks, columns, strip, step, room = (
            given[21], given[22], given[23], given[24], given[25], given[26], given[27],
        )  # fmt: skip
        blocks, together, share, shares, ranges, widest, length, padded, few = (
            given[28], given[29], given[30], given[31], given[32], given[33], given[34], given[35],
            given[36],
        )  # fmt: skip
        grad_cover, grad_sample, x_cover, x_sample, back_cover, back_sample, groups = (
            given[37], given[38], given[39], given[40], given[41], given[42], given[43],
        )  # fmt: skip
        chunk = carray(pointer(given[13], 0), (chunks, 5))
        size = itemsize(kind(0))
        to_row = channels * taps  # of weights
        to_strips = widest * strip  # of a cover
        deltas = given[10] + take(given, 0) * room * size
        errors = deltas + covers * few * length * size
        strips = errors + covers * few * length * size
        backs = strips + together * covers * to_strips * size
        products = backs + together * covers * to_strips * size
        clear(kind(0), errors, covers * few * length)  # beyond the last unit too
        while True:
            piece = take(given, 1)
            span, group, s = piece % ranges, piece // ranges % groups, piece // ranges // groups
            if s >= shares:
                break
            begin_part, end_part = span * parts // ranges, (span + 1) * parts // ranges
            unit, channel = group * units, group * channels  # the first ones
            last = min(batch, (s + 1) * share)
            for chunk_of in range(s * share * chunks, last * chunks, together):
                b, c = chunk_of // chunks, chunk_of % chunks
                runs = min(together, last - b)
                wide = chunk[c, 4]
                reach = (runs - 1) * columns + wide
                if grad_x and c == 0:
                    for k in range(runs):
                        for of in range(covers):
                            clear(
                                kind(0),
                                grad_x + ((b + k) * back_sample + of * back_cover
                                          + (channel + cuts[begin_part]) * inner) * size,
                                (cuts[end_part] - cuts[begin_part]) * inner,
                            )  # fmt: skip
                for begin in range(0, units, few):
                    rows = min(few, units - begin)
                    lay(
                        kind(0), lines_out, chunk[c, 2], chunk[c, 3], 1, runs, covers, rows,
                        grad + (b * grad_sample + (unit + begin) * outer) * size,
                        grad_sample, grad_cover, outer,
                        deltas, columns, length, covers * length, columns,
                    )  # fmt: skip
                    for part in range(begin_part, end_part):
                        low, many = cuts[part], cuts[part + 1] - cuts[part]
                        g, kernel = cuts[parts + 1 + part], many * taps
                        for r in range(rows):
                            product_at(
                                kind(0), covers, reach, covers,
                                mixer + ((unit + begin + r) * blocks + g) * covers * covers * size,
                                1, covers, deltas + r * covers * length * size, steps,
                                errors + r * length * size, few * length, False,
                            )  # fmt: skip
                        if grad_weight:
                            lay(
                                kind(0), lines_in, chunk[c, 0], chunk[c, 1], step,
                                runs, covers, many,
                                x + (b * x_sample + (channel + low) * inner) * size,
                                x_sample, x_cover, inner,
                                strips, covers * to_strips, to_strips, strip, strip,
                            )  # fmt: skip
                            for of in range(covers):
                                row = ((s * covers + of) * groups + group) * padded + begin
                                dots(
                                    kind(0), rows, kernel, runs, wide,
                                    errors + of * few * length * size, length, columns,
                                    strips + of * to_strips * size, shifts, covers * to_strips,
                                    grad_weight + (row * to_row + low * taps) * size, to_row,
                                )  # fmt: skip
                        if grad_x:
                            clear(kind(0), backs, runs * covers * to_strips)
                            for of in range(covers):
                                row = of * units * groups + unit + begin
                                product_at(
                                    kind(0), kernel, reach, rows,
                                    weight + (row * to_row + low * taps) * size,
                                    1, to_row, errors + of * few * length * size, steps,
                                    products, length, False,
                                )  # fmt: skip
                                for k in range(runs):
                                    add_shifted(
                                        kind(0), kernel, wide, shifts,
                                        products + k * columns * size, length,
                                        backs + (k * covers + of) * to_strips * size,
                                    )  # fmt: skip
                            add_out(
                                kind(0), lines_in, chunk[c, 0], chunk[c, 1], step,
                                runs, covers, many,
                                backs, covers * to_strips, to_strips, strip,
                                grad_x + (b * back_sample + (channel + low) * inner) * size,
                                back_sample, back_cover, inner,
                            )  # fmt: skip

    return body
