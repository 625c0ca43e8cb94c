"""The test for a solution, against the explicit margins of the majority."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference_annealer as reference
from chains import ENERGIES, instance, make
from mcover.annealing import searches
from mcover.annealing.chain import compute_site_sums
from mcover.annealing.result import collapse_sign
from mcover.annealing.students import solved


def majority_margins(gauged, weights, hidden):
    student = collapse_sign(weights).astype(int)
    return np.array(reference.margins(gauged.astype(int), student, hidden))


def found(gauged, routes, weights, hidden, energy):
    """Whether all margins of the majority are above zero, or the lifted energy is zero."""
    given = gauged.astype(int), routes, weights.astype(int), hidden, energy
    solves = majority_margins(gauged, weights, hidden) > 0
    return bool(np.all(solves)) or reference.lifted_energy(*given) == 0


def check(gauged, weights, hidden, energy):
    """The answer, which is that of the equations, for covers that are not routed."""
    covers, sites = weights.shape
    routes = np.broadcast_to(np.arange(covers, dtype=np.uint8), (1, sites, covers))
    state = make(gauged, routes, weights, hidden, energy)
    answer = solved(state, compute_site_sums(state.weights))
    assert answer == found(gauged, routes, weights, hidden, energy)
    return answer


@settings(max_examples=150, deadline=None)
@given(
    inputs=st.one_of(st.integers(1, 40), st.sampled_from([127, 128, 129, 1000])),
    patterns=st.sampled_from([1, 2, 63, 64, 65, 511, 512, 513, 1030]),
    hidden=st.sampled_from([1, 1, 2, 3, 4]),
    covers=st.integers(1, 5),
    energy=st.sampled_from(ENERGIES),
    seed=st.integers(0, 2**31),
)
def test_a_student_fits_until_one_pattern_does_not(inputs, patterns, hidden, covers, energy, seed):
    gauged, _, weights, _ = instance(inputs, patterns, hidden, covers, 1, seed=seed)
    # Patterns that are wrong are turned around, which makes them right or leaves a tie.
    gauged[majority_margins(gauged, weights, hidden) < 0] *= -1
    check(gauged, weights, hidden, energy)
    gauged[seed % patterns] *= -1
    check(gauged, weights, hidden, energy)


@pytest.mark.parametrize(("hidden", "n"), [(1, 9), (1, 8), (3, 7), (2, 6)])
@pytest.mark.parametrize("energy", ENERGIES)
def test_both_answers_come_up(hidden, n, energy):
    seen = {True: 0, False: 0}
    for seed in range(300):
        gauged, _, weights, _ = instance(n, 2, hidden, 3, 1, seed=seed)
        seen[check(gauged, weights, hidden, energy)] += 1
    assert min(seen.values()) > 10


@pytest.mark.parametrize("rule", ["glauber", "metropolis", "repair", "descent"])
@pytest.mark.parametrize(("hidden", "n"), [(1, 21), (1, 20), (3, 21), (5, 20)])
@pytest.mark.parametrize("energy", ENERGIES)
def test_a_run_ends_with_the_first_sweep_that_has_a_solution(rule, hidden, n, energy):
    early = 0
    for seed in range(12):
        gauged, routes, weights, rng = instance(n, 12, hidden, 3, 2, seed=seed)
        again, temperatures = rng.copy(), np.full(30, 0.3)
        step = make(gauged, routes, weights, hidden, energy)
        end = False
        sweeps = 0
        while not end and sweeps < 30:
            done = searches.run(step, temperatures[:1], 0.0, again, rule)
            sweeps += 1
            end = done.ended or found(gauged, routes, step.weights, hidden, energy)
        whole = make(gauged, routes, weights, hidden, energy)
        done = searches.run(whole, temperatures, 0.0, rng, rule, stop_at_zero=True)
        assert (len(done.energies), done.ended) == (sweeps, end)
        assert (whole.weights == step.weights).all()
        assert rng.tolist() == again.tolist()
        early += end and done.energies[-1] > 0
    assert early or rule in ("repair", "descent")  # while the lifted energy is above zero
