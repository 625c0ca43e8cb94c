"""Where the limit lies: the Bayes-optimal theory of the ±1 teacher–student perceptron, N → ∞.

Two thresholds bound every method: below :func:`information_threshold` the data do not determine
the teacher, and up to :func:`algorithmic_threshold` message passing does not find it.

The equations are those of the Bayes-optimal generalized linear model (Barbier, Krzakala, Macris,
Miolane and Zdeborová, PNAS 2019, "BKMMZ" below) with a Rademacher prior and the sign channel.
Below, q is the overlap of the posterior mean with the teacher, V = 1 − q, and r the signal-to-noise
ratio with which the data speak about one weight; φ and Φ are the Gaussian density and distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit, log_ndtr

from mcover.errors import McoverError

Floats = NDArray[np.float64]

# Scaled as below, every integrand is analytic and decays like exp(−u²/2): the plain trapezoidal
# rule then converges exponentially and is exact to rounding on this grid.
_STEP = 0.02
_GRID: Floats = _STEP * np.arange(-700, 701, dtype=np.float64)
_RECOVERED = 1e-12


@dataclass(frozen=True)
class StateEvolution:
    """A fixed point of the scalar recursion: the N → ∞ limit at P = αN.

    The three generalization errors are arccos(R)/π of three different students.

    Attributes:
        alpha: patterns per weight.
        overlap: q, the overlap of the posterior mean with the teacher; also the overlap R of a
            student drawn from the posterior, and of two such students (Nishimori).
        bayes_error: of the best predictor, sign(x·m) with the posterior mean m: R = √q.
        gibbs_error: of one student drawn from the posterior: R = q.
        clipped_error: of the ±1 student sign(m), which AMP returns: R = 2Φ(√r) − 1.
        free_entropy: E[log P(labels | patterns)]/N as this fixed point has it; the largest is true.
        iterations: steps of the recursion.
        converged: the last step moved q by no more than the tolerance.
    """

    alpha: float
    overlap: float
    bayes_error: float
    gibbs_error: float
    clipped_error: float
    free_entropy: float
    iterations: int
    converged: bool


def state_evolution(
    alpha: float,
    start: Literal["uninformed", "informed"] = "uninformed",
    tolerance: float = 1e-12,
    max_iterations: int = 100_000,
) -> StateEvolution:
    """Iterates q → r(q) → q(r) (BKMMZ, state evolution) to a fixed point.

    ``"uninformed"`` starts at q = 0 and describes message passing. ``"informed"`` starts at the
    teacher, q = 1, which for ±1 weights attracts at every α > 0: near it r grows like 1/√V, and V
    falls like exp(−r/2). The fixed point of larger free entropy is the Bayes-optimal one: the
    uninformed one below :func:`information_threshold`, q = 1 above.

    >>> round(state_evolution(1.0).clipped_error, 3), state_evolution(1.6).overlap
    (0.257, 1.0)
    """
    if not (math.isfinite(alpha) and alpha >= 0):
        raise McoverError(f"alpha is {alpha!r}; write a finite number of patterns per weight, ≥ 0.")
    if start not in ("uninformed", "informed"):
        raise McoverError(f'start is {start!r}; write "uninformed" or "informed".')
    if not tolerance > 0 or max_iterations < 1:
        raise McoverError(
            f"tolerance is {tolerance!r} and max_iterations {max_iterations!r}; both must be "
            "positive."
        )
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
    """α above which :func:`~mcover.annealing.amp.amp` finds the teacher as N → ∞: 1.4926.

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
    density: Floats = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return density


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
    found = minimize_scalar(
        lambda r: -_alpha(r), bounds=(0.5, 8.0), method="bounded", options={"xatol": 1e-9}
    )
    return float(found.x)
