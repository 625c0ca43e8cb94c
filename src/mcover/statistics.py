"""Numbers with their intervals: nothing here returns a bare mean."""

from collections.abc import Iterator
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
        if self.n == 1 and self.low == self.high:  # one value says nothing about its spread
            return f"{self.value:{spec}} [–]"
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"

    def __str__(self) -> str:
        return f"{self:.4f} (n = {self.n})"


def mean(values: ArrayLike, seed: int = 0) -> Estimate:
    """Mean with a bias-corrected bootstrap interval (a point where all values agree or n = 1)."""
    from scipy.stats import bootstrap

    sample = checks.reals("values", values).ravel()
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

    flags = checks.flags("hits", hits).ravel()
    count = int(flags.sum())
    interval = binomtest(count, len(flags)).proportion_ci(method="wilson")
    return Estimate(count / len(flags), float(interval.low), float(interval.high), len(flags))


def time_to_solution(solved: ArrayLike, cost: ArrayLike, certainty: float = 0.99) -> Estimate:
    """Expected cost of restarts until a solution is seen with the given certainty (TTS).

    mean cost × log(1 − certainty) / log(1 − p), at least one run; the interval is that of the
    solved fraction p. Infinite where nothing was solved.
    """
    costs, p = checks.reals("cost", cost).ravel(), fraction(solved)
    certainty = checks.real("certainty", certainty, above=0, below=1)
    if len(costs) != p.n or np.any(costs < 0):
        seen = f"{len(costs)} entries, the smallest {costs.min():g}, for {p.n} trials"
        raise McoverError(f"cost has {seen}; write a cost of at least 0 for each of them.")
    each = float(costs.mean())

    def restarts(probability: float) -> float:
        if not 0 < probability < certainty:
            return 1.0 if probability > 0 else np.inf
        return float(np.log1p(-certainty) / np.log1p(-probability))

    return Estimate(each * restarts(p.value), each * restarts(p.high), each * restarts(p.low), p.n)


@dataclass(frozen=True)
class Comparison:
    """A paired difference, first minus second, and how often chance alone would be as far out."""

    difference: Estimate
    p: float
    """Two-sided, of a permutation test; nan for a single pair, which chance cannot be told from."""


def paired(first: ArrayLike, second: ArrayLike, seed: int = 0) -> Comparison:
    """Mean difference of paired values, tested by flipping signs within pairs.

    The test is exact up to 16 pairs; beyond, 99,999 drawn flips bound p from below at 2·10⁻⁵.

    >>> paired([1, 2, 3, 4, 5], [2, 4, 6, 8, 10]).p  # all five signs alike: 2 / 2⁵
    0.0625
    """
    ours, theirs = checks.reals("first", first).ravel(), checks.reals("second", second).ravel()
    if ours.shape != theirs.shape:
        seen = f"{len(ours)} and {len(theirs)}"
        raise McoverError(f"pairs need as many values on both sides; got {seen}.")
    differences = ours - theirs
    p = _flip_test(differences, seed) if len(differences) > 1 else np.nan
    return Comparison(mean(differences, seed), p)


def _flip_test(differences: NDArray[np.float64], seed: int) -> float:
    """Two-sided p of a mean under random signs: that of ``scipy.stats.permutation_test``.

    The flips depend on the number of pairs alone, so that tests of as many pairs share them.
    """
    n = len(differences)
    observed = differences.sum()
    slack = 1e-14 * n * np.abs(differences).sum()  # sums in another order still count as equal
    less = more = tests = 0
    for signs in (_kept_flips if n <= _KEPT_PAIRS else _flips)(n, seed):
        sums = signs.astype(float) @ differences
        less += int(np.count_nonzero(sums <= observed + slack))
        more += int(np.count_nonzero(sums >= observed - slack))
        tests += len(sums)
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


_kept_flips = lru_cache(maxsize=4)(lambda n, seed: tuple(_flips(n, seed)))


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """p-values corrected for their number by Holm's step-down rule; nan stays nan, uncounted.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    if isinstance(p_values, list) and not p_values:
        return np.empty(0)
    given = checks.reals("p_values", p_values, ndim=1, finite=False)
    corrected = np.full(given.shape, np.nan)
    known = np.flatnonzero(~np.isnan(given))
    if np.any((given[known] < 0) | (given[known] > 1)):
        raise McoverError(f"p-values lie between 0 and 1; got {given.tolist()}.")
    order = known[np.argsort(given[known], kind="stable")]
    weights = np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(given[order] * weights), 1.0)
    return corrected
