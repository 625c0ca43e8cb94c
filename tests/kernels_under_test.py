"""Kernels for the tests of laws and mixers, and their test statistics."""

import itertools
import math

import numpy as np
from scipy.stats import chisquare

from mcover import Chain, Custom, GaussianRing, Identity, Uniform, mix
from mcover.topology import Topology


def band(width: int, covers: int, one_sided: bool = False) -> Custom:
    """Equal reads within ``width`` steps on the ring, both ways or ahead only."""
    ahead = (np.arange(covers) - np.arange(covers)[:, None]) % covers
    return Custom((ahead <= width) | ((covers - ahead <= width) & (not one_sided)))


def torus(rows: int, cols: int, sigma: float, row_shift: float = 0, col_shift: float = 0) -> Custom:
    """Covers on a rows × cols torus, with a Gaussian read in both directions."""
    rings = GaussianRing(sigma, row_shift).matrix(rows), GaussianRing(sigma, col_shift).matrix(cols)
    return Custom(np.kron(*rings))


TOPOLOGIES: list[tuple[Topology, int]] = [
    (GaussianRing(1.5, shift=2), 5),
    (GaussianRing(0.7, shift=0.5), 4),
    (GaussianRing(np.inf), 3),
    (Uniform(), 5),
    (Identity(), 4),
    (band(1, 6), 6),
    (band(1, 5, one_sided=True), 5),
    (Chain(0.9), 5),
    (torus(2, 3, sigma=0.8, col_shift=1), 6),
    (mix(Identity(), Uniform(), GaussianRing(0.6, shift=1), weights=[2, 1, 3]), 5),
    (Uniform(), 1),
    (GaussianRing(1.0), 2),
]
NAMES = [f"{topology!r}-{covers}" for topology, covers in TOPOLOGIES]


def random_kernel(covers: int, seed: int) -> np.ndarray:
    """Positive, far from balanced, entries over three orders of magnitude."""
    return np.exp(np.random.default_rng(seed).uniform(-3.5, 3.5, size=(covers, covers)))


def law_by_enumeration(kernel):
    """Every permutation in lexicographic order, weights and probabilities from the definition."""
    covers = len(kernel)
    routes = np.array(list(itertools.permutations(range(covers))))
    weights = np.array([math.prod(kernel[range(covers), route]) for route in routes])
    return routes, weights, weights / weights.sum()


def p_value(law, counts):
    """Chi-square of how often each outcome was drawn, rare ones pooled; none may be impossible."""
    assert np.all(counts[law == 0] == 0)
    expected = law * counts.sum()
    common = expected >= 5
    seen = np.append(counts[common], counts[~common].sum())
    awaited = np.append(expected[common], expected[~common].sum())
    seen, awaited = seen[awaited > 0], awaited[awaited > 0]
    return chisquare(seen, awaited).pvalue if len(seen) > 1 else 1.0


def largest_deviation(routes, exact):
    """Of the marginals of independent routes, in standard errors; those of rare reads are floored.

    The floor is an expected count of 4: less would make the tail of a count far from Gaussian.
    """
    marginals = np.stack([np.mean(routes == b, axis=0) for b in range(routes.shape[1])], axis=1)
    spread = np.sqrt(np.maximum(exact * (1 - exact), 4 / len(routes)) / len(routes))
    return np.abs((marginals - exact) / spread).max()
