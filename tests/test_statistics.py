import numpy as np
import pytest

from mcover import McoverError
from mcover.statistics import fraction, mean, time_to_solution


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


def test_formats_show_the_interval():
    assert f"{fraction([True, False]):.2f}" == "0.50 [0.09, 0.91]"
    assert str(mean([1.0, 1.0])) == "1.0000 [1.0000, 1.0000] (n = 2)"


@pytest.mark.parametrize("call", [lambda: mean([]), lambda: mean([np.nan]), lambda: fraction([])])
def test_statistics_of_nothing_are_refused(call):
    with pytest.raises(McoverError):
        call()
