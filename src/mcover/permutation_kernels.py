"""Compiled loops behind :mod:`mcover.permutations`.

A set of columns is represented by the bits of an integer. Rows are filled in order, so the number
of used columns is the index of the next row, and the set alone determines the rest of the problem.
So the permanent needs a table over 2^M sets instead of a sum over M! permutations. All terms are
products of non-negative numbers, so nothing cancels; Ryser's formula is as fast, but subtracts.
"""

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from mcover.compiled import njit

Floats = NDArray[np.float64]


@njit()
def completion_table(q: Floats) -> Floats:
    """table[used] = permanent of the rows after the first |used| over the columns not in used.

    An expansion of that permanent along its first row gives table[used] = Σ q[row, column] ·
    table[used + column] over the free columns. A superset is a larger integer, so the loop counts
    down, and each entry is computed after those that it needs.

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


@njit()
def exact_routes(q: Floats, table: Floats, rng: Generator, out: NDArray[np.uint8]) -> None:
    """Fills out (size, M) with independent draws: row by row, each from its exact conditional.

    Given the columns used so far, the next row takes a free column with probability q[row, column]
    · table[used + column] / table[used]; the product over rows telescopes to the law.
    """
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
                    # If rounding leaves `left` positive, the last possible slot is kept.
                    chosen = slot
                    left -= weight
                    if left < 0.0:
                        break
            column = columns[chosen]
            out[draw, row] = column
            used |= 1 << column
            columns[chosen] = columns[free - 1]
        out[draw, covers - 1] = columns[0]


@njit()
def exact_marginals(q: Floats, table: Floats) -> Floats:
    """P(ρ(α) = β) for all α, β, shape (M, M).

    This is a forward–backward algorithm: ``reach`` is the total weight of all ways in which the
    first rows use a set of columns, and the table is that of all completions. A marginal sums reach
    · q · completion over the sets before its row.
    """
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


@njit()
def loop_routes(
    cumulative: Floats,
    guide: NDArray[np.int32],
    route: NDArray[np.int64],
    loops: int,
    limit: int,
    rng: Generator,
    out: NDArray[np.unsignedinteger],
) -> int:
    """Fills out (size, M) from the chain at ``route``, with ``loops`` loops for each draw.

    A loop removes a uniformly chosen row from the route, which frees its column. Then a row drawn
    from the entries of the free column takes that column and frees its own, until the removed row
    is drawn. Each intermediate state, a route without one row and one column, has the product of
    its entries as its weight. With these weights every step satisfies detailed balance without
    rejection: for a loop from row u along the free columns v₀ → v₁ → … → vₙ, both directions divide
    by the same column sums, and the entries that one direction adds are those that the other
    removes.

    Shape: cumulative (M, M), sums of q over the rows up to z in each column v, that end with 1;
    guide (M, M), the first row with cumulative[v, z] > k / M.

    Returns:
        The number of steps, or −1 if it would exceed ``limit``; then ``route`` is invalid.
    """
    covers = len(route)
    steps = 0
    for draw in range(len(out)):
        for _ in range(loops):
            removed = int(rng.random() * covers)
            free = route[removed]
            row = -1
            while row != removed:
                pick = rng.random()
                row = guide[free, int(pick * covers)]
                while cumulative[free, row] <= pick:
                    row += 1
                free, route[row] = route[row], free
                steps += 1
                if steps > limit:
                    return -1
        out[draw] = route
    return steps


@njit()
def alias_table(
    law: Floats, zero: np.unsignedinteger
) -> tuple[Floats, NDArray[np.unsignedinteger]]:
    """Walker's alias table of a distribution: slot k keeps k with probability keep[k].

    Probabilities are integer multiples of 2^-32 / K that sum exactly to one. So rounding leaves no
    slot without a partner, and an entry without weight is never drawn.

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


@njit()
def draw_aliased(
    keep: Floats, either: NDArray[np.unsignedinteger], rng: Generator, out: Any
) -> None:
    """Fills out (size,) with independent draws from an alias table."""
    size = len(keep)
    for draw in range(len(out)):
        # Below size also after rounding, since rng.random() <= 1 − 2^-53.
        slot = rng.random() * size
        k = int(slot)
        # An index instead of a branch, which would often be mispredicted.
        out[draw] = either[k, int(slot - k >= keep[k])]
