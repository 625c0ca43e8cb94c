"""Estimates with intervals."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcover import checks
from mcover.errors import McoverError

_PERMUTATIONS = 99_999
_BATCH_BYTES = 1 << 23
_EXACT_PAIRS = 16
_KEPT_PAIRS = 256  # up to 25 MB of signs
_Z = 1.959963984540054  # 0.975 quantile of the normal law
_FEWEST = 3  # values for an interval; with two, Student's t gives 13 times their distance
_EQUAL = 1e-12  # smaller differences, relative to the largest value, are taken as rounding


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval and the number of samples behind it.

    ``float(estimate)`` is the value. ``low`` and ``high`` are nan, and printed as a dash, if there
    are fewer than three samples or all of them are equal.
    """

    value: float
    low: float
    high: float
    n: int

    def __post_init__(self) -> None:
        for name in ("value", "low", "high"):  # not np.float64, whose repr names its type
            object.__setattr__(self, name, float(getattr(self, name)))

    def __float__(self) -> float:
        return self.value

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        if math.isnan(self.low):
            return f"{self.value:{spec}} [–]"
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"

    def __str__(self) -> str:
        return f"{self:.4f} (n = {self.n})"


def mean(values: ArrayLike) -> Estimate:
    """Mean with the interval of Student's t; none for fewer than three values or equal ones.

    Of 95 % intervals, so many held the true mean (``python tests/test_statistics.py``):

    ========================================= ====== ====== ====== ====== ====== =======
    values                                    n = 3  n = 5  n = 10 n = 20 n = 50 n = 200
    ========================================= ====== ====== ====== ====== ====== =======
    normal                                     0.95   0.95   0.95   0.95   0.95   0.95
    bounded, flat                              0.92   0.94   0.95   0.95   0.95   0.95
    bounded, skewed (beta 2, 8)                0.93   0.93   0.94   0.94   0.95   0.95
    discrete with ties (0 to 3)                1.00   0.94   0.95   0.95   0.95   0.95
    counts (Poisson 1)                         1.00   0.96   0.94   0.94   0.95   0.95
    two kinds, half of each                    0.77   0.94   0.94   0.95   0.95   0.95
    two kinds, 0.3 of one                      0.63   0.83   0.93   0.94   0.94   0.95
    differences of two kinds                   0.71   0.86   0.93   0.95   0.95   0.95
    skewed (gamma 2)                           0.92   0.92   0.93   0.93   0.94   0.95
    skewed (exponential)                       0.88   0.88   0.90   0.92   0.93   0.95
    heavy tail (lognormal, σ = 1)              0.84   0.82   0.84   0.87   0.90   0.93
    two kinds, 0.1 of one                      0.27   0.41   0.64   0.88   0.91   0.94
    ========================================= ====== ====== ====== ====== ====== =======

    So the interval is too narrow for few values of a skewed law, and for outcomes of two kinds, one
    of them rare: samples without the rare kind do not know of it. There, report the
    :func:`fraction` of each kind too. A studentized bootstrap covers skewed laws better, but its
    intervals of ten values are up to 16 times as long, and it fails in the same way on rare kinds.

    >>> print(mean([1, 2, 4]))
    2.3333 [-1.4612, 6.1279] (n = 3)
    >>> print(mean([0, 0, 0]))
    0.0000 [–] (n = 3)
    """
    from scipy.special import stdtrit

    sample = checks.check_floats("values", values).ravel()
    n = len(sample)
    # Sums are exact (fsum): the same on every CPU, and for any order of the values. Powers of two
    # keep them within the range of floats.
    _, exponent = np.frexp(np.abs(sample).max())
    scaled = np.ldexp(sample, -exponent)
    centre = math.fsum(scaled) / n
    if n < _FEWEST or np.ptp(scaled) <= _EQUAL:
        return Estimate(np.ldexp(centre, exponent), math.nan, math.nan, n)
    standard_error = math.sqrt(math.fsum((scaled - centre) ** 2) / (n - 1) / n)
    half = float(stdtrit(n - 1, 0.975)) * standard_error
    with np.errstate(over="ignore"):
        value, low, high = np.ldexp([centre, centre - half, centre + half], exponent)
    return Estimate(value, low, high, n)


def fraction(hits: ArrayLike) -> Estimate:
    """Share of true entries, with Wilson's interval; entries are booleans.

    >>> print(fraction([True, True, False, True]))
    0.7500 [0.3006, 0.9544] (n = 4)
    """
    flags = checks.check_bools("hits", hits).ravel()
    n, p = len(flags), int(flags.sum()) / len(flags)
    middle = (p + _Z * _Z / (2 * n)) / (1 + _Z * _Z / n)
    half = _Z / (1 + _Z * _Z / n) * math.sqrt(p * (1 - p) / n + (_Z / (2 * n)) ** 2)
    # The limits 0 and 1 are exact, without rounding.
    return Estimate(p, middle - half if p > 0 else 0.0, middle + half if p < 1 else 1.0, n)


