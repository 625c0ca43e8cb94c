"""Temperatures that follow the data, and ``anneal(X, y)``."""

import numpy as np
import pytest

from mcover import (
    RSA,
    Committee,
    LinearSchedule,
    MCover,
    McoverError,
    Perceptron,
    Vanilla,
    anneal,
    teacher_student,
)
from mcover.annealing import PAPER, AnnealOptions, AutoSchedule, CustomSchedule
from mcover.annealing.states import pack_columns
from mcover.annealing.temperatures import ACCEPTED, freezing_temperature


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
    "no teacher": Perceptron(
        np.random.default_rng(0).choice([-1, 1], (400, 101)),
        np.random.default_rng(1).choice([-1, 1], 400),
    ),
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
    ("method", "factor"), [(Vanilla(), 0.5), (RSA(5), 1.4), (MCover(5), 0.7), (RSA(1), 0.5)]
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sweeps": 0}, "sweeps is 0"),
        ({"factor": 0.0}, "factor is 0"),
        ({"factor": "hot"}, "factor is 'hot'"),
        ({"span": 0.5}, "span is 0.5; .* at least 1"),
        ({"sweeps": 10**15}, "fewer temperatures"),
    ],
)
def test_schedules_that_cannot_be_are_refused(options, message):
    with pytest.raises(McoverError, match=message):
        AutoSchedule(**options)
    with pytest.raises(McoverError, match=r"read result\.options\.schedule"):
        AutoSchedule().temperatures()


def test_patterns_and_labels_are_annealed_as_the_problem_they_are():
    problem = teacher_student(41, 2.0, seed=0)
    bits, names = problem.patterns > 0, np.where(problem.labels > 0, "yes", "no")
    how = {"num_sweeps": 20, "num_reads": 2, "seed": 5}
    want = anneal(problem, **how)
    np.testing.assert_array_equal(anneal(bits, names, **how).weights, want.weights)
    method = RSA(3)
    want = anneal(problem, method, **how)
    for got in (
        anneal(problem.patterns, problem.labels, method, **how),
        anneal(problem, method=method, **how),
    ):
        np.testing.assert_array_equal(got.weights, want.weights)
    committee = Committee(bits, names, 3)
    want = anneal(committee, **how)
    np.testing.assert_array_equal(anneal(bits, names, hidden=3, **how).weights, want.weights)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1, -1]],), "write mcover.teacher_student.* patterns followed by their labels"),
        ((PROBLEMS["few"], [1]), "a problem has its own labels; leave labels out"),
        ((PROBLEMS["few"], RSA(3), RSA(2)), "two methods were given"),
        (([[1, -1]], [1], "rsa"), "method is 'rsa'; write"),
    ],
)
def test_arguments_that_do_not_belong_together_are_refused(arguments, message):
    with pytest.raises(McoverError, match=message):
        anneal(*arguments)
    with pytest.raises(McoverError, match="a problem has its own hidden"):
        anneal(PROBLEMS["few"], hidden=2)


def test_the_papers_settings_are_a_preset():
    assert PAPER.method.coupling == 0
    assert len(PAPER.schedule.temperatures()) == 3901
    problem = teacher_student(21, 1.0, seed=0)
    assert anneal(problem, **vars(PAPER), seed=0).options == PAPER
    assert anneal(problem, schedule=[0.3], seed=0).options.method == AnnealOptions().method
    assert anneal(problem, schedule=[0.3], seed=0).options.schedule == CustomSchedule((0.3,))
