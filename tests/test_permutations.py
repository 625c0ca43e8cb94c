import itertools
import math

import numba
import numpy as np
import pytest

from kernels_under_test import (
    NAMES,
    TOPOLOGIES,
    band,
    largest_deviation,
    law_by_enumeration,
    p_value,
    random_kernel,
    torus,
)
from mcover import (
    Chain,
    Custom,
    GaussianRing,
    Identity,
    McoverError,
    Uniform,
    mix,
    permutations,
)
from mcover.errors import McoverWarning
from mcover.permutation_kernels import loop_routes
from mcover.permutations import EXACT_COVERS, LoopChain, Sampler

RANDOM = [
    (random_kernel(covers, seed), f"random-{covers}") for seed, covers in enumerate([2, 4, 6])
]
KERNELS = [topology.matrix(covers) for topology, covers in TOPOLOGIES] + [k for k, _ in RANDOM]
KERNEL_NAMES = NAMES + [name for _, name in RANDOM]


def numbers(routes):
    """The place of each route in the lexicographic order of all."""
    order = itertools.permutations(range(routes.shape[1]))
    index = {route: i for i, route in enumerate(order)}
    return np.array([index[tuple(route)] for route in routes.tolist()])


@pytest.mark.parametrize("method", ["exact", "chain"])
@pytest.mark.parametrize("kernel", KERNELS, ids=KERNEL_NAMES)
def test_draws_follow_the_law(kernel, method):
    drawn = numbers(permutations.sample(kernel, size=30_000, seed=1, method=method))
    law = law_by_enumeration(kernel)[2]
    assert p_value(law, np.bincount(drawn, minlength=len(law))) > 1e-4


def test_chain_draws_are_independent():
    """The thinning rule: successive draws are independent."""
    kernel = GaussianRing(0.8, shift=0.5).matrix(4)
    drawn, law = (
        numbers(permutations.sample(kernel, 40_000, 3, "chain")),
        law_by_enumeration(kernel)[2],
    )
    pairs = np.bincount(drawn[:-1:2] * len(law) + drawn[1::2], minlength=len(law) ** 2)
    assert p_value(np.outer(law, law).ravel(), pairs) > 1e-4


MANY_COVERS = [
    (GaussianRing(0.6, shift=0.5), 16),  # two winding sectors, joined only by a whole turn
    *[(GaussianRing(sigma, shift=0.5), 21) for sigma in (0.1, 0.3, 1.0, 3.0)],
    (GaussianRing(1.5, shift=2), 22),
    (GaussianRing(0.45, shift=10.5), 21),
    (band(2, 22), 22),
    (band(3, 22, one_sided=True), 22),
    (Chain(0.3), 21),
    (torus(3, 7, sigma=0.3, col_shift=0.5), 21),
    (torus(7, 3, sigma=0.2, row_shift=0.5, col_shift=0.5), 21),
    (mix(Identity(), GaussianRing(0.3, shift=5)), 21),
    (mix(GaussianRing(0.3, shift=0.5), Uniform(), weights=[999, 1]), 22),
    (Custom(random_kernel(21, seed=1) ** 4), 21),
    (Custom(np.kron(np.eye(7), random_kernel(3, seed=2))), 21),
    (Custom(np.kron(random_kernel(3, seed=2) ** 3, np.ones((7, 7)))), 21),
    (torus(4, 6, sigma=0.3, col_shift=0.5), 24),
]


@pytest.mark.parametrize(
    ("topology", "covers"), MANY_COVERS, ids=[f"{t!r}-{c}" for t, c in MANY_COVERS]
)
def test_chain_marginals_are_the_exact_ones_at_many_covers(topology, covers):
    """For kernels with several sectors too: a swap chain does not leave the one it starts in."""
    kernel = topology.matrix(covers)
    assert Sampler(kernel).method == ("exact" if covers <= EXACT_COVERS else "chain")
    drawn = permutations.sample(kernel, 2_000, seed=4, method="chain")
    assert largest_deviation(drawn, Sampler(kernel, "exact").marginals) < 5


@pytest.mark.parametrize(
    "topology",
    [
        torus(3, 7, sigma=0.3, col_shift=0.5),
        band(1, 21, one_sided=True),
        band(1, 21),
    ],
    ids=repr,
)
def test_a_draw_of_the_chain_resembles_the_next_no_more_than_any_other(topology):
    kernel = topology.matrix(21)
    drawn = permutations.sample(kernel, 20_000, seed=6)
    exact = Sampler(kernel, "exact").marginals
    assert largest_deviation(drawn, exact) < 5
    # With the marginals taken off, the agreement of independent routes is zero on average.
    agreement = np.mean(drawn[:-1:2] == drawn[1::2], axis=1)
    expected = exact[np.arange(21), drawn].mean(axis=1)
    centred = agreement - expected[:-1:2] - expected[1::2] + np.mean(np.sum(exact**2, axis=1))
    assert abs(centred.mean()) < 5 * centred.std() / math.sqrt(len(centred))