def time_to_solution(solved: ArrayLike, cost: ArrayLike, certainty: float = 0.99) -> Estimate:
    """Expected cost of restarts until a solution is seen with the given certainty (TTS).

    mean cost × log(1 − certainty) / log(1 − p), at least one run, where p is the solved fraction.
    It is infinite if nothing was solved. The interval combines Wilson's interval of p with that of
    the mean costs of solved and unsolved trials; there is none for fewer than three trials. The
    share of 1,000 such intervals that held the truth (``python tests/test_statistics.py``; the
    costs vary by a third):

    ========================================= ====== ====== ====== ====== ====== =======
    trials                                    n = 3  n = 5  n = 10 n = 20 n = 50 n = 200
    ========================================= ====== ====== ====== ====== ====== =======
    solved 0.05                                0.94   0.97   0.93   0.94   0.96   0.96
    solved 0.3                                 0.96   0.97   0.95   0.95   0.94   0.95
    solved 0.9                                 0.99   0.96   0.95   0.95   0.95   0.95
    ========================================= ====== ====== ====== ====== ====== =======
    """
    (costs, p), certainty = _costs(solved, cost), _certainty(certainty)
    flags = np.asarray(solved).ravel()
    value, low, high = _log_time(flags, costs, p, certainty)
    if not p.value:
        return Estimate(np.inf, np.exp(low), high, p.n)
    expected = costs.mean() * float(_restarts(np.array(p.value), certainty))
    return Estimate(expected, expected * np.exp(low - value), expected * np.exp(high - value), p.n)


def _log_time(
    flags: NDArray[np.bool_], costs: NDArray[np.float64], p: Estimate, certainty: float
) -> NDArray[np.float64]:
    """Logarithms of a time to solution and of the ends of its interval."""
    from scipy.special import stdtrit

    n, each = p.n, costs.mean()
    if not each:  # below the resolution of a clock
        return np.array([-np.inf if p.value else np.inf, np.nan, np.nan])
    kinds = [costs[flags == kind] for kind in (True, False)]
    of_solved, of_others = (some.mean() if len(some) else each for some in kinds)

    def at(q: float) -> float:
        """The logarithm for a solved fraction of q, which also changes the mean cost."""
        with np.errstate(divide="ignore"):
            runs = np.log(_restarts(np.array(q), certainty))
        return float(np.log(q * of_solved + (1 - q) * of_others) + runs)

    value = at(p.value)
    if n < _FEWEST:
        return np.array([value, np.nan, np.nan])
    squares = sum(float(((some - some.mean()) ** 2).sum()) for some in kinds if len(some))
    freedom = n - sum(len(some) > 0 for some in kinds)
    cost_error = stdtrit(freedom, 0.975) * math.sqrt(squares / freedom / n) / each
    if not p.value:
        return np.array([value, at(p.high) - cost_error, np.inf])
    # The squares of the distances to both ends add up: variances are recovered from the intervals
    # (Zou and Donner, Statistics in Medicine 27, 1693, 2008).
    down, up = (math.hypot(at(end) - value, cost_error) for end in (p.high, p.low))
    return np.array([value, value - down, value + up])


def _certainty(certainty: float) -> float:
    return checks.check_float("certainty", certainty, above=0, below=1)


def _costs(solved: ArrayLike, cost: ArrayLike) -> tuple[NDArray[np.float64], Estimate]:
    """The cost of each trial, and the solved fraction."""
    costs, p = checks.check_floats("cost", cost).ravel(), fraction(solved)
    if len(costs) != p.n or np.any(costs < 0):
        seen = f"{len(costs)} entries, the smallest {costs.min():g}, for {p.n} trials"
        raise McoverError(f"cost has {seen}; write a cost of at least 0 for each of them.")
    return costs, p


def _restarts(p: NDArray[np.float64], certainty: float) -> NDArray[np.float64]:
    """Runs until a solution is seen with that certainty, at least one; infinite at p = 0."""
    inner = (p > 0) & (p < certainty)
    needed = np.log1p(-certainty) / np.log1p(-np.where(inner, p, 0.5))
    return np.where(inner, needed, np.where(p > 0, 1.0, np.inf))


