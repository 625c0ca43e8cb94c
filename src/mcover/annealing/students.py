"""Checks whether the collapsed student classifies all patterns correctly.

This happens well before the lifted energy is zero, which short schedules rarely reach. The check
takes about a nanosecond per weight, once per sweep: 512 patterns are counted at once, and the first
block with a misclassified pattern ends it.

No counters are kept for the student, so the agreeing weights are counted from scratch. A carry-save
adder takes eight columns at a time: full adders reduce them to one carry, and only that carry is
added to the planes of a counter. One step of the counter for every column would give the same
counts with several times as many operations.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcover.annealing.bits import (
    ONES,
    WORDS,
    Words,
    broadcast,
    clear_counter,
    count,
    load,
    step_counter,
    store,
    total,
)
from mcover.annealing.chain import State
from mcover.compiled import njit

_LOW = 3  # planes of a counter that stay in registers: eight columns give one carry


@njit()
def solved(state: State, site_sums: NDArray[np.int16]) -> bool:
    """Whether the lifted energy is zero, or the majority of the covers makes no error.

    Cover 0 decides ties. Shape: site_sums (K*N,), the sums over covers.
    """
    if state.energy[0] == 0 or state.weights.shape[0] == 1:  # one cover is its own student
        return bool(state.energy[0] == 0)
    hidden, vote_depth, none = state.hidden, state.vote_depth, broadcast(np.uint64(0))
    depth = max(state.depth - _LOW, 1)
    planes = np.empty((depth + vote_depth) * WORDS, dtype=np.uint64)
    votes = depth * WORDS
    flips = np.zeros(site_sums.size, dtype=np.uint64)
    for q in range(site_sums.size):
        if site_sums[q] < 0 or (site_sums[q] == 0 and state.weights[0, q] < 0):
            flips[q] = ONES
    for j in range(state.valid.size // WORDS):
        wrong = none  # k < 0, that is a margin of zero or less
        if hidden > 1:
            clear_counter(planes, votes, vote_depth, hidden)
        for unit in range(hidden):
            own = flips[unit * state.inputs : (unit + 1) * state.inputs]
            args = state.columns, j * WORDS, state.valid.size
            wrong = _disagreeing(*args, own, planes, depth)
            if hidden > 1:
                right = wrong ^ broadcast(ONES)
                wrong, _, _ = step_counter(planes, votes, vote_depth, right, none)
        if total(count(wrong & load(state.valid, j * WORDS))) > 0:
            return False
    return True


@njit(forceinline=True)
def _add(a: Any, b: Any, c: Any) -> Any:
    """A full adder: the sum and the carry of three bits."""
    return a ^ b ^ c, (a & b) | (c & (a ^ b))


@njit()
def _disagreeing(
    columns: Words, at: int, stride: int, flips: Words, planes: Words, depth: int
) -> Any:
    """Where k < 0 for one unit of the student, in the block of patterns at word `at`."""
    none, start = broadcast(np.uint64(0)), -(flips.size // 2) - 1
    ones = broadcast(ONES if start & 1 else np.uint64(0))
    twos = broadcast(ONES if start & 2 else np.uint64(0))
    fours = broadcast(ONES if start & 4 else np.uint64(0))
    for i in range(depth):
        store(planes, i * WORDS, broadcast(ONES if (start >> (i + _LOW)) & 1 else np.uint64(0)))
    in_eights = flips.size & ~7
    for i in range(0, in_eights, 8):
        a = load(columns, at) ^ broadcast(flips[i])
        b = load(columns, at + stride) ^ broadcast(flips[i + 1])
        ones, twos_a = _add(ones, a, b)
        a = load(columns, at + 2 * stride) ^ broadcast(flips[i + 2])
        b = load(columns, at + 3 * stride) ^ broadcast(flips[i + 3])
        ones, twos_b = _add(ones, a, b)
        twos, fours_a = _add(twos, twos_a, twos_b)
        a = load(columns, at + 4 * stride) ^ broadcast(flips[i + 4])
        b = load(columns, at + 5 * stride) ^ broadcast(flips[i + 5])
        ones, twos_a = _add(ones, a, b)
        a = load(columns, at + 6 * stride) ^ broadcast(flips[i + 6])
        b = load(columns, at + 7 * stride) ^ broadcast(flips[i + 7])
        ones, twos_b = _add(ones, a, b)
        twos, fours_b = _add(twos, twos_a, twos_b)
        fours, eights = _add(fours, fours_a, fours_b)
        step_counter(planes, 0, depth, eights, none)
        at += 8 * stride
    for i in range(in_eights, flips.size):
        ones, twos_a = _add(ones, load(columns, at) ^ broadcast(flips[i]), none)
        twos, fours_a = _add(twos, twos_a, none)
        fours, eights = _add(fours, fours_a, none)
        step_counter(planes, 0, depth, eights, none)
        at += stride
    return step_counter(planes, 0, depth, none, none)[0]
