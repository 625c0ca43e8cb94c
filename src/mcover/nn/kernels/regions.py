"""Regions: compiled code that several threads run at once, each taking pieces of the work.

A region sees integers only. The first two are counters (:mod:`mcover.nn.kernels.threads`), then
come the address of the edges of blocks and their number, the addresses of tensors, and sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numba import carray, cfunc
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from mcover.nn.kernels.memory import BYTES, itemsize, pointer, take, turn
from mcover.nn.kernels.threads import Region, run

ALONE = 2**18  # products that one thread makes sooner than a second one starts


def fits(*tensors: Tensor) -> bool:
    """Whether the kernels take these tensors now: nobody watches torch's own calls.

    Modes that count operations or trace without data would not see the kernels.
    """
    return _get_current_dispatch_mode() is None and takes(*tensors)


def takes(*tensors: Tensor) -> bool:
    """Whether there are kernels for tensors like these.

    Nothing is to be done for empty tensors, which torch knows how to do.
    """
    return all(
        t.device.type == "cpu" and t.dtype == tensors[0].dtype and t.dtype in _KINDS and t.numel()
        for t in tensors
    )


_KINDS = {torch.float32: np.float32, torch.float64: np.float64}


def width(like: Tensor) -> int:
    """Numbers in a vector."""
    return BYTES // like.element_size()


def scratch(like: Tensor, size: int) -> Tensor:
    """Room of its own for each thread."""
    return like.new_empty(torch.get_num_threads(), size)


def start(
    region: Callable[[Any], Region],
    edges: Sequence[int],
    tensors: Sequence[Tensor | None],
    sizes: Sequence[int],
    work: int,
) -> None:
    """Runs a region; ``work`` is about how many products it makes.

    A tensor that is None is the address 0.
    """
    bounds = np.array(edges, dtype=np.int64)
    addresses = [0 if t is None else t.data_ptr() for t in tensors]
    kind = _KINDS[next(t.dtype for t in tensors if t is not None)]
    threads = 1 if work < ALONE else torch.get_num_threads()
    run(region(kind), [bounds.ctypes.data, len(edges), *addresses, *sizes], threads)


def region(write: Callable[[Any], Callable[[Any], None]]) -> Callable[[Any], Region]:
    """Compiles what ``write`` gives for a type of numbers, when that is first asked for."""

    @cache
    def compiled(kind: Any) -> Region:
        how = cfunc("void(CPointer(int64))", cache=True, error_model="numpy")
        return how(write(kind))

    return compiled


def parts_of(edges: Sequence[int], wide: int) -> tuple[list[int], list[int]]:
    """Edges of parts of at most so many inputs, and the block of each part.

    >>> parts_of([0, 3, 9], 4)
    ([0, 3, 6, 9], [0, 1, 1])
    """
    cuts, block_of = [0], []
    for g, (low, high) in enumerate(pairwise(edges)):
        parts = -(-(high - low) // wide)
        cuts += [low + (high - low) * (k + 1) // parts for k in range(parts)]
        block_of += [g] * parts
    return cuts, block_of


def pack(x: Tensor, edges: Sequence[int]) -> Tensor:
    """(outer, rows, columns) in any layout to panels of two vectors of columns.

    Within a panel come blocks of rows, between ``edges``, each of all outer matrices: what a
    product of one block reads lies in one piece. Beyond the last column there are zeros.
    """
    columns = x.shape[2]
    panel = 2 * width(x)
    packed = x.new_empty(-(-columns // panel), x.shape[0] * x.shape[1], panel)
    start(_pack, edges, (x, packed), (*x.shape, *x.stride()), work=packed.numel())
    return packed


@region
def _pack(kind: Any) -> Callable[[Any], None]:
    """A piece of work is a block of rows of one of the outer matrices."""

    def body(given: Any) -> None:
        edges = carray(pointer(given[2], 0), (given[3],))
        outer, rows, columns = given[6], given[7], given[8]
        to_outer, to_row, to_column = given[9], given[10], given[11]
        size = itemsize(kind(0))
        panel = 2 * BYTES // size
        panels = -(-columns // panel)
        while True:
            piece = take(given, 1)
            g, o = piece // outer, piece % outer
            if g >= len(edges) - 1:
                break
            low, high = edges[g], edges[g + 1]
            for p in range(panels):
                into = given[5] + (p * outer * rows + low * outer + o * (high - low)) * panel * size
                of = given[4] + (o * to_outer + low * to_row + p * panel * to_column) * size
                here = min(panel, columns - p * panel)
                turn(kind(0), here, high - low, of, to_column, to_row, into, panel)
                if here < panel:
                    rest = carray(pointer(into, kind(0)), (high - low, panel))
                    rest[:, here:] = 0

    return body
