"""Numbers with their intervals: nothing here returns a bare mean."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcover import checks
from mcover.errors import McoverError

_RESAMPLES = 9999
_PERMUTATIONS = 99_999
_BATCH_BYTES = 1 << 23
_EXACT_PAIRS = 16
_KEPT_PAIRS = 256  # up to 25 MB of signs


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval and the number of samples behind it."""

    value: float
    low: float
    high: float
    n: int

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        if self.n == 1 and self.low == self.high:  # no interval from one value
            return f"{self.value:{spec}} [–]"
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"

    def __str__(self) -> str:
        return f"{self:.4f} (n = {self.n})"


def mean(values: ArrayLike, seed: int = 0) -> Estimate:
    """Mean with a bias-corrected bootstrap interval (a point where all values agree or n = 1)."""
    from scipy.stats import bootstrap

    sample = checks.check_floats("values", values).ravel()
    centre = float(sample.mean())
    if np.ptp(sample) == 0:
        return Estimate(centre, centre, centre, len(sample))
    # Resamples of few values often tie with their mean. On a grid this fine sums are exact, so that
    # a CPU's order of summation breaks no tie and the interval is the same everywhere.
    bits = 52 - len(sample).bit_length()
    grid = 2.0 ** (np.frexp(np.abs(sample).max())[1] - bits)
    rng = np.random.default_rng(seed)
    with np.errstate(invalid="ignore"):
        drawn = bootstrap(
            (np.rint(sample / grid),),
            np.mean,
            n_resamples=_RESAMPLES,
            method="BCa",
            rng=rng,
        )
    interval = drawn.confidence_interval
    return Estimate(centre, grid * float(interval.low), grid * float(interval.high), len(sample))


def fraction(hits: ArrayLike) -> Estimate:
    """Share of true entries, with Wilson's interval; entries are booleans.

    >>> print(fraction([True, True, False, True]))
    0.7500 [0.3006, 0.9544] (n = 4)
    """
    from scipy.stats import binomtest

    flags = checks.check_bools("hits", hits).ravel()
    count = int(flags.sum())
    interval = binomtest(count, len(flags)).proportion_ci(method="wilson")
    return Estimate(count / len(flags), float(interval.low), float(interval.high), len(flags))


def time_to_solution(solved: ArrayLike, cost: ArrayLike, certainty: float = 0.99) -> Estimate:
    """Expected cost of restarts until a solution is seen with the given certainty (TTS).

    mean cost × log(1 − certainty) / log(1 − p), at least one run; the interval is that of the
    solved fraction p. Infinite where nothing was solved.
    """
    (costs, p), certainty = _costs(solved, cost), _certainty(certainty)
    each = float(costs.mean())
    value, low, high = each * _restarts(np.array([p.value, p.high, p.low]), certainty)
    return Estimate(float(value), float(low), float(high), p.n)


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
    """A paired difference, first minus second, and how often chance alone would be as far out."""

    difference: Estimate
    """Of times to solution the ratio, first over second."""
    p: float
    """Two-sided, of a permutation test; nan, undefined, for n = 1."""


def paired(first: ArrayLike, second: ArrayLike, seed: int = 0) -> Comparison:
    """Mean difference of paired values, tested by flipping signs within pairs.

    The test is exact up to 16 pairs; beyond, 99,999 drawn flips bound p from below at 2·10⁻⁵.

    >>> paired([1, 2, 3, 4, 5], [2, 4, 6, 8, 10]).p  # all five signs alike: 2 / 2⁵
    0.0625
    """
    ours, theirs = (
        checks.check_floats("first", first).ravel(),
        checks.check_floats("second", second).ravel(),
    )
    if ours.shape != theirs.shape:
        seen = f"{len(ours)} and {len(theirs)}"
        raise McoverError(f"pairs need as many values on both sides; got {seen}.")
    differences = ours - theirs
    n, slack = len(differences), 1e-14 * len(differences) * np.abs(differences).sum()

    def flipped(signs: NDArray[np.int8]) -> NDArray[np.float64]:
        return np.asarray(signs.astype(float) @ differences)

    # Sums in another order still count as equal.
    p = _flip_test(flipped, n, float(differences.sum()), slack, seed) if n > 1 else np.nan
    return Comparison(mean(differences, seed), p)