def marginals_by_sets(kernel):
    """Exact marginals at any M, if few sets of columns can be taken by the first rows."""
    layers = [{frozenset(): 1.0}]
    for row in kernel:
        layers.append({})
        for taken, ways in layers[-2].items():
            for column in set(np.flatnonzero(row)) - taken:
                after = taken | {column}
                layers[-1][after] = layers[-1].get(after, 0.0) + ways * row[column]
    ((full, permanent),) = layers[-1].items()
    completions, marginals = {full: 1.0}, np.zeros_like(kernel)
    for row in range(len(kernel) - 1, -1, -1):
        later, completions = completions, {}
        for taken, ways in layers[row].items():
            total = 0.0
            for column in set(np.flatnonzero(kernel[row])) - taken:
                rest = kernel[row, column] * later.get(taken | {column}, 0.0)
                marginals[row, column] += ways * rest / permanent
                total += rest
            completions[taken] = total
    return marginals


@pytest.mark.parametrize(
    ("width", "covers", "one_sided"), [(1, 60, False), (1, 100, True), (2, 40, True)]
)
def test_kernels_with_zeros_are_drawn_at_any_number_of_covers(width, covers, one_sided):
    small = band(width, 7, one_sided).matrix(7)
    np.testing.assert_allclose(marginals_by_sets(small), permutations.marginals(small))
    kernel = band(width, covers, one_sided).matrix(covers)
    drawn = permutations.sample(kernel, 2_000, seed=5)
    assert np.all(kernel[np.arange(covers), drawn] > 0)
    assert largest_deviation(drawn, marginals_by_sets(kernel)) < 5


@pytest.mark.parametrize("kernel", KERNELS, ids=KERNEL_NAMES)
def test_compiled_loops_walk_as_plain_ones(kernel):
    covers = len(kernel)
    chain = LoopChain(Sampler(kernel).matrix, np.arange(covers))
    compiled, plain = np.arange(covers), list(range(covers))
    drawn = np.empty((20, covers), dtype=np.uint8)
    args = chain._cumulative, chain._guide, compiled, 3, 10**9, np.random.default_rng(1), drawn
    steps = loop_routes(*args)
    rng = np.random.default_rng(1)
    for _ in range(20 * 3):
        removed = int(rng.random() * covers)
        free, plain[removed] = plain[removed], None
        while free is not None:
            row = np.searchsorted(chain._cumulative[free], rng.random(), side="right")
            plain[row], free = free, plain[row]
            steps -= 1
    assert steps == 0
    np.testing.assert_array_equal(drawn[-1], plain)
    np.testing.assert_array_equal(compiled, plain)


@numba.njit
def swaps(q, route, count, rng, out):
    """A swap chain, the earlier sampler beyond the table."""
    for draw in range(len(out)):
        for _ in range(count):
            a, b = int(rng.random() * len(q)), int(rng.random() * len(q))
            now, then = q[a, route[a]] * q[b, route[b]], q[a, route[b]] * q[b, route[a]]
            if rng.random() * now < then:
                route[a], route[b] = route[b], route[a]
        out[draw] = route


def test_a_chain_that_does_not_mix_is_not_believed(monkeypatch):
    """The swap chain passes if it mixes, and fails if it does not."""

    def run_swaps(self, state, loops, rng, out, limit):
        swaps(run_swaps.kernel, state, loops, rng, out)
        return 0

    monkeypatch.setattr(LoopChain, "_run", run_swaps)
    run_swaps.kernel = GaussianRing(1.5, shift=2).matrix(21)
    assert permutations.sample(run_swaps.kernel, 10, seed=0).shape == (10, 21)
    for topology in (
        torus(3, 7, sigma=0.3, col_shift=0.5),
        torus(3, 7, sigma=0.45, col_shift=0.5),
    ):
        run_swaps.kernel = topology.matrix(21)
        with pytest.raises(McoverError, match=r"chains from different starts.*method='exact'"):
            permutations.sample(run_swaps.kernel, 10, seed=0)
    with pytest.warns(McoverWarning, match="cannot be drawn reliably"):
        drawn = permutations.sample(run_swaps.kernel, 10, seed=0, method="chain")
    assert np.all(np.sort(drawn, axis=1) == np.arange(21))


def test_loops_that_do_not_end_are_not_believed(monkeypatch):
    monkeypatch.setattr(permutations, "_STEPS", 1000)
    for method in ("auto", "chain"):
        with pytest.raises(McoverError, match=r"inf times.*fewer covers"):
            permutations.sample(GaussianRing(0.3, shift=0.5).matrix(50), 10, 0, method)


@pytest.mark.parametrize("covers", [21, 300])
def test_the_uniform_law_is_a_shuffle_at_any_number_of_covers(covers):
    scaled = np.outer(np.arange(1, covers + 1), np.linspace(1, 2, covers))
    for kernel in (Uniform().matrix(covers), GaussianRing(np.inf).matrix(covers), scaled):
        sampler = Sampler(kernel)
        assert sampler.method == "exact"
        drawn = sampler.sample(5_000, seed=1)
        assert np.all(np.sort(drawn, axis=1) == np.arange(covers))
        assert largest_deviation(drawn, np.full((covers, covers), 1 / covers)) < 5.5


