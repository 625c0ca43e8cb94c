"""Estimates, their intervals and tests. As a script, prints how often intervals cover the truth."""

import itertools
import math
import sys

import numpy as np
import pytest
from scipy import stats
from scipy.stats import permutation_test

from mcover import statistics
from mcover.statistics import (
    Estimate,
    fraction,
    holm,
    mean,
    paired,
    paired_time_to_solution,
    time_to_solution,
)

SIZES = (3, 5, 10, 20, 50, 200)


def two_kinds(p):
    """Outcomes of the perceptron: solved with probability p, else far off."""

    def draw(rng, size):
        solved, failed = 0.01 + 0.003 * rng.random(size), rng.normal(0.16, 0.02, size)
        return np.where(rng.random(size) < p, solved, failed)

    return draw, 0.0115 * p + 0.16 * (1 - p)


def differences(rng, size):
    return two_kinds(0.9)[0](rng, size) - two_kinds(0.7)[0](rng, size)


# Laws that occur in the studies, with their means.
LAWS = {
    "normal": (lambda rng, size: rng.normal(3.0, 2.0, size), 3.0),
    "bounded, flat": (lambda rng, size: rng.random(size), 0.5),
    "bounded, skewed (beta 2, 8)": (lambda rng, size: rng.beta(2, 8, size), 0.2),
    "discrete with ties (0 to 3)": (lambda rng, size: rng.integers(0, 4, size), 1.5),
    "counts (Poisson 1)": (lambda rng, size: rng.poisson(1.0, size), 1.0),
    "two kinds, half of each": two_kinds(0.5),
    "two kinds, 0.3 of one": two_kinds(0.7),
    "differences of two kinds": (differences, 0.2 * (0.0115 - 0.16)),
    "skewed (gamma 2)": (lambda rng, size: rng.gamma(2.0, size=size), 2.0),
    "skewed (exponential)": (lambda rng, size: rng.exponential(size=size), 1.0),
    "heavy tail (lognormal, σ = 1)": (lambda rng, size: rng.lognormal(size=size), np.exp(0.5)),
    "two kinds, 0.1 of one": two_kinds(0.9),
}
# Where 0.90 is not reached: the docstring of mean says so.
SHORT = {
    ("two kinds, half of each", 3): 0.72,
    ("two kinds, 0.3 of one", 3): 0.59,
    ("two kinds, 0.3 of one", 5): 0.80,
    ("differences of two kinds", 3): 0.67,
    ("differences of two kinds", 5): 0.82,
    ("skewed (exponential)", 3): 0.85,
    ("skewed (exponential)", 5): 0.85,
    ("skewed (exponential)", 10): 0.87,
    ("heavy tail (lognormal, σ = 1)", 3): 0.81,
    ("heavy tail (lognormal, σ = 1)", 5): 0.80,
    ("heavy tail (lognormal, σ = 1)", 10): 0.80,
    ("heavy tail (lognormal, σ = 1)", 20): 0.83,
    ("heavy tail (lognormal, σ = 1)", 50): 0.88,
    ("two kinds, 0.1 of one", 3): 0.23,
    ("two kinds, 0.1 of one", 5): 0.38,
    ("two kinds, 0.1 of one", 10): 0.60,
    ("two kinds, 0.1 of one", 20): 0.85,
    ("two kinds, 0.1 of one", 50): 0.86,
}


def covered(law, n, samples):
    """Share of the intervals that contain the mean, among samples with an interval."""
    draw, truth = LAWS[law]
    found = [mean(one) for one in draw(np.random.default_rng(n), (samples, n))]
    kept = [one for one in found if not math.isnan(one.low)]
    return np.mean([one.low <= truth <= one.high for one in kept])


@pytest.mark.parametrize("law", LAWS)
def test_mean_intervals_cover_the_truth_as_often_as_they_say(law):
    least = 0.93 if law == "normal" else 0.90
    for n in SIZES:
        found = covered(law, n, 1000)
        assert found >= SHORT.get((law, n), least), n
        assert found > 0.9 or (law, n) in SHORT


def test_mean_intervals_are_students():
    values = np.random.default_rng(0).normal(size=11)
    theirs = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    found = mean(values)
    assert (found.low, found.high) == pytest.approx(tuple(theirs))
    huge, tiny = mean(values * 1e306), mean(values * 1e-300)
    assert huge.low == pytest.approx(found.low * 1e306)
    assert tiny.high == pytest.approx(found.high * 1e-300)


@pytest.mark.parametrize(
    "values", [[0.25], [1.0, 2.0], [0.5] * 7, [0.1, 0.3 - 0.2, 0.1], [0, 0, 0]]
)
def test_few_or_equal_values_have_no_interval(values):
    found = mean(values)
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert f"{found:.2f}" == f"{np.mean(values):.2f} [–]"


def test_fraction_is_wilsons():
    for hits in range(31):
        theirs = stats.binomtest(hits, 30).proportion_ci(method="wilson")
        found = fraction(np.arange(30) < hits)
        assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1e-14)
        assert found.value == hits / 30


