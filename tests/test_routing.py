import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernels_under_test import NAMES, TOPOLOGIES, band, law_by_enumeration, p_value
from mcover import Chain, GaussianRing, McoverError, Uniform, permutations
from mcover.checks import MEMORY_VARIABLE as VARIABLE
from mcover.errors import TooLargeError
from mcover.permutation_kernels import alias_table
from mcover.routing import draw_bank, draw_indexed_bank, draw_mixers, inverse


@pytest.mark.parametrize(("topology", "covers"), TOPOLOGIES, ids=NAMES)
def test_inverse_undoes_the_route(topology, covers):
    bank = draw_bank(topology, covers, sources=11, size=5, seed=0)
    assert inverse(bank.routes).dtype == bank.routes.dtype
    routes, back = bank.routes.astype(int), inverse(bank.routes).astype(int)
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
    assert size < sources or bank.destinations.tolist() == list(range(sources))
    for s, p in enumerate(bank.destinations):
        assert bank.routes[s, p].tolist() == list(range(covers))


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


def test_a_mixer_is_the_average_of_permutation_matrices():
    topology = GaussianRing(1.0)
    mixers = draw_mixers(topology, covers=4, units=3, blocks=2, draws=5, seed=5)
    routes = permutations.sample(topology.matrix(4), 5 * 3 * 2, seed=5).reshape(5, 3, 2, 4)
    expected = np.zeros((3, 2, 4, 4))
    for draw, unit, block, reader in np.ndindex(routes.shape):
        expected[unit, block, reader, routes[draw, unit, block, reader]] += 1 / 5
    np.testing.assert_allclose(mixers, expected, rtol=1e-6)


@pytest.mark.parametrize(("topology", "covers"), TOPOLOGIES, ids=NAMES)
def test_expected_mixer_is_the_marginals_of_the_law(topology, covers):
    mixers = draw_mixers(topology, covers, units=200, blocks=10, draws=10, seed=2)
    marginals = permutations.marginals(topology.matrix(covers))
    error = np.sqrt(np.maximum(marginals * (1 - marginals), 1e-6) / (200 * 10 * 10))
    assert np.abs((mixers.mean(axis=(0, 1)) - marginals) / error).max() < 5


def test_what_does_not_fit_is_refused_before_it_is_allocated(monkeypatch):
    monkeypatch.setenv(VARIABLE, "1000000")
    with pytest.raises(TooLargeError, match=r"bank.*976.6 KiB.*fewer destinations"):
        draw_bank(Uniform(), covers=10, sources=1000, size=1000)
    draw_indexed_bank(Uniform(), covers=5, sources=100_000, size=9)
    with pytest.raises(TooLargeError, match=r"bank.*977.7 KiB.*fewer destinations"):
        draw_indexed_bank(Uniform(), covers=5, sources=100_000, size=10)
    with pytest.raises(TooLargeError, match=r"mixers.*fewer blocks"):
        draw_mixers(Uniform(), covers=10, units=512, blocks=8, draws=10)
    with pytest.raises(TooLargeError, match=r"bank of 10 × 1000000000 routes"):
        draw_bank(Uniform(), covers=3, sources=10**9, size=10)
    with pytest.raises(TooLargeError, match=r"bank of .* routes"):
        draw_indexed_bank(Uniform(), covers=3, sources=10**18, size=10**17)
    with pytest.raises(TooLargeError, match=r"kernel of 10000 covers"):
        draw_indexed_bank(Uniform(), covers=10_000, sources=2, size=1)
    monkeypatch.setenv(VARIABLE, "lots")
    with pytest.raises(McoverError, match="'lots'; write a positive number of bytes"):
        draw_bank(Uniform(), covers=10, sources=10, size=10)


def test_narrow_integers_count_as_wide_ones_do():
    narrow, wide = np.uint8([9, 200, 100]), (9, 200, 100)
    for draw in (draw_bank, draw_indexed_bank):
        np.testing.assert_array_equal(
            draw(Uniform(), *narrow, seed=0).routes, draw(Uniform(), *wide, seed=0).routes
        )
    mixers = draw_mixers(Uniform(), *np.uint8([9, 100, 3, 5]), seed=0)
    np.testing.assert_array_equal(mixers, draw_mixers(Uniform(), 9, 100, 3, 5, seed=0))


def away_from_own_sources(bank):
    """The indices of all routes that were drawn."""
    drawn = np.ones(bank.index.shape, dtype=bool)
    drawn[np.arange(len(drawn)), bank.destinations] = False
    return bank.index[drawn]


