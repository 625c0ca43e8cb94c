"""Inputs that differ between covers: each block's contributions, mixed and summed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from numba import carray, njit
from torch import Tensor

from mcover.nn.kernels.memory import BYTES, copy, itemsize, pad, pointer, take, turn
from mcover.nn.kernels.regions import pack, parts_of, region, scratch, start, width
from mcover.nn.kernels.tiles import ROWS, product
from mcover.nn.kernels.weights import mix

FAR = 2**17  # numbers of weights or errors at a time, which stay in the cache
WIDE = 128  # inputs at a time backward, at most
SAMPLES = 512  # and samples


def message_forward(
    x: Tensor, weight: Tensor, mixer: Tensor, bias: Tensor | None, edges: Sequence[int]
) -> Tensor:
    """Routed preactivations (units, M, N) of inputs (M, N, inputs); weight and bias contiguous."""
    covers, count, inputs = x.shape
    units, blocks = mixer.shape[:2]
    panel = 2 * width(x)
    even = pad(-(-units // (2 * torch.get_num_threads())), ROWS)
    many = max(ROWS, min(even, FAR // (covers * inputs) // ROWS * ROWS))
    panels = -(-count // panel)
    # Few units are many pieces by their samples, so that all threads have work.
    pieces = min(panels, -(-2 * torch.get_num_threads() * many // units))
    together = -(-panels // pieces)
    result = x.new_empty(units, covers, count)
    size = covers * ROWS * panel
    start(
        _forward,
        edges,
        (
            pack(x.transpose(1, 2), edges),
            weight,
            # (units, M reading, blocks, M read): a unit's blocks are mixed in one product.
            mixer.transpose(1, 2).contiguous(),
            bias,
            result,
            scratch(x, size * (blocks + 1) + covers * many * inputs),
        ),
        (covers, units, inputs, count, many, together),
        work=weight.numel() * count,
    )
    return result


def message_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    mixer: Tensor,
    edges: Sequence[int],
    need: tuple[bool, bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of x, as (inputs, M, N), and of weight, as needed; grad and weight contiguous."""
    covers, count, inputs = x.shape
    samples = min(count, SAMPLES)
    # A row of samples has a vector to spare: rows a power of two apart would collide in the cache.
    length = pad(samples, width(x)) + width(x)
    most = max(ROWS, FAR // (covers * length) // ROWS * ROWS)
    few = min(pad(weight.shape[1], ROWS), most)
    even = pad(-(-inputs // (4 * torch.get_num_threads())), width(x))
    cuts, block_of = parts_of(edges, max(2 * width(x), min(WIDE, even)))
    across = pad(max(high - low for low, high in pairwise(cuts)), width(x))
    grad_x = x.new_empty(inputs, covers, count) if need[0] else None
    grad_weight = torch.empty_like(weight) if need[1] else None
    room = scratch(x, covers * (few * length + samples * across + across * length) + few * across)
    start(
        _backward,
        [*cuts, *block_of],
        (grad, x, weight, mixer.contiguous(), grad_x, grad_weight, room),
        (*x.stride(), *weight.shape, count, mixer.shape[1], few, samples, length, across),
        work=weight.numel() * count,
    )
    return grad_x, grad_weight


@region
def _forward(kind: Any) -> Callable[[Any], None]:
    """A piece of work is many units, whose weights are copied into the order of their use."""

    def body(given: Any) -> None:
        edges = carray(pointer(given[2], 0), (given[3],))
        packed, weight, mixer, given_bias, result = (
            given[4], given[5], given[6], given[7], given[8],
        )  # fmt: skip
        covers, units, inputs, count, many = given[10], given[11], given[12], given[13], given[14]
        together = given[15]
        blocks = len(edges) - 1
        bias = carray(pointer(given_bias, kind(0)), (covers, units))
        size = itemsize(kind(0))
        panel = 2 * BYTES // size
        panels = -(-count // panel)
        groups = -(-panels // together)
        room = covers * ROWS * panel * size
        parts = given[9] + take(given, 0) * (room * (blocks + 1) + covers * many * inputs * size)
        sums = parts + room * blocks
        used = sums + room
        total = carray(pointer(sums, kind(0)), (ROWS, covers, panel))
        while True:
            piece = take(given, 1)
            begin, group = piece // groups * many, piece % groups
            if begin >= units:
                break
            end = min(begin + many, units)
            for of in range(covers):
                for r in range(begin, end):
                    for g in range(blocks):
                        low, depth = edges[g], edges[g + 1] - edges[g]
                        at = low * covers * many + (of * many + r - begin) * depth
                        copy(
                            used + at * size, weight + ((of * units + r) * inputs + low) * size,
                            depth, kind(0),
                        )  # fmt: skip
            for p in range(group * together, min(panels, (group + 1) * together)):
                columns = min(panel, count - p * panel)
                for first in range(begin, end, ROWS):
                    rows = min(ROWS, end - first)
                    for g in range(blocks):
                        low, depth = edges[g], edges[g + 1] - edges[g]
                        for of in range(covers):
                            at = low * covers * many + (of * many + first - begin) * depth
                            product(
                                kind(0), rows, columns, depth, used + at * size, depth, 1,
                                packed + ((p * inputs + low) * covers + of * depth) * panel * size,
                                panel, parts + (g * covers + of) * ROWS * panel * size, panel,
                                False,
                            )  # fmt: skip
                    for r in range(rows):
                        for to in range(covers):
                            shift = bias[to, first + r] if given_bias else kind(0)
                            for n in range(panel):
                                total[r, to, n] = shift
                        product(
                            kind(0), covers, columns, blocks * covers,
                            mixer + (first + r) * covers * blocks * covers * size,
                            blocks * covers, 1, parts + r * panel * size, ROWS * panel,
                            sums + r * covers * panel * size, panel, True,
                        )  # fmt: skip
                        for to in range(covers):
                            copy(
                                result + (((first + r) * covers + to) * count + p * panel) * size,
                                sums + (r * covers + to) * panel * size, columns, kind(0),
                            )  # fmt: skip

    return body


@region
def _backward(kind: Any) -> Callable[[Any], None]:
    """A piece of work is a block of inputs, or a part of one.

    For a few units at a time the errors of all covers are mixed, E[α, r] = Σ_β Q̂[r,g,β,α] δ[r, β],
    and used for both gradients.
    """

    def body(given: Any) -> None:
        pieces = given[3] // 2
        cuts = carray(pointer(given[2], 0), (2 * pieces + 1,))
        grad, x, weight, mixer = given[4], given[5], given[6], given[7]
        grad_x, grad_weight = given[8], given[9]
        to_cover, to_sample, to_input = given[11], given[12], given[13]
        covers, units, inputs, count, blocks = (
            given[14], given[15], given[16], given[17], given[18],
        )  # fmt: skip
        few, samples, length, across = given[19], given[20], given[21], given[22]
        size = itemsize(kind(0))
        room = covers * (few * length + samples * across + across * length) + few * across
        errors = given[10] + take(given, 0) * room * size
        turned_at = errors + covers * few * length * size
        back_at = turned_at + covers * samples * across * size
        part = back_at + covers * across * length * size
        turned = carray(pointer(turned_at, kind(0)), (covers, samples, across))
        mixed = carray(pointer(errors, kind(0)), (covers, few, length))
        mixed[:] = 0  # beyond the last sample too, where vectors reach
        turned[:] = 0
        while True:
            piece = take(given, 1)
            if piece >= pieces:
                break
            low, high, g = cuts[piece], cuts[piece + 1], cuts[pieces + 1 + piece]
            wide = high - low
            for first in range(0, count, samples):
                here = min(samples, count - first)
                if grad_weight:
                    for of in range(covers):
                        turn(
                            kind(0), wide, here,
                            x + (of * to_cover + first * to_sample + low * to_input) * size,
                            to_input, to_sample,
                            turned_at + of * samples * across * size, across,
                        )  # fmt: skip
                for begin in range(0, units, few):
                    rows = min(few, units - begin)
                    for r in range(rows):
                        mix(
                            kind(0), covers, here,
                            mixer + ((begin + r) * blocks + g) * covers * covers * size, 1, covers,
                            grad + ((begin + r) * covers * count + first) * size, count,
                            errors + r * length * size, few * length,
                        )  # fmt: skip
                    for of in range(covers):
                        own = errors + of * few * length * size
                        if grad_weight:
                            right = turned_at + of * samples * across * size
                            into = grad_weight + ((of * units + begin) * inputs + low) * size
                            _product_to_edge(
                                kind(0), rows, wide, here, own, length, right, across,
                                into, inputs, first > 0, part,
                            )  # fmt: skip
                        if grad_x:
                            for r in range(rows):
                                copy(
                                    part + r * across * size,
                                    weight + ((of * units + begin + r) * inputs + low) * size,
                                    wide, kind(0),
                                )  # fmt: skip
                            product(
                                kind(0), wide, here, rows, part, 1, across, own, length,
                                back_at + of * across * length * size, length, begin > 0,
                            )  # fmt: skip
                if grad_x:
                    for i in range(wide):
                        for of in range(covers):
                            copy(
                                grad_x + (((low + i) * covers + of) * count + first) * size,
                                back_at + (of * across + i) * length * size, here, kind(0),
                            )  # fmt: skip

    return body


@njit(cache=True)
def _product_to_edge(
    like: Any, rows: int, columns: int, depth: int, a: int, a_row: int, b: int, b_step: int,
    c: int, c_row: int, keep: bool, spare: int,
) -> None:  # fmt: skip
    """A product into memory that ends with the last column: the rest of a vector goes to spare."""
    size = itemsize(like)
    width = BYTES // size
    whole = columns - columns % width
    product(like, rows, whole, depth, a, a_row, 1, b, b_step, c, c_row, keep)
    if whole < columns:
        b += whole * size
        product(like, rows, columns - whole, depth, a, a_row, 1, b, b_step, spare, width, False)
        into = carray(pointer(c, like), ((rows - 1) * c_row + columns,))
        rest = carray(pointer(spare, like), (rows, width))
        for r in range(rows):
            for i in range(whole, columns):
                before = into[r * c_row + i] if keep else like - like
                into[r * c_row + i] = before + rest[r, i - whole]