@dataclass(frozen=True)
class Comparison:
    """A paired difference, first minus second, and its p-value."""

    difference: Estimate
    """For times to solution, the ratio, first over second."""
    p: float
    """Two-sided, of a permutation test; nan, undefined, for n = 1."""


def paired(first: ArrayLike, second: ArrayLike, seed: int = 0) -> Comparison:
    """Mean difference of paired values, tested by flipping signs within pairs.

    The interval is that of :func:`mean`. The test is exact up to 16 pairs; for more, it draws
    99,999 flips, so p is at least 2·10⁻⁵.

    >>> paired([1, 2, 3, 4, 5], [2, 4, 6, 8, 10]).p  # all five signs alike: 2 / 2⁵
    0.0625
    """
    seed = checks.check_int("seed", seed, 0)
    ours = checks.check_floats("first", first).ravel()
    theirs = checks.check_floats("second", second).ravel()
    _check_pairs(ours, theirs)
    differences = ours - theirs
    n, slack = len(differences), 1e-14 * len(differences) * np.abs(differences).sum()

    def flipped(signs: NDArray[np.int8]) -> NDArray[np.float64]:
        return np.asarray(signs.astype(float) @ differences)

    # Sums in another order still count as equal.
    p = _flip_test(flipped, n, float(differences.sum()), slack, seed) if n > 1 else np.nan
    return Comparison(mean(differences), p)


