"""Compiled loops behind :mod:`mcover.permutations`. A set of columns is the bits of an integer."""

from typing import Any

import numpy as np
from numba import njit
from numpy.random import Generator
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@njit(cache=True, nogil=True)
def completion_table(q: Floats) -> Floats:
    """table[used] = permanent of the rows after the first |used| over the columns not in used.

    Shape: q (M, M); the table has 2^M entries and table[0] is the permanent of q.
    """
    covers = len(q)
    full = (1 << covers) - 1
    table = np.zeros(1 << covers)
    row_of = np.zeros(1 << covers, dtype=np.uint8)
    for used in range(1, full + 1):
        row_of[used] = row_of[used & (used - 1)] + 1
    table[full] = 1.0
    for used in range(full - 1, -1, -1):
        row = row_of[used]
        total = 0.0
        for column in range(covers):
            if not used >> column & 1:
                total += q[row, column] * table[used | 1 << column]
        table[used] = total
    return table


@njit(cache=True, nogil=True)
def exact_routes(q: Floats, table: Floats, rng: Generator, out: NDArray[np.uint8]) -> None:
    """Fills out (size, M) with independent draws: row by row, each from its exact conditional."""
    covers = len(q)
    columns = np.empty(covers, dtype=np.uint8)
    for draw in range(len(out)):
        for column in range(covers):
            columns[column] = column
        used = 0
        for row in range(covers - 1):
            free = covers - row
            left = rng.random() * table[used]
            chosen = -1
            for slot in range(free):
                column = columns[slot]
                weight = q[row, column] * table[used | 1 << column]
                if weight > 0.0:
                    chosen = slot  # rounding may leave a crumb of `left`: the last one takes it
                    left -= weight
                    if left < 0.0:
                        break
            column = columns[chosen]
            out[draw, row] = column
            used |= 1 << column
            columns[chosen] = columns[free - 1]
        out[draw, covers - 1] = columns[0]


@njit(cache=True, nogil=True)
def exact_marginals(q: Floats, table: Floats) -> Floats:
    """P(ρ(α) = β) for all α, β, shape (M, M): ways into a set × step × ways out of it."""
    covers = len(q)
    reach = np.zeros(1 << covers)
    reach[0] = 1.0
    row_of = np.zeros(1 << covers, dtype=np.uint8)
    marginals = np.zeros((covers, covers))
    for used in range((1 << covers) - 1):
        if used:
            row_of[used] = row_of[used & (used - 1)] + 1
        row = row_of[used]
        for column in range(covers):
            if not used >> column & 1:
                step = reach[used] * q[row, column]
                reach[used | 1 << column] += step
                marginals[row, column] += step * table[used | 1 << column]
    return marginals / table[0]


@njit(cache=True, nogil=True)
def chain_routes(
    q: Floats, start: NDArray[np.int64], sweeps: int, rng: Generator, out: NDArray[np.uint16]
) -> None:
    """Fills out (size, M) from one swap chain, ``sweeps`` sweeps before and between the draws.

    One step: a uniform row α asks for a column drawn from its own row of q, and swaps with the row
    α' that holds it. The Metropolis–Hastings ratio of that move is (1/a + 1/b) / (1/a' + 1/b') with
    a, b the entries given up and a', b' the entries taken. One sweep is M steps and one proposed
    turn of the whole route by ±1, which carries the chain between the winding sectors of a ring.
    """
    covers = len(q)
    cumulative = np.empty_like(q)
    for row in range(covers):
        cumulative[row] = np.cumsum(q[row])
    route = start.copy()
    holder = np.empty(covers, dtype=np.int64)
    for row in range(covers):
        holder[route[row]] = row
    for draw in range(len(out)):
        for _ in range(sweeps):
            for _ in range(covers):
                row = int(rng.random() * covers)
                pick = rng.random() * cumulative[row, covers - 1]
                wanted = min(np.searchsorted(cumulative[row], pick, side="right"), covers - 1)
                other, held = holder[wanted], route[row]
                taken = (q[row, wanted], q[other, held])
                if other == row or taken[0] == 0.0 or taken[1] == 0.0:
                    continue
                ratio = (1 / q[row, held] + 1 / q[other, wanted]) / (1 / taken[0] + 1 / taken[1])
                if rng.random() < ratio:
                    route[row], route[other] = wanted, held
                    holder[wanted], holder[held] = row, other
            turn = 1 if rng.random() < 0.5 else covers - 1
            log_ratio = 0.0
            for row in range(covers):
                turned = q[row, (route[row] + turn) % covers]
                log_ratio += np.log(turned / q[row, route[row]]) if turned > 0.0 else -np.inf
            if np.log(rng.random()) < log_ratio:
                for row in range(covers):
                    route[row] = (route[row] + turn) % covers
                    holder[route[row]] = row
        out[draw] = route


@njit(cache=True, nogil=True)
def alias_table(
    law: Floats, zero: np.unsignedinteger
) -> tuple[Floats, NDArray[np.unsignedinteger]]:
    """Walker's alias table of a distribution: slot k keeps k with probability keep[k].

    Probabilities are whole multiples of 2^-32 / K that sum to one exactly. So no slot is left over
    by rounding, and what has no weight is never drawn.

    Shape: law (K,), finite and of any positive sum; keep (K,); either (K, 2), the two indices of
    each slot, of the type of ``zero``.
    """
    size = len(law)
    one = 1 << 32
    share = np.empty(size, dtype=np.int64)
    relative = law / law.max()  # the sum of very small numbers has no finite inverse
    scale = size * one / relative.sum()
    for k in range(size):
        share[k] = round(relative[k] * scale)
    share[np.argmax(law)] += size * one - share.sum()
    either = np.full((size, 2), zero)
    small, large = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    smalls = larges = 0
    for k in range(size):
        either[k, 0] = k
        either[k, 1] = k
        if share[k] < one:
            small[smalls] = k
            smalls += 1
        else:
            large[larges] = k
            larges += 1
    keep = np.ones(size)
    while smalls and larges:  # shares sum to K exactly, so neither is left over
        smalls -= 1
        poor, rich = small[smalls], large[larges - 1]
        keep[poor] = share[poor] / one
        either[poor, 1] = rich
        share[rich] -= one - share[poor]
        if share[rich] < one:
            larges -= 1
            small[smalls] = rich
            smalls += 1
    return keep, either


@njit(cache=True, nogil=True)
def draw_aliased(
    keep: Floats, either: NDArray[np.unsignedinteger], rng: Generator, out: Any
) -> None:
    """Fills out (size,) with independent draws from an alias table."""
    size = len(keep)
    for draw in range(len(out)):
        slot = rng.random() * size  # below size after rounding too: 1 − 2^-53 is the largest
        k = int(slot)
        # An index instead of a branch: a branch would be mispredicted in every other draw.
        out[draw] = either[k, int(slot - k >= keep[k])]
