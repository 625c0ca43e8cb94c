"""Reproducibility of every annealer, its trajectory and energies against the equations.

The laws that annealers share with lifts and optimizers are in ``test_laws.py``.
"""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

import reference_annealer as reference
from mcover import (
    RSA,
    FactorGraph,
    GaussianRing,
    LinearSchedule,
    MCover,
    Uniform,
    Vanilla,
    anneal,
    teacher_student,
)
from mcover.annealing import AnnealOptions
from mcover.annealing.options import bank_size, couplings_of
from mcover.factor_graph import lift_bank
from mcover.routing import draw_bank
from mcover.seeds import seed_sequence
from problems_under_test import PROBLEMS, RUNS, final_states, pattern_graph

RING = GaussianRing(1.5, shift=2)
SHORT = LinearSchedule(0.4, 0.1, 0.05)


def assert_same(one, other):
    np.testing.assert_array_equal(final_states(one), final_states(other))
    np.testing.assert_array_equal(one.energy, other.energy)
    np.testing.assert_array_equal(one.proposals, other.proposals)
    np.testing.assert_array_equal(one.sweeps, other.sweeps)


@pytest.mark.parametrize(("problem", "how"), RUNS.values(), ids=RUNS)
def test_the_same_seed_gives_the_same_bits(problem, how):
    """For any number of workers, of reads, and of points of the trajectory."""
    bank = None if isinstance(problem, FactorGraph) else 3
    how = {**how, "method": MCover(3, RING, bank, redraw_every=7)}
    five = anneal(problem, num_reads=5, workers=1, seed=11, **how)
    assert_same(anneal(problem, num_reads=5, workers=4, seed=11, record=1, **how), five)
    two, other = (anneal(problem, num_reads=2, seed=s, record=60, **how) for s in (11, 12))
    np.testing.assert_array_equal(final_states(two), final_states(five)[:2])
    courses = [*two.trajectory.energy, *other.trajectory.energy]
    assert len({course.tobytes() for course in courses}) == 4


def test_processes_give_the_same_bits():
    problem, how = PROBLEMS["perceptron"], {"num_reads": 5, "seed": 2, "num_sweeps": 30}
    here = anneal(problem, **how)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        there = anneal(problem, executor=pool, workers=2, **how)
    assert_same(there, here)
    np.testing.assert_array_equal(there.training_errors, here.training_errors)
    np.testing.assert_array_equal(there.trajectory.energy, here.trajectory.energy)
    assert there.options == here.options


METHODS = [
    {"method": Vanilla()},
    {"method": RSA(3, coupling=0.8, coupling_growth=0.1)},
    {"method": MCover(4, RING, bank=3, coupling=0.7)},
    {"method": MCover(3, bank=2, coupling=0.3, coupling_growth=0.2, redraw_every=3)},
    {"method": MCover(2, Uniform(), bank=None), "rule": "metropolis"},
    {"method": MCover(3, bank=2), "energy": "errors", "order": "sequential"},
    {"method": MCover(3, bank=2, redraw_every=3), "order": "permutation"},
    {"method": MCover(3, bank=2, redraw_every=3), "rule": "repair"},
    {"method": MCover(3, bank=2), "rule": "descent"},
    {"method": RSA(2), "rule": "descent", "improvement": "best", "energy": "errors"},
]


@pytest.mark.parametrize("hidden", [1, 3])
@pytest.mark.parametrize(
    "options", METHODS, ids=lambda options: "-".join(map(str, options.values()))
)
@pytest.mark.filterwarnings("ignore:rule is 'descent'")
def test_every_method_walks_the_reference_trajectory(options, hidden):
    problem = teacher_student(7, alpha=2.0, seed=1, hidden=hidden)
    # One record: compiled code comes back for redraws and little else.
    result = anneal(problem, schedule=SHORT, num_reads=2, seed=5, record=1, **options)
    settings = AnnealOptions(schedule=SHORT, **options)
    assert result.options == settings
    method, rule = settings.method, settings.rule
    for read, seed in enumerate(seed_sequence(5).spawn(2)):
        route_seed, redraw_seed, chain_seed = seed.spawn(3)
        rng = reference.Xoshiro(chain_seed.generate_state(4, np.uint64))
        weights = reference.random_weights(rng, method.covers, problem.sites)
        size = bank_size(method, problem.sites)
        bank = draw_bank(method.topology, method.covers, problem.sites, size, route_seed)
        temperatures, couplings = SHORT.temperatures(), couplings_of(settings)
        every, proposals = method.redraw_every or len(temperatures), 0
        for start in range(0, len(temperatures), every):
            if start:
                bank = bank.redraw(redraw_seed.spawn(1)[0])
            given = problem.gauged.astype(int), bank.routes.astype(int), weights, hidden
            these = slice(start, start + every)
            ways = settings.order, settings.improvement
            walked = reference.walk(
                rule, *given, settings.energy, temperatures[these], couplings[these], *ways, rng
            )
            proposals += sum(walked.proposals)
            if walked.ended:
                break
        np.testing.assert_array_equal(result.weights[read], weights)
        assert result.energy[read] == pytest.approx(walked.energies[-1])
        assert result.proposals[read] == proposals


@pytest.mark.parametrize("n", [6, 7])
@pytest.mark.parametrize("energy", ["linear", "errors"])
def test_the_energy_is_that_of_the_general_lift(n, energy):
    problem = teacher_student(n, alpha=2.0, seed=2)
    result = anneal(problem, MCover(3, RING, bank=4), num_sweeps=3, seed=9, energy=energy)
    route_seed = seed_sequence(9).spawn(1)[0].spawn(3)[0]
    bank = draw_bank(RING, 3, n, 4, route_seed)
    graph = pattern_graph(problem.gauged, energy)
    expected = lift_bank(graph, bank).objective(result.weights[0].astype(float))
    assert result.energy[0] == pytest.approx(expected)


@pytest.mark.parametrize("energy", ["linear", "errors"])
@pytest.mark.parametrize(("inputs", "hidden"), [(30, 1), (31, 1), (12, 3), (11, 4)])
def test_the_collapse_has_the_energy_and_errors_that_the_problem_says(energy, inputs, hidden):
    problem = teacher_student(inputs, 20.0, seed=0, hidden=hidden)
    result = anneal(problem, MCover(4), schedule=[9.0], num_reads=3, seed=1, energy=energy)
    total = result.weights.astype(int).sum(axis=1)
    majority = np.where(total == 0, result.weights[:, 0], np.sign(total))  # ties go to cover 0
    assert (total == 0).any()
    np.testing.assert_array_equal(result.collapsed_sign, majority)
    np.testing.assert_allclose(result.collapsed, total / 4)
    expected = problem.energy(majority, energy)
    assert expected.min() > 0
    np.testing.assert_array_equal(result.collapsed_energy, expected)  # to the last bit
    np.testing.assert_array_equal(result.training_errors, problem.training_errors(majority))
