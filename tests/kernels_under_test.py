"""Kernels that every law and every mixer is tested on."""

import numpy as np

from mcover import Band, Blocks, Chain, GaussianRing, Identity, Torus, Uniform, mix
from mcover.topology import Topology

TOPOLOGIES: list[tuple[Topology, int]] = [
    (GaussianRing(1.5, shift=2), 5),
    (GaussianRing(0.7, shift=0.5), 4),
    (GaussianRing(0.8, shift=1, skew=0.6), 6),
    (GaussianRing(np.inf), 3),
    (Uniform(), 5),
    (Identity(), 4),
    (Band(1), 6),
    (Band(1, one_sided=True), 5),
    (Chain(0.9), 5),
    (Chain(1.2, skew=-0.5), 4),
    (Blocks(3, sigma=0.8, shift=1), 6),
    (Torus(2, 3, sigma=0.8, col_shift=1), 6),
    (mix(Identity(), Uniform(), GaussianRing(0.6, shift=1), weights=[2, 1, 3]), 5),
    (Uniform(), 1),
    (GaussianRing(1.0), 2),
]
NAMES = [f"{topology!r}-{covers}" for topology, covers in TOPOLOGIES]


def random_kernel(covers: int, seed: int) -> np.ndarray:
    """Positive, far from balanced, entries over three orders of magnitude."""
    return np.exp(np.random.default_rng(seed).uniform(-3.5, 3.5, size=(covers, covers)))
