"""One Markov chain of an annealing: its state, and its random numbers.

`mcover.annealing.kernels` explains counters, masks and energies. The random generator is written
out here, because the oracle in the tests must draw the same numbers. A seed determines the
trajectory, so the order and the use of the draws must not change.
"""

from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from mcover.annealing.bits import Words
from mcover.annealing.options import Order
from mcover.compiled import njit

ERRORS, EVEN, ODD = 0, 1, 2  # forms of the energy
ORDERS = get_args(Order)  # compiled code uses the index
RANDOM, PERMUTATION = ORDERS.index("random"), ORDERS.index("permutation")

Integers = NDArray[np.int64]


class State(NamedTuple):
    """The state of one chain, which `advance` changes in place; sites are numbered q = k*N + i.

    Shape: a row of patterns has W words of 64 bits, a multiple of 8, in W/8 blocks. The counters
    are flat arrays: planes (contexts, K, W/8, depth, 8) and masks (contexts, K, pairs, W/8, 2, 8)
    with the pair (down, hold) last; the votes of a committee have the same shapes without K.

    The layout follows the order of access. A flip goes through all planes of one block, so these
    are adjacent. A proposal, which is far more frequent, reads only masks, so masks are separate
    from the planes, and the two masks of a pair are in adjacent cache lines.
    """

    weights: NDArray[np.int8]  # (M, K*N)
    energy: Integers  # (1,), in units, summed over all contexts
    columns: Words  # (N*W,), from pack_columns
    ones: Integers  # (N,), bits set in each column
    valid: Words  # (W,), 1 for the bits of patterns, 0 for padding
    inverse: NDArray[np.uint8]  # (K*N*M*S,), α at [(q*M + β)*S + s]
    planes: Words
    masks: Words
    vote_planes: Words
    vote_masks: Words
    patterns: int
    hidden: int
    inputs: int
    destinations: int
    form: int
    pairs: int
    depth: int
    vote_depth: int
    unit: float  # the energy of one unit, with the factor 1/S of the mean over destinations


class Sweeps(NamedTuple):
    """Statistics of sweeps, int64 (done,) each."""

    accepted: Integers
    energies: Integers  # after each sweep, in units of the state
    proposals: Integers
    ended: bool  # solved, or in a minimum that the chain cannot leave


def generator(seed: SeedSequence) -> Words:
    """The random numbers of a chain: the state of `next64`, uint64 (4,)."""
    return seed.generate_state(4, np.uint64).astype(np.uint64)


@njit(forceinline=True)
def next64(rng: Words) -> Any:
    """The next 64 random bits of xoshiro256++ (Blackman, Vigna); rng, uint64 (4,), not all zero."""
    a, b, c, d = rng[0], rng[1], rng[2], rng[3]
    x = a + d
    result = ((x << np.uint64(23)) | (x >> np.uint64(41))) + a
    c ^= a
    d ^= b
    rng[1] = b ^ c
    rng[0] = a ^ d
    rng[2] = c ^ (b << np.uint64(17))
    rng[3] = (d << np.uint64(45)) | (d >> np.uint64(19))
    return result


@njit(forceinline=True)
def uniform(rng: Words) -> float:
    """A uniform number in [0, 1): the high 53 bits of one draw."""
    return np.float64(next64(rng) >> np.uint64(11)) * 2.0**-53


@njit(forceinline=True)
def randbelow(rng: Words, bound: Any) -> Any:
    """An integer in [0, bound): (r * bound) >> 32 for the high 32 bits r of one draw."""
    return np.intp(((next64(rng) >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32))


@njit()
def new_sequence(order: int, moves: int) -> NDArray[np.int32]:
    """An array for the order of a sweep; empty unless the order is "permutation"."""
    return np.empty(moves if order == PERMUTATION else 0, dtype=np.int32)


@njit()
def shuffle(sequence: NDArray[np.int32], rng: Words) -> None:
    """Fill with a uniform permutation of 0, 1, … (Fisher–Yates), one draw for each entry."""
    for i in range(sequence.size):
        j = randbelow(rng, i + 1)
        sequence[i] = sequence[j]
        sequence[j] = i


@njit(forceinline=True)
def next_index(order: int, sequence: NDArray[np.int32], move: int, moves: int, rng: Words) -> Any:
    """The index of proposal ``move`` of a sweep: from the order, or drawn."""
    index: Any = np.intp(move)
    if order == RANDOM:
        index = randbelow(rng, moves)
    elif order == PERMUTATION:
        index = np.intp(sequence[move])
    return index


@njit()
def compute_site_sums(weights: NDArray[np.int8]) -> NDArray[np.int16]:
    """Σ_β w_q^(β) of every site."""
    covers, sites = weights.shape
    site_sums = np.zeros(sites, dtype=np.int16)
    for beta in range(covers):
        for site in range(sites):
            site_sums[site] += weights[beta, site]
    return site_sums
