"""One input for all covers: products with mixed weights, made for a few units at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from numba import carray
from torch import Tensor

from mcover.nn.kernels.memory import BYTES, itemsize, pad, pointer, take
from mcover.nn.kernels.regions import pack, region, scratch, start, width
from mcover.nn.kernels.tiles import product
from mcover.nn.kernels.weights import mix_unit

CACHE = 2**17  # numbers of mixed weights at a time


def common_forward(
    x: Tensor, weight: Tensor, mixer: Tensor, bias: Tensor | None, edges: Sequence[int]
) -> Tensor:
    """Routed preactivations (units, M, N) of inputs (N, inputs); weight and bias contiguous."""
    covers, units, inputs = weight.shape
    few = _few(weight)
    result = x.new_empty(units, covers, len(x))
    room = scratch(x, few * covers * (pad(inputs, width(x)) + 2 * width(x)))
    start(
        _forward,
        edges,
        (pack(x.T.unsqueeze(0), edges), weight, mixer.contiguous(), bias, result, room),
        (covers, units, inputs, len(x), few),
        work=weight.numel() * len(x),
    )
    return result


def common_backward(grad: Tensor, x: Tensor, mixer: Tensor, edges: Sequence[int]) -> Tensor:
    """The weights' gradient (M, units, inputs) from that of the result, which is contiguous."""
    units, covers, count = grad.shape
    inputs = x.shape[1]
    grad_weight = x.new_empty(covers, units, inputs)
    few = _few(grad_weight)
    room = scratch(x, few * covers * pad(inputs, 2 * width(x)))
    start(
        _backward,
        edges,
        (grad, pack(x.unsqueeze(0), [0, count]), mixer.contiguous(), grad_weight, room),
        (covers, units, inputs, count, few),
        work=grad_weight.numel() * count,
    )
    return grad_weight


def _few(weight: Tensor) -> int:
    covers, units, inputs = weight.shape
    even = -(-units // (4 * torch.get_num_threads()))
    return max(1, min(even, CACHE // (covers * pad(inputs, width(weight)))))


@region
def _forward(kind: Any) -> Callable[[Any], None]:
    """A piece of work is a few units."""

    def body(given: Any) -> None:
        edges, blocks = given[2], given[3] - 1
        packed, weight, mixer, given_bias, given_result = (
            given[4], given[5], given[6], given[7], given[8],
        )  # fmt: skip
        covers, units, inputs, count, few = given[10], given[11], given[12], given[13], given[14]
        bias = carray(pointer(given_bias, kind(0)), (covers, units))
        result = carray(pointer(given_result, kind(0)), (units, covers, count))
        size = itemsize(kind(0))
        panel = 2 * BYTES // size
        length = pad(inputs, BYTES // size)
        rows = given[9] + take(given, 0) * few * covers * (length + panel) * size
        sums = rows + few * covers * length * size
        total = carray(pointer(sums, kind(0)), (few, covers, panel))
        while True:
            first = take(given, 1) * few
            if first >= units:
                break
            here = min(few, units - first)
            for r in range(here):
                into = rows + r * covers * length * size
                mix_unit(
                    kind(0), covers, units, inputs, edges, blocks, first + r,
                    mixer, weight, into, length, False,
                )  # fmt: skip
            for p in range(-(-count // panel)):
                columns = min(panel, count - p * panel)
                product(
                    kind(0), here * covers, columns, inputs, rows, length, 1,
                    packed + p * inputs * panel * size, panel, sums, panel, False,
                )  # fmt: skip
                for r in range(here):
                    for to in range(covers):
                        shift = bias[to, first + r] if given_bias else kind(0)
                        into = result[first + r, to, p * panel : p * panel + columns]
                        for n in range(columns):
                            into[n] = total[r, to, n] + shift

    return body


@region
def _backward(kind: Any) -> Callable[[Any], None]:
    """A piece of work is a few units."""

    def body(given: Any) -> None:
        edges, blocks = given[2], given[3] - 1
        grad, packed, mixer, grad_weight = given[4], given[5], given[6], given[7]
        covers, units, inputs, count, few = given[9], given[10], given[11], given[12], given[13]
        size = itemsize(kind(0))
        panel = 2 * BYTES // size
        length = pad(inputs, panel)
        rows = given[8] + take(given, 0) * few * covers * length * size
        while True:
            first = take(given, 1) * few
            if first >= units:
                break
            here = min(few, units - first)
            for p in range(length // panel):
                product(
                    kind(0), here * covers, panel, count,
                    grad + first * covers * count * size, count, 1,
                    packed + p * count * panel * size, panel,
                    rows + p * panel * size, length, False,
                )  # fmt: skip
            for r in range(here):
                of = rows + r * covers * length * size
                mix_unit(
                    kind(0), covers, units, inputs, edges, blocks, first + r,
                    mixer, grad_weight, of, length, True,
                )  # fmt: skip

    return body
