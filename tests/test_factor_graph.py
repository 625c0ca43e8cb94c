"""The general lift, against its sums written out. Its laws are in ``test_laws.py``."""

import itertools

import numpy as np
import pytest

from mcover import FactorGraph, GaussianRing, Uniform
from mcover.factor_graph import Factor, lift_bank
from mcover.routing import draw_bank
from problems_under_test import pattern_graph, quartic


def test_full_bank_perceptron_is_the_papers_sum():
    """(1/N) Σ_p Σ_α Σ_μ max(0, −Δ_{μ→p}^(α)), with routed margins written out."""
    rng = np.random.default_rng(3)
    patterns = rng.choice([-1, 1], size=(4, 5))
    weights = rng.choice([-1, 1], size=(3, 5))
    for size in (1, 2, 5):
        bank = draw_bank(GaussianRing(1.0, shift=1), covers=3, sources=5, size=size, seed=4)
        total = 0.0
        for s, alpha, mu in itertools.product(range(size), range(3), range(4)):
            margin = sum(
                patterns[mu, q] * weights[bank.routes[s, q, alpha], q] for q in range(5)
            ) / np.sqrt(5)
            total += max(0.0, -margin) / size
        ours = lift_bank(pattern_graph(patterns), bank).objective(weights)
        assert ours == pytest.approx(total)


def test_graphs_say_what_they_are():
    assert repr(quartic()) == "<FactorGraph: 3 factors of up to 3 of 4 variables>"
    cover = quartic().lift(Uniform(), covers=6, seed=0)
    assert repr(cover) == f"<GraphCover: 6 covers of {quartic()!r}, 8 routes>"


def test_each_incidence_and_source_has_its_own_route():
    lifted = quartic().lift(Uniform(), covers=6, seed=0)
    assert set(lifted.routes) == {
        (1, 0, 2),
        (1, 2, 0),
        *((2, i, j) for i, j in itertools.permutations((1, 2, 3), 2)),
    }
    assert len({tuple(route.tolist()) for route in lifted.routes.values()}) > 4
    context = lifted.context((2, 1), 4, np.arange(24).reshape(6, 4))
    routes = lifted.routes
    assert context == [4 * 4 + 1, routes[2, 1, 2][4] * 4 + 2, routes[2, 1, 3][4] * 4 + 3]


def ising():
    def bond(a, b):
        return -a * b

    return FactorGraph([(bond, (0, 1)), (bond, (1, 2)), (bond, (2, 0))])


def test_symmetric_wiring_is_an_undirected_cover():
    lifted = ising().lift(Uniform(), covers=5, wiring="sym", seed=1)
    for a, factor in enumerate(ising().factors):
        i, j = factor.variables
        forth = {(cover, lifted.routes[a, i, j][cover]) for cover in range(5)}
        back = {(lifted.routes[a, j, i][cover], cover) for cover in range(5)}
        assert forth == back
    # Each lifted edge once: Σ_a Σ_α ℓ(w_i^α, w_j^ρ(α)).
    spins = np.random.default_rng(0).choice([-1, 1], size=(5, 3))
    edges = sum(
        -spins[cover, i] * spins[lifted.routes[a, i, j][cover], j]
        for a, (i, j) in enumerate([(0, 1), (1, 2), (2, 0)])
        for cover in range(5)
    )
    assert lifted.objective(spins) == pytest.approx(edges)


def test_asymmetric_wiring_draws_both_directions():
    lifted = ising().lift(Uniform(), covers=8, wiring="asym", seed=1)
    forth, back = lifted.routes[0, 0, 1], lifted.routes[0, 1, 0]
    assert not np.array_equal(forth[back], np.arange(8))


def test_directed_losses_may_differ_as_long_as_their_mean_is_the_loss():
    directed = {0: lambda a, b: 2 * a * a * b, 1: lambda a, b: 2 * a * b - 2 * a * a * b}
    graph = FactorGraph([Factor(lambda a, b: a * b, (0, 1), directed)])
    values = [1.5, -0.5]
    assert graph.lift(Uniform(), 1, seed=0).objective([values]) == pytest.approx(-0.75)
    covers = np.array([[1.5, -0.5], [0.3, 2.0]])
    ours = graph.lift(Uniform(), 2, seed=0)
    expected = 0.0
    for cover in range(2):
        expected += 0.5 * directed[0](covers[cover, 0], covers[ours.routes[0, 0, 1][cover], 1])
        expected += 0.5 * directed[1](covers[ours.routes[0, 1, 0][cover], 0], covers[cover, 1])
    assert ours.objective(covers) == pytest.approx(expected)


def test_errors_return_along_the_inverse_route():
    """A finite difference in copy β of source j moves only the contexts that read it."""
    bank = draw_bank(Uniform(), covers=4, sources=3, size=3, seed=2)
    graph = FactorGraph([(lambda *w: w[0] * 3 + w[1] * 5 + w[2] * 7, (0, 1, 2))])
    lifted = lift_bank(graph, bank)
    values = np.zeros((4, 3))
    for s, beta, j in itertools.product(range(3), range(4), range(3)):
        bumped = values.copy()
        bumped[beta, j] = 1.0
        moved = [c for c in range(4) if lifted.context((0, s), c, bumped) != [0.0, 0.0, 0.0]]
        assert moved == [np.argsort(bank.routes[s, j])[beta]]
