"""Routes and annealings of a seed do not change from one version to the next.

Digests are of whole numbers, routes (up to 20 covers) and ±1 weights, not of kernels or energies:
the last bit of an exponential differs between CPUs, and does not change a route.
"""

import hashlib

import numpy as np
import pytest

from kernels_under_test import random_kernel
from mcover import (
    RSA,
    Chain,
    Custom,
    GaussianRing,
    LinearSchedule,
    MCover,
    Uniform,
    Vanilla,
    anneal,
    mix,
    teacher_student,
)
from mcover.annealing import BetaSchedule, GeometricSchedule
from mcover.permutations import Sampler
from mcover.routing import draw_bank, draw_indexed_bank, draw_mixers, inverse

ROUTES = {
    "5a33317afef0d776": (GaussianRing(1.5, shift=2), 5),
    "9d7f53aa811f05e7": (Custom(random_kernel(20, seed=4)), 20),
    "f9997784e1758f66": (mix(GaussianRing(0.4), Uniform(), weights=[9, 1]), 12),
}
METHODS = {
    "ae786b3d5cb102b6": Vanilla(),
    "f74a1df122a26b85": RSA(5, coupling=0.3, coupling_growth=0.02),
    "94ab310abbe82cfe": RSA(3, coupling=90.0),
    "d122cd9b1cc4ff31": MCover(3, GaussianRing(3, shift=2), bank=3, redraw_every=7),
}
RUNS = (
    {"schedule": LinearSchedule(0.4, 0.01, 0.01), "num_reads": 2, "seed": 11},
    {
        "schedule": GeometricSchedule(1.0, 0.02, 25, sweeps=2),
        "seed": [4, 1],
        "rule": "metropolis",
        "order": "sequential",
        "energy": "errors",
    },
    {"schedule": BetaSchedule(1.0, 0.05, 25), "seed": 5, "stop_at_zero": True},
)
SEARCHES = (
    {"rule": "repair", "schedule": [0.5] * 8 + [0.1] * 8, "num_reads": 2, "seed": 6},
    {"rule": "descent", "num_sweeps": 30, "order": "permutation", "seed": 7},
    {"rule": "descent", "num_sweeps": 60, "improvement": "best", "seed": 8},
)


def digest(*arrays):
    """The first 16 hexadecimal digits of the SHA-256 of types, shapes and bytes."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(f"{array.dtype.str} {array.shape}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()[:16]


def drawn(topology, covers):
    """Everything that is drawn from a seed: routes, banks, indexed banks and mixers."""
    sampler = Sampler(topology.matrix(covers))
    for seed in (0, 12345):
        yield sampler.sample(300, seed)
        bank = draw_bank(topology, covers, sources=20, size=5, seed=seed)
        yield from (
            bank.destinations,
            bank.routes,
            inverse(bank.routes),
            bank.redraw(seed + 1).routes,
        )
        indexed = draw_indexed_bank(topology, covers, sources=30, size=6, seed=seed)
        yield from (indexed.destinations, indexed.index, indexed.table, indexed.inverse_table)
        yield draw_mixers(topology, covers, units=6, blocks=3, draws=5, seed=seed)


@pytest.mark.parametrize("expected", ROUTES, ids=lambda expected: str(ROUTES[expected]))
def test_routes_of_a_seed_stay_as_they_were(expected):
    assert digest(*drawn(*ROUTES[expected])) == expected


def test_long_samples_of_a_seed_stay_as_they_were():
    sampler = Sampler(GaussianRing(1.5, shift=2).matrix(10))
    assert digest(sampler.sample(10_000, seed=7)) == "dc953be12e8eb31f"
    bank = draw_indexed_bank(Chain(1.0), 9, sources=70_000, size=2, seed=5)
    assert digest(bank.index, bank.table) == "6973cb194e09c689"
    assigned = Sampler(sampler.matrix, "assign").sample(50, 3)
    assert digest(sampler.sample(50, 3), assigned) == "dc4dddfe77d19bd7"


def annealed(problem, method, runs):
    for run in runs:
        result = anneal(problem, method, **run)
        yield from (result.weights, result.sweeps, result.training_errors)


@pytest.mark.parametrize("expected", METHODS, ids=lambda expected: repr(METHODS[expected]))
def test_annealings_of_a_seed_stay_as_they_were(expected):
    arrays = []
    for hidden, n in ((1, 30), (1, 31), (3, 30), (3, 31)):
        problem = teacher_student(n, 2.0, seed=3, hidden=hidden)
        arrays += [problem.patterns, problem.labels, problem.teacher]
        arrays += annealed(problem, METHODS[expected], RUNS)
    assert digest(*arrays) == expected


def test_searches_of_a_seed_stay_as_they_were():
    method, arrays = MCover(3, GaussianRing(3, shift=2), bank=3), []
    for hidden, n in ((1, 30), (3, 31)):
        arrays += annealed(teacher_student(n, 2.0, seed=3, hidden=hidden), method, SEARCHES)
    assert digest(*arrays) == "7eb3fa469711b509"


def test_instances_and_long_annealings_of_a_seed_stay_as_they_were():
    problem = teacher_student(100, 1.6, seed=[0, 0], ties="plus")
    assert digest(problem.patterns, problem.labels, problem.teacher) == "78d93943e1a14759"
    paper = teacher_student(1000, 1.58, seed=[0, 0])
    method = MCover(3, GaussianRing(3, shift=2), bank=10)
    assert (
        digest(anneal(paper, method, schedule=np.linspace(0.4, 0.01, 300), seed=[0, 1]).weights)
        == "ce85eae98e9918ef"
    )
