"""``solve``: students that fit, the same on any number of workers and on any executor."""

import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context

import numpy as np
import pytest

import mcover
from mcover import RSA, Committee, McoverError, solve, teacher_student
from mcover.annealing import temperatures
from mcover.annealing.attempts import Budget, attempt
from mcover.annealing.portfolio import PORTFOLIO, Plan
from mcover.annealing.readouts import best_student, count_errors
from mcover.annealing.result import collapse_sign
from mcover.annealing.solution import bit_planes
from mcover.annealing.solve import check_student
from mcover.annealing.states import pack_columns
from mcover.annealing.tasks import run_tasks
from mcover.errors import McoverWarning
from problems_under_test import random_labels
from reference_annealer import training_errors

EASY = teacher_student(101, 3.0, seed=0)
HARD = teacher_student(101, 1.3, seed=[1, 0])
RANDOM = random_labels(150, 51)


def assert_same(one, two):
    np.testing.assert_array_equal(one.weights, two.weights)
    assert (one.errors, one.restarts, one.restart) == (two.errors, two.restarts, two.restart)
    assert (one.readout, one.options) == (two.readout, two.options)


@pytest.mark.parametrize("problem", [EASY, teacher_student(31, 6.0, seed=1, hidden=3)], ids=str)
def test_a_solution_fits_every_pattern(problem):
    found = solve(problem, seed=0)
    assert found.solved
    assert training_errors(problem, found.weights) == found.errors == 0
    assert set(np.unique(found.weights)) <= {-1, 1}
    assert found.margin > 0
    np.testing.assert_array_equal(found.predict(problem.patterns), problem.labels)
    text = repr(found)
    assert "solved on" in text
    assert len(text.splitlines()) < 10


def test_patterns_and_labels_as_a_user_has_them():
    bits, names = EASY.patterns > 0, np.where(EASY.labels > 0, "cat", "ant")
    found = solve(bits, names, seed=0)
    assert_same(found, solve(EASY, seed=0))
    assert found.predict(bits).tolist() == names.tolist()
    assert found.predict(2 * bits.astype(int) - 1).tolist() == names.tolist()
    assert "'ant' is -1, 'cat' is +1" in repr(found)
    with pytest.raises(McoverError, match="have 3 inputs; write 101"):
        found.predict([[1, -1, 1]])


def test_where_nothing_fits_it_is_the_student_with_the_fewest_errors():
    found = solve(RANDOM, restarts=6, seed=0, time_limit=None)
    assert not found.solved
    assert found.restarts == 6
    assert 0 < found.errors == training_errors(RANDOM, found.weights)
    assert found.margin < 0
    few = solve(RANDOM, restarts=1, seed=0, time_limit=None)
    assert found.errors <= few.errors
    assert "errors on 150 patterns" in repr(found)


def test_an_attempt_takes_the_best_of_majority_covers_and_polish():
    columns, size = pack_columns(RANDOM.gauged), (150, 1, 51)
    readouts = set()
    for seed in range(12):
        options = mcover.annealing.AnnealOptions(RSA(5), mcover.LinearSchedule(0.9, 0.1, 0.01))
        found = attempt(columns, size, options, np.random.SeedSequence(seed), Budget(None, None))
        students = [mcover.annealing.result.collapse_sign(found.covers), *found.covers]
        errors = [training_errors(RANDOM, one) for one in students]
        assert [count_errors(columns, size, one) for one in students] == errors
        assert found.errors == training_errors(RANDOM, found.weights) <= min(errors)
        assert (found.readout == "polish") == (found.errors < min(errors))
        _, fewest, name = best_student(columns, size, found.covers)
        assert fewest == min(errors)
        readouts |= {name.split()[0], found.readout.split()[0]}
    assert {"cover", "polish"} <= readouts


def test_temperatures_are_measured_once_for_all_restarts(monkeypatch):
    measured = []

    def measure(columns, size, energy, measure=temperatures.freezing_temperature):
        measured.append(energy)
        return measure(columns, size, energy)

    monkeypatch.setattr(temperatures, "freezing_temperature", measure)
    solve(RANDOM, restarts=4, seed=0, time_limit=None)
    assert measured == ["linear", "errors"]


@pytest.mark.parametrize("problem", [HARD, RANDOM], ids=["teacher", "random"])
def test_the_outcome_does_not_depend_on_workers(problem):
    how = {"restarts": 7, "seed": 3, "time_limit": None}
    one = solve(problem, workers=1, **how)
    for workers in (2, 5):
        assert_same(solve(problem, workers=workers, **how), one)
    for pool in (ThreadPoolExecutor(2), ProcessPoolExecutor(2, mp_context=get_context("spawn"))):
        with pool:
            assert_same(solve(problem, executor=pool, workers=3, **how), one)
    if problem is RANDOM:  # a teacher is found with any seed
        assert not np.array_equal(solve(problem, **{**how, "seed": 4}).weights, one.weights)


