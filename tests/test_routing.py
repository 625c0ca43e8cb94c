import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels_under_test import NAMES, TOPOLOGIES
from mcover import GaussianRing, Identity, McoverError, Uniform, permutations
from mcover.errors import TooLargeError
from mcover.limits import VARIABLE
from mcover.routing import draw_bank, draw_mixers, exact_mixers, inverse


@pytest.mark.parametrize(("topology", "covers"), TOPOLOGIES, ids=NAMES)
def test_inverse_undoes_the_route(topology, covers):
    bank = draw_bank(topology, covers, sources=11, size=5, seed=0)
    routes, back = bank.routes.astype(int), bank.inverse.astype(int)
    here = np.broadcast_to(np.arange(covers), routes.shape)
    np.testing.assert_array_equal(np.take_along_axis(back, routes, axis=2), here)
    np.testing.assert_array_equal(np.take_along_axis(routes, back, axis=2), here)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 1000), st.data())
def test_a_bank_is_made_of_permutations_and_keeps_its_own_source(covers, sources, seed, data):
    size = data.draw(st.integers(1, sources))
    bank = draw_bank(GaussianRing(1.0, shift=1), covers, sources, size, seed)
    assert bank.routes.shape == (size, sources, covers)
    assert bank.routes.dtype == np.uint8
    assert np.all(np.sort(bank.routes, axis=2) == np.arange(covers))
    assert len(set(bank.destinations.tolist())) == size
    for s, p in enumerate(bank.destinations):
        assert bank.routes[s, p].tolist() == list(range(covers))


def test_a_full_bank_has_all_destinations_in_order():
    bank = draw_bank(Uniform(), covers=3, sources=6, size=6, seed=0)
    assert bank.destinations.tolist() == list(range(6))


def test_banks_are_reproducible_and_redraws_keep_the_destinations():
    bank = draw_bank(Uniform(), 4, sources=30, size=5, seed=3)
    again = draw_bank(Uniform(), 4, sources=30, size=5, seed=3)
    np.testing.assert_array_equal(bank.routes, again.routes)
    fresh = bank.redraw(seed=9)
    np.testing.assert_array_equal(bank.destinations, fresh.destinations)
    assert not np.array_equal(bank.routes, fresh.routes)
    with pytest.raises(ValueError, match="read-only"):
        bank.routes[0, 0, 0] = 1


@pytest.mark.parametrize(("topology", "covers"), TOPOLOGIES, ids=NAMES)
def test_mixers_are_doubly_stochastic(topology, covers):
    mixers = draw_mixers(topology, covers, units=7, blocks=3, draws=10, seed=0)
    assert mixers.shape == (7, 3, covers, covers)
    assert mixers.dtype == np.float32
    np.testing.assert_allclose(mixers.sum(axis=2), 1, atol=1e-6)
    np.testing.assert_allclose(mixers.sum(axis=3), 1, atol=1e-6)
    bank_mixers = draw_bank(topology, covers, 8, 4, seed=1).mixers()
    np.testing.assert_allclose(bank_mixers.sum(axis=1), 1)
    np.testing.assert_allclose(bank_mixers.sum(axis=2), 1)


def test_a_mixer_is_the_average_of_permutation_matrices():
    bank = draw_bank(GaussianRing(1.0), covers=4, sources=3, size=3, seed=5)
    expected = np.zeros((3, 4, 4))
    for s in range(3):
        for j in range(3):
            for reader in range(4):
                expected[j, reader, bank.routes[s, j, reader]] += 1 / 3
    np.testing.assert_allclose(bank.mixers(), expected)


def test_identity_topology_gives_identity_mixers():
    mixers = draw_mixers(Identity(), 5, units=3, blocks=2, draws=4, seed=0)
    np.testing.assert_array_equal(mixers, np.broadcast_to(np.eye(5), mixers.shape))
    exact = exact_mixers(Identity(), 5, units=3, blocks=2)
    np.testing.assert_array_equal(exact, mixers)


@pytest.mark.parametrize(("topology", "covers"), TOPOLOGIES, ids=NAMES)
def test_expected_mixer_is_the_marginals_of_the_law(topology, covers):
    mixers = draw_mixers(topology, covers, units=200, blocks=10, draws=10, seed=2)
    marginals = permutations.marginals(topology.matrix(covers))
    error = np.sqrt(np.maximum(marginals * (1 - marginals), 1e-6) / (200 * 10 * 10))
    assert np.abs((mixers.mean(axis=(0, 1)) - marginals) / error).max() < 5


def test_exact_mixers_are_the_kernel_and_take_no_memory():
    mixers = exact_mixers(GaussianRing(1.0), 4, units=10**6, blocks=10**3)
    np.testing.assert_allclose(mixers[5, 7], GaussianRing(1.0).matrix(4), rtol=1e-6)
    assert mixers.base.nbytes == 4 * 4 * 4


def test_inverse_keeps_the_dtype():
    assert inverse(np.array([[2, 0, 1]], dtype=np.uint8)).dtype == np.uint8


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draw_bank(Uniform(), 0, 5, 1), "covers is 0"),
        (lambda: draw_bank(Uniform(), 2, 0, 1), "sources is 0"),
        (lambda: draw_bank(Uniform(), 2, 5, 0), "size is 0"),
        (lambda: draw_bank(Uniform(), 2, 5, 6), "write at most 5"),
        (lambda: draw_mixers(Uniform(), 2, 0, 1, 1), "units is 0"),
        (lambda: draw_mixers(Uniform(), 2, 1, 1, 0), "draws is 0"),
    ],
)
def test_bad_requests_are_refused(call, message):
    with pytest.raises(McoverError, match=message):
        call()


def test_what_does_not_fit_is_refused_before_it_is_allocated(monkeypatch):
    monkeypatch.setenv(VARIABLE, "1000000")
    with pytest.raises(TooLargeError, match=r"bank.*976.6 KiB.*fewer destinations"):
        draw_bank(Uniform(), covers=10, sources=1000, size=1000)
    with pytest.raises(TooLargeError, match=r"mixers.*fewer blocks"):
        draw_mixers(Uniform(), covers=10, units=512, blocks=8, draws=10)
    monkeypatch.setenv(VARIABLE, "lots")
    with pytest.raises(McoverError, match="'lots'; write a positive number of bytes"):
        draw_bank(Uniform(), covers=10, sources=10, size=10)
