"""Repair and descent walk the trajectories of the plain ones, and do what their names say."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference_annealer as reference
from mcover.annealing import searches
from test_kernels import SHAPES, make, problem


def check_repair(shape, energy, gammas, temperatures, seed, identity=False):
    hidden = shape[2]
    gauged, routes, weights, rng = problem(*shape, seed)
    if identity:
        routes[:] = np.arange(shape[3], dtype=np.uint8)
    state = make(gauged, routes, weights, hidden, energy)
    wide, oracle = weights.astype(int), reference.Xoshiro(rng)
    for temperature, gamma in zip(temperatures, gammas, strict=True):
        done = searches.run(state, [temperature], gamma, rng, "repair")
        expected = reference.repair(
            gauged.astype(int), routes, wide, hidden, energy, [temperature], [gamma], oracle
        )
        assert done.accepted.tolist() == expected[0]
        np.testing.assert_allclose(state.unit * done.energies, expected[1], rtol=1e-12)
        assert done.proposals.tolist() == expected[2]
        assert (state.weights == wide).all()
        assert rng.tolist() == oracle.state
        assert reference.energy_from_scratch(state) == state.energy[0] == done.energies[-1]
        assert done.over == (expected[1][-1] == 0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("energy", ["linear", "errors"])
def test_repair_walks_the_reference_trajectory(shape, energy):
    temperatures = np.array([1.0, 0.3, 0.3, 0.05])[: 4 if shape[1] < 100 else 2]
    check_repair(shape, energy, 0.0 * temperatures, temperatures, seed=sum(shape))


@pytest.mark.parametrize("shape", [(7, 65, 1, 3, 1), (10, 130, 1, 4, 1), (4, 63, 3, 2, 1)], ids=str)
@pytest.mark.parametrize("energy", ["linear", "errors"])
def test_replicated_repair_walks_the_reference_trajectory(shape, energy):
    temperatures, gammas = np.array([2.0, 0.5, 0.5]), np.array([0.0, 1.0, 2.5])
    check_repair(shape, energy, gammas, temperatures, seed=1, identity=True)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_repair_walks_the_reference_trajectory_anywhere(data):
    hidden = data.draw(st.integers(1, 4))
    inputs = data.draw(st.integers(1, 12 // hidden))
    covers, patterns = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 40))
    shape = (inputs, patterns, hidden, covers, data.draw(st.integers(1, min(inputs, 3))))
    energy = data.draw(st.sampled_from(["linear", "errors"]))
    temperatures = np.array(data.draw(st.lists(st.floats(1e-3, 50), min_size=1, max_size=2)))
    gammas = np.full(temperatures.size, data.draw(st.floats(-2, 2)))
    check_repair(shape, energy, gammas, temperatures, data.draw(st.integers(0, 2**32 - 1)))
