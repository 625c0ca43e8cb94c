"""Local searches on the chain of `kernels`: repair.

**Repair** is focused Metropolis search. A pattern is unsatisfied in a context where it adds to the
energy: k < -1 for the form EVEN, k < 0 for the others. A proposal takes

1. one unsatisfied pair (context, pattern), uniformly among those of all contexts;
2. one weight of that context, uniformly among those that can repair the pattern: they disagree with
   it, and in a committee their hidden unit votes against it;
3. the flip of that weight, with the probability of Metropolis, by the whole lifted energy.

Numbers of unsatisfied patterns are kept per context, and only an accepted flip changes them, in the
contexts that it touches. What is unsatisfied is one plane or mask of the counters already.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcover.annealing.bits import ONES, WORDS, Words, count, load, ones_in, spread, total
from mcover.annealing.kernels import (
    EVEN,
    Integers,
    State,
    _committee_change,
    _flip,
    _perceptron_change,
    advance,
    below,
    boltzmann,
    fill_tables,
    magnets,
    make_tables,
    scales_of,
    uniform,
)
from mcover.annealing.options import Order, Rule
from mcover.compiled import njit


class Sweeps(NamedTuple):
    """What was done: int64 (done,) for each sweep, and whether there is nothing left to do."""

    accepted: Integers
    energies: Integers  # after each sweep, in units of the state
    proposals: Integers
    over: bool


def run(
    state: State,
    temperatures: ArrayLike,
    gammas: ArrayLike,
    rng: Words,
    rule: Rule,
    order: Order = "random",
    stop_at_zero: bool = False,
) -> Sweeps:
    """Sweeps by any of the rules, as in `advance`; changes `state` and `rng` in place."""
    if rule == "repair":
        return repair(state, temperatures, gammas, rng)
    accepted, energies = advance(state, temperatures, gammas, rule, order, rng, stop_at_zero)
    over = stop_at_zero and energies[-1] == 0
    return Sweeps(accepted, energies, np.full(len(accepted), state.weights.size), bool(over))


class Unsatisfied(NamedTuple):
    """Bits of word i of context c: words[((c*W/8 + i//8)*stride + offset)*8 + i%8] ^ flip."""

    words: Words
    stride: int
    offset: int
    flip: np.uint64
    counts: Integers  # of each context c = s*M + α
    totals: Integers  # of each destination s


def unsatisfied(state: State) -> Unsatisfied:
    """Which patterns are unsatisfied in which context."""
    covers, destinations = state.weights.shape[0], state.destinations
    perceptron = state.hidden == 1
    counts = np.zeros(destinations * covers, dtype=np.int64)
    if state.form == EVEN:  # up = ~hold is k < -1
        words, stride, offset = state.masks if perceptron else state.vote_masks, 2, 1
    else:
        words = state.planes if perceptron else state.vote_planes
        stride = state.depth if perceptron else state.vote_depth
        offset = stride - 1
    flip = ONES if state.form == EVEN else np.uint64(0)
    totals = np.zeros(destinations, dtype=np.int64)
    wrong = Unsatisfied(words, stride, offset, flip, counts, totals)
    _count_all(state, wrong)
    return wrong


@njit()
def _count_all(state: State, wrong: Unsatisfied) -> None:
    for c in range(wrong.counts.size):
        _count(state, wrong, c)


@njit(forceinline=True, error_model="numpy")
def _count(state: State, wrong: Unsatisfied, c: int) -> Any:
    """Renew the number of unsatisfied patterns of one context; returns by how much it grew."""
    blocks, sums = state.valid.size // WORDS, spread(np.uint64(0))
    for j in range(blocks):
        at = ((c * blocks + j) * wrong.stride + wrong.offset) * WORDS
        bits = load(wrong.words, at) ^ spread(wrong.flip)
        sums = sums + count(bits & load(state.valid, j * WORDS))
    more = total(sums) - wrong.counts[c]
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
    i = 0
    while True:
        at = ((c * blocks + (i >> 3)) * wrong.stride + wrong.offset) * WORDS + (i & 7)
        bits = (wrong.words[at] ^ wrong.flip) & state.valid[i]
        here = ones_in(bits)
        if r < here:
            break
        r -= here
        i += 1
    for _ in range(r):
        bits &= bits - np.uint64(1)
    # The zeros below the lowest one.
    return s, c - s * covers, 64 * i + ones_in(~bits & (bits - np.uint64(1)))


@njit(forceinline=True, error_model="numpy")
def culprit(state: State, s: int, alpha: int, mu: int, rng: Words) -> Any:
    """A weight that can repair pattern μ in context (s, α), as (site, cover): drawn until it can."""
    covers, sites = state.weights.shape
    word, place = mu >> 6, np.uint64(mu & 63)
    blocks, depth = state.valid.size // WORDS, state.depth
    while True:
        q = below(rng, sites)
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
    accepted: Integers,
    energies: Integers,
    proposals: Integers,
) -> int:
    """The sweeps of `repair`; returns how many were begun."""
    weights, (covers, sites) = state.weights, state.weights.shape
    common, destinations = state.pairs * state.destinations, state.destinations
    tables, magnet, reach = make_tables(state), magnets(weights), np.int64(0)
    left = wrong.counts.sum()
    for t in range(scales.size):
        if t == 0 or scales[t] != scales[t - 1] or gammas[t] != gammas[t - 1]:
            reach = fill_tables(tables, state, scales[t], gammas[t])
        taken = made = 0
        while made < sites * covers and left > 0:
            made += 1
            s, alpha, mu = pick(state, wrong, below(rng, left))
            q, beta = culprit(state, s, alpha, mu, rng)
            u = uniform(rng)
            index: Any = q * covers + beta
            w = np.int64(weights[beta, q])
            flip = spread(ONES if w < 0 else np.uint64(0))
            unit: Any = 0
            column: Any = q
            if state.hidden == 1:
                change = _perceptron_change(state, index, column, flip)
            else:
                unit = q // state.inputs
                column = q - unit * state.inputs
                change = _committee_change(state, index, unit, column, flip)
            ones = state.ones[column]
            change -= common * (ones if w < 0 else 64 * state.valid.size - ones)
            h = w * (np.int64(magnet[q]) - w)
            if u * boltzmann(tables, reach, scales[t], gammas[t], change, h) < 1.0:
                _flip(state, index, unit, column, flip)
                weights[beta, q] = -w
                magnet[q] -= 2 * w
                state.energy[0] += change
                taken += 1
                for one in range(destinations):
                    c = one * covers + np.intp(state.inverse[index * destinations + one])
                    left += _count(state, wrong, c)
        accepted[t], energies[t], proposals[t] = taken, state.energy[0], made
        if left == 0:
            return t + 1
    return scales.size


def repair(state: State, temperatures: ArrayLike, gammas: ArrayLike, rng: Words) -> Sweeps:
    """Sweeps of K*N*M proposals that repair, until nothing is unsatisfied: the energy is zero.

    A proposal draws the number of its pair, (r * unsatisfied) >> 32 in the order of contexts
    c = s*M + α and patterns; then sites, (r * K*N) >> 32, until one can repair it; then a `uniform`.
    Temperatures and gammas are those of `advance`.
    """
    scales, gammas = scales_of(state, temperatures, gammas)
    rows = np.zeros((3, scales.size), dtype=np.int64)
    done = _repair(state, unsatisfied(state), scales, gammas, rng, *rows)
    return Sweeps(*rows[:, :done], over=bool(state.energy[0] == 0))