def test_time_to_solution_is_the_cost_of_restarts():
    estimate = time_to_solution([True, False] * 10, [100.0] * 20)
    assert estimate.value == pytest.approx(100 * np.log(0.01) / np.log(0.5))
    assert estimate.low < estimate.value < estimate.high
    assert time_to_solution([True] * 5, [7.0] * 5).value == 7.0
    never = time_to_solution([False] * 5, [7.0] * 5)
    assert never.value == np.inf
    assert never.low < np.inf


def instances(rng, solved, cost):
    """Trials with their costs, which are lower if solved, because annealers stop early."""
    return solved, cost * np.where(solved, 0.4, 1.0) * rng.lognormal(0, 0.3, len(solved))


def true_time(p, cost):
    each = cost * np.exp(0.045) * (0.4 * p + 1 - p)
    return each * np.log(0.01) / np.log1p(-p)


SOLVED = (0.05, 0.3, 0.9)
PAIRS = ((0.3, 0.5), (0.9, 0.5), (0.05, 0.1), (0.97, 0.9))
SHARED = {"independent": False, "as hard for both": True}


def covered_times(p, n, samples):
    """Share of the intervals of times to solution that contain the true value."""
    rng, truth = np.random.default_rng(n), true_time(p, 2.0)
    found = [time_to_solution(*instances(rng, rng.random(n) < p, 2.0)) for _ in range(samples)]
    return np.mean([one.low <= truth <= one.high for one in found])


def covered_ratios(p, q, shared, n, samples):
    """The same for ratios; an instance may be equally hard for both methods."""
    rng, hits, truth = np.random.default_rng(n), [], true_time(p, 1.0) / true_time(q, 2.0)
    for _ in range(samples):
        uniform = rng.random((2, n))
        if shared:
            uniform[1] = uniform[0]
        sides = instances(rng, uniform[0] < p, 1.0), instances(rng, uniform[1] < q, 2.0)
        found = paired_time_to_solution(*sides).difference
        hits.append(found.low <= truth <= found.high)
    return np.mean(hits)


@pytest.mark.parametrize("p", SOLVED)
def test_intervals_of_times_to_solution_cover_the_truth(p):
    for n in SIZES:
        assert covered_times(p, n, 300) > 0.88


@pytest.fixture
def untested(monkeypatch):
    """Ratios without their test, which takes longer than the interval."""
    monkeypatch.setattr("mcover.statistics._flip_test", lambda *_: 1.0)


@pytest.mark.parametrize(("p", "q"), PAIRS)
@pytest.mark.parametrize("shared", SHARED.values(), ids=SHARED)
def test_intervals_of_ratios_cover_the_truth_as_often_as_they_say(p, q, shared, untested):
    for n in SIZES:
        assert covered_ratios(p, q, shared, n, 200) > 0.89, n


def runs(solved, cost):
    return np.array(solved, bool), np.array(cost, float)


def test_a_ratio_of_times_to_solution_is_that_of_the_two():
    rng = np.random.default_rng(1)
    ours, theirs = runs(rng.random(60) < 0.6, rng.random(60)), runs(rng.random(60) < 0.2, [2] * 60)
    found = paired_time_to_solution(ours, theirs)
    value = time_to_solution(*ours).value / time_to_solution(*theirs).value
    assert found.difference.value == pytest.approx(value)
    assert found.difference.low < value < found.difference.high < 1
    assert found.difference.n == 60
    assert found.p == pytest.approx(2e-5, rel=0.1)
    back = paired_time_to_solution(theirs, ours).difference
    ends = 1 / found.difference.high, 1 / found.difference.low
    assert (back.low, back.high) == pytest.approx(ends, rel=1e-6)
    same = paired_time_to_solution(ours, ours)
    assert (same.difference.value, same.p) == (1, 1)


def test_the_test_of_a_ratio_swaps_methods_within_instances():
    ours, theirs = runs([1, 1, 0, 1], [1, 2, 3, 4]), runs([0, 1, 1, 0], [5, 1, 1, 2])
    ratios = []
    for swaps in itertools.product([False, True], repeat=4):
        sides = [np.where(swaps, b, a) for a, b in zip(ours, theirs, strict=True)]
        others = [np.where(swaps, a, b) for a, b in zip(ours, theirs, strict=True)]
        ratios.append(time_to_solution(*sides).value / time_to_solution(*others).value)
    found = np.array(ratios)
    least = min(np.mean(found <= found[0] + 1e-9), np.mean(found >= found[0] - 1e-9))
    assert paired_time_to_solution(ours, theirs).p == pytest.approx(min(1, 2 * least))


def test_ratios_without_solutions_are_bounds():
    solves, never = runs([1, 0] * 10, [1] * 20), runs([0] * 20, [1] * 20)
    found = paired_time_to_solution(never, solves)
    assert (found.difference.value, found.difference.high) == (np.inf, np.inf)
    bound = time_to_solution(*never).low / time_to_solution(*solves).high
    assert found.difference.low == pytest.approx(bound)
    back = paired_time_to_solution(solves, never).difference
    assert (back.value, back.low, back.high) == (0, 0, pytest.approx(1 / bound))
    neither = paired_time_to_solution(never, never)
    assert np.isnan(neither.difference.value)
    assert np.isnan(neither.p)


