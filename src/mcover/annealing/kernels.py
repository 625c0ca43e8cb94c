"""Bit-sliced annealing of ±1 weights in M covers, with 512 patterns in one register.

A **context** c = (s, α) is a virtual network: for destination s, its weight q is read from cover
ρ[s,q,α]. A flip of w_q^(β) changes one context per destination, α = ρ⁻¹[s,q,β].

**Counters.** The margin of a perceptron on a gauged pattern (one multiplied by its label) is m = 2n
- N, where n weights agree with the pattern. The counter is k = n - ⌊N/2⌋ - 1, so that m <= 0
exactly if k < 0, for even and odd N. A committee machine has one such counter per hidden unit, and
one for the votes, with K in place of N.

**Energy changes.** The bit d of a pattern says whether the flip lowers its counter. If it does, the
energy rises by one unit for the patterns in a mask `down`; if not, it falls by one unit for those
in a mask `up`:

    ΔE = |d & down| - |~d & up| = |(d & down) | (~d & hold)| - |~d|,   hold = ~up

So a context costs one bitwise select and one popcount per 512 patterns, and |~d| is the same for
all contexts. The masks depend on the form of the energy, with L = N for a perceptron and K for a
committee:

    form    energy            unit    down                 up
    ERRORS  [k < 0]           1       k = 0                k = -1
    EVEN    linear, L even    2/√L    k < 0                k < -1
    ODD     linear, L odd     1/√L    k <= 0, and k < 0    k < -1, and k < 0    (two pairs)

In a committee machine the masks of a hidden unit have form ERRORS, since they mark the patterns on
which its vote would change. They are combined with the masks of the votes, which mark the patterns
on which a changed vote changes the energy.

**Acceptance.** exp(ΔE/T) is a product of entries of two small tables, for the high and the low bits
of ΔE, and the coupling of the covers is a third table, so a proposal computes no exponential. If
table entries would overflow a double, for couplings above about a hundred, it does compute one.

Masks are read when a flip is proposed, and written when one is accepted. At low temperatures most
proposals are rejected, so most of the work is in the rare case. All changes of energy are integers:
no rounding errors accumulate, and the trajectory equals that of the plain integer version in the
tests, given the same random numbers.

**Invariants.** Masks are derived from the counters, so every step of a counter must rewrite its
masks before the next proposal reads them. A seed determines the trajectory, so the order and the
number of draws must not change. Margins as int16 with masks were tried first, and took 2.5 times as
long.

Chains are made in `mcover.annealing.states`.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcover.annealing.bits import (
    ONES,
    WORDS,
    Words,
    broadcast,
    count,
    load,
    step_counter,
    store,
    total,
)
from mcover.annealing.chain import (
    ERRORS,
    EVEN,
    ODD,
    ORDERS,
    PERMUTATION,
    RANDOM,
    Integers,
    State,
    Sweeps,
    compute_site_sums,
    new_sequence,
    next64,
    shuffle,
    uniform,
)
from mcover.annealing.students import solved
from mcover.compiled import njit

RULES = ("glauber", "metropolis")  # compiled code uses the index
GLAUBER = RULES.index("glauber")

_LOW_BITS = 6  # ΔE is split into ΔE >> 6 and ΔE & 63 for the tables of exp
_CERTAIN = 45.0  # exp(-45) < 2**-53, the smallest uniform number above 0
_LARGEST = 700.0  # exp(700) is still a finite double


@njit(forceinline=True)
def _matters(masks: Words, at: int, d: Any) -> Any:
    """Counts of (d & down) | (~d & hold) for the pair at `at`."""
    hold = load(masks, at + WORDS)
    return count(hold ^ (d & (load(masks, at) ^ hold)))


@njit(forceinline=True)
def _perceptron_change(state: State, index: int, column: int, flip: Any) -> Any:
    """ΔE in units, plus |~d| for each pair and destination, of flipping the weight `index`."""
    covers, destinations, masks = state.weights.shape[0], state.destinations, state.masks
    blocks, first = state.valid.size // WORDS, index * state.destinations
    stride, second = state.pairs * blocks * 2 * WORDS, blocks * 2 * WORDS + WORDS
    sums = none = broadcast(np.uint64(0))
    # Up to four blocks of d stay in registers for all destinations; most time is spent here.
    for j in range(0, blocks, 4):
        left, at = blocks - j, (column * blocks + j) * WORDS
        d0, d1, d2, d3 = load(state.columns, at) ^ flip, none, none, none
        if left > 1:
            d1 = load(state.columns, at + WORDS) ^ flip
        if left > 2:
            d2 = load(state.columns, at + 2 * WORDS) ^ flip
        if left > 3:
            d3 = load(state.columns, at + 3 * WORDS) ^ flip
        for s in range(destinations):
            alpha = np.intp(state.inverse[np.uintp(first + s)])
            at = (s * covers + alpha) * stride + j * 2 * WORDS
            sums = sums + _matters(masks, at, d0)
            if left > 1:
                sums = sums + _matters(masks, at + 2 * WORDS, d1)
            if left > 2:
                sums = sums + _matters(masks, at + 4 * WORDS, d2)
            if left > 3:
                sums = sums + _matters(masks, at + 6 * WORDS, d3)
            if state.pairs == 2:
                # In the second pair, down = ~hold, so the select simplifies to hold ^ d.
                at += second
                sums = sums + count(load(masks, at) ^ d0)
                if left > 1:
                    sums = sums + count(load(masks, at + 2 * WORDS) ^ d1)
                if left > 2:
                    sums = sums + count(load(masks, at + 4 * WORDS) ^ d2)
                if left > 3:
                    sums = sums + count(load(masks, at + 6 * WORDS) ^ d3)
    return total(sums)


@njit(forceinline=True)
def _committee_change(state: State, index: int, unit: int, column: int, flip: Any) -> Any:
    """The same for a committee, where the vote must change, and the change must matter."""
    covers, destinations, pairs = state.weights.shape[0], state.destinations, state.pairs
    blocks, first = state.valid.size // WORDS, index * state.destinations
    sums = broadcast(np.uint64(0))
    for j in range(blocks):
        d = load(state.columns, (column * blocks + j) * WORDS) ^ flip
        for s in range(destinations):
            c = s * covers + np.intp(state.inverse[first + s])
            at = ((c * state.hidden + unit) * blocks + j) * 2 * WORDS
            for pair in range(pairs):
                vote = ((c * pairs + pair) * blocks + j) * 2 * WORDS
                down = load(state.masks, at) & load(state.vote_masks, vote)
                hold = load(state.masks, at + WORDS) | load(state.vote_masks, vote + WORDS)
                sums = sums + count(hold ^ (d & (down ^ hold)))
    return total(sums)


@njit(forceinline=True, error_model="numpy")
def change_of(state: State, index: Any, q: Any, w: Any) -> Any:
    """ΔE in units of flipping w, the weight `index` of site q."""
    flip = broadcast(ONES if w < 0 else np.uint64(0))
    column: Any = q
    if state.hidden == 1:
        change = _perceptron_change(state, index, column, flip)
    else:
        unit = np.intp(np.uint64(q) // np.uint64(state.inputs))
        column = q - unit * state.inputs
        change = _committee_change(state, index, unit, column, flip)
    ones = state.ones[np.uintp(column)]
    disagreeing = ones if w < 0 else 64 * state.valid.size - ones
    return change - state.pairs * state.destinations * disagreeing


@njit(forceinline=True)
def _flip(state: State, index: int, unit: int, column: int, flip: Any) -> None:
    """Step the counters of the contexts that read the weight, and rewrite their masks."""
    covers, destinations, hidden = state.weights.shape[0], state.destinations, state.hidden
    blocks, depth, ones = state.valid.size // WORDS, state.depth, broadcast(ONES)
    for s in range(destinations):
        c = s * covers + np.intp(state.inverse[index * destinations + s])
        row = c * hidden + unit
        for j in range(blocks):
            d = load(state.columns, (column * blocks + j) * WORDS) ^ flip
            at = (row * blocks + j) * depth * WORDS
            negative, zero, minus = step_counter(state.planes, at, depth, ones, d)
            if hidden == 1:
                write_masks(state, state.masks, row, j, state.form, negative, zero, minus)
            else:
                # The unit loses a vote where d and k = 0, and wins one where ~d and k = -1; the old
                # masks hold these patterns.
                at = (row * blocks + j) * 2 * WORDS
                won = load(state.masks, at + WORDS) ^ ones
                moved = won ^ (d & (load(state.masks, at) ^ won))
                write_masks(state, state.masks, row, j, ERRORS, negative, zero, minus)
                step_votes(state, c, j, moved, d)


@njit(forceinline=True, error_model="numpy")
def take(state: State, site_sums: Any, index: Any, q: Any, w: Any, change: Any) -> None:
    """Flip the weight: counters, masks, weight, sum over covers and energy."""
    unit: Any = 0 if state.hidden == 1 else np.intp(np.uint64(q) // np.uint64(state.inputs))
    flip = broadcast(ONES if w < 0 else np.uint64(0))
    _flip(state, index, unit, q - unit * state.inputs, flip)
    site = np.uintp(q)
    state.weights[np.uintp(index - q * state.weights.shape[0]), site] = -w
    site_sums[site] -= 2 * w
    state.energy[0] += change


@njit(forceinline=True)
def step_votes(state: State, c: int, j: int, moved: Any, d: Any) -> None:
    """Step the vote counter of block j of a committee's context in the patterns of `moved`."""
    at = (c * (state.valid.size // WORDS) + j) * state.vote_depth * WORDS
    negative, zero, minus = step_counter(state.vote_planes, at, state.vote_depth, moved, d)
    write_masks(state, state.vote_masks, c, j, state.form, negative, zero, minus)


@njit(forceinline=True)
def write_masks(
    state: State, masks: Words, row: int, j: int, form: int, negative: Any, zero: Any, minus: Any
) -> None:
    """Write block j of a row's (down, hold) pairs; the lanes say where k is < 0, = 0, = -1.

    Bits past the last pattern are written as down = 0 and hold = 1. For those, the select in
    `_matters` gives ~d, and `change_of` subtracts |~d|, so padding adds nothing.
    """
    blocks, valid, ones = state.valid.size // WORDS, load(state.valid, j * WORDS), broadcast(ONES)
    pairs = 2 if form == ODD else 1
    at = (row * pairs * blocks + j) * 2 * WORDS
    negative = negative & valid
    if form == ERRORS:
        store(masks, at, zero & valid)
        store(masks, at + WORDS, (minus & valid) ^ ones)
        return
    store(masks, at, negative if form == EVEN else negative | (zero & valid))
    store(masks, at + WORDS, (negative & (minus ^ ones)) ^ ones)
    if form == ODD:
        at += blocks * 2 * WORDS
        store(masks, at, negative)
        store(masks, at + WORDS, negative ^ ones)


class Tables(NamedTuple):
    """exp(scale*ΔE) = high[(ΔE + reach) >> 6] * low[(ΔE + reach) & 63], and coupling[h + M - 1] is
    exp(2γh/M) for h = w_β Σ_{a≠β} w_a. Beyond reach the acceptance is 0 or 1 in double precision; a
    reach of -1 means no tables.
    """

    high: NDArray[np.float64]
    low: NDArray[np.float64]
    coupling: NDArray[np.float64]


@njit()
def make_tables(state: State) -> Tables:
    """Empty tables, large enough for any temperature."""
    most = 2 * state.destinations * state.patterns
    high, low = np.empty((2 * most >> _LOW_BITS) + 1), np.empty(1 << _LOW_BITS)
    return Tables(high, low, np.empty(2 * state.weights.shape[0] - 1))


@njit()
def fill_tables(tables: Tables, state: State, scale: float, gamma: float) -> Any:
    """Tables of exp for one temperature; returns their reach."""
    covers, most = state.weights.shape[0], 2 * state.destinations * state.patterns
    bound = (_CERTAIN + 2.0 * gamma) / scale if scale > 0.0 else np.inf
    reach = np.int64(min(np.ceil(bound), np.float64(most)))
    if 2.0 * scale * reach > _LARGEST:
        return np.int64(-1)
    for i in range(1 << _LOW_BITS):
        tables.low[i] = math.exp(scale * i)
    for i in range((2 * reach >> _LOW_BITS) + 1):
        tables.high[i] = math.exp(scale * ((i << _LOW_BITS) - reach))
    for h in range(1 - covers, covers):
        tables.coupling[h + covers - 1] = math.exp(2.0 * gamma * h / covers)
    return reach


@njit(forceinline=True, error_model="numpy")
def boltzmann(tables: Tables, reach: int, scale: float, gamma: float, change: int, h: int) -> Any:
    """exp(x) for a move that changes -log(joint weight) by x = scale*ΔE + 2γh/M."""
    middle = tables.coupling.size >> 1  # M - 1
    if reach >= 0:
        x = min(max(change, -reach), reach) + reach
        high = tables.high[np.uintp(x >> _LOW_BITS)]
        energy = high * tables.low[np.uintp(x & ((1 << _LOW_BITS) - 1))]
        return energy * tables.coupling[np.uintp(h + middle)] if gamma != 0.0 else energy
    return math.exp(min(scale * change + 2.0 * gamma * h / (middle + 1), _LARGEST))


@njit()
def _advance(
    state: State,
    scales: NDArray[np.float64],
    gammas: NDArray[np.float64],
    rule: int,
    order: int,
    rng: Words,
    stop_at_zero: bool,
    accepted: Integers,
    energies: Integers,
) -> Any:
    """The sweeps of `advance`, with scales unit/T; returns their number, and if it stopped."""
    weights, (covers, sites) = state.weights, state.weights.shape
    tables, site_sums, reach = make_tables(state), compute_site_sums(weights), np.int64(0)
    sequence = new_sequence(order, weights.size)
    one = 1.0 if rule == GLAUBER else 0.0
    for t in range(scales.size):
        if t == 0 or scales[t] != scales[t - 1] or gammas[t] != gammas[t - 1]:
            reach = fill_tables(tables, state, scales[t], gammas[t])
        shuffle(sequence, rng)
        taken = 0
        for i in range(sites * covers):
            # Unsigned indices spare the code for negative ones, and there is no division: with few
            # destinations, the instructions besides the popcounts take most of the time.
            index: Any = i
            q: Any = 0
            if order == RANDOM:
                drawn = next64(rng) >> np.uint64(32)
                index = np.intp((drawn * np.uint64(sites * covers)) >> np.uint64(32))
                q = np.intp((drawn * np.uint64(sites)) >> np.uint64(32))  # index // covers
            else:
                if order == PERMUTATION:
                    index = np.intp(sequence[i])
                q = np.intp(np.uint64(index) // np.uint64(covers))
            u = uniform(rng)
            site, beta = np.uintp(q), np.uintp(index - q * covers)
            w = np.int64(weights[beta, site])
            change = change_of(state, index, q, w)
            h = w * (np.int64(site_sums[site]) - w)
            weight = boltzmann(tables, reach, scales[t], gammas[t], change, h)
            # Glauber: u < 1 / (1 + exp(x)). Metropolis: u < exp(-x), true for all x <= 0.
            if u * (one + weight) < 1.0:
                take(state, site_sums, index, q, w, change)
                taken += 1
        accepted[t] = taken
        energies[t] = state.energy[0]
        if stop_at_zero and solved(state, site_sums):
            return t + 1, True
    return scales.size, False


def advance(
    state: State,
    temperatures: ArrayLike,
    gammas: ArrayLike,
    rule: str,
    order: str,
    rng: Words,
    stop_at_zero: bool = False,
) -> Sweeps:
    """Run one sweep of K*N*M proposals at each temperature; changes `state` and `rng` in place.

    The joint weight is exp(-E/T + (γ/M) Σ_{a<b} w_a·w_b) with the lifted energy E; at T = 0 no
    proposal that raises the energy is accepted. In random order, a proposal first draws its index
    (r * K*N*M) >> 32 from the high 32 bits r of one draw; a permutation is drawn at the start of
    each sweep. In every order, one `uniform` follows for each proposal. Site = index // M, cover =
    index % M. Energies are in units of ``state.unit``; ``stop_at_zero`` ends the run after a sweep
    that solved the problem.

    Shape: temperatures (t,), >= 0; gammas (t,) or one number, from 0 to MAX_COUPLING; rng uint64
    (4,), not all zero.
    """
    scales, gammas = scales_of(state, temperatures, gammas)
    rows = np.zeros((2, scales.size), dtype=np.int64)
    how = RULES.index(rule), ORDERS.index(order)
    done, ended = _advance(state, scales, gammas, *how, rng, stop_at_zero, *rows)
    return Sweeps(rows[0, :done], rows[1, :done], np.full(done, state.weights.size), ended)


def scales_of(
    state: State, temperatures: ArrayLike, gammas: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """unit/T and γ of every sweep."""
    temperatures = np.array(temperatures, dtype=np.float64)
    gammas = np.array(np.broadcast_to(gammas, temperatures.shape), dtype=np.float64)
    # A factor of exp(-100) forbids a step in practice, so T = 0 needs no special case. The coupling
    # may contribute up to exp(2γ), hence the second term.
    with np.errstate(divide="ignore"):
        scales = np.minimum(state.unit / temperatures, 100.0 + 2.0 * gammas)
    return scales, gammas