def paired_time_to_solution(
    first: tuple[ArrayLike, ArrayLike],
    second: tuple[ArrayLike, ArrayLike],
    certainty: float = 0.99,
    seed: int = 0,
) -> Comparison:
    """Ratio of two times to solution on the same instances, each given as (solved, cost).

    The interval is a bootstrap over instances, both methods together; the test swaps the methods
    within instances, as :func:`paired` does. A resample without any solution counts for both ends.
    The ratio is nan where neither solved anything; where one did not, its bound is that of the two
    intervals.
    """
    certainty = _certainty(certainty)
    sides = [_costs(*one)[0] for one in (first, second)]
    ours, theirs = (
        np.stack([checks.check_bools("solved", solved).ravel(), costs]).astype(float)
        for (solved, _), costs in zip((first, second), sides, strict=True)
    )
    if ours.shape != theirs.shape:
        seen = f"{ours.shape[1]} and {theirs.shape[1]}"
        raise McoverError(f"pairs need as many values on both sides; got {seen}.")
    n = ours.shape[1]

    def log_ratio(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
        """From sums over n trials, the solved in row 0 and costs in row 1."""
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = [np.log(cost) + np.log(_restarts(k / n, certainty)) for k, cost in (a, b)]
            return np.asarray(logs[0] - logs[1])

    if not ours[0].any() and not theirs[0].any():
        return Comparison(Estimate(np.nan, 0.0, np.inf, n), np.nan)
    total, apart = (ours + theirs).sum(axis=1), (ours - theirs).T
    observed = float(log_ratio(ours.sum(axis=1), theirs.sum(axis=1)))
    weights = (_kept_weights if n <= _KEPT_PAIRS else _weights)(n, seed)
    drawn = log_ratio(*((weights @ side.T).T for side in (ours, theirs)))
    low = np.exp(np.quantile(np.where(np.isnan(drawn), -np.inf, drawn), 0.025, method="lower"))
    high = np.exp(np.quantile(np.where(np.isnan(drawn), np.inf, drawn), 0.975, method="higher"))
    if not np.isfinite(observed):  # no resample solves either: what both intervals leave open
        ours_tts, theirs_tts = (time_to_solution(*one, certainty) for one in (first, second))
        low = ours_tts.low / theirs_tts.high if observed > 0 else 0.0
        high = ours_tts.high / theirs_tts.low if observed < 0 else np.inf

    def flipped(signs: NDArray[np.int8]) -> NDArray[np.float64]:
        moved = (signs.astype(float) @ apart).T
        return log_ratio(*((total[:, None] + way * moved) / 2 for way in (1, -1)))

    p = _flip_test(flipped, n, observed, 1e-9, seed) if n > 1 else np.nan
    return Comparison(Estimate(float(np.exp(observed)), float(low), float(high), n), p)


def _flip_test(
    statistic: Callable[[NDArray[np.int8]], NDArray[np.float64]],
    n: int,
    observed: float,
    slack: float,
    seed: int,
) -> float:
    """Two-sided p of a statistic under random signs: that of ``scipy.stats.permutation_test``.

    The flips depend on the number of pairs alone, so that tests of as many pairs share them.
    Statistics within ``slack`` of the observed one count as equal.
    """
    less = more = tests = 0
    for signs in (_kept_flips if n <= _KEPT_PAIRS else _flips)(n, seed):
        found = statistic(signs)
        less += int(np.count_nonzero(found <= observed + slack))
        more += int(np.count_nonzero(found >= observed - slack))
        tests += len(found)
    drawn = int(n > _EXACT_PAIRS)  # what was observed counts as one of the draws
    return min(1.0, 2 * (min(less, more) + drawn) / (tests + drawn))


def _flips(n: int, seed: int) -> Iterator[NDArray[np.int8]]:
    """Rows of n signs, in batches: all of them, or as many as are drawn."""
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


def _weights(n: int, seed: int) -> NDArray[np.float64]:
    """How often each of n trials is in each resample of a bootstrap."""
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=_RESAMPLES)
    return drawn.astype(float)


_kept_weights = lru_cache(maxsize=2)(_weights)
_kept_flips = lru_cache(maxsize=4)(lambda n, seed: tuple(_flips(n, seed)))


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """p-values corrected for their number by Holm's step-down rule; nan stays nan, uncounted.

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
