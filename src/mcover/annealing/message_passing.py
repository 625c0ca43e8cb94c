"""Approximate message passing for the ±1 perceptron.

A teacher w* with ±1 weights labels P = αN patterns, y = sign(x·w*/√N); the posterior is uniform
over the ±1 students that reproduce every label, and :func:`amp` estimates its means. As N → ∞ the
data determine the teacher above α = 1.2447, and message passing finds it above 1.4926.

The equations are those of the Bayes-optimal generalized linear model (Barbier, Krzakala, Macris,
Miolane and Zdeborová, PNAS 2019, "BKMMZ" below) with a Rademacher prior and the sign channel.
In the code, q is the overlap of the posterior mean with the teacher and V = 1 − q; φ and Φ are the
Gaussian density and distribution.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, expit, log_ndtr

from mcover import checks
from mcover.annealing.problems import Perceptron
from mcover.seeds import Seed, streams

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class AmpResult:
    """The result of message passing on one data set.

    As in the annealer's energy, a tie (x·w = 0, N even) is not an error, so the teacher solves its
    data under any tie rule.
    """

    weights: NDArray[np.int8]  # sign of the magnetization, (N,); a zero counts as +1
    magnetization: Floats  # estimated posterior means, (N,), each in [−1, 1]
    self_overlap: float  # mean squared magnetization: the algorithm's own estimate of q
    iterations: int
    converged: bool  # no magnetization changed by more than the tolerance in the last iteration
    errors: int  # training patterns with y x·w < 0
    solved: bool  # errors is 0


def amp(
    patterns: ArrayLike,
    labels: ArrayLike,
    seed: Seed = 0,
    max_iterations: int = 500,
    damping: float = 0.0,
    tolerance: float = 1e-6,
    reinforcement: float = 0.0,
    stop_at_zero: bool = False,
) -> AmpResult:
    """Approximate message passing for the ±1 perceptron (GAMP, as in BKMMZ).

    It does not use the teacher. Damping applies to the fields only: if the outputs g were damped
    too, the reaction term would be wrong, and some teachers that the plain iteration finds were
    lost.

    Reinforcement (Braunstein and Zecchina, PRL 2006) turns the estimator into a solver: in
    iteration t = 0, 1, … the last field h of each weight is added to the field of the data,

        h ← h_data + ρ_t h,    ρ_t = 1 − (1 − reinforcement)^t,

    so that weights polarise as ρ grows to 1, in about 1/reinforcement iterations. In that paper h
    is added with probability ρ_t; here, as in later smooth variants, it is added with weight ρ_t.
    Magnetizations are then not posterior means.

    Args:
        patterns: the inputs, two values as in :func:`mcover.anneal`, shape (P, N).
        labels: the teacher's labels, any two values, shape (P,).
        seed: the seed of the small random magnetizations at the start.
        max_iterations: the number of iterations after which it stops in any case.
        damping: the share of the previous field that is kept, in [0, 1); the centred patterns of
            the theory need no damping.
        tolerance: the largest change of a magnetization that counts as converged.
        reinforcement: see ρ_t above, in [0, 1); 0 is plain message passing.
        stop_at_zero: whether to end as soon as the signs of the magnetizations have zero energy,
            that is, no negative margin.
    """
    # (x, y) and (−x, −y) are equivalent, so all labels become +1.
    signed = Perceptron(patterns, labels).gauged.astype(np.float64)
    max_iterations = checks.check_int("max_iterations", max_iterations, 1)
    damping = checks.check_float("damping", damping, 0, below=1)
    tolerance = checks.check_float("tolerance", tolerance, above=0)
    reinforcement = checks.check_float("reinforcement", reinforcement, 0, below=1)
    stop_at_zero = checks.check_bool("stop_at_zero", stop_at_zero)

    count, n = signed.shape
    root_n = math.sqrt(n)
    m: Floats = streams(seed, 1)[0].normal(0.0, 1e-3, size=(n,))
    field: Floats = np.zeros(n)
    g: Floats = np.zeros(count)
    iteration, change, fits = 0, math.inf, False
    while iteration < max_iterations and not change <= tolerance and not fits:
        # GAMP output step. Since x² = 1, all patterns have the same V. It is at least 1/N, one
        # undecided weight: if √V were far below the smallest margin, all outputs g would vanish,
        # and recovered weights would be lost again.
        v = max(1.0 - float(m @ m) / n, 1 / n)
        omega = signed @ m / root_n - v * g  # with Onsager's reaction term
        hazard, curvature = _sign_channel(omega / math.sqrt(v), (1 - n % 2) / math.sqrt(v * n))
        g = hazard / math.sqrt(v)
        # GAMP input step.
        precision = float(curvature.sum()) / (v * n)
        new_field = signed.T @ g / root_n + precision * m
        if reinforcement:
            new_field += (1 - (1 - reinforcement) ** iteration) * field
        field = new_field if iteration == 0 else (1 - damping) * new_field + damping * field
        previous, m = m, np.tanh(field)  # posterior mean of a ±1 weight in this field
        change = float(np.abs(m - previous).max())
        iteration += 1
        fits = stop_at_zero and _fits(signed, m)

    weights = np.where(m >= 0, 1, -1).astype(np.int8)
    errors = int(np.count_nonzero(signed @ weights.astype(np.float64) < 0))
    return AmpResult(
        weights, m, float(m @ m) / n, iteration, change <= tolerance, errors, errors == 0
    )


def _fits(signed: Floats, m: Floats) -> bool:
    """Whether the signs of m have zero energy; 64 patterns usually suffice to see that not."""
    weights = np.where(m >= 0, 1.0, -1.0)
    return not any(np.any(signed[part] @ weights < 0) for part in (slice(64), slice(64, None)))


def _sign_channel(t: Floats, tie: float) -> tuple[Floats, Floats]:
    """∂ log L and −∂² log L of the likelihood L of a label, at t = ω/√V.

    In theory L = Φ(t). At finite N, margins are integers of the parity of N. For odd N, 0 lies
    midway between −1 and 1, as it should. For even N, a tie counts with half its weight, so L is
    the mean of Φ(t + tie) and Φ(t − tie), with ``tie`` = 1/√(NV) ≤ 1, which keeps L log-concave.
    """
    up, down = t + tie, t - tie
    share = expit(log_ndtr(up) - log_ndtr(down))
    up_hazard, down_hazard = _hazard(up), _hazard(down)
    hazard = share * up_hazard + (1 - share) * down_hazard
    bend = share * up * up_hazard + (1 - share) * down * down_hazard
    return hazard, np.clip(hazard * hazard + bend, 0.0, 1.0)


def _hazard(t: Floats) -> Floats:
    """φ(t)/Φ(t) by the scaled erfc, to avoid underflow and overflow."""
    return np.asarray(math.sqrt(2 / math.pi) / erfcx(-t / math.sqrt(2)))
