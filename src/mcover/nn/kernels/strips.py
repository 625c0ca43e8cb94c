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

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mcover.nn.kernels.memory import pad

Line = tuple[int, int, int]  # where it begins in a strip and in its channel, and its length


@dataclass(frozen=True)
class Axis:
    """One axis of the space that a kernel moves over."""

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def outputs(self) -> int:
        return (
            self.size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1
        ) // self.stride + 1

    @property
    def reach(self) -> int:
        """How far the last tap stands from the first one, among inputs of one rest."""
        return (self.kernel - 1) * self.dilation // self.stride

    @property
    def length(self) -> int:
        """Of a line of inputs of one rest, padding included."""
        return self.outputs + self.reach

    @property
    def rests(self) -> range:
        return range(min(self.stride, (self.kernel - 1) * self.dilation + 1))

    def real(self, rest: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Places of a line that are no padding, and the inputs that belong there."""
        places = np.arange(self.length)
        inputs = places * self.stride + rest - self.padding
        inside = (inputs >= 0) & (inputs < self.size)
        return places[inside], inputs[inside]


@dataclass(frozen=True)
class Strips:
    """Where numbers stand."""

    space: tuple[int, ...]  # of the result
    columns: int  # of the widest chunk, in whole vectors
    room: int  # numbers of a channel's strips
    step: int  # from a number of a line of inputs to the next
    taps: Tensor  # the shift of each tap
    lines_in: Tensor  # (lines, 3), of inputs
    lines_out: Tensor  # (lines, 3), of outputs
    chunks: Tensor  # (chunks, 5): first and last line in, first and last line out, columns


@lru_cache(maxsize=256)
def strips_of(axes: tuple[Axis, ...], wide: int, vector: int) -> Strips:
    """The strips of chunks of about ``wide`` columns, a line at least, more if taps reach far."""
    pitch = [prod(axis.length for axis in axes[k + 1 :]) for k in range(len(axes))]
    shifts = _dot([axis.reach for axis in axes], pitch)
    wide = max(1, wide, shifts // 4)  # each chunk lays out that much beside its own
    out = _output_lines(axes, pitch, wide)
    cut = np.array_split(np.arange(len(out)), _chunks(out, wide))
    spans = [(out[own[0]][0], out[own[-1]][0] + out[own[-1]][2]) for own in cut]
    columns = max(pad(end - base, vector) for base, end in spans)
    each = pad(columns + shifts, vector)
    rests = list(product(*(axis.rests for axis in axes)))
    inside = [_input_lines(axes, pitch, rest) for rest in rests]
    lines_in: list[Line] = []
    lines_out: list[Line] = []
    chunks = []
    for own, (base, end) in zip(cut, spans, strict=True):
        first_in, first_out = len(lines_in), len(lines_out)
        for number, (places, inputs, count) in enumerate(inside):
            some = slice(*np.searchsorted(places, [base - count + 1, end + shifts]))
            low = np.maximum(places[some], base)
            high = np.minimum(places[some] + count, end + shifts)
            of = inputs[some] + (low - places[some]) * axes[-1].stride
            lines_in += zip(number * each + low - base, of, high - low, strict=True)
        lines_out += [(out[n][0] - base, *out[n][1:]) for n in own]
        chunks.append((first_in, len(lines_in), first_out, len(lines_out), pad(end - base, vector)))
    taps = []
    for tap in product(*(range(axis.kernel) for axis in axes)):
        met = [divmod(t * axis.dilation, axis.stride) for t, axis in zip(tap, axes, strict=True)]
        rest = rests.index(tuple(rest for _, rest in met))
        taps.append(rest * each + _dot([shift for shift, _ in met], pitch))
    space = tuple(axis.outputs for axis in axes)
    tables = (torch.from_numpy(np.array(t, np.int64)) for t in (taps, lines_in, lines_out, chunks))
    return Strips(space, columns, len(rests) * each, axes[-1].stride, *tables)


def _dot(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _output_lines(axes: tuple[Axis, ...], pitch: Sequence[int], wide: int) -> list[Line]:
    """Lines of outputs, long ones in parts; their places in a strip are columns."""
    last = axes[-1].outputs
    return [
        (_dot(at, pitch[:-1]) + start, line * last + start, min(wide, last - start))
        for line, at in enumerate(product(*(range(axis.outputs) for axis in axes[:-1])))
        for start in range(0, last, wide)
    ]


def _chunks(lines: list[Line], wide: int) -> int:
    """How many chunks of at most so many columns the lines make."""
    chunks, base = 1, 0
    for column, _, count in lines:
        if column + count - base > wide and column > base:
            chunks, base = chunks + 1, column
    return chunks


def _input_lines(
    axes: tuple[Axis, ...], pitch: Sequence[int], rest: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Where lines of real inputs begin in the strip of a rest and in the channel; their length."""
    places = inputs = np.zeros(1, np.int64)
    count = 0
    for k, axis in enumerate(axes):
        own, of = axis.real(rest[k])
        count = len(own)
        if k == len(axes) - 1:
            own, of = own[:1], of[:1]
        places = (places[:, None] + own * pitch[k]).reshape(-1)
        inputs = (inputs[:, None] * axis.size + of).reshape(-1)
    return places, inputs, count
