"""The Bayes-optimal theory of the ±1 perceptron, against quadrature and the literature."""

import math

import pytest
from mcover.annealing.bayes import algorithmic_threshold, information_threshold, state_evolution
from scipy.integrate import quad
from scipy.special import log_ndtr, ndtr
from scipy.stats import norm

from mcover.errors import McoverError


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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: state_evolution(-1), "alpha is -1"),
        (lambda: state_evolution(math.inf), "alpha is inf"),
        (lambda: state_evolution(1, "cold"), "start is 'cold'; write \"uninformed\""),
        (lambda: state_evolution(1, tolerance=0), "must be positive"),
    ],
)
def test_bad_input_is_refused_with_its_remedy(call, message):
    with pytest.raises(McoverError, match=message):
        call()
