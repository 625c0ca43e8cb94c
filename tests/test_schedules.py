"""Temperatures of explicit schedules, and temperatures chosen from the data."""

import numpy as np
import pytest

from mcover import RSA, LinearSchedule, MCover, Perceptron, Vanilla, anneal, teacher_student
from mcover.annealing import (
    AnnealOptions,
    AutoSchedule,
    BetaSchedule,
    CustomSchedule,
    GeometricSchedule,
)
from mcover.annealing.options import couplings_of
from mcover.annealing.states import pack_columns
from mcover.annealing.temperatures import ACCEPTED, freezing_temperature
from problems_under_test import random_labels


def test_schedules_have_the_temperatures_they_say():
    paper = LinearSchedule(0.4, 0.01, 1e-4).temperatures()
    assert len(paper) == 3901
    assert paper[[0, -1]] == pytest.approx([0.4, 0.01])
    np.testing.assert_allclose(np.diff(paper), -1e-4)
    geometric = GeometricSchedule(1.0, 0.1, 5, sweeps=2).temperatures()
    np.testing.assert_allclose(geometric[::2], 10 ** np.array([0, -0.25, -0.5, -0.75, -1]))
    np.testing.assert_array_equal(geometric[::2], geometric[1::2])
    np.testing.assert_allclose(1 / BetaSchedule(1.0, 0.1, 4).temperatures(), [1, 4, 7, 10])
    assert CustomSchedule((0.3, 0.5)).temperatures().tolist() == [0.3, 0.5]
    growing = AnnealOptions(RSA(3, 2.0, coupling_growth=1.0), LinearSchedule(0.4, 0.2, 0.1))
    np.testing.assert_allclose(couplings_of(growing), [2, 4, 8])


@pytest.mark.parametrize("schedule", [(0.3, 1e-8, 0.1), (0.3, 0.1 - 1e-15, 0.1), (0.4, 0.01, 0.1)])
def test_linear_schedules_never_end_below_their_stop(schedule):
    temperatures = LinearSchedule(*schedule).temperatures()
    assert temperatures.min() >= 0.999 * schedule[1]
    assert np.all(np.diff(temperatures) < 0)


def hot(problem, energy="linear"):
    size = len(problem.patterns), problem.hidden, problem.inputs
    return freezing_temperature(pack_columns(problem.gauged), size, energy)


def correlated(n, alpha, seed):
    """Neighbouring inputs agree: 19 of 20."""
    rng = np.random.default_rng(seed)
    patterns = np.cumprod(np.where(rng.random((round(alpha * n), n)) < 0.05, -1, 1), axis=1)
    patterns = patterns * rng.choice([-1, 1], (len(patterns), 1))
    teacher = rng.choice([-1, 1], n)
    return Perceptron(patterns, np.where(patterns @ teacher > 0, 1, -1), teacher)


PROBLEMS = {
    "few": teacher_student(201, 1.5, seed=0),
    "many": teacher_student(101, 40.0, seed=0),
    "committee": teacher_student(51, 8.0, seed=0, hidden=3),
    "correlated": correlated(201, 3.0, seed=0),
    "no teacher": random_labels(400, 101),
}


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("energy", ["linear", "errors"])
def test_one_copy_that_cools_to_it_accepts_12_percent(name, energy):
    """By another run, along another path of temperatures."""
    problem = PROBLEMS[name]
    found = hot(problem, energy)
    path = np.concatenate([np.geomspace(6 * found, found, 30), np.full(20, found)])
    result = anneal(
        problem, Vanilla(), schedule=path, energy=energy, num_reads=8, seed=1, record=len(path)
    )
    accepted = result.trajectory.acceptance[:, 30:].mean()
    # Many patterns with a teacher freeze at once, and acceptance jumps there.
    assert accepted == pytest.approx(ACCEPTED, rel=0.5 if name == "many" else 0.25)


def test_it_grows_with_the_energy():
    """Four copies of each pattern are four times the energy: the same walk, at four times T."""
    problem = PROBLEMS["few"]
    again = Perceptron(np.tile(problem.patterns, (4, 1)), np.tile(problem.labels, 4))
    assert hot(again) == pytest.approx(4 * hot(problem))


def test_easy_problems_have_one_too():
    for problem in (Perceptron([[1, -1, 1]], [1]), teacher_student(301, 0.1, seed=0)):
        result = anneal(problem, seed=0)
        assert result.solved.all()
        assert 0 < result.options.schedule.stop < result.options.schedule.start < 10


@pytest.mark.parametrize(
    ("method", "factor"),
    [
        (Vanilla(), 0.5),
        (RSA(5), 1.4),
        (RSA(1), 0.5),
        (MCover(5), 0.5),
        (MCover(5, coupling=0.3), 0.7),
    ],
)
def test_the_schedule_that_was_drawn_is_in_the_result(method, factor):
    problem = teacher_student(101, 1.5, seed=0)
    result = anneal(problem, method, schedule="auto", num_sweeps=30, num_reads=2, seed=3)
    drawn, start = result.options.schedule, factor * hot(problem)
    assert isinstance(drawn, LinearSchedule)
    np.testing.assert_allclose(drawn.temperatures(), np.linspace(start, start / 8, 30))
    again = anneal(problem, method, schedule=drawn, num_reads=2, seed=3)
    np.testing.assert_array_equal(again.weights, result.weights)
    other = anneal(problem, method, num_sweeps=30, seed=4)
    assert other.options.schedule == drawn


def test_automatic_schedules_take_a_factor_and_a_span():
    problem = teacher_student(51, 1.5, seed=0)
    for sweeps, factor, span in ((20, 0.3, 4), (1, 2.0, 8), (5, 1.0, 1)):
        schedule = AutoSchedule(sweeps, factor, span)
        drawn = anneal(problem, schedule=schedule, seed=0).options.schedule
        temperatures = drawn.temperatures()
        assert len(temperatures) == sweeps
        start = factor * hot(problem)
        stop = start if sweeps == 1 else start / span
        assert temperatures[[0, -1]] == pytest.approx([start, stop])
