"""The theory of message passing, against quadrature, its literature, and runs."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import log_ndtr, ndtr
from scipy.stats import norm

from mcover import teacher_student
from mcover.annealing import amp
from reproduction.state_evolution import (
    algorithmic_threshold,
    information_threshold,
    state_evolution,
)


@pytest.mark.parametrize("n", [2000, 2001])
def test_overlaps_match_state_evolution(n):
    theory = state_evolution(1.0)
    clipped, self_overlap = [], []
    for seed in range(4):
        problem = teacher_student(n, 1.0, seed, ties="plus")
        result = amp(problem.patterns, problem.labels)
        assert result.converged
        clipped.append(problem.overlap(result.weights))
        self_overlap.append(result.self_overlap)
    # One run has standard deviations of about 0.016 and 0.006: four times those of the mean.
    assert np.mean(clipped) == pytest.approx(math.cos(math.pi * theory.clipped_error), abs=0.032)
    assert np.mean(self_overlap) == pytest.approx(theory.overlap, abs=0.012)


@pytest.mark.parametrize("alpha", [0.3, 1.0, 1.24, 1.45])
def test_state_evolution_satisfies_the_equations_as_printed(alpha):
    # The same integrals by adaptive quadrature in the paper's variables.
    def mean(f):
        return quad(lambda x: norm.pdf(x) * f(x), -12, 12, epsabs=1e-12, limit=300)[0]

    point = state_evolution(alpha)
    q = point.overlap
    a = math.sqrt(q / (1 - q))
    r = 2 * alpha / (1 - q) * mean(lambda x: norm.pdf(a * x) ** 2 / ndtr(a * x))
    prior = mean(lambda x: math.log(math.cosh(r + math.sqrt(r) * x))) - r / 2
    channel = 2 * mean(lambda x: ndtr(a * x) * log_ndtr(a * x))
    assert point.converged
    assert q == pytest.approx(mean(lambda x: math.tanh(r + math.sqrt(r) * x)), abs=1e-9)
    assert q == pytest.approx(mean(lambda x: math.tanh(r + math.sqrt(r) * x) ** 2), abs=1e-9)
    assert point.free_entropy == pytest.approx(prior + alpha * channel - r * q / 2, abs=1e-9)
    # q and r are stationary, so the free entropy moves with α through the channel alone.
    step = 1e-4
    up, down = state_evolution(alpha + step), state_evolution(alpha - step)
    slope = (up.free_entropy - down.free_entropy) / (2 * step)
    assert slope == pytest.approx(channel, abs=1e-5)


def test_errors_are_ordered_and_vanish_at_recovery():
    below, above = state_evolution(1.4), state_evolution(1.6)
    assert 0 < below.bayes_error < below.clipped_error < below.gibbs_error < 0.5
    assert below.gibbs_error == pytest.approx(math.acos(below.overlap) / math.pi)
    assert above.overlap == 1
    assert above.bayes_error == above.clipped_error == above.gibbs_error == 0
    assert above.free_entropy == state_evolution(0.5, "informed").free_entropy == -math.log(2)
    assert state_evolution(0.0, "informed").overlap == state_evolution(0.0).overlap == 0


def test_algorithmic_threshold_is_where_the_recursion_jumps():
    threshold = algorithmic_threshold()
    assert threshold == pytest.approx(1.493, abs=5e-4)  # Barbier et al. 2019
    assert state_evolution(threshold - 1e-4).overlap < 0.9
    assert state_evolution(threshold + 1e-4).overlap == 1


def test_information_threshold_is_where_the_free_entropies_cross():
    threshold = information_threshold()
    assert threshold == pytest.approx(1.245, abs=5e-4)  # Györgyi 1990
    for alpha, sign in ((threshold - 1e-3, 1), (threshold + 1e-3, -1)):
        apart = (
            state_evolution(alpha).free_entropy - state_evolution(alpha, "informed").free_entropy
        )
        assert sign * apart > 0
