import itertools
import math

import numba
import numpy as np
import pytest
from scipy.stats import chisquare

from kernels_under_test import NAMES, TOPOLOGIES, band, random_kernel, torus
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
from mcover.errors import McoverWarning, TooLargeError, UnreachableError
from mcover.permutation_kernels import loop_routes
from mcover.permutations import EXACT_COVERS, TABLE_COVERS, LoopChain, Sampler

RANDOM = [
    (random_kernel(covers, seed), f"random-{covers}") for seed, covers in enumerate([2, 4, 6])
]
KERNELS = [topology.matrix(covers) for topology, covers in TOPOLOGIES] + [k for k, _ in RANDOM]
KERNEL_NAMES = NAMES + [name for _, name in RANDOM]


def law_by_enumeration(kernel):
    """Every permutation with its probability, straight from the definition."""
    covers = len(kernel)
    routes = list(itertools.permutations(range(covers)))
    weights = np.array([math.prod(kernel[a, r[a]] for a in range(covers)) for r in routes])
    return routes, weights, weights / weights.sum()


def p_value(kernel, drawn):
    """Chi-square of drawn routes against the enumerated law, rare routes pooled."""
    routes, _, law = law_by_enumeration(kernel)
    index = {route: i for i, route in enumerate(routes)}
    counts = np.bincount([index[tuple(route)] for route in drawn.tolist()], minlength=len(routes))
    assert np.all(counts[law == 0] == 0)
    expected = law * len(drawn)
    common = expected >= 5
    seen = np.append(counts[common], counts[~common].sum())
    awaited = np.append(expected[common], expected[~common].sum())
    seen, awaited = seen[awaited > 0], awaited[awaited > 0]
    return chisquare(seen, awaited).pvalue if len(seen) > 1 else 1.0


@pytest.mark.parametrize("kernel", KERNELS, ids=KERNEL_NAMES)
def test_exact_draws_follow_the_law(kernel):
    drawn = permutations.sample(kernel, size=40_000, seed=1, method="exact")
    assert p_value(kernel, drawn) > 1e-4


@pytest.mark.parametrize("kernel", KERNELS, ids=KERNEL_NAMES)
def test_chain_draws_follow_the_law(kernel):
    drawn = permutations.sample(kernel, size=20_000, seed=2, method="chain")
    assert p_value(kernel, drawn) > 1e-4