def paired_time_to_solution(
    first: tuple[ArrayLike, ArrayLike],
    second: tuple[ArrayLike, ArrayLike],
    certainty: float = 0.99,
    seed: int = 0,
) -> Comparison:
    """Ratio of two times to solution on the same instances, each given as (solved, cost).

    The interval combines those of the two times with their correlation over instances, which is
    shrunk by 1 − 3/n because it is uncertain. The test swaps the methods within instances, as
    :func:`paired` does. The ratio is nan if neither method solved anything; if one did not, its
    bound comes from the two intervals.

    The share of 1,000 such intervals that held the true ratio (``python tests/test_statistics.py``;
    they are too wide if little is solved in few trials):

    ========================================= ====== ====== ====== ====== ====== =======
    pairs                                     n = 3  n = 5  n = 10 n = 20 n = 50 n = 200
    ========================================= ====== ====== ====== ====== ====== =======
    solved 0.3 and 0.5, independent            0.99   0.95   0.93   0.94   0.94   0.95
    solved 0.3 and 0.5, as hard for both       1.00   0.99   0.98   0.95   0.93   0.94
    solved 0.9 and 0.5, independent            0.97   0.93   0.93   0.93   0.94   0.95
    solved 0.9 and 0.5, as hard for both       1.00   0.95   0.95   0.95   0.96   0.95
    solved 0.05 and 0.1, independent           1.00   1.00   0.99   0.98   0.97   0.94
    solved 0.05 and 0.1, as hard for both      1.00   1.00   1.00   0.96   0.92   0.94
    solved 0.97 and 0.9, independent           0.99   0.96   0.95   0.94   0.95   0.95
    solved 0.97 and 0.9, as hard for both      1.00   1.00   0.99   0.96   0.96   0.95
    ========================================= ====== ====== ====== ====== ====== =======
    """
    certainty, seed = _certainty(certainty), checks.check_int("seed", seed, 0)
    for name, pair in (("first", first), ("second", second)):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise McoverError(f"{name} is {checks.shown(pair)}; write a pair (solved, cost).")
    found = [_costs(*one) for one in (first, second)]
    flags = [np.asarray(solved).ravel() for solved, _ in (first, second)]
    (ours_cost, ours_p), (theirs_cost, theirs_p) = found
    _check_pairs(ours_cost, theirs_cost)
    n = ours_p.n
    if not ours_p.value and not theirs_p.value:
        return Comparison(Estimate(np.nan, 0.0, np.inf, n), np.nan)
    logs = tuple(_log_time(s, c, p, certainty) for s, (c, p) in zip(flags, found, strict=True))
    shared = _correlation(*(_influence(s, c) for s, (c, _) in zip(flags, found, strict=True)))
    ratio, low, high = np.exp(_log_ratio(logs, shared))

    def log_ratio(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
        """From sums over n trials, the solved in row 0 and costs in row 1."""
        with np.errstate(divide="ignore", invalid="ignore"):
            of = [np.log(cost) + np.log(_restarts(k / n, certainty)) for k, cost in (a, b)]
            return np.asarray(of[0] - of[1])

    sides = [np.stack([s, c]).astype(float) for s, (c, _) in zip(flags, found, strict=True)]
    total, difference = (sides[0] + sides[1]).sum(axis=1), (sides[0] - sides[1]).T

    def flipped(signs: NDArray[np.int8]) -> NDArray[np.float64]:
        moved = (signs.astype(float) @ difference).T
        return log_ratio(*((total[:, None] + sign * moved) / 2 for sign in (1, -1)))

    observed = float(log_ratio(sides[0].sum(axis=1), sides[1].sum(axis=1)))
    p = _flip_test(flipped, n, observed, 1e-9, seed) if n > 1 else np.nan
    return Comparison(Estimate(ratio, low, high, n), p)


def _check_pairs(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> None:
    if ours.shape != theirs.shape:
        seen = f"{len(ours)} and {len(theirs)}"
        raise McoverError(f"pairs need as many values on both sides; got {seen}.")


def _log_ratio(logs: Sequence[NDArray[np.float64]], shared: float) -> tuple[float, float, float]:
    """The difference of two logarithms of times, given as (value, low, high), with its interval."""
    (x, x_low, x_high), (y, y_low, y_high) = (one.tolist() for one in logs)
    if math.isnan(x_low) or math.isnan(y_low):
        return x - y, math.nan, math.nan
    if math.isinf(x) or math.isinf(y):  # one solved nothing: what both intervals leave open
        return x - y, x_low - y_high if x > y else -math.inf, x_high - y_low if x < y else math.inf

    def distance(a: float, b: float) -> float:
        return math.sqrt(max(0.0, a * a + b * b - 2 * shared * a * b))

    down, up = distance(x - x_low, y_high - y), distance(x_high - x, y - y_low)
    return x - y, x - y - down, x - y + up


def _influence(flags: NDArray[np.bool_], costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """The effect of each trial on the logarithm of the time to solution, to first order."""
    p = (flags.sum() + 1) / (len(flags) + 2)  # away from 0 and 1, where it has no slope
    return np.asarray(costs / (costs.mean() or 1.0) + flags / ((1 - p) * np.log1p(-p)))


def _correlation(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> float:
    """The shrunk correlation of two methods on the same instances; 0 if it is negative."""
    a, b = ours - ours.mean(), theirs - theirs.mean()
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    found = float((a * b).sum()) / scale if scale else 0.0
    return max(0.0, min(1.0, found)) * max(0.0, 1 - _FEWEST / len(a))


def _flip_test(
    statistic: Callable[[NDArray[np.int8]], NDArray[np.float64]],
    n: int,
    observed: float,
    slack: float,
    seed: int,
) -> float:
    """Two-sided p of a statistic under random signs: that of ``scipy.stats.permutation_test``.

    The flips depend only on the number of pairs and the seed, so tests of as many pairs share them.
    Statistics within ``slack`` of the observed one count as equal.
    """
    less = more = tests = 0
    for signs in (_kept_flips if n <= _KEPT_PAIRS else _flips)(n, seed):
        found = statistic(signs)
        less += int(np.count_nonzero(found <= observed + slack))
        more += int(np.count_nonzero(found >= observed - slack))
        tests += len(found)
    drawn = int(n > _EXACT_PAIRS)  # the observed signs count as one of the draws
    return min(1.0, 2 * (min(less, more) + drawn) / (tests + drawn))


def _flips(n: int, seed: int) -> Iterator[NDArray[np.int8]]:
    """Rows of n signs, in batches: all of them, or random ones."""
    if n <= _EXACT_PAIRS:
        bits = np.arange(2**n)[:, None] >> np.arange(n) & 1
        yield (1 - 2 * bits).astype(np.int8)
        return
    rng = np.random.default_rng(seed)
    batch = max(1, _BATCH_BYTES // n)
    for start in range(0, _PERMUTATIONS, batch):
        count = min(batch, _PERMUTATIONS - start)
        pairs = np.tile(np.array([1, -1], dtype=np.int8), (count * n, 1))
        yield rng.permuted(pairs, axis=-1)[:, 0].reshape(count, n)


_kept_flips = lru_cache(maxsize=4)(lambda n, seed: tuple(_flips(n, seed)))


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """p-values corrected for their number by Holm's step-down rule; nan is ignored and stays nan.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    if isinstance(p_values, list) and not p_values:
        return np.empty(0)
    given = checks.check_floats("p_values", p_values, ndim=1, finite=False)
    corrected = np.full(given.shape, np.nan)
    known = np.flatnonzero(~np.isnan(given))
    if np.any((given[known] < 0) | (given[known] > 1)):
        raise McoverError(f"p-values lie between 0 and 1; got {given.tolist()}.")
    order = known[np.argsort(given[known], kind="stable")]
    weights = np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(given[order] * weights), 1.0)
    return corrected
