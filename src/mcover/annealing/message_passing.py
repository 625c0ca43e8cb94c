"""Message passing for the ±1 perceptron, and its Bayes-optimal theory.

A teacher w* with ±1 weights labels P = αN patterns, y = sign(x·w*/√N); the posterior is uniform
over the ±1 students that reproduce every label. :func:`amp` estimates its means on one data set,
:func:`state_evolution` computes how accurate it is as N → ∞. There are two thresholds: below
:func:`information_threshold` the data do not determine the teacher, and up to
:func:`algorithmic_threshold` message passing does not find it.

The equations are those of the Bayes-optimal generalized linear model (Barbier, Krzakala, Macris,
Miolane and Zdeborová, PNAS 2019, "BKMMZ" below) with a Rademacher prior and the sign channel.
In the code, q is the overlap of the posterior mean with the teacher, V = 1 − q, and r the
signal-to-noise ratio of the data about one weight; φ and Φ are the Gaussian density and
distribution.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.special import erfcx, expit, log_ndtr

from mcover import checks
from mcover.annealing.problems import Perceptron
from mcover.seeds import Seed, streams

Floats = NDArray[np.float64]

# After the substitutions in the functions, every integrand is analytic and decays like exp(−u²/2),
# so the trapezoidal rule converges exponentially and is exact up to rounding on this grid.
_STEP = 0.02
_GRID: Floats = _STEP * np.arange(-700, 701, dtype=np.float64)
_RECOVERED = 1e-12


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


@dataclass(frozen=True)
class StateEvolution:
    """A fixed point of the scalar recursion: the N → ∞ limit at P = αN.

    The overlap q of the posterior mean with the teacher is also that of a student drawn from the
    posterior, and of two such students (Nishimori). The three generalization errors are arccos(R)/π
    of three different students.
    """

    alpha: float  # patterns per weight
    overlap: float  # q
    bayes_error: float  # of the optimal predictor, sign(x·m) with the posterior mean m: R = √q
    gibbs_error: float  # of one student drawn from the posterior: R = q
    clipped_error: float  # of the ±1 student sign(m), which AMP returns: R = 2Φ(√r) − 1
    free_entropy: float  # E[log P(labels | patterns)]/N; the largest marks the true fixed point
    iterations: int
    converged: bool  # the last step changed q by no more than the tolerance


def state_evolution(
    alpha: float,
    start: Literal["uninformed", "informed"] = "uninformed",
    tolerance: float = 1e-12,
    max_iterations: int = 100_000,
) -> StateEvolution:
    """Iterates q → r(q) → q(r) (BKMMZ, state evolution) to a fixed point.

    ``"uninformed"`` starts at q = 0 and describes message passing. ``"informed"`` starts at the
    teacher, q = 1, which for ±1 weights is an attractor at every α > 0. The fixed point with the
    larger free entropy is Bayes-optimal: the uninformed one below :func:`information_threshold`, q
    = 1 above it.

    >>> round(state_evolution(1.0).clipped_error, 3), state_evolution(1.6).overlap
    (0.257, 1.0)
    """
    alpha = checks.check_float("alpha", alpha, 0)
    checks.check_choice("start", start, ("uninformed", "informed"))
    tolerance = checks.check_float("tolerance", tolerance, above=0)
    max_iterations = checks.check_int("max_iterations", max_iterations, 1)
    v = 0.0 if start == "informed" and alpha > 0 else 1.0
    r, iteration, change = math.inf, 0, 0.0 if v == 0.0 else math.inf
    while iteration < max_iterations and not change <= tolerance:
        r = alpha * _channel(v)
        new = _residual(r)
        if new < _RECOVERED:  # beyond the last unstable point: two more steps reach q = 1
            r, new = math.inf, 0.0
        v, change = new, 0.0 if new == 0.0 else abs(new - v)
        iteration += 1
    students = (math.sqrt(1 - v), 1 - v, math.erf(math.sqrt(r / 2)))
    bayes, gibbs, clipped = (math.acos(overlap) / math.pi for overlap in students)
    free = _free_entropy(alpha, v, r)
    return StateEvolution(alpha, 1 - v, bayes, gibbs, clipped, free, iteration, change <= tolerance)


def algorithmic_threshold() -> float:
    """The α above which :func:`amp` finds the teacher as N → ∞: 1.4926.

    Each r is a fixed point at α(r) = r / (r(q)/α). The uninformed branch ends at the first maximum
    of α(r), where it merges with the unstable branch and only q = 1 remains.
    """
    return _alpha(_end_of_branch())


def information_threshold() -> float:
    """The α above which the data determine the teacher as N → ∞: 1.2447.

    There the free entropy of the uninformed branch falls to that of q = 1, −log 2. Equivalently,
    the entropy of the students that fit the data vanishes. Györgyi (1990) gives 1.245.
    """

    def entropy(r: float) -> float:
        return _free_entropy(_alpha(r), _residual(r), r) + math.log(2)

    return _alpha(float(brentq(entropy, 0.5, _end_of_branch(), xtol=1e-12)))


def _gauss(x: Floats) -> Floats:
    return np.asarray(np.exp(-x * x / 2) / math.sqrt(2 * math.pi))


def _residual(r: float) -> float:
    """V(r) = 1 − E tanh(r + √r Z), as a sum of positive terms so that small V stay exact."""
    weights = 2 * expit(-2 * (r + math.sqrt(r) * _GRID))
    return min(_STEP * float(_gauss(_GRID) @ weights), 1.0)


def _channel(v: float) -> float:
    """r(q)/α = E g² = (2/V) ∫Dξ φ(aξ)²/Φ(aξ), a = √(q/V), in the variable u = ξ/√V."""
    s = math.sqrt(1 - v) * _GRID
    ratio = np.exp(-s * s - math.log(2 * math.pi) - log_ndtr(s))
    return 2 * _STEP * float(_gauss(math.sqrt(v) * _GRID) @ ratio) / math.sqrt(v)


def _free_entropy(alpha: float, v: float, r: float) -> float:
    """BKMMZ's replica-symmetric potential ψ_P0(r) + α Ψ_Pout(q) − rq/2."""
    if v == 0.0:
        return -math.log(2)  # the limit q → 1, r → ∞: log P of the only teacher that remains
    h, s = r + math.sqrt(r) * _GRID, math.sqrt(1 - v) * _GRID
    prior = _STEP * float(_gauss(_GRID) @ (np.logaddexp(h, -h) - math.log(2))) - r / 2
    # Ψ_Pout = 2 ∫Dξ Φ(aξ) log Φ(aξ), again in u = ξ/√V.
    entropy = np.exp(log_ndtr(s)) * log_ndtr(s)
    channel = 2 * math.sqrt(v) * _STEP * float(_gauss(math.sqrt(v) * _GRID) @ entropy)
    return prior + alpha * channel - r * (1 - v) / 2


def _alpha(r: float) -> float:
    return r / _channel(_residual(r))


def _end_of_branch() -> float:
    bounds, options = (0.5, 8.0), {"xatol": 1e-9}
    found = minimize_scalar(lambda r: -_alpha(r), bounds=bounds, method="bounded", options=options)
    return float(found.x)