@pytest.mark.parametrize(
    ("topology", "covers"), [*TOPOLOGIES, (band(1, 8), 8), (Chain(0.9), 7)], ids=str
)
def test_indices_follow_the_exact_law(topology, covers):
    bank = draw_indexed_bank(topology, covers, sources=50_000, size=4, seed=1)
    table, _, law = law_by_enumeration(topology.matrix(covers))
    np.testing.assert_array_equal(bank.table, table)
    counts = np.bincount(away_from_own_sources(bank), minlength=len(law))
    assert p_value(law, counts) > 1e-4


@given(st.lists(st.floats(0, 1) | st.just(0.0), min_size=1, max_size=130).filter(any))
@example([1e-320, 0.0, 2e-321])  # sums whose inverse is infinite
@example([5e-324] * 100)
@example([1e-310, 0.0] * 60)
def test_alias_tables_hold_the_law_to_the_last_of_32_bits(weights):
    weights = np.array(weights)
    size = len(weights)
    keep, either = alias_table(weights, np.uint8(0))
    slots = np.arange(size)
    np.testing.assert_array_equal(either[:, 0], slots)
    held = np.bincount(either[:, 0], keep, size) + np.bincount(either[:, 1], 1 - keep, size)
    np.testing.assert_allclose(held / size, weights / weights.sum(), atol=2.0**-32)
    assert np.all(held[weights == 0] == 0)
    assert np.all((keep >= 0) & (keep <= 1))


@pytest.mark.parametrize("covers", [1, 2, 5, 6, 8, 9, 12])
def test_indexed_banks_keep_their_own_sources_and_their_inverses(covers):
    topology = GaussianRing(1.0, shift=1)
    bank = draw_indexed_bank(topology, covers, sources=40, size=7, seed=2)
    own = bank.index[np.arange(7), bank.destinations]
    assert np.all(own == 0)
    assert bank.table[0].tolist() == list(range(covers))
    assert bank.index.dtype == (np.uint8 if covers <= 5 else np.uint16)
    assert bank.routes.shape == (7, 40, covers)
    here = np.broadcast_to(np.arange(covers), bank.table.shape)
    table, back = bank.table.astype(int), bank.inverse_table.astype(int)
    np.testing.assert_array_equal(np.take_along_axis(table, back, axis=1), here)
    np.testing.assert_array_equal(np.take_along_axis(back, table, axis=1), here)
    plain = draw_bank(topology, covers, sources=40, size=7, seed=2)
    np.testing.assert_array_equal(bank.destinations, plain.destinations)


@pytest.mark.parametrize(
    ("topology", "covers"),
    [(GaussianRing(1.5, shift=2), 6), (band(1, 7), 7), (Chain(1.2), 9), (GaussianRing(0.8), 12)],
    ids=str,
)
def test_marginals_of_indexed_banks_are_those_of_the_law(topology, covers):
    bank = draw_indexed_bank(topology, covers, sources=100_000, size=2, seed=3)
    counts = np.bincount(away_from_own_sources(bank), minlength=len(bank.table))
    seen = np.stack([counts @ (bank.table == beta) for beta in range(covers)], axis=1)
    exact = permutations.marginals(topology.matrix(covers))
    # A table that is a sample of the law adds the noise of its own rows.
    sizes = [counts.sum()] if covers <= 8 else [counts.sum(), len(bank.table)]
    error = np.sqrt(np.maximum(exact * (1 - exact), 1e-6) * sum(1 / size for size in sizes))
    assert np.abs((seen / counts.sum() - exact) / error).max() < 5


def test_few_routes_of_many_covers_are_all_drawn_by_themselves():
    bank = draw_indexed_bank(Uniform(), covers=10, sources=50, size=3, seed=0)
    assert len(bank.table) == 151
    drawn = away_from_own_sources(bank)
    assert len(set(drawn.tolist())) == len(drawn)
    large = draw_indexed_bank(Uniform(), covers=9, sources=70_000, size=1, seed=0)
    assert large.table.shape == (65_536, 9)
    assert np.count_nonzero(large.index == 0) == 1


@pytest.mark.parametrize("covers", [4, 9])
def test_indexed_banks_do_not_depend_on_threads_and_are_reproducible(covers):
    banks = [
        draw_indexed_bank(Chain(1.0), covers, 200_000, 2, seed=5, threads=t) for t in (1, 2, 5)
    ]
    for bank in banks[1:]:
        np.testing.assert_array_equal(bank.index, banks[0].index)
        np.testing.assert_array_equal(bank.table, banks[0].table)
    other = draw_indexed_bank(Chain(1.0), covers, 200_000, 2, seed=6)
    assert not np.array_equal(other.index, banks[0].index)
