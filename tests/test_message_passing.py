"""Message passing for the ±1 perceptron, against loops and enumeration."""

import itertools
import math
import random

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import norm

from mcover.annealing import amp
from mcover.seeds import streams


def task(n, alpha, seed):
    """Patterns (P, N), labels (P,) and the teacher (N,) behind them; a tie is labelled +1."""
    rng = np.random.default_rng(seed)
    teacher = rng.choice([-1, 1], n)
    patterns = rng.choice([-1, 1], (round(alpha * n), n))
    return patterns, np.where(patterns @ teacher >= 0, 1, -1), teacher


@pytest.mark.parametrize("n", [51, 200, 1000, 1001])
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4])
def test_recovers_the_teacher_well_above_the_threshold(n, seed):
    # Small odd N without the floor on V, and even N without the tie, forget what they have found.
    patterns, labels, teacher = task(n, 2.0, seed)
    result = amp(patterns, labels)
    assert np.array_equal(result.weights, teacher)
    assert result.weights.dtype == np.int8
    assert result.converged
    assert result.solved
    assert result.errors == 0


def test_patterns_and_labels_may_have_any_two_values():
    patterns, labels, teacher = task(101, 2.5, 0)
    result = amp(patterns > 0, np.where(labels > 0, "yes", "no"))
    assert np.array_equal(result.weights, teacher)


def test_damping_leaves_the_fixed_point_alone():
    patterns, labels, _ = task(1000, 0.8, 5)
    plain, damped = amp(patterns, labels), amp(patterns, labels, damping=0.4)
    assert plain.converged
    assert damped.converged
    np.testing.assert_allclose(damped.magnetization, plain.magnetization, atol=1e-4)


def by_loops(patterns, labels, start, iterations, reinforcement, damping=0.0):
    """Magnetizations by the equations, a weight and a pattern at a time."""
    count, n = patterns.shape
    x = [[labels[p] * patterns[p][i] / math.sqrt(n) for i in range(n)] for p in range(count)]
    m, field, g = list(start), [0.0] * n, [0.0] * count
    for t in range(iterations):
        v = max(sum((1 - m[i] ** 2) / n for i in range(n)), 1 / n)
        curvature = 0.0
        omega = [sum(x[p][i] * m[i] for i in range(n)) - v * g[p] for p in range(count)]
        for p in range(count):
            tie = 0.0 if n % 2 else 1 / math.sqrt(n)
            edges = [(omega[p] + side * tie) / math.sqrt(v) for side in (1, -1)]
            likelihood = sum(ndtr(e) for e in edges) / 2
            slope = sum(norm.pdf(e) for e in edges) / 2 / math.sqrt(v)
            bend = -sum(e * norm.pdf(e) for e in edges) / 2 / v
            g[p] = slope / likelihood
            curvature += (g[p] ** 2 - bend / likelihood) / n
        rho = 1 - (1 - reinforcement) ** t
        for i in range(n):
            data = sum(x[p][i] * g[p] for p in range(count)) + curvature * m[i]
            fresh = data + rho * field[i]
            field[i] = fresh if t == 0 else (1 - damping) * fresh + damping * field[i]
        m = [math.tanh(h) for h in field]
    return np.array(m)


@pytest.mark.parametrize("n", [10, 11])
@pytest.mark.parametrize(("reinforcement", "damping"), [(0.0, 0.0), (0.1, 0.0), (0.3, 0.4)])
def test_an_iteration_is_that_of_the_equations(n, reinforcement, damping):
    patterns, labels, _ = task(n, 0.8, 3)
    start = streams(5, 1)[0].normal(0.0, 1e-3, size=(n,))
    for iterations in (1, 2, 7):
        how = {"max_iterations": iterations, "reinforcement": reinforcement, "damping": damping}
        found = amp(patterns, labels, seed=5, tolerance=1e-300, **how).magnetization
        expected = by_loops(patterns, labels, start, iterations, reinforcement, damping)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_reinforcement_polarises_where_the_posterior_does_not():
    patterns, labels, _ = task(501, 0.4, 1)
    plain = amp(patterns, labels)
    forced = amp(patterns, labels, reinforcement=0.02)
    assert plain.self_overlap < 0.5
    assert not plain.solved
    assert forced.self_overlap > 0.9
    assert forced.solved  # one of the many students that fit, by itself


def test_reinforcement_finds_the_teacher_above_the_threshold_and_stops_there():
    for seed in range(3):
        patterns, labels, teacher = task(500, 1.8, seed)
        full = amp(patterns, labels, reinforcement=0.003)
        found = amp(patterns, labels, reinforcement=0.003, stop_at_zero=True)
        assert found.solved
        assert np.array_equal(found.weights, teacher)
        assert found.iterations <= full.iterations
        before = amp(patterns, labels, reinforcement=0.003, max_iterations=found.iterations - 1)
        assert not before.solved  # it stops at the first iteration that fits


@pytest.mark.parametrize("n", [12, 13])
def test_magnetizations_approximate_the_enumerated_posterior(n):
    students = np.array(list(itertools.product([-1, 1], repeat=n)))
    amp_error, blind_error = [], []
    for seed in range(40):
        patterns, labels, _ = task(n, 0.5, seed)
        margins = labels * (students @ patterns.T)
        likelihood = np.prod(np.where(margins > 0, 1.0, np.where(margins == 0, 0.5, 0.0)), axis=1)
        exact = likelihood @ students / likelihood.sum()
        amp_error.append(np.mean((amp(patterns, labels).magnetization - exact) ** 2))
        blind_error.append(np.mean(exact**2))
    assert np.mean(amp_error) < 0.05 * np.mean(blind_error)


def test_same_seed_same_result_and_no_global_random_state():
    before, before_python = np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    patterns, labels, _ = task(60, 1.0, 0)
    first, again = amp(patterns, labels, seed=7), amp(patterns, labels, seed=7)
    np.testing.assert_array_equal(first.magnetization, again.magnetization)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    assert random.getstate() == before_python


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("count", [1, 30])
def test_any_number_of_patterns_gives_finite_magnetizations(n, count):
    patterns, labels, _ = task(n, count / n, 1)
    result = amp(patterns, labels)
    assert np.all(np.abs(result.magnetization) <= 1)


def test_contradictory_labels_stay_finite_and_unsolved():
    patterns, labels, _ = task(101, 1.0, 1)
    result = amp(np.tile(patterns, (2, 1)), np.concatenate([labels, -labels]), max_iterations=50)
    assert np.all(np.isfinite(result.magnetization))
    assert not result.solved
    assert result.errors >= 101
