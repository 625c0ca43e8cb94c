"""How a convolution lies in memory so that each tap of its kernel reads one strip, shifted.

Outputs are worked on in chunks of lines. A channel's strip is what the outputs of a chunk see of
it, zeros of the padding included, a line of inputs after the other. Let output (i, j) stand at
column i · pitch + j: then what its tap (k, l) meets stands k · pitch + l further on, for all
columns alike, and a product may read whole vectors. Between lines there are a few columns of no
output. With a stride of s, inputs that leave the same rest when divided by s follow one another,
and each rest has a strip to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import numpy as np
import torch
from numba import carray, njit
from torch import Tensor

from mcover.nn.kernels.tiles import itemsize, pad, pointer

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Strips:
    """Where numbers stand; a line is where it begins in a strip, in its channel, and its length."""

    space: Sizes  # of the result
    columns: int  # of the widest chunk, in whole vectors
    room: int  # numbers of a channel's strips
    step: int  # from a number of a line of inputs to the next
    taps: Tensor  # the shift of each tap
    lines_in: Tensor  # (lines, 3), of inputs
    lines_out: Tensor  # (lines, 3), of outputs
    chunks: Tensor  # (chunks, 5): first and last line in, first and last line out, columns


def space_of(size: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Sizes:
    """The sizes of a convolution's result."""
    return tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True)
    )


