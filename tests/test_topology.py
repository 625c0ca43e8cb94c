import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels_under_test import NAMES, TOPOLOGIES
from mcover import (
    Chain,
    Custom,
    GaussianRing,
    Identity,
    McoverError,
    Uniform,
    mix,
)
from mcover.balancing import balance, log_weights
from mcover.plain import from_plain, to_plain
from mcover.topology import Topology


def ring_by_the_paper(sigma, shift, covers):
    """Q[α,β] ∝ exp(−d²/2σ²), the ring distance to the shifted cover found by trying all turns."""
    matrix = np.empty((covers, covers))
    for a in range(covers):
        for b in range(covers):
            distance = min(abs(b - a - shift + turn * covers) for turn in range(-9, 10))
            matrix[a, b] = np.exp(-(distance**2) / (2 * sigma**2))
    return matrix / matrix.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("covers", [1, 2, 3, 6, 7, 12])
@pytest.mark.parametrize("sigma", [0.5, 1.5, 3.0])
@pytest.mark.parametrize("shift", [0, 2, -1, 0.5, 2.25, 7])
def test_ring_is_the_papers_kernel(covers, sigma, shift):
    ours = GaussianRing(sigma, shift).matrix(covers)
    np.testing.assert_allclose(ours, ring_by_the_paper(sigma, shift, covers), atol=1e-12)


@pytest.mark.parametrize(("topology", "covers"), TOPOLOGIES, ids=NAMES)
def test_matrix_is_doubly_stochastic(topology, covers):
    matrix = topology.matrix(covers)
    assert matrix.shape == (covers, covers)
    assert np.all(matrix >= 0)
    np.testing.assert_allclose(matrix.sum(axis=0), 1, atol=1e-12)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-12)


@pytest.mark.parametrize(("topology", "covers"), TOPOLOGIES, ids=NAMES)
def test_round_trip_through_a_plain_dict(topology, covers):
    again = from_plain(Topology, json.loads(json.dumps(to_plain(topology))))
    assert again == topology
    assert hash(again) == hash(topology)
    assert repr(again) == repr(topology)


def test_topologies_are_values():
    assert GaussianRing(1.5) == GaussianRing(sigma=1.5, shift=0)
    assert GaussianRing(1.5) != Chain(1.5)
    assert len({Uniform(), Uniform(), Identity()}) == 2
    with pytest.raises(AttributeError):
        GaussianRing(1.5).sigma = 2
    assert hash(Custom([[1, 2], [3, 4]])) == hash(Custom(np.array([[1.0, 2.0], [3.0, 4.0]])))


def test_wide_ring_is_uniform_and_narrow_ring_is_a_shift():
    np.testing.assert_allclose(GaussianRing(np.inf).matrix(7), Uniform().matrix(7), atol=1e-15)
    shifted = np.roll(np.eye(7), 2, axis=1)
    np.testing.assert_allclose(GaussianRing(0.05, shift=2).matrix(7), shifted, atol=1e-12)


def test_a_possible_read_is_never_rounded_to_zero():
    assert np.all(GaussianRing(0.2).matrix(40) > 0)
    assert np.count_nonzero(Identity().matrix(40)) == 40


def test_chain_ends_do_not_meet():
    chain, ring = Chain(1.0).matrix(10), GaussianRing(1.0).matrix(10)
    assert chain[0, 9] < 1e-9 < ring[0, 9]
    assert chain[0, 0] > chain[5, 5]


def test_off_the_ring_a_shift_is_only_a_scaling():
    index = np.arange(6)
    shifted = np.exp(-((index[None, :] - index[:, None] - 2.0) ** 2) / 2)
    np.testing.assert_allclose(Custom(shifted).matrix(6), Chain(1.0).matrix(6), atol=1e-10)


def test_mixture_is_convex():
    blend = mix(GaussianRing(0.5), Uniform(), weights=[3, 1]).matrix(5)
    expected = 0.75 * GaussianRing(0.5).matrix(5) + 0.25 * Uniform().matrix(5)
    np.testing.assert_allclose(blend, expected, atol=1e-12)


def test_entries_on_no_permutation_are_dropped():
    np.testing.assert_array_equal(Custom([[1, 5], [0, 1]]).matrix(2), np.eye(2))


@given(st.integers(1, 7), st.integers(0, 10**6))
def test_balancing_any_positive_matrix(covers, seed):
    kernel = np.exp(np.random.default_rng(seed).normal(scale=3, size=(covers, covers)))
    matrix = Custom(kernel).matrix(covers)
    np.testing.assert_allclose(matrix.sum(axis=0), 1, atol=1e-10)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-10)
    # Only rows and columns were scaled: every 2×2 cross ratio is as it was.
    cross = kernel[0, 0] * kernel[-1, -1] / (kernel[0, -1] * kernel[-1, 0])
    ours = matrix[0, 0] * matrix[-1, -1] / (matrix[0, -1] * matrix[-1, 0])
    np.testing.assert_allclose(ours, cross, rtol=1e-8)


def plain_sinkhorn(log_kernel):
    """Columns, then rows, on logarithms, until rows are off by less than 1e-13."""
    log_q = log_kernel.copy()
    for _ in range(100_000):
        for axis in (0, 1):
            top = log_q.max(axis=axis, keepdims=True)
            sums = top + np.log(np.exp(log_q - top).sum(axis=axis, keepdims=True))
            log_q -= sums
        if np.max(np.abs(sums)) < 1e-13:
            return np.exp(log_q)
    raise AssertionError("did not converge")


