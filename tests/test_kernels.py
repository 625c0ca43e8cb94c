"""The compiled chains have the trajectories of the plain ones, and sample the correct law."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import reference_annealer as reference
from chains import ENERGIES, SHAPES, WALKS, check_walk, instance, make
from mcover.annealing import chain, kernels, searches, states

RULES = kernels.RULES


@pytest.mark.parametrize("walk", WALKS, ids="-".join)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_chains_walk_the_reference_trajectory(shape, walk):
    """From nearly free to nearly frozen; a repeated temperature reuses the tables."""
    descends, is_large = walk[0] == "descent", shape[1] > 500
    temperatures = np.array([3.0, 0.5, 0.5, 0.1])[: 2 if is_large else 4]
    if descends:  # to a state in which the reference finds no flip that improves, trying all
        temperatures = np.zeros(1 if is_large else 200)
    for energy in ENERGIES:
        over = check_walk(shape, energy, walk, temperatures, 0 * temperatures, seed=sum(shape))
        assert over or is_large or not descends


# Along routes, and replicas, whose routes are the identity.
COUPLED = [
    ((7, 65, 1, 3, 2), False), ((9, 40, 1, 9, 2), False), ((4, 63, 3, 2, 2), False),
    ((7, 65, 1, 3, 1), True), ((10, 50, 1, 4, 1), True), ((4, 63, 3, 2, 1), True),
]  # fmt: skip


@pytest.mark.parametrize("walk", WALKS, ids="-".join)
@pytest.mark.parametrize(("shape", "identity"), COUPLED, ids=str)
def test_covers_that_attract_walk_the_reference_trajectory(shape, identity, walk):
    temperatures, gammas = np.array([2.0, 0.5, 0.5]), np.array([0.0, 0.3, 2.5])
    if walk[0] == "descent":
        temperatures, gammas = np.zeros(20), np.full(20, 0.5)
    for energy in ENERGIES:
        check_walk(shape, energy, walk, temperatures, gammas, seed=5, identity=identity)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data())
def test_chains_walk_the_reference_trajectory_anywhere(data):
    hidden = data.draw(st.integers(1, 5))
    inputs = data.draw(st.integers(1, 12 // hidden))
    covers, patterns = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 70))
    shape = (inputs, patterns, hidden, covers, data.draw(st.integers(1, min(inputs, 3))))
    energy, walk = data.draw(st.sampled_from(ENERGIES)), data.draw(st.sampled_from(WALKS))
    temperatures = np.array(data.draw(st.lists(st.floats(1e-3, 50), min_size=1, max_size=2)))
    gammas = np.full(temperatures.size, data.draw(st.floats(0, 2)))
    check_walk(shape, energy, walk, temperatures, gammas, data.draw(st.integers(0, 2**32 - 1)))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("gamma", [30.0, 100.0, 160.0, 300.0])
@pytest.mark.parametrize("temperature", [0.4, 0.001, 1e-6])
def test_strong_couplings_walk_the_reference_trajectory(rule, gamma, temperature):
    """Energies and couplings that cancel, each far beyond the range of exp."""
    given = (rule, "random", "first"), np.full(2, temperature), np.full(2, gamma)
    for energy in ENERGIES:
        check_walk((5, 40, 1, 3, 1), energy, *given, seed=2, identity=True)


@pytest.mark.parametrize("energy", ENERGIES)
@pytest.mark.parametrize("inputs", [100, 101])
def test_many_covers_and_long_runs_keep_the_energy(energy, inputs):
    gauged, routes, weights, rng = instance(inputs, 150, 1, 255, 2, seed=3)
    state = make(gauged, routes, weights, 1, energy)
    start = state.energy[0]
    energies = kernels.advance(state, np.full(3, 0.3), 0.2, "glauber", "random", rng).energies
    assert reference.energy_from_scratch(state) == energies[-1] < start


def test_random_weights_are_the_documented_bits():
    rng = np.random.SeedSequence(5).generate_state(4, np.uint64)
    expected = reference.random_weights(reference.Xoshiro(rng), 3, 130)
    assert (states.random_weights(rng, 3, 130) == expected).all()


# Hidden units, destinations, coupling: routes, attraction, and attraction along routes.
BALANCED = [(1, 2, 0.0), (1, 1, 0.7), (1, 2, 0.7), (2, 2, 0.0), (2, 2, 0.4)]


def minus_log_weights(hidden, bank, gamma, temperature, gauged, routes, energy):
    """Of every state of two covers of 3 // hidden inputs: energy/T - coupling, from the sums."""
    inputs, found = 3 // hidden, {}
    for signs in itertools.product([-1, 1], repeat=2 * hidden * inputs):
        candidate = np.array(signs).reshape(2, -1)
        integer = reference.lifted_energy(gauged.astype(int), routes, candidate, hidden, energy)
        size = reference.value(integer, inputs, hidden, bank, energy)
        found[signs] = size / temperature - gamma / 2 * reference.coupling(candidate)
    return found


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("balanced", BALANCED, ids=str)
def test_occupation_follows_the_joint_boltzmann_weight(rule, balanced):
    """All 64 states of a tiny system, or 16, against the exact law, by chi-square."""
    hidden, bank, gamma = balanced
    gauged, routes, weights, rng = instance(3 // hidden, 4, hidden, 2, bank, seed=8)
    law = np.exp([-x for x in minus_log_weights(*balanced, 1.5, gauged, routes, "linear").values()])
    state = make(gauged, routes, weights, hidden, "linear")
    counts, places = np.zeros(len(law)), 2 ** np.arange(weights.size)[::-1]
    for _ in range(6000):
        # Eight sweeps between samples, which makes them nearly independent.
        kernels.advance(state, np.full(8, 1.5), gamma, rule, "random", rng)
        counts[places @ (state.weights.reshape(-1) > 0)] += 1
    assert stats.chisquare(counts, law / law.sum() * counts.sum()).pvalue > 1e-3


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("energy", ENERGIES)
@pytest.mark.parametrize("balanced", BALANCED, ids=str)
def test_acceptance_is_in_detailed_balance(rule, energy, balanced):
    """π(x) a(x→y) = π(y) a(y→x) for every state x and flip, by exact enumeration.

    The acceptance a is the reference's, whose every decision the compiled annealer repeats.
    """
    hidden, bank, _ = balanced
    gauged, routes, _, _ = instance(3 // hidden, 5, hidden, 2, bank, seed=3)
    cost = minus_log_weights(*balanced, 0.7, gauged, routes, energy)
    assert len({round(value, 9) for value in cost.values()}) > 2
    for here, place in itertools.product(cost, range(len(next(iter(cost))))):
        there = (*here[:place], -here[place], *here[place + 1 :])
        x = cost[there] - cost[here]
        forth = math.exp(-cost[here]) * reference.probability(x, rule)
        back = math.exp(-cost[there]) * reference.probability(-x, rule)
        assert forth == pytest.approx(back, rel=1e-12)


def test_zero_temperature_never_climbs_and_stops_when_solved():
    gauged, routes, weights, rng = instance(31, 5, 1, 2, 2, seed=4)
    state = make(gauged, routes, weights, 1, "linear")
    start = int(state.energy[0])
    found = kernels.advance(state, np.zeros(50), 0.0, "metropolis", "random", rng, True)
    assert (np.diff([start, *found.energies]) <= 0).all()
    assert found.energies[-1] == 0
    assert len(found.energies) == len(found.accepted) < 50


@pytest.mark.parametrize("shape", [(100, 1580, 1, 3, 10), (31, 70, 3, 2, 4)], ids=str)
def test_state_bytes_covers_what_is_allocated(shape):
    gauged, routes, weights, _ = instance(*shape, seed=0)
    state = make(gauged, routes, weights, shape[2], "linear")
    taken = sum(field.nbytes for field in state if isinstance(field, np.ndarray))
    promised = states.state_bytes(*shape)
    assert taken <= promised < 2 * taken + 65536


def test_repair_takes_every_unsatisfied_pair_alike():
    """All pairs of a chain by chi-square, and the weights of one pair as well."""
    gauged, routes, weights, rng = instance(9, 70, 3, 2, 2, seed=4)
    state = make(gauged, routes, weights, 3, "linear")
    wrong, given = searches.unsatisfied(state), (gauged.astype(int), routes, weights.astype(int), 3)
    pairs = reference.unsatisfied(*given, "linear")
    assert [searches.pick(state, wrong, r) for r in range(len(pairs))] == pairs
    assert wrong.counts.sum() == wrong.totals.sum() == len(pairs) > 50
    draws = [chain.randbelow(rng, len(pairs)) for _ in range(100 * len(pairs))]
    assert stats.chisquare(np.bincount(draws, minlength=len(pairs))).pvalue > 1e-3
    s, alpha, mu = pairs[7]
    candidates = reference.repairing(*given, s, alpha, mu)
    found = [
        searches.sample_repairing_weight(state, s, alpha, mu, rng)
        for _ in range(100 * len(candidates))
    ]
    assert all(beta == routes[s, q, alpha] for q, beta in found)
    sites = [q for q, _ in found]
    assert set(sites) == set(candidates)
    assert stats.chisquare([sites.count(q) for q in candidates]).pvalue > 1e-3


def test_a_permutation_visits_every_index_once_in_any_order_alike():
    rng = np.random.SeedSequence(1).generate_state(4, np.uint64)
    sequence, seen = np.empty(4, dtype=np.int32), dict.fromkeys(itertools.permutations(range(4)), 0)
    for _ in range(24 * 200):
        chain.shuffle(sequence, rng)
        seen[tuple(sequence.tolist())] += 1
    assert stats.chisquare(list(seen.values())).pvalue > 1e-3
