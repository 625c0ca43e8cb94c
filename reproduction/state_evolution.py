"""How accurate message passing is in theory: state evolution of the ±1 perceptron.

As N → ∞ a scalar recursion gives the accuracy of :func:`mcover.annealing.amp`. There are two
thresholds: below :func:`information_threshold` the data do not determine the teacher, and up to
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
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit, log_ndtr

Floats = NDArray[np.float64]

# After the substitutions in the functions, every integrand is analytic and decays like exp(−u²/2),
# so the trapezoidal rule converges exponentially and is exact up to rounding on this grid.
_STEP = 0.02
_GRID: Floats = _STEP * np.arange(-700, 701, dtype=np.float64)
_RECOVERED = 1e-12


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
    """
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
    """The α above which message passing finds the teacher as N → ∞: 1.4926.

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
