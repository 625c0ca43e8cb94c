"""The compiled annealer walks the trajectory of the plain one, and samples what it should."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import reference_annealer as reference
from mcover.annealing import chain, kernels, states
from mcover.errors import McoverError

RULES, ORDERS = kernels.RULES, chain.ORDERS


def problem(inputs, patterns, hidden, covers, destinations, seed):
    """Random gauged patterns, routes, weights and a random state."""
    generator = np.random.default_rng(seed)
    gauged = generator.choice(np.array([-1, 1], dtype=np.int8), (patterns, inputs))
    shape = (destinations, hidden * inputs, covers)
    routes = np.argsort(generator.random(shape), axis=2).astype(np.uint8)
    rng = np.random.SeedSequence(seed).generate_state(4, np.uint64)
    weights = states.random_weights(rng, covers, hidden * inputs)
    return gauged, routes, weights, rng


def make(gauged, routes, weights, hidden, energy):
    patterns, inputs = gauged.shape
    columns = states.pack_columns(gauged)
    return states.make_state(columns, patterns, hidden, inputs, routes, weights, energy)


def check_trajectory(shape, energy, rule, order, gammas, temperatures, seed, identity=False):
    hidden = shape[2]
    gauged, routes, weights, rng = problem(*shape, seed)
    if identity:
        routes[:] = np.arange(shape[3], dtype=np.uint8)
    state = make(gauged, routes, weights, hidden, energy)
    wide, oracle = weights.astype(int), reference.Xoshiro(rng)
    expected = reference.anneal(
        gauged.astype(int), routes, wide, hidden, energy, temperatures, gammas, rule, order, oracle
    )
    accepted, energies, *_ = kernels.advance(state, temperatures, gammas, rule, order, rng)
    assert accepted.tolist() == expected[0]
    np.testing.assert_allclose(state.unit * energies, expected[1], rtol=1e-12)
    assert (state.weights == wide).all()
    assert rng.tolist() == oracle.state
    assert reference.energy_from_scratch(state) == state.energy[0] == energies[-1]
    rebuilt = make(gauged, routes, state.weights, hidden, energy)
    for name in ("planes", "masks", "vote_planes", "vote_masks"):
        assert _patterns_only(state, name) == _patterns_only(rebuilt, name), name


def _patterns_only(state, name):
    """The words of a field without the bits beyond the last pattern (free to hold anything)."""
    blocks = state.valid.reshape(-1, 1, kernels.WORDS)
    words = getattr(state, name)
    contexts = state.weights.shape[0] * state.destinations
    return (words.reshape(contexts, len(blocks), -1, kernels.WORDS) & blocks).tolist()


# (N, P, K, M, S): N odd and even, P around multiples of 64 and past one block of 512.
SHAPES = [
    (1, 1, 1, 1, 1), (2, 5, 1, 3, 2), (7, 63, 1, 2, 7), (10, 64, 1, 9, 3), (33, 65, 1, 1, 1),
    (33, 130, 1, 3, 2), (10, 600, 1, 4, 2), (7, 600, 1, 2, 1), (1, 5, 3, 2, 1), (2, 65, 2, 3, 2),
    (7, 63, 3, 2, 3), (10, 130, 5, 1, 1), (5, 600, 2, 2, 2), (3, 64, 5, 3, 3), (4, 20, 4, 2, 2),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("energy", ["linear", "errors"])
@pytest.mark.parametrize(("rule", "order"), [("glauber", "random"), ("metropolis", "sequential")])
def test_kernel_walks_the_reference_trajectory(shape, energy, rule, order):
    # From nearly free to nearly frozen; a repeated temperature reuses the tables.
    temperatures = np.array([3.0, 0.5, 0.5, 0.1])[: 4 if shape[1] < 500 else 2]
    gammas = 0.0 * temperatures
    check_trajectory(shape, energy, rule, order, gammas, temperatures, seed=sum(shape))


@pytest.mark.parametrize("shape", [(7, 65, 1, 3, 1), (10, 130, 1, 4, 1), (4, 63, 3, 2, 1)], ids=str)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("order", ORDERS)
def test_replicated_annealing_walks_the_reference_trajectory(shape, rule, order):
    temperatures, gammas = np.array([2.0, 0.5, 0.5]), np.array([0.0, 1.0, 2.5])
    check_trajectory(shape, "linear", rule, order, gammas, temperatures, seed=1, identity=True)


COUPLED = [(7, 65, 1, 3, 2), (10, 130, 1, 4, 3), (9, 40, 1, 9, 2), (4, 63, 3, 2, 2)]


@pytest.mark.parametrize("shape", COUPLED, ids=str)
@pytest.mark.parametrize("energy", ["linear", "errors"])
@pytest.mark.parametrize(("rule", "order"), [("glauber", "random"), ("metropolis", "permutation")])
def test_covers_that_attract_walk_the_reference_trajectory(shape, energy, rule, order):
    temperatures, gammas = np.array([2.0, 0.5, 0.5]), np.array([0.0, 0.3, 2.5])
    check_trajectory(shape, energy, rule, order, gammas, temperatures, seed=5)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_kernel_walks_the_reference_trajectory_anywhere(data):
    hidden = data.draw(st.integers(1, 5))
    inputs = data.draw(st.integers(1, 12 // hidden))
    covers, patterns = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 70))
    shape = (inputs, patterns, hidden, covers, data.draw(st.integers(1, min(inputs, 3))))
    energy = data.draw(st.sampled_from(["linear", "errors"]))
    rule = data.draw(st.sampled_from(RULES))
    temperatures = np.array(data.draw(st.lists(st.floats(1e-3, 50), min_size=1, max_size=2)))
    gammas = np.full(temperatures.size, data.draw(st.floats(-2, 2)))
    order, seed = data.draw(st.sampled_from(ORDERS)), data.draw(st.integers(0, 2**32 - 1))
    check_trajectory(shape, energy, rule, order, gammas, temperatures, seed)


@pytest.mark.parametrize("energy", ["linear", "errors"])
@pytest.mark.parametrize("inputs", [100, 101])
def test_many_covers_and_long_runs_keep_the_energy(energy, inputs):
    gauged, routes, weights, rng = problem(inputs, 150, 1, 255, 2, seed=3)
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


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("hidden", "bank", "gamma"), BALANCED)
def test_occupation_follows_the_joint_boltzmann_weight(rule, hidden, bank, gamma):
    """All 64 states of a tiny system, or 16, against the exact law, by chi-square."""
    inputs, covers, destinations, temperature = 3 // hidden, 2, bank, 1.5
    gauged, routes, weights, rng = problem(inputs, 4, hidden, covers, destinations, seed=8)
    sites = hidden * inputs
    law = []
    for bits in itertools.product([-1, 1], repeat=covers * sites):
        candidate = np.array(bits).reshape(covers, sites)
        integer = reference.lifted_energy(gauged.astype(int), routes, candidate, hidden, "linear")
        size = reference.value(integer, inputs, hidden, destinations, "linear")
        law.append(math.exp(-size / temperature + gamma / covers * reference.coupling(candidate)))
    expected = np.array(law) / sum(law)
    state = make(gauged, routes, weights, hidden, "linear")
    counts, places = np.zeros(len(law)), 2 ** np.arange(covers * sites)[::-1]
    for _ in range(6000):
        # Eight sweeps between samples, which makes them nearly independent.
        kernels.advance(state, np.full(8, temperature), gamma, rule, "random", rng)
        counts[places @ (state.weights.reshape(-1) > 0)] += 1
    assert stats.chisquare(counts, expected * counts.sum()).pvalue > 1e-3


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("energy", ["linear", "errors"])
@pytest.mark.parametrize(("hidden", "bank", "gamma"), BALANCED)
def test_acceptance_is_in_detailed_balance(rule, energy, hidden, bank, gamma):
    """π(x) a(x→y) = π(y) a(y→x) for every state x and flip, by exact enumeration.

    The acceptance a is the reference's, whose every decision the compiled annealer repeats.
    """
    inputs, covers, destinations, temperature = 3 // hidden, 2, bank, 0.7
    gauged, routes, _, _ = problem(inputs, 5, hidden, covers, destinations, seed=3)

    def minus_log_weight(state):
        candidate = np.array(state).reshape(covers, -1)
        integer = reference.lifted_energy(gauged.astype(int), routes, candidate, hidden, energy)
        size = reference.value(integer, inputs, hidden, destinations, energy)
        return size / temperature - gamma / covers * reference.coupling(candidate)

    states = list(itertools.product([-1, 1], repeat=covers * hidden * inputs))
    cost = {state: minus_log_weight(state) for state in states}
    assert len({round(value, 9) for value in cost.values()}) > 2
    for here, place in itertools.product(states, range(len(states[0]))):
        there = (*here[:place], -here[place], *here[place + 1 :])
        x = cost[there] - cost[here]
        forth = math.exp(-cost[here]) * reference.probability(x, rule)
        back = math.exp(-cost[there]) * reference.probability(-x, rule)
        assert forth == pytest.approx(back, rel=1e-12)


def test_one_cover_is_plain_annealing_whatever_the_bank():
    gauged, routes, weights, rng = problem(21, 60, 1, 1, 5, seed=9)
    again, temperatures = rng.copy(), np.linspace(1.0, 0.1, 8)
    banked = make(gauged, routes, weights, 1, "linear")
    plain = make(gauged, routes[:1], weights, 1, "linear")
    first = kernels.advance(banked, temperatures, 0.0, "glauber", "random", rng)
    second = kernels.advance(plain, temperatures, 0.0, "glauber", "random", again)
    assert (banked.weights == plain.weights).all()
    assert first[0].tolist() == second[0].tolist()
    np.testing.assert_allclose(banked.unit * first[1], plain.unit * second[1])


@pytest.mark.parametrize("energy", ["linear", "errors"])
def test_one_destination_is_independent_networks_in_disguise(energy):
    gauged, routes, weights, _ = problem(9, 70, 1, 3, 1, seed=2)
    identity = np.broadcast_to(np.arange(3, dtype=np.uint8), routes.shape)
    relabelled = np.take_along_axis(weights, routes[0].T.astype(int), axis=0)
    routed, plain = (
        make(gauged, r, w, 1, energy) for r, w in ((routes, weights), (identity, relabelled))
    )
    alone = [make(gauged, identity[:, :, :1] * 0, w[None], 1, energy) for w in relabelled]
    assert routed.energy[0] == plain.energy[0] == sum(int(one.energy[0]) for one in alone)


def test_zero_temperature_never_climbs_and_stops_when_solved():
    gauged, routes, _, rng = problem(31, 5, 1, 2, 2, seed=4)
    weights = states.random_weights(rng, 2, 31)
    state = make(gauged, routes, weights, 1, "linear")
    start = int(state.energy[0])
    accepted, energies, *_ = kernels.advance(
        state, np.zeros(50), np.zeros(50), "metropolis", "random", rng, stop_at_zero=True
    )
    assert (np.diff([start, *energies]) <= 0).all()
    assert energies[-1] == 0
    assert len(energies) == len(accepted) < 50


def test_a_coupling_beyond_the_tables_is_refused():
    gauged, routes, weights, rng = problem(3, 4, 1, 2, 1, seed=0)
    state = make(gauged, routes, weights, 1, "linear")
    with pytest.raises(McoverError, match="within ±300"):
        kernels.advance(state, [1.0], 301.0, "glauber", "random", rng)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("energy", ["linear", "errors"])
@pytest.mark.parametrize("gamma", [30.0, 100.0, 160.0, 300.0, -300.0])
@pytest.mark.parametrize("temperature", [0.4, 0.02, 0.001, 1e-6])
def test_strong_couplings_walk_the_reference_trajectory(rule, energy, gamma, temperature):
    """Energies and couplings that cancel, each far beyond the range of exp."""
    shape, temperatures, gammas = (5, 40, 1, 3, 1), np.full(2, temperature), np.full(2, gamma)
    check_trajectory(shape, energy, rule, "random", gammas, temperatures, seed=2, identity=True)


def test_cutting_a_run_into_calls_changes_nothing():
    gauged, routes, weights, rng = problem(20, 90, 1, 3, 4, seed=6)
    temperatures, gammas = np.linspace(1.0, 0.1, 6), np.zeros(6)
    whole, parts = (make(gauged, routes, weights, 1, "linear") for _ in range(2))
    again = rng.copy()
    expected = kernels.advance(whole, temperatures, gammas, "glauber", "random", rng).energies
    pieces = []
    for part in np.split(temperatures, 3):
        pieces += kernels.advance(parts, part, 0.0, "glauber", "random", again).energies.tolist()
    assert pieces == expected.tolist()
    assert (whole.weights == parts.weights).all()


@pytest.mark.parametrize("shape", [(100, 1580, 1, 3, 10), (31, 70, 3, 2, 4)], ids=str)
def test_state_bytes_covers_what_is_allocated(shape):
    gauged, routes, weights, _ = problem(*shape, seed=0)
    state = make(gauged, routes, weights, shape[2], "linear")
    taken = sum(field.nbytes for field in state if isinstance(field, np.ndarray))
    promised = states.state_bytes(*shape)
    assert taken <= promised < 2 * taken + 65536
