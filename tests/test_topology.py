import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels_under_test import NAMES, TOPOLOGIES
from mcover import (
    Band,
    Blocks,
    Chain,
    Custom,
    GaussianRing,
    Identity,
    McoverError,
    Torus,
    Uniform,
    mix,
)
from mcover.errors import UnreachableError
from mcover.topology import from_dict


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
    import json

    again = from_dict(json.loads(json.dumps(topology.to_dict())))
    assert again == topology
    assert hash(again) == hash(topology)
    assert repr(again) == repr(topology)


def test_topologies_are_values():
    assert GaussianRing(1.5) == GaussianRing(sigma=1.5, shift=0)
    assert GaussianRing(1.5) != Chain(1.5)
    assert len({Uniform(), Uniform(), Identity()}) == 2
    with pytest.raises(AttributeError):
        GaussianRing(1.5).sigma = 2
    custom = Custom([[1, 2], [3, 4]])
    assert from_dict(custom.to_dict()) == custom
    assert hash(custom) == hash(Custom(np.array([[1.0, 2.0], [3.0, 4.0]])))


def test_wide_ring_is_uniform_and_narrow_ring_is_a_shift():
    np.testing.assert_allclose(GaussianRing(np.inf).matrix(7), Uniform().matrix(7), atol=1e-15)
    shifted = np.roll(np.eye(7), 2, axis=1)
    np.testing.assert_allclose(GaussianRing(0.05, shift=2).matrix(7), shifted, atol=1e-12)


def test_a_possible_read_is_never_rounded_to_zero():
    assert np.all(GaussianRing(0.2).matrix(40) > 0)
    assert np.count_nonzero(Identity().matrix(40)) == 40


def test_band_counts_its_neighbours():
    assert np.count_nonzero(Band(2).matrix(9)[0]) == 5
    assert np.flatnonzero(Band(2, one_sided=True).matrix(9)[4]).tolist() == [4, 5, 6]
    np.testing.assert_allclose(Band(5).matrix(4), Uniform().matrix(4))


def test_chain_ends_do_not_meet():
    chain, ring = Chain(1.0).matrix(10), GaussianRing(1.0).matrix(10)
    assert chain[0, 9] < 1e-9 < ring[0, 9]
    assert chain[0, 0] > chain[5, 5]


def test_off_the_ring_a_shift_is_only_a_scaling():
    index = np.arange(6)
    shifted = np.exp(-((index[None, :] - index[:, None] - 2.0) ** 2) / 2)
    np.testing.assert_allclose(Custom(shifted).matrix(6), Chain(1.0).matrix(6), atol=1e-10)


def test_blocks_are_a_ring_of_uniform_blocks():
    matrix = Blocks(3, sigma=0.8, shift=1).matrix(6)
    ring = GaussianRing(0.8, shift=1).matrix(3)
    np.testing.assert_allclose(matrix, np.kron(ring, np.full((2, 2), 0.5)), atol=1e-12)


def test_torus_is_a_product_of_rings():
    matrix = Torus(2, 3, sigma=0.9, row_shift=0.5, col_shift=1).matrix(6)
    product = np.kron(GaussianRing(0.9, 0.5).matrix(2), GaussianRing(0.9, 1).matrix(3))
    np.testing.assert_allclose(matrix, product, atol=1e-12)


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GaussianRing(0), "sigma must be positive"),
        (lambda: GaussianRing(float("nan")), "sigma must be positive"),
        (lambda: GaussianRing(1, shift=np.inf), "shift must be a finite"),
        (lambda: Chain(1, skew=1), "skew must lie between"),
        (lambda: Band(-1), "at least 0"),
        (lambda: Blocks(0), "at least 1"),
        (lambda: Blocks(4).matrix(6), r"write covers=8"),
        (lambda: Torus(0, 3), "empty side"),
        (lambda: Torus(2, 3).matrix(5), "write covers=6"),
        (lambda: Custom([[1, 2, 3], [1, 2, 3]]), r"square.*\(2, 3\)"),
        (lambda: Custom([[1, -2], [1, 1]]), r"entry \(0, 1\) is -2"),
        (lambda: Custom([[1, np.nan], [1, 1]]), "finite"),
        (lambda: Custom([[1, np.inf], [1, 1]]), "finite"),
        (lambda: Custom([]), "square"),
        (lambda: Custom(np.empty((0, 0))), "at least one cover"),
        (lambda: Custom([["a"]]), "array of numbers"),
        (lambda: Custom([[1, 1], [1, 1]]).matrix(3), "write covers=2"),
        (lambda: Uniform().matrix(0), "covers is 0"),
        (lambda: Uniform().matrix(2.5), "covers is 2.5"),
        (lambda: mix(), "mix takes topologies"),
        (lambda: mix(Uniform(), weights=[1, 2]), "one positive number for each"),
        (lambda: mix(Uniform(), Identity(), weights=[1, 0]), "one positive number for each"),
        (lambda: from_dict({"kind": "moebius"}), "no topology of kind 'moebius'"),
        (lambda: from_dict({"kind": "ring", "width": 1}), "has the fields"),
        (lambda: from_dict({"kind": "custom"}), "has the fields"),
    ],
)
def test_bad_topologies_are_refused_with_a_remedy(make, message):
    with pytest.raises(McoverError, match=message):
        make()


def test_a_topology_without_any_permutation_says_what_to_do():
    with pytest.raises(UnreachableError, match=r"no permutation.*Uniform"):
        Custom([[1, 1, 0], [1, 1, 0], [1, 1, 0]])
