"""Whether the student that covers collapse into fits every pattern: is there a solution already?

Covers agree on it long before each of their contexts is at rest. A look takes about a nanosecond a
weight: 512 patterns are counted at once, and the first of them that is wrong ends it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcover.annealing.bits import (
    ONES,
    WORDS,
    Words,
    clear_counter,
    count,
    load,
    spread,
    step_counter,
    store,
    total,
)
from mcover.annealing.chain import EVEN, State
from mcover.compiled import njit

_LOW = 3  # planes of a counter that stay in registers: eight columns make one carry


@njit()
def fits(state: State, magnet: NDArray[np.int16]) -> bool:
    """Whether the majority of covers, of two that disagree cover 0, has zero energy.

    Shape: magnet (K*N,), the sums over covers.
    """
    if state.weights.shape[0] == 1:  # the student is the cover
        return bool(state.energy[0] == 0)
    hidden, vote_depth = state.hidden, state.vote_depth
    none, all_ = spread(np.uint64(0)), spread(ONES)
    depth = max(state.depth - _LOW, 1)
    planes = np.empty((depth + vote_depth) * WORDS, dtype=np.uint64)
    votes = depth * WORDS
    flips = np.zeros(magnet.size, dtype=np.uint64)
    for q in range(magnet.size):
        if magnet[q] < 0 or (magnet[q] == 0 and state.weights[0, q] < 0):
            flips[q] = ONES
    for j in range(state.valid.size // WORDS):
        negative, minus = none, none  # k < 0 and k = -1
        if hidden > 1:
            clear_counter(planes, votes, vote_depth, hidden)
        for unit in range(hidden):
            own = flips[unit * state.inputs : (unit + 1) * state.inputs]
            args = state.columns, j * WORDS, state.valid.size
            negative, minus = _count_agreeing(*args, own, planes, depth)
            if hidden > 1:
                right = negative ^ all_
                negative, _, minus = step_counter(planes, votes, vote_depth, right, none)
        wrong = negative & load(state.valid, j * WORDS)
        if state.form == EVEN:
            wrong = wrong & (minus ^ all_)
        if total(count(wrong)) > 0:
            return False
    return True


@njit(forceinline=True)
def _add(a: Any, b: Any, c: Any) -> Any:
    """Three bits as one of the same weight and one of twice that."""
    return a ^ b ^ c, (a & b) | (c & (a ^ b))


@njit()
def _count_agreeing(
    columns: Words, at: int, stride: int, flips: Words, planes: Words, depth: int
) -> Any:
    """Where k < 0 and where k = -1 for one unit, in the block of patterns at word `at`."""
    none, start = spread(np.uint64(0)), -(flips.size // 2) - 1
    ones = spread(ONES if start & 1 else np.uint64(0))
    twos = spread(ONES if start & 2 else np.uint64(0))
    fours = spread(ONES if start & 4 else np.uint64(0))
    for i in range(depth):
        store(planes, i * WORDS, spread(ONES if (start >> (i + _LOW)) & 1 else np.uint64(0)))
    whole = flips.size & ~7
    for i in range(0, whole, 8):
        a = load(columns, at) ^ spread(flips[i])
        b = load(columns, at + stride) ^ spread(flips[i + 1])
        ones, twos_a = _add(ones, a, b)
        a = load(columns, at + 2 * stride) ^ spread(flips[i + 2])
        b = load(columns, at + 3 * stride) ^ spread(flips[i + 3])
        ones, twos_b = _add(ones, a, b)
        twos, fours_a = _add(twos, twos_a, twos_b)
        a = load(columns, at + 4 * stride) ^ spread(flips[i + 4])
        b = load(columns, at + 5 * stride) ^ spread(flips[i + 5])
        ones, twos_a = _add(ones, a, b)
        a = load(columns, at + 6 * stride) ^ spread(flips[i + 6])
        b = load(columns, at + 7 * stride) ^ spread(flips[i + 7])
        ones, twos_b = _add(ones, a, b)
        twos, fours_b = _add(twos, twos_a, twos_b)
        fours, eights = _add(fours, fours_a, fours_b)
        step_counter(planes, 0, depth, eights, none)
        at += 8 * stride
    for i in range(whole, flips.size):
        ones, twos_a = _add(ones, load(columns, at) ^ spread(flips[i]), none)
        twos, fours_a = _add(twos, twos_a, none)
        fours, eights = _add(fours, fours_a, none)
        step_counter(planes, 0, depth, eights, none)
        at += stride
    negative, _, minus = step_counter(planes, 0, depth, none, none)
    return negative, minus & ones & twos & fours
