"""Rivals of the annealers, against brute force on instances that can be enumerated."""

from itertools import product

import numpy as np
import pytest

from mcover.annealing import amp
from reproduction.patterns import Patterns
from reproduction.rivals import (
    largest_margin,
    logistic_regression,
    propagate,
    solve_cp_sat,
    solve_highs,
)

SMALL = Patterns("iid", 11, 1.0)
EASY = Patterns("ar1", 51, 4.0, 0.6)


def students(gauged):
    """All ±1 weights that are right on every pattern."""
    every = np.array(list(product([-1, 1], repeat=gauged.shape[1])))
    return every[np.all(gauged @ every.T > 0, axis=0)]


def mean_errors(family):
    """Of the posterior means, by expectation propagation and by message passing."""
    ours, theirs = [], []
    for seed in range(8):
        problem = family.problem(seed)
        exact = students(problem.gauged).mean(axis=0)
        found = propagate(problem.gauged, tolerance=1e-8, max_iterations=500)
        assert found.converged
        ours.append(np.abs(found.mean - exact).mean())
        other = amp(problem.patterns, problem.labels, seed=seed, damping=0.5)
        theirs.append(np.abs(other.magnetization - exact).mean())
    return np.mean(ours), np.mean(theirs)


def test_expectation_propagation_estimates_the_posterior_means():
    """Against the enumerated posterior, whose means are 0.3 on average; 0.6 with more patterns."""
    ours, theirs = mean_errors(Patterns("iid", 13, 0.3))
    assert ours < 0.05
    assert theirs < 0.05
    # Where neighbours correlate, message passing misses what the covariance knows.
    ours, theirs = mean_errors(Patterns("ar1", 13, 1.0, 0.9))
    assert ours < 0.5 * theirs


def test_without_patterns_the_posterior_is_the_prior():
    found = propagate(np.empty((0, 5), dtype=np.int8))
    assert np.allclose(found.mean, 0)
    assert found.converged


@pytest.mark.parametrize("solve", [solve_highs, solve_cp_sat])
def test_exact_solvers_find_a_student_or_prove_that_there_is_none(solve):
    for seed in range(3):
        gauged = SMALL.problem(seed).gauged
        found = solve(gauged, 10.0)
        assert np.all(gauged @ found.astype(int) > 0)
    impossible = np.vstack([gauged, -gauged])
    assert solve(impossible, 10.0) is None


@pytest.mark.parametrize("solve", [solve_highs, solve_cp_sat])
def test_exact_solvers_end_at_their_limit(solve):
    gauged = Patterns("iid", 401, 1.5).problem(0).gauged
    assert solve(gauged, 0.2) is None


def test_the_largest_margin_is_that_of_all_weights_in_the_cube():
    """With few patterns its signs are the teacher's; its margin is compared with a fine grid."""
    gauged = np.array([[1, 1, 1], [1, -1, 1], [1, 1, -1]], dtype=np.int8)
    assert largest_margin(gauged, 10.0)[0] == 1
    problem = EASY.problem(0)
    assert problem.overlap(largest_margin(problem.gauged, 10.0)) > 0.9


def test_signs_of_a_logistic_regression_point_to_the_teacher():
    problem = EASY.problem(1)
    found = logistic_regression(problem.gauged, 1.0)
    assert set(np.unique(found)) == {-1, 1}
    assert problem.overlap(found) > 0.8
    # The regression sees patterns only up to a common sign of pattern and label.
    flipped = problem.gauged * np.where(np.arange(len(problem.gauged)) % 3, 1, -1)[:, None]
    assert not np.array_equal(logistic_regression(flipped.astype(np.int8)), found)
