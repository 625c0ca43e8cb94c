"""Records, reports and arguments of ``anneal``."""

import itertools
import threading

import numpy as np
import pytest

from mcover import (
    RSA,
    Committee,
    MCover,
    Vanilla,
    anneal,
    teacher_student,
)
from mcover.annealing import PAPER, AnnealOptions, CustomSchedule, GeometricSchedule
from mcover.annealing.reads import AnnealStatus, cover_overlap
from mcover.checks import MEMORY_VARIABLE as VARIABLE
from mcover.errors import McoverWarning, TooLargeError

PROBLEM = teacher_student(20, 1.0, seed=0)


def assert_same(one, two):
    np.testing.assert_array_equal(one.weights, two.weights)


def test_annealing_learns():
    """Far above the threshold, every read finds the teacher."""
    problem = teacher_student(101, alpha=4.0, seed=3)
    result = anneal(problem, MCover(3, bank=5), num_sweeps=400, num_reads=4, seed=0)
    assert result.solved.all()
    np.testing.assert_array_equal(result.collapsed_energy, 0)
    assert result.generalization_error.max() < 0.03
    committee, schedule = teacher_student(21, 6.0, 3, hidden=3), GeometricSchedule(1.0, 0.02, 400)
    found = anneal(committee, MCover(3, bank=5), schedule=schedule, num_reads=4, seed=0)
    assert found.generalization_error.min() < 0.12


def test_every_point_of_a_trajectory_is_a_run_that_ended_there():
    """More points than one batch of the computation, with a smaller last batch."""
    problem, temperatures = teacher_student(31, 1.5, seed=0), np.linspace(0.5, 0.1, 70)
    how = {"method": MCover(3, bank=2), "seed": 0}
    course = anneal(problem, schedule=temperatures, record=70, **how).trajectory
    assert 0 < course.acceptance[0, 0] < 1
    for point in (0, 31, 32, 63, 64, 69):
        short = anneal(problem, schedule=temperatures[: point + 1], record=1, **how)
        assert course.temperature[point] == temperatures[point]
        assert course.overlap[0, point] == pytest.approx(short.overlap[0])
        assert course.cover_overlap[0, point] == pytest.approx(cover_overlap(short.weights[0]))
        assert course.energy[0, point] * 3 * len(problem.patterns) == pytest.approx(short.energy[0])


def test_points_of_a_trajectory_are_a_number_or_temperatures():
    schedule = np.linspace(0.4, 0.1, 31)
    course = anneal(PROBLEM, schedule=schedule, seed=0, record=7).trajectory
    assert course.temperature == pytest.approx(np.linspace(0.4, 0.1, 7))
    assert course.energy.shape == course.overlap.shape == (1, 7)
    chosen = anneal(PROBLEM, Vanilla(), schedule=schedule, seed=0, record=[0.3, 0.2]).trajectory
    assert chosen.temperature == pytest.approx([0.3, 0.2])
    assert np.isnan(chosen.cover_overlap).all()


def test_cover_overlap_is_the_mean_over_pairs():
    weights = np.random.default_rng(0).choice([-1, 1], (4, 9)).astype(np.int8)
    pairs = [weights[a] @ weights[b] / 9 for a in range(4) for b in range(a)]
    assert cover_overlap(weights) == pytest.approx(np.mean(pairs))


@pytest.mark.parametrize("rule", ["glauber", "metropolis"])
@pytest.mark.parametrize("method", [Vanilla(), RSA(3, 1.0), MCover(2, bank=3)])
def test_stop_at_zero_ends_early_and_solved(method, rule):
    problem, how = teacher_student(101, 0.3, seed=1), {"rule": rule, "stop_at_zero": True}
    result = anneal(problem, method, schedule=PAPER.schedule, num_reads=3, seed=2, **how)
    assert result.solved.all()
    assert result.finished.all()
    assert not result.interrupted
    assert np.all(result.sweeps < 3901)
    np.testing.assert_array_equal(result.proposals, result.sweeps * method.covers * 101)
    assert np.isnan(result.trajectory.energy[:, -1]).all()


def test_repair_ends_where_nothing_is_left_to_repair():
    problem, how = teacher_student(51, 4.0, seed=0), {"rule": "repair", "schedule": [0.15] * 400}
    result = anneal(problem, Vanilla(), num_reads=4, seed=0, **how)
    assert result.solved.all()
    assert result.finished.all()
    assert np.all(result.energy == 0)
    # The last sweep was left before its end.
    assert np.all(result.proposals <= result.sweeps * 51)
    assert np.all(result.proposals > (result.sweeps - 1) * 51)
    assert np.any(result.proposals % 51)
    at_once = anneal(problem, Vanilla(), seed=0, initial_states=problem.teacher, **how)
    assert (at_once.proposals[0], at_once.sweeps[0]) == (0, 1)
    np.testing.assert_array_equal(at_once.weights[0, 0], problem.teacher)


