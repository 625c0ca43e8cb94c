"""Chains of every annealer and of their oracle: same initial state, same steps, compared."""

import numpy as np

import reference_annealer as reference
from mcover.annealing import kernels, searches, states

# (N, P, K, M, S): N odd and even, P around multiples of 64 and past one block of 512.
SHAPES = [
    (1, 1, 1, 1, 1), (2, 5, 1, 3, 2), (7, 63, 1, 2, 7), (10, 64, 1, 9, 3), (33, 65, 1, 1, 1),
    (33, 130, 1, 3, 2), (10, 600, 1, 4, 2), (7, 600, 1, 2, 1), (1, 5, 3, 2, 1), (2, 65, 2, 3, 2),
    (7, 63, 3, 2, 3), (10, 130, 5, 1, 1), (5, 600, 2, 2, 2), (3, 64, 5, 3, 3), (4, 20, 4, 2, 2),
]  # fmt: skip
ENERGIES = ("linear", "errors")
# Rule, order and improvement: every compiled loop.
WALKS = [
    ("glauber", "random", "first"), ("metropolis", "sequential", "first"),
    ("metropolis", "permutation", "first"), ("repair", "random", "first"),
    ("descent", "random", "first"), ("descent", "sequential", "first"),
    ("descent", "permutation", "first"), ("descent", "random", "best"),
]  # fmt: skip


def instance(inputs, patterns, hidden, covers, destinations, seed, identity=False):
    """Random gauged patterns, routes and weights, and the state of the generator after them."""
    generator = np.random.default_rng(seed)
    gauged = generator.choice(np.array([-1, 1], dtype=np.int8), (patterns, inputs))
    shape = (destinations, hidden * inputs, covers)
    routes = np.argsort(generator.random(shape), axis=2).astype(np.uint8)
    if identity:
        routes[:] = np.arange(covers, dtype=np.uint8)
    rng = np.random.SeedSequence(seed).generate_state(4, np.uint64)
    weights = states.random_weights(rng, covers, hidden * inputs)
    return gauged, routes, weights, rng


def make(gauged, routes, weights, hidden, energy):
    patterns, inputs = gauged.shape
    columns = states.pack_columns(gauged)
    return states.make_state(columns, patterns, hidden, inputs, routes, weights, energy)


def check_walk(shape, energy, walk, temperatures, gammas, seed, identity=False):
    """Compares every number of a compiled chain with the reference. Returns whether it ended."""
    rule, order, improvement = walk
    hidden = shape[2]
    gauged, routes, weights, rng = instance(*shape, seed, identity)
    state = make(gauged, routes, weights, hidden, energy)
    wide, oracle = weights.astype(int), reference.Xoshiro(rng)
    given = gauged.astype(int), routes.astype(int), wide, hidden, energy
    expected = reference.walk(rule, *given, temperatures, gammas, order, improvement, oracle)
    found = searches.run(state, temperatures, gammas, rng, rule, order, improvement)
    assert found.accepted.tolist() == expected.accepted
    np.testing.assert_allclose(state.unit * found.energies, expected.energies, rtol=1e-12)
    assert found.proposals.tolist() == expected.proposals
    assert found.ended == expected.ended
    assert (state.weights == wide).all()
    assert rng.tolist() == oracle.state
    assert reference.energy_from_scratch(state) == state.energy[0] == found.energies[-1]
    rebuilt = make(gauged, routes, state.weights, hidden, energy)
    for name in ("planes", "masks", "vote_planes", "vote_masks"):
        assert _patterns_only(state, name) == _patterns_only(rebuilt, name), name
    return found.ended


def _patterns_only(state, name):
    """The words of a field without the bits beyond the last pattern (free to hold anything)."""
    blocks = state.valid.reshape(-1, 1, kernels.WORDS)
    words = getattr(state, name)
    contexts = state.weights.shape[0] * state.destinations
    return (words.reshape(contexts, len(blocks), -1, kernels.WORDS) & blocks).tolist()
