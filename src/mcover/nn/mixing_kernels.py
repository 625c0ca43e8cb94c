"""The compiled loop that mixes weights on a processor, spread over torch's threads.

Blocks are short rows, so a library call for each costs more than its arithmetic; here a row goes
through the cache once. Anything but contiguous float32 or float64 on a processor is left to torch.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

_ALONE = 2**18  # products that one thread makes sooner than a second one starts


def fits(*tensors: Tensor) -> bool:
    """Whether the loop takes these tensors as they are, and nobody watches torch's own calls.

    Modes that count operations or trace without data would not see the loop.
    """
    return _get_current_dispatch_mode() is None and all(
        t.device.type == "cpu" and t.dtype in (torch.float32, torch.float64) and t.is_contiguous()
        for t in tensors
    )


def mix_rows(
    mixer: Tensor, weight: Tensor, rows: Tensor, edges: list[int], few: slice, back: bool
) -> None:
    """Fills ``rows`` with the mixed weights of a few units; ``back``, their gradient from rows.

    Shape:
        mixer (units, blocks, M, M), weight (M, units, inputs), rows (few, M, inputs).
    """
    q, w, out = (t.detach().numpy() for t in (mixer, weight, rows))
    bounds = np.array(edges)
    threads = min(torch.get_num_threads(), len(rows))
    if rows.numel() * len(weight) < _ALONE:
        threads = 1
    cuts = [few.start + len(rows) * k // threads for k in range(threads + 1)]
    others = [
        _pool(threads - 1).submit(_mix, q, w, out, bounds, few.start, start, stop, back)
        for start, stop in pairwise(cuts[1:])
    ]
    _mix(q, w, out, bounds, few.start, cuts[0], cuts[1], back)
    for other in others:
        other.result()


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="mcover-mixing")


@njit(cache=True, nogil=True, fastmath={"contract"})
def _mix(
    q: NDArray[Any],
    weight: NDArray[Any],
    rows: NDArray[Any],
    edges: NDArray[np.int64],
    first: int,
    start: int,
    stop: int,
    back: bool,
) -> None:
    """Units start … stop; row 0 of ``rows`` is unit ``first``."""
    covers = len(weight)
    for r in range(start, stop):
        for g in range(len(edges) - 1):
            low, high = edges[g], edges[g + 1]
            for to in range(covers):
                into = weight[to, r, low:high] if back else rows[r - first, to, low:high]
                for of in range(covers):
                    row = rows[r - first, of, low:high] if back else weight[of, r, low:high]
                    factor = q[r, g, of, to] if back else q[r, g, to, of]
                    if of == 0:
                        for i in range(high - low):
                            into[i] = factor * row[i]
                    else:
                        for i in range(high - low):
                            into[i] += factor * row[i]
