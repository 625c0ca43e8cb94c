"""Expectation propagation with full covariance for ±1 weights behind a sign (Minka, UAI 2001).

The posterior Π_i [w_i = ±1] Π_μ [g_μ·w > 0] is approximated by a Gaussian with precision Λ =
diag(a) + Gᵀ diag(b) G and Λm = c + Gᵀd: a and c approximate the ±1 priors, b and d the patterns.
Approximate message passing assumes patterns with independent entries. Here the covariance of the
weights includes the correlations of the patterns, at a cost of P·N² per iteration.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.special import erfcx

Floats = NDArray[np.float64]
_LEAST = 1e-9
# Largest precision of a weight; above it, a wrong decision could no longer be reversed.
_LARGEST = 1e3
_FAR = 1e3  # standard deviations below zero; beyond this, cancellation would leave no digits


@dataclass(frozen=True, eq=False)
class Posterior:
    """The approximation: means and variances of the weights, (N,)."""

    mean: Floats
    variance: Floats
    iterations: int
    converged: bool


def propagate(
    gauged: NDArray[np.int8],
    max_iterations: int = 100,
    damping: float = 0.5,
    tolerance: float = 1e-5,
    stop_at_zero: bool = False,
) -> Posterior:
    """Updates all sites in parallel, mixed with a share ``damping`` of their last values.

    Args:
        gauged: G = label × pattern, ±1, shape (P, N).
        max_iterations: the limit, converged or not.
        damping: share of the last site parameters to keep, in [0, 1).
        tolerance: largest change of a mean that counts as converged.
        stop_at_zero: end as soon as the signs of the means are right on all patterns.
    """
    g = gauged.astype(np.float64)
    count, inputs = g.shape
    a, c = np.ones(inputs), np.zeros(inputs)
    b, d = np.zeros(count), np.zeros(count)
    mean, variance = np.zeros(inputs), np.ones(inputs)
    change, iteration, fits = math.inf, 0, False
    while iteration < max_iterations and not change <= tolerance and not fits:
        covariance = cho_solve(cho_factor((g.T * b) @ g + np.diag(a)), np.eye(inputs))
        previous, mean = mean, covariance @ (c + g.T @ d)
        variance = np.diag(covariance).copy()
        change = float(np.abs(mean - previous).max()) if iteration else math.inf
        iteration += 1
        fits = stop_at_zero and bool(np.all(g @ np.where(mean >= 0, 1.0, -1.0) > 0))

        # Without its own site, a weight is Gaussian; with the prior, it is ±1 with a field.
        precision = np.maximum(1 / variance - a, _LEAST)
        field = mean / variance - c
        kept = np.tanh(field)
        inverse = np.minimum(np.cosh(np.minimum(np.abs(field), 300.0)) ** 2, _LARGEST)
        # Matching may give a precision below zero; the covariance would then not be positive.
        a = damping * a + (1 - damping) * np.clip(inverse - precision, _LEAST, None)
        c = damping * c + (1 - damping) * (kept * inverse - field)

        # Without its own site, a margin is Gaussian; with the label, that Gaussian is cut at zero.
        spread = np.einsum("pi,pi->p", g @ covariance, g)
        precision = np.maximum(1 / spread - b, _LEAST)
        middle = (g @ mean / spread - d) / precision
        root = np.sqrt(precision)
        z = np.maximum(middle * root, -_FAR)
        hazard = math.sqrt(2 / math.pi) / erfcx(-z / math.sqrt(2))
        narrowed = np.clip(1 - hazard * (z + hazard), 0.5 / _FAR**2, 1.0)
        tilted = middle + hazard / root
        b = damping * b + (1 - damping) * np.maximum(precision / narrowed - precision, 0.0)
        d = damping * d + (1 - damping) * (tilted * precision / narrowed - middle * precision)
    return Posterior(mean, variance, iteration, change <= tolerance)