def test_chain_draws_are_independent():
    """The thinning rule: a draw says nothing about the next one."""
    drawn = permutations.sample(GaussianRing(0.8, shift=0.5).matrix(4), 40_000, 3, "chain")
    routes, _, law = law_by_enumeration(GaussianRing(0.8, shift=0.5).matrix(4))
    index = {route: i for i, route in enumerate(routes)}
    code = np.array([index[tuple(route)] for route in drawn.tolist()])
    pairs = np.bincount(code[:-1:2] * len(law) + code[1::2], minlength=len(law) ** 2)
    expected = np.outer(law, law).ravel() * (len(code) // 2)
    common = expected >= 5
    seen = np.append(pairs[common], pairs[~common].sum())
    assert chisquare(seen, np.append(expected[common], expected[~common].sum())).pvalue > 1e-4


@pytest.mark.parametrize(
    "topology",
    [
        GaussianRing(1.5, shift=2),
        GaussianRing(0.6, shift=0.5),
        GaussianRing(0.5),
        Chain(1.0),
        Uniform(),
    ],
    ids=repr,
)
def test_chain_marginals_meet_the_exact_ones_at_many_covers(topology):
    """Also for σ = 0.6 at half a step: two winding sectors, joined only by a whole turn."""
    covers, size = 16, 20_000
    sampler = Sampler(topology.matrix(covers), "chain")
    drawn = sampler.sample(size, seed=4)
    seen = np.stack([np.mean(drawn == b, axis=0) for b in range(covers)], axis=1)
    exact = Sampler(topology.matrix(covers)).marginals
    deviation = (seen - exact) / np.sqrt(np.maximum(exact * (1 - exact), 1 / size) / size)
    assert np.abs(deviation).max() < 5.5


def marginals_of(routes):
    """The share of the routes in which α reads β, shape (M, M)."""
    return np.stack([np.mean(routes == b, axis=0) for b in range(routes.shape[1])], axis=1)


def largest_deviation(routes, exact):
    """Of the marginals of independent routes, in standard errors; those of rare reads are floored.

    The floor is an expected count of 4: less would make the tail of a count far from Gaussian.
    """
    spread = np.sqrt(np.maximum(exact * (1 - exact), 4 / len(routes)) / len(routes))
    return np.abs((marginals_of(routes) - exact) / spread).max()


MANY_COVERS = [
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
def test_chain_marginals_are_the_exact_ones_beyond_the_table(topology, covers):
    """For kernels with several sectors too: a swap chain does not leave the one it starts in."""
    kernel = topology.matrix(covers)
    sampler = Sampler(kernel)
    assert sampler.method == "chain"
    assert largest_deviation(sampler.sample(2_000, seed=4), Sampler(kernel, "exact").marginals) < 5


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
    """A swap chain: what the law was drawn with before, beyond the table."""
    for draw in range(len(out)):
        for _ in range(count):
            a, b = int(rng.random() * len(q)), int(rng.random() * len(q))
            now, then = q[a, route[a]] * q[b, route[b]], q[a, route[b]] * q[b, route[a]]
            if rng.random() * now < then:
                route[a], route[b] = route[b], route[a]
        out[draw] = route


def test_a_chain_that_does_not_mix_is_not_believed(monkeypatch):
    """The swap chain passes where it mixes, and is found out where it does not."""

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


def test_the_chain_at_many_covers_does_not_depend_on_threads():
    sampler = Sampler(torus(3, 7, sigma=0.3, col_shift=0.5).matrix(21))
    one, two, four = (sampler.sample(9_001, seed=7, threads=t) for t in (1, 2, 4))
    again = permutations.sample(sampler.matrix, 9_001, seed=7, threads=3)
    for other in (two, four, again):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("covers", [21, 300])
def test_the_uniform_law_is_a_shuffle_at_any_number_of_covers(covers):
    scaled = np.outer(np.arange(1, covers + 1), np.linspace(1, 2, covers))
    for kernel in (Uniform().matrix(covers), GaussianRing(np.inf).matrix(covers), scaled):
        sampler = Sampler(kernel)
        assert sampler.method == "exact"
        drawn = sampler.sample(5_000, seed=1)
        assert np.all(np.sort(drawn, axis=1) == np.arange(covers))
        assert largest_deviation(drawn, np.full((covers, covers), 1 / covers)) < 5.5


def test_assign_is_biased_and_says_so():
    """Perturb-and-assign at M = 5, σ = 0.7 is far from the law, in total variation."""
    kernel = GaussianRing(0.7).matrix(5)
    routes, _, law = law_by_enumeration(kernel)
    drawn = permutations.sample(kernel, size=20_000, seed=0, method="assign")
    index = {route: i for i, route in enumerate(routes)}
    counts = np.bincount([index[tuple(route)] for route in drawn.tolist()], minlength=len(law))
    distance = 0.5 * np.abs(counts / len(drawn) - law).sum()
    assert 0.1 < distance < 0.3
    assert "biased" in permutations.__doc__


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


def test_marginals_meet_samples():
    sampler = Sampler(random_kernel(9, seed=3))
    drawn = sampler.sample(100_000, seed=5)
    seen = np.stack([np.mean(drawn == b, axis=0) for b in range(9)], axis=1)
    error = np.sqrt(np.maximum(sampler.marginals * (1 - sampler.marginals), 1e-5) / len(drawn))
    assert np.abs((seen - sampler.marginals) / error).max() < 5
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


@pytest.mark.parametrize("method", ["exact", "chain", "assign"])
def test_draws_do_not_depend_on_threads_and_are_reproducible(method):
    kernel = GaussianRing(1.5, shift=2).matrix(6)
    size = 300 if method == "assign" else 9_001
    one, two, four = (permutations.sample(kernel, size, 7, method, threads=t) for t in (1, 2, 4))
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, four)
    assert not np.array_equal(one, permutations.sample(kernel, size, 8, method))


def test_more_draws_begin_with_the_same_routes():
    kernel = GaussianRing(1.5).matrix(7)
    many = permutations.sample(kernel, 10_000, seed=1)
    np.testing.assert_array_equal(many[:4096], permutations.sample(kernel, 4096, seed=1))


def test_no_global_random_state_is_touched():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    permutations.sample(GaussianRing(1.0).matrix(5), 100, seed=0)
    permutations.sample(GaussianRing(1.0).matrix(5), 100, method="chain")
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_a_generator_as_seed_advances():
    rng = np.random.default_rng(0)
    kernel = Uniform().matrix(8)
    first, second = permutations.sample(kernel, 20, rng), permutations.sample(kernel, 20, rng)
    assert not np.array_equal(first, second)


def test_large_numbers_of_covers():
    identity = permutations.sample(Identity().matrix(300), 3, seed=0)
    assert identity.dtype == np.uint16
    np.testing.assert_array_equal(identity, np.tile(np.arange(300), (3, 1)))
    drawn = permutations.sample(GaussianRing(2.0, shift=1).matrix(60), 5, seed=0)
    assert drawn.dtype == np.uint8
    np.testing.assert_array_equal(np.sort(drawn, axis=1), np.tile(np.arange(60), (5, 1)))
    assert Sampler(GaussianRing(1.0).matrix(EXACT_COVERS)).method == "exact"
    assert Sampler(GaussianRing(1.0).matrix(EXACT_COVERS + 1)).method == "chain"


def test_exact_sampling_reaches_twenty_covers():
    sampler = Sampler(Uniform().matrix(20))
    drawn = sampler.sample(20_000, seed=0)
    assert np.abs(drawn.mean(axis=0) - 9.5).max() < 5 * math.sqrt(399 / 12 / 20_000)
    expected = -math.lgamma(21)
    assert sampler.log_prob(drawn[0]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: permutations.sample([[1, 1]], 1), McoverError, "square"),
        (lambda: permutations.sample(np.empty((0, 0)), 1), McoverError, "at least one cover"),
        (lambda: permutations.sample([[1, -1], [1, 1]], 1), McoverError, "negative"),
        (lambda: permutations.sample([[np.nan]], 1), McoverError, "finite"),
        (lambda: permutations.sample([[0, 1], [0, 1]], 1), UnreachableError, "no permutation"),
        (lambda: permutations.sample([[1]], -1), McoverError, "size is -1"),
        (lambda: permutations.sample([[1]], 1, seed=-3), McoverError, "seed is -3"),
        (lambda: permutations.sample([[1]], 1, seed=0.5), McoverError, "seed is 0.5"),
        (lambda: permutations.sample([[1]], 1, method="fast"), McoverError, "method is 'fast'"),
        (lambda: permutations.sample([[1]], 10**15), TooLargeError, "draw fewer"),
        (lambda: permutations.log_prob(np.ones((3, 3)), [0, 1, 1]), McoverError, "permutations of"),
        (lambda: permutations.log_prob(np.ones((3, 3)), [0, 1]), McoverError, "permutations of"),
        (
            lambda: permutations.marginals(np.ones((TABLE_COVERS + 1, TABLE_COVERS + 1))),
            McoverError,
            "average them",
        ),
    ],
)
def test_bad_requests_are_refused_with_a_remedy(call, error, message):
    with pytest.raises(error, match=message):
        call()
