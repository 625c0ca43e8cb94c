"""Patterns with structure have the stated statistics; trials on them equal plain calls."""

from dataclasses import replace

import numpy as np
import pytest

from mcover import RSA, GaussianRing, MCover, Vanilla, anneal
from mcover.annealing import AutoSchedule
from mcover.plain import from_plain, to_plain
from reproduction import data
from reproduction.patterns import Patterns
from reproduction.planted import (
    Annealed,
    ExpectationPropagation,
    Logistic,
    MessagePassing,
    PlantedTrial,
    Program,
    Solve,
)

FAMILIES = [
    Patterns("iid", 101, 3.0),
    Patterns("biased", 101, 3.0, 0.5),
    Patterns("ar1", 101, 3.0, 0.9),
    Patterns("low-rank", 101, 3.0, 5),
    Patterns("digits", 41, 6.0),
    Patterns("iid", 31, 4.0, hidden=3),
]
NAMES = [f"{one.family} {one.hidden}" for one in FAMILIES]


@pytest.mark.parametrize("family", FAMILIES, ids=NAMES)
def test_the_teacher_is_right_on_all_patterns_but_the_flipped_ones(family):
    problem = family.problem(3)
    count = round(family.alpha * family.n * family.hidden)
    assert problem.patterns.shape == (count, family.n)
    assert problem.training_errors(problem.teacher) == 0
    noisy = replace(family, flipped=0.1).problem(3)
    assert noisy.training_errors(problem.teacher) == round(0.1 * count)
    assert np.array_equal(noisy.patterns, problem.patterns)


@pytest.mark.parametrize("family", FAMILIES, ids=NAMES)
def test_a_seed_is_an_instance(family):
    one, same, other = family.problem(1), family.problem(1), family.problem(2)
    assert np.array_equal(one.patterns, same.patterns)
    assert np.array_equal(one.teacher, same.teacher)
    assert not np.array_equal(one.patterns, other.patterns)
    assert not np.array_equal(one.teacher, other.teacher)


def test_entries_have_the_mean_that_is_asked_for():
    x = Patterns("biased", 201, 100.0, 0.2).problem(0).patterns
    assert x.mean() == pytest.approx(0.2, abs=5 / np.sqrt(x.size))
    assert abs(Patterns("iid", 201, 100.0).problem(0).patterns.mean()) < 5 / np.sqrt(x.size)


def test_neighbours_correlate_as_signs_of_a_gaussian_sequence():
    x = Patterns("ar1", 201, 100.0, 0.6).problem(0).patterns.astype(float)
    for distance in (1, 3):
        wanted = 2 / np.pi * np.arcsin(0.6**distance)
        found = np.mean(x[:, distance:] * x[:, :-distance])
        assert found == pytest.approx(wanted, abs=0.005)


def test_a_low_rank_shows_in_the_spectrum():
    x = Patterns("low-rank", 201, 50.0, 5).problem(0).patterns.astype(float)
    spectrum = np.linalg.eigvalsh(x.T @ x / len(x))[::-1]
    assert spectrum[4] > 4 * spectrum[5]


def test_pixels_are_the_ones_that_vary_most():
    images = data.load("digits", binarize="median").train_images.reshape(-1, 64)
    problem = Patterns("digits", 41, 20).problem(0)
    least = np.sort(1 - images.mean(axis=0) ** 2)[::-1][40]
    assert np.all(1 - problem.patterns.mean(axis=0) ** 2 > least - 0.1)
    kept = {tuple(one) for one in images[:, 1 - images.mean(axis=0) ** 2 >= least].astype(int)}
    assert {tuple(one) for one in problem.patterns.astype(int)} <= kept


def test_an_annealed_trial_is_the_plain_call():
    family = Patterns("ar1", 51, 3.0, 0.9)
    method = MCover(5, GaussianRing(1.5, shift=2), bank=2, coupling=0.3)
    found = PlantedTrial(family, Annealed(method, 0.7, sweeps=50)).run(4)
    problem = family.problem(4)
    schedule = AutoSchedule(50, 0.7)
    run = anneal(problem, method, schedule=schedule, seed=[4, 1], stop_at_zero=True)
    high = run.options.schedule.start
    students = np.concatenate([run.collapsed_sign, run.weights[0]])
    errors = problem.training_errors(students)
    assert found["training_errors"] == errors.min()
    assert found["overlap"] == problem.overlap(students[errors.argmin()])
    assert found["proposals"] == run.proposals[0]
    fixed = PlantedTrial(family, Annealed(method, high, automatic=False, sweeps=50)).run(4)
    assert fixed["proposals"] == found["proposals"]


def test_more_reads_are_at_least_as_good():
    family = Patterns("iid", 51, 3.0, flipped=0.1)
    one = PlantedTrial(family, Annealed(RSA(3), 1.0, sweeps=30))
    more = replace(one, solver=replace(one.solver, reads=5))
    pairs = [(one.run(seed), more.run(seed)) for seed in range(5)]
    assert all(b["training_errors"] <= a["training_errors"] for a, b in pairs)
    assert sum(b["proposals"] for _, b in pairs) > 4 * sum(a["proposals"] for a, _ in pairs)


SOLVERS = [
    Annealed(Vanilla(), sweeps=300),
    Solve(),
    MessagePassing(),
    MessagePassing(damping=0.5, max_iterations=200),
    MessagePassing(reinforcement=0.01, reads=2),
    ExpectationPropagation(),
    Program("highs"),
    Program("cp-sat"),
    Program("largest-margin"),
    Logistic(),
]


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_every_solver_solves_what_is_easy(solver):
    trial = PlantedTrial(Patterns("iid", 31, 8.0), solver)
    outcomes = [trial.run(seed) for seed in range(3)]
    assert sum(one["solved"] for one in outcomes) >= 2
    for one in outcomes:
        assert one["solved"] == (one["training_errors"] == 0)
        assert one["solved"] == 0 or one["overlap"] == pytest.approx(1)
        assert one["core_seconds"] > 0
    assert from_plain(PlantedTrial, to_plain(trial)) == trial
