"""Compiled loops of the directed lift: M tensors in, M tensors out, each element along its route.

Tensors of the covers are handed over by address: those that are written are allocated one by one,
so that each is freed with its own cover, and those that are read on the way back are gradients that
torch allocated. Loops move bits, so they know the size of an element and not its type.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numba import carray, njit, types
from numba.extending import intrinsic
from torch import Tensor

_TILE = 1024  # elements of a cover at a time: those of a few covers fit the first-level cache
_CHOICES = 5  # covers that one expression chooses from; beyond, each element is looked up
_PART = 2**17  # elements of all covers from which another thread pays
# Empty arrays that tell the loops the size of an element.
_WORDS = {size: np.empty(0, dtype=f"u{size}") for size in (1, 2, 4, 8)}


@intrinsic
def _pointer(typing: Any, address: Any) -> Any:
    """An address as a pointer, for ``carray``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = context.get_value_type(signature.return_type)
        return builder.inttoptr(arguments[0], kind)

    return types.voidptr(address), generate


@njit(cache=True, nogil=True)
def _choose(
    read: Any, written: Any, index: Any, columns: Any, per: int, word: Any, start: int, stop: int
) -> None:
    """As :func:`_move`, for up to five covers and elements with a route each.

    All covers are read and one is kept, which compiles to vector instructions: twice as fast as
    looking up where each element is. A route is one number here, three bits a context.
    """
    covers, rows = columns.shape
    packed = np.zeros(rows, dtype=np.uint32)
    for alpha in range(covers):
        for row in range(rows):
            packed[row] |= np.uint32(columns[alpha, row] << 3 * alpha)
    routes = np.empty(_TILE, dtype=np.uint32)
    for first in range(start, stop, _TILE):
        size = min(_TILE, stop - first)
        here = index[first : first + size]
        for i in range(size):
            routes[i] = packed[here[i]]
        near = read + first * word.itemsize
        own_0 = carray(_pointer(near[0]), (size,), word.dtype)
        own_1 = carray(_pointer(near[1 % covers]), (size,), word.dtype)
        own_2 = carray(_pointer(near[2 % covers]), (size,), word.dtype)
        own_3 = carray(_pointer(near[3 % covers]), (size,), word.dtype)
        own_4 = carray(_pointer(near[4 % covers]), (size,), word.dtype)
        for alpha in range(covers):
            out = carray(_pointer(written[alpha] + first * word.itemsize), (size,), word.dtype)
            # Shifted here, since a shift in the loop would be one of 64 bits, on half the lanes.
            bits = np.uint32(7 << 3 * alpha)
            is_1, is_2 = np.uint32(1 << 3 * alpha), np.uint32(2 << 3 * alpha)
            is_3, is_4 = np.uint32(3 << 3 * alpha), np.uint32(4 << 3 * alpha)
            for i in range(size):
                source = np.uint32(routes[i] & bits)
                one, two, three, four = own_1[i], own_2[i], own_3[i], own_4[i]
                value = own_0[i]
                value = one if source == is_1 else value
                value = two if source == is_2 else value
                value = three if source == is_3 else value
                value = four if source == is_4 else value
                out[i] = value


@njit(cache=True, nogil=True)
def _move(
    read: Any, written: Any, index: Any, columns: Any, per: int, word: Any, start: int, stop: int
) -> None:
    """written[α][i] = read[columns[α, index[i]]][i] for the sources i from start to stop.

    Shape: read, written (M,) addresses of (sources, per) words; index (sources,); columns (M, K);
    word (0,), of the type that is moved.
    """
    width = per * word.itemsize
    tile = max(1, _TILE // per)
    for first in range(start, stop, tile):
        size = min(tile, stop - first)
        here = index[first : first + size]
        near = read + first * width
        for alpha in range(len(read)):
            column = columns[alpha]
            out = carray(_pointer(written[alpha] + first * width), (size * per,), word.dtype)
            for k in range(size):
                i = np.uintp(k)  # unsigned: no test whether it counts from the end
                row = carray(_pointer(near[column[here[i]]]), (size * per,), word.dtype)
                if per == 1:
                    out[i] = row[i]
                else:
                    for j in range(np.uintp(per) * i, np.uintp(per) * (i + np.uintp(1))):
                        out[j] = row[j]


def fits(tensors: Sequence[Tensor], index: Tensor) -> bool:
    """Whether the loops can read these: in the memory of the CPU, and not a stand-in for it."""
    first = tensors[0]
    return (
        first.is_cpu
        and first.element_size() in _WORDS
        and not first.is_complex()  # it may be conjugated without the memory showing it
        and {type(t) for t in (*tensors, index)} <= {Tensor, torch.nn.Parameter}
        and not any(t.is_neg() for t in tensors)
    )


def move(
    read: Sequence[Tensor], written: Sequence[Tensor], index: Tensor, table: Tensor, per: int
) -> None:
    """written[α] of source i = read[table[index[i], α]] of source i.

    Shape: M contiguous tensors each, of sources · per elements; index (sources,); table (K, M).
    """
    addresses = [np.array([t.data_ptr() for t in ts], dtype=np.int64) for ts in (read, written)]
    columns, rows = table.T.contiguous().numpy(), index.contiguous().numpy()
    loop = _choose if per == 1 and len(read) <= _CHOICES else _move
    work = partial(loop, *addresses, rows, columns, per, _WORDS[read[0].element_size()])
    sources, elements = len(rows), len(rows) * per * len(read)
    if elements < 2 * _PART:
        work(0, sources)
        return
    parts = min(torch.get_num_threads(), elements // _PART, sources)
    ends = [sources * part // parts for part in range(parts + 1)]
    others = [pool(parts - 1).submit(work, start, stop) for start, stop in pairwise(ends[1:])]
    work(0, ends[1])
    for other in others:
        other.result()


def pool(workers: int) -> ThreadPoolExecutor:
    """Threads of this process: a child that was forked has none of its parent's."""
    return _pool(workers, os.getpid())


@cache
def _pool(workers: int, process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="mcover")
