import numpy as np
import pytest
from mcover.lab.trials import join, run_trials, summarize

from mcover import GaussianRing, anneal, teacher_student

METHODS = {
    "vanilla": {"method": "vanilla", "num_sweeps": 40},
    "M-cover": {"covers": 3, "topology": GaussianRing(1.0), "bank": 3, "num_sweeps": 40},
}


def test_methods_meet_the_same_instances_whatever_the_workers():
    one, two = (
        [row for row, _ in run_trials(METHODS, 31, 1.5, range(5), workers=w)] for w in (1, 3)
    )
    clean = [
        [(r.method, r.trial, r.energy, r.generalization_error) for r in of] for of in (one, two)
    ]
    assert clean[0] == clean[1]
    assert [row.trial for row in one if row.method == "vanilla"] == list(range(5))
    problem = teacher_student(31, 1.5, seed=[3, 0])
    alone = anneal(problem, **METHODS["M-cover"], seed=[3, 1])
    (row,) = [row for row in one if row.trial == 3 and row.method == "M-cover"]
    assert row.energy == alone.energy[0]
    assert row.generalization_error == alone.generalization_error[0]
    assert row.generalization_error_sign == problem.generalization_error(alone.collapsed_sign)[0]
    assert row.solved == alone.solved[0]


def test_leaving_early_stops_the_rest():
    for count, _ in enumerate(run_trials(METHODS, 31, 1.5, range(10_000)), start=1):
        if count == 3:
            break
    assert count == 3


def test_summaries_carry_intervals_and_n():
    rows = [row for row, _ in run_trials(METHODS, 31, 4.0, range(8)) if row.method == "M-cover"]
    summary = summarize("M-cover", rows)
    errors = [row.generalization_error for row in rows]
    assert summary.generalization_error.value == pytest.approx(np.mean(errors))
    assert summary.solved.n == 8
    assert summary.solved.low <= summary.solved.value <= summary.solved.high
    if 0 < summary.solved.value < 1:
        runs = np.log(0.01) / np.log(1 - summary.solved.value)
        assert summary.tts_proposals.value == pytest.approx(runs * 40 * 3 * 31)


def test_trajectories_join_read_by_read():
    courses = [result.trajectory for row, result in run_trials(METHODS, 31, 1.5, range(3))][::2]
    joined = join(courses)
    assert joined.energy.shape == (3, len(joined.temperature))
    np.testing.assert_array_equal(joined.energy[1], courses[1].energy[0])