def test_assign_is_biased():
    """Perturb-and-assign at M = 5, σ = 0.7 is far from the law, in total variation."""
    kernel = GaussianRing(0.7).matrix(5)
    law = law_by_enumeration(kernel)[2]
    drawn = numbers(permutations.sample(kernel, size=20_000, seed=0, method="assign"))
    counts = np.bincount(drawn, minlength=len(law))
    assert 0.1 < 0.5 * np.abs(counts / len(drawn) - law).sum() < 0.3


@pytest.mark.parametrize("kernel", KERNELS, ids=KERNEL_NAMES)
def test_permanent_probabilities_and_marginals_meet_enumeration(kernel):
    routes, weights, law = law_by_enumeration(kernel)
    sampler = Sampler(kernel)
    assert sampler.log_permanent == pytest.approx(math.log(weights.sum()), abs=1e-9)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(sampler.log_prob(routes), np.log(law), atol=1e-8)
    marginals = np.zeros_like(np.asarray(kernel, dtype=float))
    for route, probability in zip(routes, law, strict=True):
        marginals[range(len(route)), route] += probability
    np.testing.assert_allclose(sampler.marginals, marginals, atol=1e-12)


def test_known_permanents():
    for covers in (1, 5, 12, 18):
        expected = math.lgamma(covers + 1)
        assert permutations.log_permanent(np.ones((covers, covers))) == pytest.approx(expected)
    assert math.exp(permutations.log_permanent([[1, 2], [3, 4]])) == pytest.approx(10)
    # Permutations of n with each element moved by at most one step: a Fibonacci number.
    tridiagonal = np.abs(np.subtract.outer(range(10), range(10))) <= 1
    assert math.exp(permutations.log_permanent(tridiagonal)) == pytest.approx(89)


def test_exact_marginals_meet_samples_up_to_twenty_covers():
    for kernel, size in ((random_kernel(9, seed=3), 100_000), (Chain(1.0).matrix(20), 20_000)):
        sampler = Sampler(kernel)
        assert largest_deviation(sampler.sample(size, seed=5), sampler.marginals) < 5
        np.testing.assert_allclose(sampler.marginals.sum(axis=0), 1, atol=1e-10)
        np.testing.assert_allclose(sampler.marginals.sum(axis=1), 1, atol=1e-10)


def test_the_marginals_are_not_the_kernel():
    kernel = GaussianRing(1.0).matrix(5)
    assert np.abs(permutations.marginals(kernel) - kernel).max() > 0.02


def test_scaling_rows_and_columns_leaves_the_law_unchanged():
    kernel = random_kernel(6, seed=8)
    rng = np.random.default_rng(0)
    scaled = kernel * np.exp(rng.normal(size=(6, 1))) * np.exp(rng.normal(size=(1, 6)))
    routes = np.array(list(itertools.permutations(range(6))))
    ours, theirs = permutations.log_prob(kernel, routes), permutations.log_prob(scaled, routes)
    np.testing.assert_allclose(ours, theirs, atol=1e-9)
    same = permutations.sample(kernel, 500, seed=1) == permutations.sample(scaled, 500, seed=1)
    assert same.mean() > 0.999  # equal up to the last bit of a probability


@pytest.mark.parametrize(
    ("method", "covers"), [("exact", 6), ("chain", 6), ("assign", 6), ("chain", 21)]
)
def test_draws_do_not_depend_on_threads_and_are_reproducible(method, covers):
    kernel = GaussianRing(1.5, shift=2).matrix(covers)
    size = 300 if method == "assign" else 9_001
    one, two, four = (permutations.sample(kernel, size, 7, method, threads=t) for t in (1, 2, 4))
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, four)
    assert not np.array_equal(one, permutations.sample(kernel, size, 8, method))


def test_seeds_say_which_routes_are_drawn():
    kernel = GaussianRing(1.5).matrix(7)
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    many = permutations.sample(kernel, 10_000, seed=1)
    np.testing.assert_array_equal(many[:4096], permutations.sample(kernel, 4096, seed=1))
    rng = np.random.default_rng(0)
    first, second = permutations.sample(kernel, 20, rng), permutations.sample(kernel, 20, rng)
    assert not np.array_equal(first, second)
    permutations.sample(kernel, 100, method="chain")
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_large_numbers_of_covers():
    identity = permutations.sample(Identity().matrix(300), 3, seed=0)
    assert identity.dtype == np.uint16
    np.testing.assert_array_equal(identity, np.tile(np.arange(300), (3, 1)))
    drawn = permutations.sample(GaussianRing(2.0, shift=1).matrix(60), 5, seed=0)
    assert drawn.dtype == np.uint8
    np.testing.assert_array_equal(np.sort(drawn, axis=1), np.tile(np.arange(60), (5, 1)))
    assert Sampler(GaussianRing(1.0).matrix(EXACT_COVERS)).method == "exact"
    assert Sampler(GaussianRing(1.0).matrix(EXACT_COVERS + 1)).method == "chain"
