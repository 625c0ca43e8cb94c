"""Message passing for the ±1 perceptron: how far one can get from the data alone.

A teacher w* with ±1 weights labels P = αN patterns, y = sign(x·w*/√N); the posterior is uniform
over the ±1 students that reproduce every label. :func:`amp` estimates its means on one data set;
:mod:`mcover.annealing.bayes` says how well that works as N → ∞.

The equations are those of the Bayes-optimal generalized linear model (Barbier, Krzakala, Macris,
Miolane and Zdeborová, PNAS 2019, "BKMMZ" below) with a Rademacher prior and the sign channel.
V = 1 − q, with q the overlap of the posterior mean with the teacher; Φ is Gauss's distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, expit, log_ndtr

from mcover.annealing.problems import as_signs
from mcover.errors import McoverError
from mcover.seeds import Seed, streams

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class AmpResult:
    """What message passing made of one data set.

    Attributes:
        weights: sign of the magnetization, int8, shape (N,); a zero counts as +1.
        magnetization: estimated posterior means, shape (N,), each in [−1, 1].
        self_overlap: mean squared magnetization: the algorithm's own estimate of q.
        iterations: iterations done.
        converged: the last iteration moved no magnetization by more than the tolerance.
        errors: training patterns with y x·w < 0, w the ``weights``. As in the annealer's energy a
            tie (x·w = 0, N even) is no error, so the teacher solves its data under any tie rule.
        solved: ``errors == 0``.
    """

    weights: NDArray[np.int8]
    magnetization: Floats
    self_overlap: float
    iterations: int
    converged: bool
    errors: int
    solved: bool


def amp(
    patterns: ArrayLike,
    labels: ArrayLike,
    seed: Seed = 0,
    max_iterations: int = 500,
    damping: float = 0.0,
    tolerance: float = 1e-6,
) -> AmpResult:
    """Approximate message passing for ±1 weights behind a sign (GAMP, as in BKMMZ).

    It knows nothing of the teacher. For the centred patterns of the theory no damping is needed;
    damping mixes the fields: mixing the outputs g as well upsets the reaction term, and then
    lost teachers that the plain iteration finds.

    Args:
        patterns: the inputs, entries ±1.
        labels: the teacher's answers, ±1.
        seed: of the tiny random magnetizations it starts from.
        max_iterations: after which it stops, converged or not.
        damping: share of the previous field that is kept, in [0, 1).
        tolerance: largest change of a magnetization that counts as converged.

    Shape:
        patterns (P, N) and labels (P,).
    """
    x = as_signs("patterns", patterns, (None, None)).astype(np.float64)
    y = as_signs("labels", labels, (len(x),)).astype(np.float64)
    if not isinstance(max_iterations, int | np.integer) or max_iterations < 1:
        raise McoverError(f"max_iterations is {max_iterations!r}; write an integer ≥ 1.")
    if not 0 <= damping < 1:
        raise McoverError(f"damping is {damping!r}; write a number in [0, 1), 0 for none.")
    if not tolerance > 0:
        raise McoverError(f"tolerance is {tolerance!r}; write a positive number such as 1e-6.")

    signed = x * y[:, None]  # (x, y) and (−x, −y) say the same: from here on every label is +1
    n = x.shape[1]
    root_n = math.sqrt(n)
    m: Floats = streams(seed, 1)[0].normal(0.0, 1e-3, size=(n,))
    field: Floats = np.zeros(n)
    g: Floats = np.zeros(len(y))
    iteration, change = 0, math.inf
    while iteration < max_iterations and not change <= tolerance:
        # GAMP output step. As x² = 1 exactly, one scalar V serves all patterns. It is not let below
        # 1/N, one undecided weight: with √V far below the smallest margin no pattern would speak,
        # and recovered weights would be forgotten again.
        v = max(1.0 - float(m @ m) / n, 1 / n)
        omega = signed @ m / root_n - v * g  # with Onsager's reaction term
        hazard, curvature = _sign_channel(omega / math.sqrt(v), (1 - n % 2) / math.sqrt(v * n))
        g = hazard / math.sqrt(v)
        # GAMP input step.
        precision = float(curvature.sum()) / (v * n)
        new_field = signed.T @ g / root_n + precision * m
        field = new_field if iteration == 0 else (1 - damping) * new_field + damping * field
        previous, m = m, np.tanh(field)  # posterior mean of a ±1 weight in this field
        change = float(np.abs(m - previous).max())
        iteration += 1

    weights = np.where(m >= 0, 1, -1).astype(np.int8)
    errors = int(np.count_nonzero(signed @ weights.astype(np.float64) < 0))
    return AmpResult(
        weights, m, float(m @ m) / n, iteration, change <= tolerance, errors, errors == 0
    )


def _sign_channel(t: Floats, tie: float) -> tuple[Floats, Floats]:
    """∂ log L and −∂² log L of the likelihood L of a label, at t = ω/√V.

    In theory L = Φ(t). At finite N margins are integers of N's parity. For N odd 0 lies midway
    between −1 and 1, as it should; for N even a tie takes half of its weight, so that L is the
    mean of Φ(t + tie) and Φ(t − tie), an edge on either side of the tie (``tie`` = 1/√(NV) ≤ 1,
    which keeps L log-concave).
    """
    up, down = t + tie, t - tie
    share = expit(log_ndtr(up) - log_ndtr(down))
    up_hazard, down_hazard = _hazard(up), _hazard(down)
    hazard = share * up_hazard + (1 - share) * down_hazard
    bend = share * up * up_hazard + (1 - share) * down * down_hazard
    return hazard, np.clip(hazard * hazard + bend, 0.0, 1.0)


def _hazard(t: Floats) -> Floats:
    """φ(t)/Φ(t) by the scaled erfc, which neither under- nor overflows where it matters."""
    ratio: Floats = math.sqrt(2 / math.pi) / erfcx(-t / math.sqrt(2))
    return ratio