@pytest.mark.parametrize(("topology", "covers"), TOPOLOGIES, ids=NAMES)
def test_where_sinkhorn_converges_its_bits_are_kept(topology, covers):
    np.testing.assert_array_equal(
        topology.matrix(covers), plain_sinkhorn(topology._log_kernel(covers))
    )


SLOW = {
    "2, 1e-9": [[1, 1], [1e-9, 1]],
    "2, 1e-300": [[1, 1], [1e-300, 1]],
    "triangle": np.triu(np.ones((9, 9))) + 1e-30,
    "disorder": np.exp(np.random.default_rng(0).normal(scale=20, size=(20, 20))),
    "two components": np.kron(np.eye(3), [[1, 1], [1e-12, 1]]),
    "chain": np.exp(Chain(0.3)._log_kernel(12)),
}


@pytest.mark.parametrize("kernel", SLOW.values(), ids=SLOW)
def test_newton_balances_what_sinkhorn_is_slow_on(kernel, monkeypatch):
    monkeypatch.setattr("mcover.balancing._SINKHORN", 200)
    log_kernel = log_weights(kernel)
    matrix = balance(log_kernel, "it")
    np.testing.assert_allclose(matrix.sum(axis=0), 1, atol=1e-12)
    np.testing.assert_allclose(matrix.sum(axis=1), 1, atol=1e-12)
    # The law is unchanged: what was added to the logarithms is a sum of a row's and a column's.
    seen = matrix > 1e-300
    change = np.log(matrix, where=seen, out=np.zeros_like(matrix)) - np.where(seen, log_kernel, 0)
    for block in np.split(np.arange(len(matrix)), 3 if len(matrix) == 6 else 1):
        inside, known = change[np.ix_(block, block)], seen[np.ix_(block, block)]
        rows, columns = np.nonzero(known)
        design = np.zeros((len(rows), 2 * len(block)))
        design[np.arange(len(rows)), rows] = design[np.arange(len(rows)), len(block) + columns] = 1
        solution = np.linalg.lstsq(design, inside[known], rcond=None)[0]
        np.testing.assert_allclose(design @ solution, inside[known], atol=1e-8)


@pytest.mark.parametrize("sinkhorn", [0, 1, 7])
def test_newton_and_sinkhorn_meet(sinkhorn, monkeypatch):
    kernels = [topology._log_kernel(covers) for topology, covers in TOPOLOGIES]
    expected = [balance(kernel, "it") for kernel in kernels]
    monkeypatch.setattr("mcover.balancing._SINKHORN", sinkhorn)
    for kernel, matrix in zip(kernels, expected, strict=True):
        np.testing.assert_allclose(balance(kernel, "it"), matrix, atol=1e-11)


def test_what_cannot_be_balanced_says_what_to_do(monkeypatch):
    monkeypatch.setattr("mcover.balancing._SINKHORN", 10)
    monkeypatch.setattr("mcover.balancing._NEWTON", 1)
    with pytest.raises(McoverError, match=r"could not be balanced.*widen it"):
        Custom([[1, 1], [1e-9, 1]])


def test_facts_of_known_topologies():
    identity, uniform = Identity().facts(6), Uniform().facts(6)
    assert (identity.spectral_gap, identity.drift, identity.effective_width) == (0, 0, 1)
    assert uniform.spectral_gap == pytest.approx(1)
    assert uniform.drift == 0
    assert uniform.effective_width == pytest.approx(6)
    assert GaussianRing(1.0, shift=-1.5).facts(9).drift == pytest.approx(-1.5)
    # A circulant's spectrum is the Fourier transform of its row.
    row = GaussianRing(1.0).matrix(8)[0]
    assert GaussianRing(1.0).facts(8).spectral_gap == pytest.approx(1 - abs(np.fft.fft(row)[1]))
    assert Uniform().facts(1).effective_width == pytest.approx(1)


def test_narrow_numbers_are_as_good_as_wide_ones():
    for narrow in (np.uint8(3), np.int64(3), np.float32(3)):
        same, plain = GaussianRing(narrow, narrow), GaussianRing(3, 3)
        assert (same, hash(same), repr(same)) == (plain, hash(plain), repr(plain))
        assert type(same.sigma) is type(same.shift) is float
        assert hash(Chain(narrow)) == hash(Chain(3))
    for topology, covers in TOPOLOGIES:
        expected = topology.matrix(covers)
        np.testing.assert_array_equal(topology.matrix(np.uint8(covers)), expected)


def test_the_narrowest_kernels_have_no_nan():
    for topology in (GaussianRing(1e-100, 0.3), GaussianRing(1e-100, 2**32), Chain(1e-100)):
        np.testing.assert_allclose(topology.matrix(6).sum(axis=1), 1)


def test_large_shifts_that_are_kept_are_right():
    for shift in (2**32, -(2**32) + 0.5, 10**9 + 0.25):
        small = GaussianRing(1.0, shift % 10).matrix(10)
        np.testing.assert_allclose(GaussianRing(1.0, shift).matrix(10), small, atol=1e-6)
