"""Makes the state of a chain from patterns, routes and weights, and reads its margins."""

import math
import time
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcover.annealing.bits import (
    ONES,
    WORDS,
    Words,
    aligned,
    broadcast,
    clear_counter,
    count,
    counter_depth,
    load,
    step_counter,
    total,
)
from mcover.annealing.chain import ERRORS, EVEN, ODD, Integers, State, next64
from mcover.annealing.kernels import step_votes, write_masks
from mcover.annealing.options import Rule
from mcover.annealing.problems import Size
from mcover.annealing.searches import run
from mcover.compiled import njit
from mcover.routing import draw_bank
from mcover.topology import GaussianRing

_PACKED_AT_A_TIME = 2**23  # patterns times columns


def _words(patterns: int) -> int:
    return -(-patterns // (64 * WORDS)) * WORDS


def _pack(bits: NDArray[np.bool_]) -> Words:
    packed = np.packbits(bits, axis=-1, bitorder="little").reshape(-1).view("<u8")
    words = aligned(packed.size)
    words[:] = packed
    return words


def pack_columns(patterns: NDArray[np.int8], labels: NDArray[np.int8] | None = None) -> Words:
    """The bits of the patterns (P, N), multiplied by their labels, by column, uint64 (N*W,).

    Bit μ % 64 of word i*W + μ//64 is set if y_μ x_μi = +1; W is P/64 rounded up to a multiple of 8.
    Columns are packed in blocks to limit temporary memory.
    """
    count, inputs = patterns.shape
    words = _words(count)
    packed = aligned(inputs * words)
    plus = np.ones(count, dtype=np.bool_) if labels is None else labels > 0
    step = max(1, _PACKED_AT_A_TIME // count)
    for begin in range(0, inputs, step):
        columns = patterns[:, begin : begin + step].T > 0
        bits = np.zeros((len(columns), words * 64), dtype=np.bool_)
        np.equal(columns, plus, out=bits[:, :count])
        packed[begin * words : (begin + len(columns)) * words] = _pack(bits)
    return packed


def _sizes(
    inputs: int, patterns: int, hidden: int, covers: int, destinations: int, form: int
) -> tuple[int, int, int, int]:
    """Words of planes, masks, vote planes and vote masks."""
    rows = covers * destinations * _words(patterns)
    pairs = 2 * (2 if form == ODD else 1)
    planes = rows * hidden * counter_depth(inputs)
    if hidden == 1:
        return planes, rows * pairs, 0, 0
    return planes, rows * hidden * 2, rows * counter_depth(hidden), rows * pairs


def state_bytes(inputs: int, patterns: int, hidden: int, covers: int, destinations: int) -> int:
    """An upper bound of the bytes of one chain, with columns, routes, and any rule."""
    sites = hidden * inputs
    words = sum(_sizes(inputs, patterns, hidden, covers, destinations, ODD))
    words += (inputs + 1) * _words(patterns) + 2 * inputs + destinations * patterns // 16 + 1024
    words += destinations * (covers * (_words(patterns) // WORDS + 1) + 1)  # `Unsatisfied`
    return 8 * words + sites * (2 * covers * destinations + 6 * covers + 2)


def make_state(
    columns: Words,
    patterns: int,
    hidden: int,
    inputs: int,
    routes: NDArray[np.uint8],
    weights: NDArray[np.int8],
    energy: str = "linear",
) -> State:
    """The state of a chain at the given weights, with all counters built from scratch.

    With hidden = 1 the network is a perceptron, and "linear" is the energy of its margins.

    Shape: columns from `pack_columns`, shared and not written to; routes (S, K*N, M), where context
    (s, α) reads weight q from cover ρ[s,q,α], M <= 255; weights (M, K*N), ±1, copied.
    """
    destinations, sites, covers = routes.shape
    words, terms = _words(patterns), inputs if hidden == 1 else hidden
    form = ERRORS if energy == "errors" else ODD if terms % 2 else EVEN
    sizes = _sizes(inputs, patterns, hidden, covers, destinations, form)
    inverse = np.empty((sites, covers, destinations), dtype=np.uint8)
    _invert(np.array(routes, dtype=np.uint8, order="C"), inverse)
    state = State(
        weights=np.array(weights, dtype=np.int8, order="C"),
        energy=np.zeros(1, dtype=np.int64),
        columns=columns,
        ones=np.bitwise_count(columns.reshape(inputs, words)).sum(axis=1, dtype=np.int64),
        valid=_pack(np.arange(words * 64) < patterns),
        inverse=inverse.reshape(-1),
        planes=aligned(sizes[0]),
        masks=aligned(sizes[1]),
        vote_planes=aligned(sizes[2]),
        vote_masks=aligned(sizes[3]),
        patterns=patterns,
        hidden=hidden,
        inputs=inputs,
        destinations=destinations,
        form=form,
        pairs=2 if form == ODD else 1,
        depth=counter_depth(inputs),
        vote_depth=counter_depth(hidden),
        unit=(1.0, 2.0 / math.sqrt(terms), 1.0 / math.sqrt(terms))[form] / destinations,
    )
    _build(state)
    state.energy[0] = _energy(state)
    return state


def single(columns: Words, size: Size, weights: NDArray[np.int8], energy: str) -> State:
    """The state of one copy, whose routes can only be the identity; weights (K*N,)."""
    routes = np.zeros((1, weights.size, 1), dtype=np.uint8)
    return make_state(columns, *size, routes, weights[None], energy)


@njit()
def random_weights(rng: Words, covers: int, sites: int) -> NDArray[np.int8]:
    """Uniform ±1 weights, int8 (covers, sites).

    Covers are filled in order. Each draw gives 64 weights, lowest bit first, where a set bit is +1;
    every cover starts with a new draw.
    """
    weights = np.empty((covers, sites), dtype=np.int8)
    for beta in range(covers):
        bits = np.uint64(0)
        for q in range(sites):
            if q % 64 == 0:
                bits = next64(rng)
            weights[beta, q] = 1 if bits & np.uint64(1) else -1
            bits >>= np.uint64(1)
    return weights


@njit()
def _invert(routes: NDArray[np.uint8], inverse: NDArray[np.uint8]) -> None:
    destinations, sites, covers = routes.shape
    for s in range(destinations):
        for q in range(sites):
            for alpha in range(covers):
                inverse[q, routes[s, q, alpha], s] = alpha


@njit()
def _build(state: State) -> None:
    """Count the agreeing weights of every context, then its correct votes, one at a time.

    Counters start at n = 0 and step up once for every agreeing weight. So they only take values
    that `counter_depth` allows for, and no intermediate value overflows.
    """
    covers, sites = state.weights.shape
    hidden, inputs, destinations = state.hidden, state.inputs, state.destinations
    blocks, depth, none = state.valid.size // WORDS, state.depth, broadcast(np.uint64(0))
    for at in range(destinations * covers * hidden * blocks):
        clear_counter(state.planes, at * depth * WORDS, depth, inputs)
    for index in range(sites * covers):
        q, beta = index // covers, index % covers
        unit, column = q // inputs, q % inputs
        flip = broadcast(ONES if state.weights[beta, q] < 0 else np.uint64(0))
        for s in range(destinations):
            c = s * covers + np.intp(state.inverse[index * destinations + s])
            for j in range(blocks):
                agree = load(state.columns, (column * blocks + j) * WORDS) ^ flip
                at = ((c * hidden + unit) * blocks + j) * depth * WORDS
                step_counter(state.planes, at, depth, agree, none)
    for c in range(destinations * covers):
        for j in range(blocks):
            if hidden > 1:
                at = (c * blocks + j) * state.vote_depth * WORDS
                clear_counter(state.vote_planes, at, state.vote_depth, hidden)
            for row in range(c * hidden, (c + 1) * hidden):
                at = (row * blocks + j) * depth * WORDS
                # An empty step changes nothing and returns the masks.
                negative, zero, minus = step_counter(state.planes, at, depth, none, none)
                if hidden == 1:
                    write_masks(state, state.masks, row, j, state.form, negative, zero, minus)
                else:
                    write_masks(state, state.masks, row, j, ERRORS, negative, zero, minus)
                    step_votes(state, c, j, negative ^ broadcast(ONES), none)


@njit()
def _energy(state: State) -> int:
    """The lifted energy in units from the counters: Σ over k < 0 of 1, -k-1 or -2k-1."""
    planes, depth = state.planes, state.depth
    if state.hidden > 1:
        planes, depth = state.vote_planes, state.vote_depth
    blocks, energy = state.valid.size // WORDS, 0
    for row in range(state.destinations * state.weights.shape[0] * blocks):
        at, sign = row * depth * WORDS, (depth - 1) * WORDS
        wrong = load(planes, at + sign) & load(state.valid, row % blocks * WORDS)
        size = total(count(wrong))
        k: Any = -(size << (depth - 1))
        for i in range(depth - 1):
            k += total(count(load(planes, at + i * WORDS) & wrong)) << i
        energy += (
            size if state.form == ERRORS else -k - size if state.form == EVEN else -2 * k - size
        )
    return energy


def margins(state: State) -> Integers:
    """Integer margins from the counters: 2n - N, or 2n - K for votes, shape (contexts, P)."""
    planes, depth, terms = state.planes, state.depth, state.inputs
    if state.hidden > 1:
        planes, depth, terms = state.vote_planes, state.vote_depth, state.hidden
    octets = planes.astype("<u8").view(np.uint8).reshape(-1, state.valid.size // WORDS, depth, 64)
    bits = np.unpackbits(octets, axis=-1, bitorder="little")
    worth = 1 << np.arange(depth)
    worth[-1] *= -1  # the sign bit in two's complement
    k = (bits * worth[:, None]).sum(axis=2).reshape(len(bits), -1)[:, : state.patterns]
    return 2 * (k + terms // 2 + 1) - terms


@cache
def compile_kernels(rule: Rule = "glauber") -> float:
    """Compiles the kernels of a chain, or loads them from the cache; returns the seconds taken.

    Otherwise the first chain would do it, and its measured time would include it.
    """
    begin = time.perf_counter()
    draw_bank(GaussianRing(), 3, 1, 1, seed=0)
    for hidden in (1, 2):
        rng = np.array([1, 2, 3, 4], dtype=np.uint64)
        columns = pack_columns(np.ones((1, 1), dtype=np.int8))
        state = single(columns, (1, hidden, 1), random_weights(rng, 1, hidden)[0], "linear")
        run(state, [1.0], 0.0, rng, rule)
    return time.perf_counter() - begin
