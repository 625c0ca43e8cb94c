import itertools

import numpy as np
import pytest
from scipy.stats import permutation_test

from mcover import McoverError
from mcover.statistics import (
    fraction,
    holm,
    mean,
    paired,
    paired_time_to_solution,
    time_to_solution,
)


def test_mean_intervals_cover_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(150):
        estimate = mean(rng.normal(3.0, 2.0, size=40), seed=trial)
        hits += estimate.low <= 3.0 <= estimate.high
    assert 0.88 < hits / 150 <= 1.0


def test_mean_of_equal_values_is_a_point():
    estimate = mean([0.5] * 7)
    assert (estimate.value, estimate.low, estimate.high, estimate.n) == (0.5, 0.5, 0.5, 7)


def test_fraction_is_wilsons():
    # Wilson's interval for 8 of 10, from its formula.
    z, n, p = 1.959964, 10, 0.8
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    estimate = fraction([True] * 8 + [False] * 2)
    assert estimate.value == 0.8
    assert estimate.low == pytest.approx(centre - half, abs=1e-5)
    assert estimate.high == pytest.approx(centre + half, abs=1e-5)


def test_time_to_solution_is_the_cost_of_restarts():
    estimate = time_to_solution([True, False] * 10, [100.0] * 20)
    assert estimate.value == pytest.approx(100 * np.log(0.01) / np.log(0.5))
    assert estimate.low < estimate.value < estimate.high
    assert time_to_solution([True] * 5, [7.0] * 5).value == 7.0
    never = time_to_solution([False] * 5, [7.0] * 5)
    assert never.value == np.inf
    assert never.low < np.inf


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


def test_intervals_of_ratios_cover_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(0)
    truth = np.log1p(-0.3) / np.log1p(-0.5)
    hits = 0
    for _ in range(150):
        hard = rng.random(80)  # of an instance, for both
        ours, theirs = runs(hard < 0.5, [1] * 80), runs(hard < 0.3, [1] * 80)
        found = paired_time_to_solution(ours, theirs).difference
        hits += found.low <= truth <= found.high
    assert 0.88 < hits / 150 <= 1.0


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


def test_paired_permutations_are_exact_for_few_pairs():
    # Differences 3, 1, -2: of eight sign patterns, those with |sum| >= 2 are 6.
    found = paired([3.0, 1.0, 0.0], [0.0, 0.0, 2.0])
    assert found.difference.value == pytest.approx(2 / 3)
    assert found.p == pytest.approx(6 / 8)
    shifted = paired(np.arange(12) + 1.0, np.arange(12))
    assert shifted.p == pytest.approx(2 / 2**12)
    assert (shifted.difference.low, shifted.difference.high) == (1.0, 1.0)


def test_pairing_finds_what_spread_between_instances_hides():
    rng = np.random.default_rng(0)
    instance = rng.normal(size=200)
    found = paired(instance + 0.1 + 0.05 * rng.normal(size=200), instance)
    assert found.p == pytest.approx(2e-5)
    assert found.difference.low < 0.1 < found.difference.high


def test_paired_p_values_are_uniform_when_nothing_differs():
    rng = np.random.default_rng(1)
    p = np.array([paired(rng.normal(size=9), rng.normal(size=9)).p for _ in range(120)])
    assert 0.3 < np.mean(p < 0.5) < 0.7
    assert np.mean(p < 0.05) < 0.13


def test_one_pair_has_no_p_value_and_equal_pairs_are_not_told_apart():
    assert np.isnan(paired([1.0], [2.0]).p)
    assert paired([1.0, 2.0], [1.0, 2.0]).p == 1.0
    with pytest.raises(McoverError, match="both sides"):
        paired([1.0, 2.0], [1.0])


def test_holm_agrees_with_published_examples():
    # R: p.adjust(c(0.01, 0.02, 0.03, 0.04, 0.05), "holm"), and the textbook case of four.
    np.testing.assert_allclose(holm([0.01, 0.02, 0.03, 0.04, 0.05]), [0.05, 0.08, 0.09, 0.09, 0.09])
    np.testing.assert_allclose(holm([0.04, 0.005, 0.03, 0.01]), [0.06, 0.02, 0.06, 0.03])
    np.testing.assert_allclose(holm([0.9, 0.8]), [1.0, 1.0])
    np.testing.assert_array_equal(holm([0.02, np.nan, 0.03]), [0.04, np.nan, 0.04])
    assert holm([]).size == 0
    with pytest.raises(McoverError, match="between 0 and 1"):
        holm([0.1, 1.1])


def test_formats_show_the_interval():
    assert f"{fraction([True, False]):.2f}" == "0.50 [0.09, 0.91]"
    assert str(mean([1.0, 1.0])) == "1.0000 [1.0000, 1.0000] (n = 2)"


def test_an_interval_of_one_value_is_not_certainty():
    assert f"{mean([0.25]):.2f}" == "0.25 [–]"
    assert str(mean([0.25])) == "0.2500 [–] (n = 1)"
    assert f"{fraction([True]):.2f}" == "1.00 [0.21, 1.00]"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean([]), "values is"),
        (lambda: mean([np.nan]), "finite numbers"),
        (lambda: mean(["1"]), "values is"),
        (lambda: mean([True]), "values is"),
        (lambda: fraction([]), "hits is"),
        (lambda: fraction([np.nan, np.nan]), "True and False"),
        (lambda: fraction(["yes", "no"]), "True and False"),
        (lambda: fraction([1, 0]), "True and False"),
        (lambda: time_to_solution([True, False], [1.0]), "cost has 1 entries"),
        (lambda: time_to_solution([True, False], [1.0, -2.0]), "the smallest -2"),
        (lambda: time_to_solution([True], [1.0], certainty=1.0), "certainty is 1.0"),
        (lambda: time_to_solution([True], [1.0], certainty=0), "certainty is 0"),
        (
            lambda: paired_time_to_solution(([True], [1.0]), ([True, False], [1.0, 1.0])),
            "as many values on both sides; got 1 and 2",
        ),
        (lambda: holm(["a"]), "p_values is"),
        (lambda: holm([[0.1, 0.2]]), "p_values is"),
    ],
)
def test_statistics_of_nothing_are_refused(call, message):
    with pytest.raises(McoverError, match=message):
        call()


@pytest.mark.parametrize("n", [2, 5, 16, 17, 40])
def test_the_paired_test_is_that_of_scipy(n):
    """The same flips of signs, so the same p to the last digit where no two sums are equal."""
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
    """0.1 + 0.2 − 0.3 is not 0 in binary; a p below 1 would come of rounding alone."""
    assert paired([0.1, 0.2, -0.3], [0.0, 0.0, 0.0]).p == 1.0


def test_an_interval_does_not_depend_on_the_order_in_which_a_cpu_sums(monkeypatch):
    """Resamples of few values tie often: last bits must not decide on which side they fall."""
    values = np.array([0.0614, 0.0605, 0.0600, 0.0590, 0.0592])
    forwards, original = mean(values), np.mean
    monkeypatch.setattr(np, "mean", lambda x, axis=None: original(x[..., ::-1], axis=axis))
    assert mean(values) == forwards