def test_fresh_routes_lead_descent_out_of_a_minimum():
    problem = teacher_student(60, 1.4, seed=0)
    how = {"rule": "descent", "order": "sequential", "num_sweeps": 60, "seed": 0}
    quenched = anneal(problem, MCover(3, bank=3), **how)
    assert quenched.finished[0]
    assert quenched.sweeps[0] < 20
    redrawn = anneal(problem, MCover(3, bank=3, redraw_every=20), **how)
    assert redrawn.sweeps[0] == 60
    assert not np.array_equal(redrawn.weights, quenched.weights)


def test_descent_has_no_temperatures():
    result = anneal(PROBLEM, Vanilla(), rule="descent", num_sweeps=30, seed=0)
    assert not result.trajectory.temperature.any()
    with pytest.warns(McoverWarning, match="temperatures are not read, only their number, 3"):
        anneal(PROBLEM, rule="descent", schedule=[0.3, 0.2, 0.1], seed=0)
    with pytest.warns(McoverWarning, match="only the sign of a coupling counts"):
        anneal(PROBLEM, RSA(3, coupling_growth=0.001), rule="descent", seed=0)


def test_initial_states_of_every_shape():
    one = np.random.default_rng(0).choice([-1, 1], 20)
    how = {"num_sweeps": 4, "num_reads": 2, "seed": 0}
    first, *others = (
        anneal(PROBLEM, MCover(3, bank=2), initial_states=start, **how)
        for start in (one, np.tile(one, (3, 1)), np.tile(one, (2, 3, 1)))
    )
    for other in others:
        assert_same(other, first)


def test_patterns_and_labels_are_annealed_as_the_problem_they_are():
    problem = teacher_student(41, 2.0, seed=0)
    bits, names = problem.patterns > 0, np.where(problem.labels > 0, "yes", "no")
    how = {"num_sweeps": 20, "num_reads": 2, "seed": 5}
    want = anneal(problem, **how)
    assert_same(anneal(bits, names, **how), want)
    want = anneal(problem, RSA(3), **how)
    assert_same(anneal(problem.patterns, problem.labels, RSA(3), **how), want)
    assert_same(anneal(problem, method=RSA(3), **how), want)
    committee = Committee(bits, names, 3)
    assert_same(anneal(bits, names, hidden=3, **how), anneal(committee, **how))


def test_the_papers_settings_are_a_preset():
    assert PAPER.method.coupling == 0
    assert anneal(PROBLEM, **vars(PAPER), seed=0).options == PAPER
    options = anneal(PROBLEM, schedule=[0.3], seed=0).options
    assert options == AnnealOptions(schedule=CustomSchedule((0.3,)))


def test_progress_is_reported():
    seen = []
    problem = teacher_student(301, 1.5, seed=0)
    anneal(problem, MCover(3), num_sweeps=600, num_reads=3, seed=0, progress=seen.append)
    assert seen[-1].reads_done == seen[-1].reads == 3
    assert seen[-1].share == pytest.approx(1)
    assert all(a.share <= b.share for a, b in itertools.pairwise(seen))
    assert 0 < seen[-1].temperature <= 0.4


def test_the_progress_bar_ends_at_100_percent_with_the_last_status(capsys):
    anneal(PROBLEM, MCover(bank=2), num_sweeps=20, num_reads=2, seed=0, progress=True)
    last = capsys.readouterr().err.replace("\r", "\n").strip().splitlines()[-1]
    assert last.lstrip().startswith("100%")
    assert "reads 2/2" in last
    # 80 columns less 28 for the percentage, the bar and the time left.
    assert len(str(AnnealStatus(100, 100, 0.5, 0.00123, 0.01234, 1.0, 10.0, 10.0))) <= 52


def test_a_failure_in_a_thread_reaches_the_caller():
    def fail(status):
        raise RuntimeError("no progress today")

    problem = teacher_student(101, 1.5, seed=0)
    with pytest.raises(RuntimeError, match="no progress today"):
        anneal(problem, num_sweeps=10**5, num_reads=2, seed=0, progress=fail)
    assert threading.active_count() < 4


def test_narrow_integers_do_not_overflow():
    plain = anneal(PROBLEM, MCover(3, bank=10), num_sweeps=5, num_reads=3, seed=0)
    narrow = MCover(np.uint8(3), bank=np.uint8(10))
    assert narrow == MCover(3, bank=10)
    assert_same(
        anneal(PROBLEM, narrow, num_sweeps=np.int8(5), num_reads=np.uint8(3), seed=0), plain
    )


def test_what_does_not_fit_is_refused(monkeypatch):
    problem = teacher_student(50, 10.0, seed=0)
    monkeypatch.setenv(VARIABLE, "100000")
    with pytest.raises(TooLargeError, match="smaller bank"):
        anneal(problem, MCover(9, bank=None), num_sweeps=5)
    with pytest.raises(TooLargeError, match="fewer temperatures"):
        anneal(problem, num_sweeps=10_000)