@lru_cache(maxsize=256)
def strips_of(
    size: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes,
    wide: int, vector: int,
) -> Strips:  # fmt: skip
    """The strips of chunks of about ``wide`` columns, a line at least, more if taps reach far."""
    space = space_of(size, kernel, stride, padding, dilation)
    reach = [(k - 1) * d // s for k, d, s in zip(kernel, dilation, stride, strict=True)]
    sizes = [n + more for n, more in zip(space, reach, strict=True)]
    pitch = [prod(sizes[d + 1 :]) for d in range(len(sizes))]
    shifts = _dot(reach, pitch)
    wide = max(wide, shifts // 4)  # each chunk lays out that much beside its own
    rests = list(
        product(
            *(
                range(min(s, (k - 1) * d + 1))
                for k, d, s in zip(kernel, dilation, stride, strict=True)
            )
        )
    )
    out = _output_lines(space, pitch, max(1, wide))
    cut = np.array_split(np.arange(len(out)), _chunks(out, wide))
    spans = [(out[own[0]][0], sum(out[own[-1]][::2])) for own in cut]
    columns = max(pad(end - base, vector) for base, end in spans)
    each = pad(columns + shifts, vector)
    inside = [_input_lines(size, sizes, pitch, stride, padding, rest) for rest in rests]
    lines_in: list[list[int]] = []
    lines_out: list[tuple[int, int, int]] = []
    chunks = []
    for own, (base, end) in zip(cut, spans, strict=True):
        here = [len(lines_in), 0, len(lines_out), 0, pad(end - base, vector)]
        for number, (places, sources, count) in enumerate(inside):
            first, last = np.searchsorted(places, [base - count + 1, end + shifts])
            at, of = places[first:last], sources[first:last]
            low, high = np.maximum(at, base), np.minimum(at + count, end + shifts)
            parts = number * each + low - base, of + (low - at) * stride[-1], high - low
            lines_in += np.stack(parts, 1).tolist()
        lines_out += [(out[n][0] - base, *out[n][1:]) for n in own]
        here[1], here[3] = len(lines_in), len(lines_out)
        chunks.append(here)
    taps = [
        rests.index(tuple(t * d % s for t, d, s in zip(tap, dilation, stride, strict=True))) * each
        + _dot([t * d // s for t, d, s in zip(tap, dilation, stride, strict=True)], pitch)
        for tap in product(*map(range, kernel))
    ]
    return Strips(
        space, columns, len(rests) * each, stride[-1],
        *(torch.tensor(t, dtype=torch.int64) for t in (taps, lines_in, lines_out, chunks)),
    )  # fmt: skip


def _dot(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _output_lines(space: Sizes, pitch: Sequence[int], wide: int) -> list[tuple[int, int, int]]:
    """Column, place in the result and length of each line; long lines come in parts."""
    lines = []
    for line, at in enumerate(product(*map(range, space[:-1]))):
        for start in range(0, space[-1], wide):
            column = _dot(at, pitch[:-1]) + start
            lines.append((column, line * space[-1] + start, min(wide, space[-1] - start)))
    return lines


def _chunks(lines: list[tuple[int, int, int]], wide: int) -> int:
    """How many chunks of at most so many columns the lines make."""
    chunks, base = 1, 0
    for column, _, count in lines:
        if column + count - base > wide and column > base:
            chunks, base = chunks + 1, column
    return chunks


def _input_lines(
    size: Sizes, sizes: Sequence[int], pitch: Sequence[int], stride: Sizes, padding: Sizes,
    rest: Sizes,
) -> tuple[Any, Any, int]:  # fmt: skip
    """Places in the strip of a rest, places in the channel, and length, of lines of real inputs."""
    real = [
        np.array([q for q in range(most) if 0 <= q * s + r - p < n], dtype=np.int64)
        for most, s, r, p, n in zip(sizes, stride, rest, padding, size, strict=True)
    ]
    count = len(real[-1])
    places = sources = np.zeros(1, np.int64)
    for axis, (inside, s, r, p, n) in enumerate(
        zip(real, stride, rest, padding, size, strict=True)
    ):
        own = inside[:1] if axis == len(size) - 1 else inside
        places = (places[:, None] + own * pitch[axis]).reshape(-1)
        sources = (sources[:, None] * n + own * s + r - p).reshape(-1)
    return places, sources, count


@njit(cache=True)
def clear(like: Any, at: int, count: int) -> None:
    """Zeros."""
    carray(pointer(at, like), (count,))[:] = 0


@njit(cache=True)
def lay(
    like: Any, lines: int, first: int, last: int, step: int, runs: int, covers: int, rows: int,
    of: int, of_run: int, of_cover: int, of_row: int,
    to: int, to_run: int, to_cover: int, to_row: int, room: int,
) -> None:  # fmt: skip
    """Lines of all rows, of all covers, of several samples into strips, of ``room`` numbers each.

    Every ``step``-th number of a line is taken. Operands are addresses, strides are in numbers.
    """
    size = itemsize(like)
    line = carray(pointer(lines, 0), (last, 3))
    for run in range(runs):
        for cover in range(covers):
            for row in range(rows):
                strip = to + (run * to_run + cover * to_cover + row * to_row) * size
                channel = of + (run * of_run + cover * of_cover + row * of_row) * size
                clear(like, strip, room)
                for k in range(first, last):
                    count = line[k, 2]
                    into = carray(pointer(strip + line[k, 0] * size, like), (count,))
                    numbers = carray(pointer(channel + line[k, 1] * size, like), (count * step,))
                    if step == 1:
                        for n in range(count):
                            into[n] = numbers[n]
                    else:
                        for n in range(count):
                            into[n] = numbers[n * step]


@njit(cache=True)
def add_out(
    like: Any, lines: int, first: int, last: int, step: int, runs: int, covers: int, rows: int,
    of: int, of_run: int, of_cover: int, of_row: int,
    to: int, to_run: int, to_cover: int, to_row: int,
) -> None:  # fmt: skip
    """Adds what lies in strips to where :func:`lay` takes it from."""
    size = itemsize(like)
    line = carray(pointer(lines, 0), (last, 3))
    for run in range(runs):
        for cover in range(covers):
            for row in range(rows):
                strip = of + (run * of_run + cover * of_cover + row * of_row) * size
                channel = to + (run * to_run + cover * to_cover + row * to_row) * size
                for k in range(first, last):
                    count = line[k, 2]
                    back = carray(pointer(strip + line[k, 0] * size, like), (count,))
                    numbers = carray(pointer(channel + line[k, 1] * size, like), (count * step,))
                    if step == 1:
                        for n in range(count):
                            numbers[n] += back[n]
                    else:
                        for n in range(count):
                            numbers[n * step] += back[n]


@njit(cache=True)
def take_out(
    like: Any, lines: int, first: int, last: int, covers: int, rows: int, bias: int, to_bias: int,
    of: int, of_cover: int, of_row: int, to: int, to_cover: int, to_row: int,
) -> None:  # fmt: skip
    """Lines of strips to their places in the result, with the bias of each cover and row if any."""
    size = itemsize(like)
    line = carray(pointer(lines, 0), (last, 3))
    for row in range(rows):
        for cover in range(covers):
            strip = of + (cover * of_cover + row * of_row) * size
            channel = to + (cover * to_cover + row * to_row) * size
            shift = like - like
            if bias:
                shift = carray(pointer(bias + cover * to_bias * size, like), (rows,))[row]
            for k in range(first, last):
                count = line[k, 2]
                numbers = carray(pointer(strip + line[k, 0] * size, like), (count,))
                into = carray(pointer(channel + line[k, 1] * size, like), (count,))
                for n in range(count):
                    into[n] = numbers[n] + shift


@njit(cache=True)
def add_shifted(
    like: Any, rows: int, columns: int, shifts: int, of: int, of_row: int, to: int
) -> None:
    """Adds each row to the strip of its tap."""
    shift = carray(pointer(shifts, 0), (rows,))
    for k in range(rows):
        row = carray(pointer(of + k * of_row * itemsize(like), like), (columns,))
        strip = carray(pointer(to + shift[k], like), (columns,))
        for n in range(columns):
            strip[n] += row[n]
