"""Message passing for the ±1 perceptron, and the Bayes-optimal theory of what it can reach.

A teacher w* with ±1 weights labels P = αN patterns, y = sign(x·w*/√N); the posterior is uniform
over the ±1 students that reproduce every label. :func:`amp` estimates its means on one data set,
:func:`state_evolution` says how well that works as N → ∞. Two thresholds bound every method: below
:func:`information_threshold` the data do not determine the teacher, and up to
:func:`algorithmic_threshold` message passing does not find it.

The equations are those of the Bayes-optimal generalized linear model (Barbier, Krzakala, Macris,
Miolane and Zdeborová, PNAS 2019, "BKMMZ" below) with a Rademacher prior and the sign channel.
Below, q is the overlap of the posterior mean with the teacher, V = 1 − q, and r the signal-to-noise
ratio of the data about one weight; φ and Φ are the Gaussian density and distribution.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.special import erfcx, expit, log_ndtr

from mcover import checks
from mcover.annealing.problems import as_signs
from mcover.seeds import Seed, streams

Floats = NDArray[np.float64]

# Scaled as below, every integrand is analytic and decays like exp(−u²/2): the plain trapezoidal
# rule then converges exponentially and is exact to rounding on this grid.
_STEP = 0.02
_GRID: Floats = _STEP * np.arange(-700, 701, dtype=np.float64)
_RECOVERED = 1e-12


@dataclass(frozen=True, eq=False)
class AmpResult:
    """The result of message passing on one data set.

    As in the annealer's energy a tie (x·w = 0, N even) is no error, so the teacher solves its data
    under any tie rule.
    """

    weights: NDArray[np.int8]  # sign of the magnetization, (N,); a zero counts as +1
    magnetization: Floats  # estimated posterior means, (N,), each in [−1, 1]
    self_overlap: float  # mean squared magnetization: the algorithm's own estimate of q
    iterations: int
    converged: bool  # the last iteration moved no magnetization by more than the tolerance
    errors: int  # training patterns with y x·w < 0
    solved: bool  # there are none


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
    """Approximate message passing for ±1 weights behind a sign (GAMP, as in BKMMZ).

    It knows nothing of the teacher. Damping mixes the fields alone: mixing the outputs g as well
    upsets the reaction term, and then lost teachers that the plain iteration finds.

    Reinforcement (Braunstein and Zecchina, PRL 2006) makes a solver of the estimator: in iteration
    t = 0, 1, … each weight feels, beside the field of the data, its own last field h,

        h ← h_data + ρ_t h,    ρ_t = 1 − (1 − reinforcement)^t,

    so that weights polarise as ρ grows to 1, in about 1/reinforcement iterations. There ρ_t is the
    probability with which h is added; here, as in smooth variants since, its share.
    Magnetizations are then no posterior means.

    Args:
        patterns: the inputs, entries ±1, shape (P, N).
        labels: the teacher's answers, ±1, shape (P,).
        seed: of the tiny random magnetizations it starts from.
        max_iterations: after which it stops, converged or not.
        damping: share of the previous field that is kept, in [0, 1); the centred patterns of the
            theory need none.
        tolerance: largest change of a magnetization that counts as converged.
        reinforcement: r of ρ_t above, in [0, 1); 0 is plain message passing.
        stop_at_zero: whether to end as soon as the signs of the magnetizations have zero energy:
            no margin is below zero.
    """
    x = as_signs("patterns", patterns, (None, None)).astype(np.float64)
    y = as_signs("labels", labels, (len(x),)).astype(np.float64)
    max_iterations = checks.check_int("max_iterations", max_iterations, 1)
    damping = checks.check_float("damping", damping, 0, below=1)
    tolerance = checks.check_float("tolerance", tolerance, above=0)
    reinforcement = checks.check_float("reinforcement", reinforcement, 0, below=1)
    stop_at_zero = checks.check_bool("stop_at_zero", stop_at_zero)

    signed = x * y[:, None]  # (x, y) and (−x, −y) say the same: from here on every label is +1
    n = x.shape[1]
    root_n = math.sqrt(n)
    m: Floats = streams(seed, 1)[0].normal(0.0, 1e-3, size=(n,))
    field: Floats = np.zeros(n)
    g: Floats = np.zeros(len(y))
    iteration, change, fits = 0, math.inf, False
    while iteration < max_iterations and not change <= tolerance and not fits:
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
    """Whether the signs of m have zero energy; a few patterns nearly always tell that they do."""
    weights = np.where(m >= 0, 1.0, -1.0)
    return not any(np.any(signed[part] @ weights < 0) for part in (slice(64), slice(64, None)))


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
    bayes_error: float  # of the best predictor, sign(x·m) with the posterior mean m: R = √q
    gibbs_error: float  # of one student drawn from the posterior: R = q
    clipped_error: float  # of the ±1 student sign(m), which AMP returns: R = 2Φ(√r) − 1
    free_entropy: float  # E[log P(labels | patterns)]/N; the fixed point of the largest is true
    iterations: int
    converged: bool  # the last step moved q by no more than the tolerance


def state_evolution(
    alpha: float,
    start: Literal["uninformed", "informed"] = "uninformed",
    tolerance: float = 1e-12,
    max_iterations: int = 100_000,
) -> StateEvolution:
    """Iterates q → r(q) → q(r) (BKMMZ, state evolution) to a fixed point.

    ``"uninformed"`` starts at q = 0 and describes message passing. ``"informed"`` starts at the
    teacher, q = 1, which for ±1 weights attracts at every α > 0. The fixed point of larger free
    entropy is Bayes-optimal: the uninformed one below :func:`information_threshold`, q = 1 above.

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
        if new < _RECOVERED:  # past the last unstable point: q = 1 in two more steps
            r, new = math.inf, 0.0
        v, change = new, 0.0 if new == 0.0 else abs(new - v)
        iteration += 1
    students = (math.sqrt(1 - v), 1 - v, math.erf(math.sqrt(r / 2)))
    bayes, gibbs, clipped = (math.acos(overlap) / math.pi for overlap in students)
    free = _free_entropy(alpha, v, r)
    return StateEvolution(alpha, 1 - v, bayes, gibbs, clipped, free, iteration, change <= tolerance)


def algorithmic_threshold() -> float:
    """α above which :func:`amp` finds the teacher as N → ∞: 1.4926.

    Each r is a fixed point at α(r) = r / (r(q)/α); the uninformed branch ends at the first maximum
    of α(r), where it meets the unstable one and only q = 1 is left.
    """
    return _alpha(_end_of_branch())


def information_threshold() -> float:
    """α above which the data determine the teacher as N → ∞: 1.2447.

    There the free entropy of the uninformed branch falls to −log 2, that of q = 1; equivalently
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
        return -math.log(2)  # the limit q → 1, r → ∞: log P of the one teacher left
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
