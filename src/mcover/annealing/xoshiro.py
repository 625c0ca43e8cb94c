"""Random numbers inside compiled code: xoshiro256++ by Blackman and Vigna, its state an array."""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

Words = NDArray[np.uint64]


@njit(cache=True, nogil=True, forceinline=True)
def next64(rng: Words) -> Any:
    """The next 64 random bits; advances the state rng, uint64 (4,), not all zero."""
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


@njit(cache=True, nogil=True, forceinline=True)
def uniform(rng: Words) -> float:
    """A uniform number in [0, 1): the high 53 bits of one draw."""
    return np.float64(next64(rng) >> np.uint64(11)) * 2.0**-53


@njit(cache=True, nogil=True)
def random_weights(rng: Words, covers: int, sites: int) -> NDArray[np.int8]:
    """Uniform ±1 weights, int8 (covers, sites).

    Cover after cover, each draw gives 64 weights, lowest bit first, a set bit being +1; a new cover
    starts with a new draw.
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
