"""Local searches with the kernels of the annealer: repair and descent.

**Repair** is focused Metropolis search. A pattern is unsatisfied in a context if it contributes to
the energy: k < -1 for the form EVEN, k < 0 for the others. A proposal draws

1. one unsatisfied pair (context, pattern), uniformly among those of all contexts;
2. one weight of that context, uniformly among those that can repair the pattern: the weight
   disagrees with it, and in a committee its hidden unit votes against it;
3. whether the weight is flipped, by Metropolis acceptance with the whole lifted energy.

Repair is a search, not a sampler: the number of unsatisfied pairs changes with every flip, so a
proposal and its reverse have different probabilities, and the acceptance does not correct this.

The unsatisfied patterns of a context are one plane or mask of its counters, so no list of them is
needed. Only their numbers are stored, per 512 patterns, per context and per destination: `pick`
descends these levels and reads the bits of a single block. An accepted flip changes the numbers of
the contexts that read the weight. These must be recounted before the next `pick`, or its loops run
past the end of the arrays.

**Descent** is the limit T → 0: a flip is an improvement if ΔE < 0, or if ΔE = 0 and it increases
the coupling term. Descent accepts every improvement in the order of the proposals, or only the best
of all flips, and ends when no flip is an improvement.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcover.annealing.bits import ONES, WORDS, Words, broadcast, count, load, ones_in, total
from mcover.annealing.chain import (
    EVEN,
    ORDERS,
    RANDOM,
    Integers,
    State,
    Sweeps,
    compute_site_sums,
    new_sequence,
    next_index,
    randbelow,
    shuffle,
    uniform,
)
from mcover.annealing.kernels import (
    advance,
    boltzmann,
    change_of,
    fill_tables,
    make_tables,
    scales_of,
    take,
)
from mcover.annealing.options import Improvement, Order, Rule
from mcover.annealing.students import solved
from mcover.compiled import njit


def run(
    state: State,
    temperatures: ArrayLike,
    gammas: ArrayLike,
    rng: Words,
    rule: Rule,
    order: Order = "random",
    improvement: Improvement = "first",
    stop_at_zero: bool = False,
    stop_at_minimum: bool = True,
) -> Sweeps:
    """Sweeps with any of the rules, as in `advance`; changes `state` and `rng` in place."""
    if rule == "repair":
        return repair(state, temperatures, gammas, rng, stop_at_zero)
    if rule == "descent":
        gammas = np.broadcast_to(gammas, np.shape(temperatures))
        return descend(state, gammas, rng, order, improvement, stop_at_zero, stop_at_minimum)
    return advance(state, temperatures, gammas, rule, order, rng, stop_at_zero)


class Unsatisfied(NamedTuple):
    """Bits of word i of context c: words[((c*W/8 + i//8)*stride + offset)*8 + i%8] ^ flip."""

    words: Words
    stride: int
    offset: int
    flip: np.uint64
    blocks: Integers  # their number in each 512 patterns of each context
    counts: Integers  # of each context c = s*M + α
    totals: Integers  # of each destination s


def unsatisfied(state: State) -> Unsatisfied:
    """The unsatisfied patterns of each context."""
    covers, destinations = state.weights.shape[0], state.destinations
    perceptron = state.hidden == 1
    counts = np.zeros(destinations * covers, dtype=np.int64)
    blocks = np.zeros(counts.size * (state.valid.size // WORDS), dtype=np.int64)
    if state.form == EVEN:  # up = ~hold is k < -1
        words, stride, offset = state.masks if perceptron else state.vote_masks, 2, 1
    else:
        words = state.planes if perceptron else state.vote_planes
        stride = state.depth if perceptron else state.vote_depth
        offset = stride - 1
    flip = ONES if state.form == EVEN else np.uint64(0)
    totals = np.zeros(destinations, dtype=np.int64)
    wrong = Unsatisfied(words, stride, offset, flip, blocks, counts, totals)
    _count_all(state, wrong)
    return wrong


@njit()
def _count_all(state: State, wrong: Unsatisfied) -> None:
    for c in range(wrong.counts.size):
        _count(state, wrong, c)


@njit(forceinline=True, error_model="numpy")
def _count(state: State, wrong: Unsatisfied, c: int) -> Any:
    """Recount the unsatisfied patterns of one context; returns the change of their number."""
    blocks, more = state.valid.size // WORDS, -wrong.counts[c]
    for j in range(blocks):
        at = c * blocks + j
        bits = load(wrong.words, (at * wrong.stride + wrong.offset) * WORDS) ^ broadcast(wrong.flip)
        wrong.blocks[at] = total(count(bits & load(state.valid, j * WORDS)))
        more += wrong.blocks[at]
    wrong.counts[c] += more
    wrong.totals[c // state.weights.shape[0]] += more
    return more


@njit(forceinline=True, error_model="numpy")
def pick(state: State, wrong: Unsatisfied, r: Any) -> Any:
    """The r-th unsatisfied pair as (s, α, pattern): contexts in order, patterns in order."""
    covers, blocks = state.weights.shape[0], state.valid.size // WORDS
    s = 0
    while r >= wrong.totals[s]:
        r -= wrong.totals[s]
        s += 1
    c = s * covers
    while r >= wrong.counts[c]:
        r -= wrong.counts[c]
        c += 1
    at = c * blocks
    while r >= wrong.blocks[at]:
        r -= wrong.blocks[at]
        at += 1
    i = (at - c * blocks) * WORDS
    at = (at * wrong.stride + wrong.offset) * WORDS
    bits = (wrong.words[at] ^ wrong.flip) & state.valid[i]
    while r >= ones_in(bits):
        r -= ones_in(bits)
        at += 1
        i += 1
        bits = (wrong.words[at] ^ wrong.flip) & state.valid[i]
    for _ in range(r):
        bits &= bits - np.uint64(1)
    # The number of zeros below the lowest set bit.
    return s, c - s * covers, 64 * i + ones_in(~bits & (bits - np.uint64(1)))


@njit(forceinline=True, error_model="numpy")
def sample_repairing_weight(state: State, s: int, alpha: int, mu: int, rng: Words) -> Any:
    """A random weight whose flip helps pattern μ in context (s, α), as (site, cover).

    Rejection sampling: sites are drawn uniformly until one can repair the pattern, so the result is
    uniform among those that can. It ends, because an unsatisfied pattern disagrees with some weight
    of a unit that votes against it.
    """
    covers, sites = state.weights.shape
    word, place = mu >> 6, np.uint64(mu & 63)
    blocks, depth = state.valid.size // WORDS, state.depth
    while True:
        q = randbelow(rng, sites)
        unit: Any = 0
        if state.hidden > 1:
            unit = q // state.inputs
            row = (s * covers + alpha) * state.hidden + unit
            at = ((row * blocks + (word >> 3)) * depth + depth - 1) * WORDS + (word & 7)
            if not (state.planes[at] >> place) & np.uint64(1):
                continue  # a vote for the pattern
        beta = 0
        while np.intp(state.inverse[(q * covers + beta) * state.destinations + s]) != alpha:
            beta += 1
        column = q - unit * state.inputs
        bit = (state.columns[column * state.valid.size + word] >> place) & np.uint64(1)
        if (bit == np.uint64(1)) != (state.weights[beta, q] > 0):
            return q, beta


@njit()
def _repair(
    state: State,
    wrong: Unsatisfied,
    scales: NDArray[np.float64],
    gammas: NDArray[np.float64],
    rng: Words,
    stop_at_zero: bool,
    accepted: Integers,
    energies: Integers,
    proposals: Integers,
) -> Any:
    """The sweeps of `repair`; returns their number, and whether the search ended."""
    weights, (covers, sites) = state.weights, state.weights.shape
    destinations = state.destinations
    tables, site_sums, reach = make_tables(state), compute_site_sums(weights), np.int64(0)
    left = wrong.counts.sum()
    for t in range(scales.size):
        if t == 0 or scales[t] != scales[t - 1] or gammas[t] != gammas[t - 1]:
            reach = fill_tables(tables, state, scales[t], gammas[t])
        taken = made = 0
        while made < sites * covers and left > 0:
            made += 1
            s, alpha, mu = pick(state, wrong, randbelow(rng, left))
            q, beta = sample_repairing_weight(state, s, alpha, mu, rng)
            u = uniform(rng)
            index: Any = q * covers + beta
            w = np.int64(weights[beta, q])
            change = change_of(state, index, q, w)
            h = w * (np.int64(site_sums[q]) - w)
            if u * boltzmann(tables, reach, scales[t], gammas[t], change, h) < 1.0:
                take(state, site_sums, index, q, w, change)
                taken += 1
                for one in range(destinations):
                    c = one * covers + np.intp(state.inverse[index * destinations + one])
                    left += _count(state, wrong, c)
        accepted[t], energies[t], proposals[t] = taken, state.energy[0], made
        if left == 0 or (stop_at_zero and solved(state, site_sums)):
            return t + 1, True
    return scales.size, False


def repair(
    state: State,
    temperatures: ArrayLike,
    gammas: ArrayLike,
    rng: Words,
    stop_at_zero: bool = False,
) -> Sweeps:
    """Sweeps of K*N*M repair proposals, until no pattern is unsatisfied and the energy is zero.

    A proposal draws the index of its pair, (r * unsatisfied) >> 32, in the order of contexts c =
    s*M + α and patterns; then sites, (r * K*N) >> 32, until one can repair it; then a `uniform`.
    Temperatures and gammas are as in `advance`.
    """
    scales, gammas = scales_of(state, temperatures, gammas)
    rows = np.zeros((3, scales.size), dtype=np.int64)
    done, ended = _repair(state, unsatisfied(state), scales, gammas, rng, stop_at_zero, *rows)
    return Sweeps(rows[0, :done], rows[1, :done], rows[2, :done], ended)


# A pass accepts every improvement, or the best one, or only looks whether there is one.
_TAKE, _BEST, _LOOK = 0, 1, 2


@njit()
def _pass(
    state: State, what: int, order: int, gamma: float, site_sums: Any, sequence: Any, rng: Words
) -> Any:
    """One pass over K*N*M flips; returns the numbers of proposals and of improvements."""
    weights, (covers, sites) = state.weights, state.weights.shape
    best: Any = np.intp(-1)
    lowest, side = np.int64(0), np.int64(0)  # ΔE and coupling loss that a flip has to beat
    improving = 0
    for i in range(sites * covers):
        index = next_index(order, sequence, i, sites * covers, rng)
        q: Any = np.intp(np.uint64(index) // np.uint64(covers))
        beta = index - q * covers
        w = np.int64(weights[beta, q])
        change = change_of(state, index, q, w)
        loss = np.int64(gamma > 0) * w * (np.int64(site_sums[q]) - w)
        if change > lowest or (change == lowest and loss >= side):
            continue
        improving += 1
        if what == _LOOK:
            return i + 1, improving
        if what == _BEST:
            best, lowest, side = index, change, loss
            continue
        take(state, site_sums, index, q, w, change)
    if best >= 0:
        q = best // covers
        w = np.int64(weights[best - q * covers, q])
        take(state, site_sums, best, q, w, lowest)
        improving = 1
    return sites * covers, improving


@njit()
def _descend(
    state: State,
    order: int,
    what: int,
    gammas: NDArray[np.float64],
    rng: Words,
    stop_at_zero: bool,
    stop_at_minimum: bool,
    accepted: Integers,
    energies: Integers,
    proposals: Integers,
) -> Any:
    """The sweeps of `descend`; returns their number, and whether the search ended."""
    site_sums, sequence = compute_site_sums(state.weights), new_sequence(order, state.weights.size)
    for t in range(gammas.size):
        shuffle(sequence, rng)
        made, taken = _pass(state, what, order, gammas[t], site_sums, sequence, rng)
        minimum = taken == 0
        if minimum and order == RANDOM and stop_at_minimum:
            # A sweep in random order may have missed some flips.
            looked, found = _pass(state, _LOOK, -1, gammas[t], site_sums, sequence, rng)
            made, minimum = made + looked, found == 0
        accepted[t], energies[t], proposals[t] = taken, state.energy[0], made
        if (minimum and stop_at_minimum) or (stop_at_zero and solved(state, site_sums)):
            return t + 1, True
    return gammas.size, False


def descend(
    state: State,
    gammas: ArrayLike,
    rng: Words,
    order: Order = "random",
    improvement: Improvement = "first",
    stop_at_zero: bool = False,
    stop_at_minimum: bool = True,
) -> Sweeps:
    """One sweep for each coupling, of which only the sign matters, until no flip is an improvement.

    With improvement "first", a sweep is K*N*M proposals in the order of `advance`, without
    `uniform`. After a sweep in random order without a flip, all flips are tried in sequence up to
    the first improvement; these count as proposals too. With "best", a sweep tries every flip and
    accepts the one with the lowest ΔE, then the largest gain in coupling, then the lowest index; it
    uses no random numbers.
    """
    gammas = np.array(gammas, dtype=np.float64)
    rows = np.zeros((3, gammas.size), dtype=np.int64)
    best = improvement == "best"
    how = (-1, _BEST) if best else (ORDERS.index(order), _TAKE)
    stop = stop_at_zero, stop_at_minimum
    done, ended = _descend(state, *how, gammas, rng, *stop, *rows)
    return Sweeps(rows[0, :done], rows[1, :done], rows[2, :done], ended)
