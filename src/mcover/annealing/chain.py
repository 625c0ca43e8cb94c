"""One Markov chain of an annealing: its state, and its random numbers.

`mcover.annealing.kernels` explains counters, masks and energies. The chain has a generator of its
own, written out here, because the oracle in the tests must draw the very same numbers: the order
and the use of the draws are part of what a seed promises.
"""

from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from mcover.annealing.bits import Words
from mcover.annealing.options import Order
from mcover.compiled import njit

ERRORS, EVEN, ODD = 0, 1, 2  # forms of the energy
ORDERS = get_args(Order)  # compiled code has the index
RANDOM, PERMUTATION = ORDERS.index("random"), ORDERS.index("permutation")

Integers = NDArray[np.int64]


class State(NamedTuple):
    """One chain. `advance` changes its arrays in place; sites are numbered q = k*N + i.

    Shape: W words of 64 patterns make a row, a multiple of 8, in W/8 blocks. The counters are flat:
    planes (contexts, K, W/8, depth, 8), masks (contexts, K, pairs, W/8, 2, 8) with the pair
    (down, hold) last, and the same without K for the votes, which a perceptron does not have.

    The layout follows the access. A flip walks through all planes of one block, so the planes of a
    block are adjacent. A proposal, which is far more frequent, reads only masks, so these are kept
    apart from the planes, and the two of a pair share adjacent cache lines.
    """

    weights: NDArray[np.int8]  # (M, K*N)
    energy: Integers  # (1,), in units, summed over all contexts
    columns: Words  # (N*W,), from pack_columns
    ones: Integers  # (N,), bits set in each column
    valid: Words  # (W,), the bits that are patterns
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
    unit: float  # physical size of one unit of energy, the mean over destinations included


class Sweeps(NamedTuple):
    """What was done: int64 (done,) for each sweep, and whether there is nothing left to do."""

    accepted: Integers
    energies: Integers  # after each sweep, in units of the state
    proposals: Integers
    over: bool


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
    """A whole number in [0, bound), (r * bound) >> 32 of the high 32 bits r of one draw."""
    return np.intp(((next64(rng) >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32))


@njit()
def new_sequence(order: int, moves: int) -> NDArray[np.int32]:
    """An array for the order of a sweep; empty unless the order is "permutation"."""
    return np.empty(moves if order == PERMUTATION else 0, dtype=np.int32)


@njit()
def shuffle(sequence: NDArray[np.int32], rng: Words) -> None:
    """Fill with a uniform permutation of 0, 1, … (Fisher and Yates), one draw for each entry."""
    for i in range(sequence.size):
        j = randbelow(rng, i + 1)
        sequence[i] = sequence[j]
        sequence[j] = i


@njit()
def compute_site_sums(weights: NDArray[np.int8]) -> NDArray[np.int16]:
    """Σ_β w_q^(β) of every site."""
    covers, sites = weights.shape
    site_sums = np.zeros(sites, dtype=np.int16)
    for beta in range(covers):
        for site in range(sites):
            site_sums[site] += weights[beta, site]
    return site_sums
