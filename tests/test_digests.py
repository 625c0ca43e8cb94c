"""Routes and annealings of a seed do not change from one version to the next.

Digests are of whole numbers, routes (up to 20 covers) and ±1 weights, not of kernels or energies:
the last bit of an exponential differs between CPUs, and a route does not see it.
"""

import hashlib

import numpy as np
import pytest

from kernels_under_test import random_kernel
from mcover import (
    RSA,
    Band,
    Blocks,
    Chain,
    Custom,
    GaussianRing,
    Identity,
    LinearSchedule,
    MCover,
    Torus,
    Uniform,
    Vanilla,
    anneal,
    mix,
    teacher_student,
)
from mcover.annealing import BetaSchedule, GeometricSchedule
from mcover.permutations import Sampler
from mcover.routing import draw_bank, draw_indexed_bank, draw_mixers

COVERS = (2, 3, 5, 8, 12, 20)
TOPOLOGIES = {
    "ring": lambda covers: GaussianRing(1.5, shift=2),
    "skewed ring": lambda covers: GaussianRing(0.8, shift=0.25, skew=-0.8),
    "narrow ring": lambda covers: GaussianRing(0.3, shift=0.5),
    "uniform": lambda covers: Uniform(),
    "identity": lambda covers: Identity(),
    "band": lambda covers: Band(1),
    "chain": lambda covers: Chain(1.0, skew=0.3),
    "blocks": lambda covers: Blocks(covers // 2 if covers % 2 == 0 else covers, 0.7, 0.5),
    "torus": lambda covers: Torus(
        covers // 4 if covers % 4 == 0 else 1, 4 if covers % 4 == 0 else covers, 0.6, 0.0, 0.5
    ),
    "custom": lambda covers: Custom(random_kernel(covers, seed=4)),
    "mixture": lambda covers: mix(GaussianRing(0.4), Uniform(), weights=[9, 1]),
}
EXPECTED = {
    "ring 2": "1ba38449f10eb76d",
    "ring 3": "66560269a44f91df",
    "ring 5": "5a33317afef0d776",
    "ring 8": "2bbb2763df2d8e01",
    "ring 12": "3b461249d3737bd6",
    "ring 20": "4cd4dd48e1b8081d",
    "skewed ring 2": "2001e1abe459afbe",
    "skewed ring 3": "0b9ed5a4990dfb72",
    "skewed ring 5": "d8fcd9b4e2d14fd9",
    "skewed ring 8": "7b684dfd951641ed",
    "skewed ring 12": "380fb0ce33fe427b",
    "skewed ring 20": "e51754b6c2036ff2",
    "narrow ring 2": "bbb58f852c4474cc",
    "narrow ring 3": "5992cfc12f77b8cb",
    "narrow ring 5": "197c8ea1f5f4b49d",
    "narrow ring 8": "db521a5a9544ff9c",
    "narrow ring 12": "07cb97fde7060037",
    "narrow ring 20": "854d63fc9bc22090",
    "uniform 2": "bbb58f852c4474cc",
    "uniform 3": "9d7100230521006a",
    "uniform 5": "01ebe6e369a921bd",
    "uniform 8": "75cfecd0bdd35c39",
    "uniform 12": "be9b46fcf0d22671",
    "uniform 20": "11b53df65f6f5123",
    "identity 2": "2001e1abe459afbe",
    "identity 3": "2f1db865fe3758ce",
    "identity 5": "9157c58155bd4991",
    "identity 8": "b93ae542c59e2495",
    "identity 12": "da43e83b59bab49d",
    "identity 20": "f2e26019d92e966d",
    "band 2": "bbb58f852c4474cc",
    "band 3": "9d7100230521006a",
    "band 5": "a1c550ca1a661082",
    "band 8": "8d08e5bbcf668f58",
    "band 12": "2e4073b319f04de5",
    "band 20": "453fecc41698b729",
    "chain 2": "6b84f9460eba4248",
    "chain 3": "5e6742d0730a6054",
    "chain 5": "2132a5044923fa2e",
    "chain 8": "4cd43c081bf12a92",
    "chain 12": "ee5582763f85511c",
    "chain 20": "0d9f54f9232e2bb6",
    "blocks 2": "bbb58f852c4474cc",
    "blocks 3": "3b9252781c6b40e0",
    "blocks 5": "83a168cc0a5b82ce",
    "blocks 8": "fdef5d71882eea38",
    "blocks 12": "bc3498d9c33b4d2a",
    "blocks 20": "c6bbed229523aa7f",
    "torus 2": "bbb58f852c4474cc",
    "torus 3": "8cfee31b64148b61",
    "torus 5": "83b4d279f5757ee8",
    "torus 8": "a63213847b9d2ee8",
    "torus 12": "efa7260a68340e4a",
    "torus 20": "fc27047e6f92133d",
    "custom 2": "0a9ff09350c22928",
    "custom 3": "7b6425a44bc2bdda",
    "custom 5": "9167f7b7f670d3ac",
    "custom 8": "a3e7246d591a6629",
    "custom 12": "c71e77a2b00fb2fd",
    "custom 20": "9d7f53aa811f05e7",
    "mixture 2": "56657cb3012c6e35",
    "mixture 3": "0ac818e472e3e219",
    "mixture 5": "cfa5c52d0fe8cfdb",
    "mixture 8": "c5e3fde8129ee2a0",
    "mixture 12": "f9997784e1758f66",
    "mixture 20": "62d4def9b1272c62",
    "10,000 routes": "dc953be12e8eb31f",
    "table of 65,536 routes": "6973cb194e09c689",
    "assign": "dc4dddfe77d19bd7",
}


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
        yield from (bank.destinations, bank.routes, bank.inverse, bank.redraw(seed + 1).routes)
        indexed = draw_indexed_bank(topology, covers, sources=30, size=6, seed=seed)
        yield from (indexed.destinations, indexed.index, indexed.table, indexed.inverse_table)
        yield draw_mixers(topology, covers, units=6, blocks=3, draws=5, seed=seed)


@pytest.mark.parametrize("covers", COVERS)
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_routes_of_a_seed_stay_as_they_were(name, covers):
    assert digest(*drawn(TOPOLOGIES[name](covers), covers)) == EXPECTED[f"{name} {covers}"]


def test_long_samples_of_a_seed_stay_as_they_were():
    sampler = Sampler(GaussianRing(1.5, shift=2).matrix(10))
    assert digest(sampler.sample(10_000, seed=7)) == EXPECTED["10,000 routes"]
    bank = draw_indexed_bank(Chain(1.0), 9, sources=70_000, size=2, seed=5)
    assert digest(bank.index, bank.table) == EXPECTED["table of 65,536 routes"]
    assert (
        digest(sampler.sample(50, 3), Sampler(sampler.matrix, "assign").sample(50, 3))
        == (EXPECTED["assign"])
    )


METHODS = {
    "ae786b3d5cb102b6": Vanilla(),
    "0d7bba74b33d7eff": RSA(),
    "f74a1df122a26b85": RSA(5, coupling=0.3, coupling_growth=0.02),
    "94ab310abbe82cfe": RSA(3, coupling=90.0),
    "a72bd7032ea950ee": MCover(),
    "5ba8d773f71d9400": MCover(4, Uniform(), bank=2),
    "d122cd9b1cc4ff31": MCover(3, GaussianRing(3, shift=2), bank=3, redraw_every=7),
    "b6b06ce74e2c83ad": MCover(2, bank=None),
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


def annealed(method):
    """Problems with an even and an odd number of inputs, and what becomes of them."""
    for hidden, n in ((1, 30), (1, 31), (3, 30), (3, 31)):
        problem = teacher_student(n, 2.0, seed=3, hidden=hidden)
        yield from (problem.patterns, problem.labels, problem.teacher)
        for run in RUNS:
            result = anneal(problem, method, **run)
            yield from (result.weights, result.sweeps, result.training_errors)


@pytest.mark.parametrize("expected", METHODS, ids=lambda expected: repr(METHODS[expected]))
def test_annealings_of_a_seed_stay_as_they_were(expected):
    assert digest(*annealed(METHODS[expected])) == expected


def test_instances_and_long_annealings_of_a_seed_stay_as_they_were():
    problem = teacher_student(100, 1.6, seed=[0, 0], ties="plus")
    assert digest(problem.patterns, problem.labels, problem.teacher) == "78d93943e1a14759"
    paper = teacher_student(1000, 1.58, seed=[0, 0])
    method = MCover(3, GaussianRing(3, shift=2), bank=10)
    assert digest(anneal(paper, method, num_sweeps=300, seed=[0, 1]).weights) == "ce85eae98e9918ef"
