"""The mixing loop of convolutions, compiled: M feature maps in, M mixed feature maps out.

Convolutions leave block messages as (samples, blocks, units, positions), one array for each cover.
Torch has no call that mixes them where they lie: a batched product wants units first, and turning
them over costs as much as the mixing. Here they are read and written in place.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from numba import njit
from numpy.typing import NDArray

TILE = 1024  # elements of one row at a time: four rows of sources and a target stay in the L1 cache

Maps = tuple[NDArray[Any], ...]
_compiled = njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract"})


def mix_samples(
    q: NDArray[Any], start: NDArray[Any], sources: Maps, targets: Maps, threads: int
) -> None:
    """:func:`mix_maps` of all samples, each by whichever thread comes first.

    A thread of torch's that waits for its next work spins, and then the thread of ours beside it
    runs at half speed: halves handed out beforehand would take as long as one thread alone.
    """
    samples = iter(range(len(sources[0])))  # its next() is one step under the interpreter's lock

    def work() -> None:
        for n in samples:
            mix_maps(q, start, sources, targets, n, n + 1)

    helpers = min(threads, len(sources[0])) - 1
    others = [pool(helpers).submit(work) for _ in range(helpers)]
    work()
    for other in others:
        other.result()


def pool(workers: int) -> ThreadPoolExecutor:
    """Threads of this process: a child that was forked has none of its parent's."""
    return _pool(workers, os.getpid())


@cache
def _pool(workers: int, process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="mcover")


@_compiled
def mix_maps(
    q: NDArray[Any], start: NDArray[Any], sources: Maps, targets: Maps, first: int, last: int
) -> None:
    """targets[j] = start[j] + Σ_k q[r, j, k] sources[k], for samples ``first`` to ``last``.

    Row j of the targets is block j % B of cover j // B, where B is the number of blocks that each
    target holds, and likewise for the sources. So messages of M covers and G blocks mix into M maps
    with q of shape (units, M, M·G), and gradients of M maps spread over M covers and G blocks with
    its transpose. Each element is summed in the order of k, whatever the tile.

    Shape:
        q (units, rows, columns), start (rows, units), each source (samples, columns / M, units,
        positions), each target (samples, rows / M, units, positions); all C-contiguous.
    """
    units, rows, columns = q.shape
    positions = sources[0].shape[3]
    height = max(1, TILE // max(1, positions))  # units in a tile
    for n in range(first, last):
        for low in range(0, units, height):
            high = min(units, low + height)
            for j in range(rows):
                _fill(_row(targets, n, j), start[j], low, high)
            k = 0
            while k + 4 <= columns:
                four = (
                    _row(sources, n, k),
                    _row(sources, n, k + 1),
                    _row(sources, n, k + 2),
                    _row(sources, n, k + 3),
                )
                for j in range(rows):
                    _add_four(_row(targets, n, j), four, q, j, k, low, high)
                k += 4
            while k < columns:
                for j in range(rows):
                    _add_one(_row(targets, n, j), _row(sources, n, k), q, j, k, low, high)
                k += 1


@_compiled
def _row(maps: Maps, n: int, index: int) -> NDArray[Any]:
    """Row ``index`` of sample n, counted over covers and their blocks: (units, positions)."""
    blocks = maps[0].shape[1]
    return maps[index // blocks][n, index % blocks]


@_compiled
def _fill(target: NDArray[Any], start: NDArray[Any], low: int, high: int) -> None:
    for r in range(low, high):
        target[r] = start[r]


@_compiled
def _add_four(
    target: NDArray[Any], four: Maps, q: NDArray[Any], j: int, k: int, low: int, high: int
) -> None:
    """Four sources at once, so that a target is loaded and stored once for four products."""
    for r in range(low, high):
        into, a, b, c, d = target[r], four[0][r], four[1][r], four[2][r], four[3][r]
        qa, qb, qc, qd = q[r, j, k], q[r, j, k + 1], q[r, j, k + 2], q[r, j, k + 3]
        for i in range(into.size):
            into[i] = into[i] + qa * a[i] + qb * b[i] + qc * c[i] + qd * d[i]


@_compiled
def _add_one(
    target: NDArray[Any], source: NDArray[Any], q: NDArray[Any], j: int, k: int, low: int, high: int
) -> None:
    for r in range(low, high):
        into, a, qa = target[r], source[r], q[r, j, k]
        for i in range(into.size):
            into[i] += qa * a[i]