def die(path, number):
    """Ends its process the first time that it is called with 1."""
    if number == 1 and not os.path.exists(path):
        open(path, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return number**2


def test_what_a_killed_worker_lost_runs_again(tmp_path):
    """The pool is broken then: the rest runs in this process, and a warning says so."""
    tasks, found = iter(range(5)), {}
    path = str(tmp_path / "died")

    def next_task():
        return next(((die, (path, number)) for number in tasks), None)

    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        run = partial(run_tasks, pool, next_task, found.__setitem__, 2, lambda: False)
        with pytest.warns(McoverWarning, match="executor is broken.*runs in this process"):
            run()
    assert found == {n: n**2 for n in range(5)}


def test_errors_of_a_task_reach_the_caller():
    tasks = iter([(int, ("one",))])
    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="invalid literal"):
        run_tasks(pool, lambda: next(tasks, None), print, 2, lambda: False)


def test_rounds_follow_lubys_sequence_and_leave_out_what_does_worst():
    plan, errors = Plan(), {}
    for number in range(3 * len(PORTFOLIO) + 4 * (len(PORTFOLIO) - 1)):
        options = plan.options_of(number, errors)
        errors[number] = 7 if options.method == PORTFOLIO[0] else 3
    rounds = [[plan.restarts[n] for n in numbers] for numbers in plan.rounds]
    assert [one.method for one in rounds[0]] == list(PORTFOLIO)
    assert len({one.schedule.sweeps for one in rounds[1]}) == 1
    sweeps = [of[0].schedule.sweeps for of in rounds]
    assert [length // sweeps[0] for length in sweeps] == [1, 1, 2, 1, 1, 2, 4]
    assert all(len(of) == len(PORTFOLIO) for of in rounds[:3])
    for later in rounds[3:]:
        assert PORTFOLIO[0] not in [one.method for one in later]


def test_one_method_and_the_majority_can_be_asked_for():
    how = {"restarts": 4, "seed": 1, "time_limit": None, "method": mcover.RSA(5)}
    best, majority = (solve(RANDOM, readout=readout, **how) for readout in ("best", "majority"))
    assert best.options.method == majority.options.method == mcover.RSA(5)
    assert majority.readout == "majority"
    assert best.errors < majority.errors == training_errors(RANDOM, majority.weights)
    columns = pack_columns(RANDOM.patterns, RANDOM.labels)
    child = np.random.SeedSequence(1, spawn_key=(majority.restart,))
    budget, size = Budget(None, None), (150, 1, 51)
    again = attempt(columns, size, majority.options, child, budget, readout="majority")
    np.testing.assert_array_equal(majority.weights, collapse_sign(again.covers))


def test_a_plan_waits_for_what_it_depends_on():
    plan = Plan()
    size = len(PORTFOLIO)
    assert all(plan.options_of(number, {}) for number in range(2 * size))
    assert plan.options_of(2 * size, {}) is None
    assert plan.options_of(2 * size, dict.fromkeys(range(size), 1)) is not None


def test_the_time_is_kept_and_something_is_returned():
    problem = teacher_student(501, 1.3, seed=0)
    solve(EASY, seed=0)  # compiles
    begin = time.monotonic()
    found = solve(problem, time_limit=0.3, seed=0, workers=2)
    assert time.monotonic() - begin < 20
    assert found.errors == training_errors(problem, found.weights)
    at_once = solve(problem, time_limit=1e-9, seed=0)
    assert at_once.errors == training_errors(problem, at_once.weights)


def test_progress_is_reported(capsys):
    seen = []
    solve(RANDOM, restarts=3, seed=0, progress=seen.append)
    assert seen[-1].restarts == 3
    assert seen[0].errors is None
    assert seen[-1].errors > 0
    solve(RANDOM, restarts=2, seed=0, progress=True)
    assert "of 150 wrong" in capsys.readouterr().err


def test_the_check_counts_from_patterns_and_weights_alone():
    for problem in (RANDOM, Committee(RANDOM.patterns, RANDOM.labels, 3)):
        rng = np.random.default_rng(5)
        for weights in rng.integers(-3, 4, (5, problem.sites)):
            errors, margin = check_student(problem, weights)
            assert errors == training_errors(problem, weights)
            fields = problem.gauged.astype(int) @ weights.reshape(problem.hidden, -1).T
            if problem.hidden == 1:
                assert margin == pytest.approx(fields.min() / np.linalg.norm(weights))
            else:
                votes = np.where(fields > 0, 1, -1).sum(axis=1)
                assert margin == pytest.approx(votes.min() / 3**0.5)


@pytest.mark.parametrize("bits", [1, 2, 3])
@pytest.mark.parametrize("hidden", [1, 3])
def test_weights_of_a_few_bits_are_sums_of_students(bits, hidden):
    problem = Committee(RANDOM.patterns, RANDOM.labels, hidden)
    found = solve(problem, bits=bits, restarts=8, seed=0, time_limit=None)
    most = 2**bits - 1
    assert set(np.unique(found.weights)) <= set(range(-most, most + 1, 2))
    planes = bit_planes(found.weights, bits).astype(int)
    np.testing.assert_array_equal(planes.T @ 2 ** np.arange(bits), found.weights)
    fields = RANDOM.patterns.astype(int) @ found.weights.reshape(hidden, -1).T
    np.testing.assert_array_equal(found.fields(RANDOM.patterns), fields)
    assert found.errors == training_errors(problem, found.weights)
    if bits > 1:
        one = solve(problem, restarts=8, seed=0, time_limit=None)
        assert found.errors <= one.errors