def test_one_pair_has_no_p_value_and_equal_pairs_are_not_told_apart():
    assert np.isnan(paired([1.0], [2.0]).p)
    assert paired([1.0, 2.0], [1.0, 2.0]).p == 1.0


def test_holm_agrees_with_published_examples():
    # R: p.adjust(c(0.01, 0.02, 0.03, 0.04, 0.05), "holm"), and the textbook case of four.
    np.testing.assert_allclose(holm([0.01, 0.02, 0.03, 0.04, 0.05]), [0.05, 0.08, 0.09, 0.09, 0.09])
    np.testing.assert_allclose(holm([0.04, 0.005, 0.03, 0.01]), [0.06, 0.02, 0.06, 0.03])
    np.testing.assert_allclose(holm([0.9, 0.8]), [1.0, 1.0])
    np.testing.assert_array_equal(holm([0.02, np.nan, 0.03]), [0.04, np.nan, 0.04])
    assert holm([]).size == 0


def test_formats_show_the_interval():
    assert f"{fraction([True, False]):.2f}" == "0.50 [0.09, 0.91]"
    assert str(mean([1.0, 2.0, 4.0])) == "2.3333 [-1.4612, 6.1279] (n = 3)"
    assert f"{fraction([True]):.2f}" == "1.00 [0.21, 1.00]"
    assert str(time_to_solution([True, False], [1.0, 1.0])) == "6.6439 [–] (n = 2)"


def test_an_estimate_is_a_number_with_a_plain_repr():
    assert float(mean([1.0, 2.0, 6.0])) == 3.0
    for found in (
        *(
            mean([1.0, 2.0, 4.0]),
            fraction([True, False]),
            time_to_solution([True], [np.float32(2)]),
        ),
        *(Estimate(np.float64(1), np.float64(0), np.float64(2), 3), paired([1.0, 2], [2.0, 4])),
        paired_time_to_solution(runs([1, 0, 1], [1, 2, 3]), runs([1, 1, 1], [1, 2, 3])),
    ):
        assert "np." not in repr(found)


def test_pairs_that_share_much_have_narrower_ratios(untested):
    """Instances that are hard for both methods make no difference between them."""
    rng = np.random.default_rng(3)
    hard, cost = rng.random(100), np.ones(100)
    apart = paired_time_to_solution((hard < 0.5, cost), (rng.random(100) < 0.4, cost)).difference
    alike = paired_time_to_solution((hard < 0.5, cost), (hard < 0.4, cost)).difference
    assert np.log(alike.high / alike.low) < 0.6 * np.log(apart.high / apart.low)


def test_costs_below_the_resolution_of_a_clock_have_no_interval():
    assert str(time_to_solution([True, False, True], [0.0] * 3)) == "0.0000 [–] (n = 3)"
    assert time_to_solution([False] * 3, [0.0] * 3).value == np.inf
    found = paired_time_to_solution(runs([1, 0, 1], [0] * 3), runs([1, 1, 1], [1] * 3)).difference
    assert str(found) == "0.0000 [–] (n = 3)"


@pytest.mark.parametrize("n", [2, 5, 16, 17, 40])
def test_the_paired_test_is_that_of_scipy(n):
    """The same sign flips, so p is bit-identical if no two sums are equal."""
    differences = np.random.default_rng(n).standard_normal(n) + 0.2
    theirs = permutation_test(
        (differences,),
        lambda values, axis=-1: values.mean(axis=axis),
        permutation_type="samples",
        n_resamples=99_999,
        batch=10_000,
        vectorized=True,
        rng=np.random.default_rng(0),
    )
    assert paired(differences, np.zeros(n)).p == theirs.pvalue


def test_equal_sums_count_as_equal_in_whichever_order_they_are_added():
    """0.1 + 0.2 − 0.3 is not 0 in binary; a p below 1 would be due to rounding only."""
    assert paired([0.1, 0.2, -0.3], [0.0, 0.0, 0.0]).p == 1.0


def test_an_interval_does_not_depend_on_the_order_in_which_a_cpu_sums():
    values = np.random.default_rng(0).normal(size=1000) * 10.0 ** np.arange(1000).clip(0, 12)
    assert mean(values) == mean(values[::-1])


def main():
    """The tables in the docstrings of mean, time_to_solution and paired_time_to_solution."""

    def line(name, covered_at):
        shares = "  ".join(f"{covered_at(n):.2f} " for n in SIZES)
        sys.stdout.write(f"    {name:41} {shares.rstrip()}\n")

    for law in LAWS:
        line(law, lambda n, law=law: covered(law, n, 20_000))
    for p in SOLVED:
        line(f"solved {p}", lambda n, p=p: covered_times(p, n, 1_000))
    statistics._flip_test = lambda *_: 1.0  # takes longer than the interval
    for (p, q), (how, shared) in itertools.product(PAIRS, SHARED.items()):
        line(
            f"solved {p} and {q}, {how}",
            lambda n, how=(p, q, shared): covered_ratios(*how, n, 1_000),
        )


if __name__ == "__main__":
    main()
