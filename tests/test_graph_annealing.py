"""Annealing of factor graphs: the enumerated law, the slow chain, and typical calls."""

import itertools

import numpy as np
import pytest

from mcover import (
    RSA,
    FactorGraph,
    GaussianRing,
    LinearSchedule,
    MCover,
    Uniform,
    Vanilla,
    anneal,
)
from mcover.annealing import graph_chain
from mcover.annealing.chain import ORDERS
from mcover.annealing.graph_chain import CallingChain, CompiledChain, losses_of, tables_of
from mcover.factor_graph import Factor, lift_bank
from mcover.routing import draw_bank
from problems_under_test import pattern_graph

SHORT = LinearSchedule(2.0, 0.2, 0.2)


def bond(a, b):
    return -a * b


def clause(*signs):
    return lambda *values: int(all(v != s for v, s in zip(values, signs, strict=True)))


def mixed():
    """Three variables of two and three values, a lopsided loss, and one with directed parts."""
    directed = {0: lambda a, b: 2 * a * b, 2: lambda a, b: 0.0}
    return FactorGraph(
        [
            (lambda a, b: 0.7 * a * b - 0.4 * b, (0, 1)),
            (lambda b: 0.3 * b * b, (1,)),
            Factor(lambda a, b: a * b, (0, 2), directed),
        ],
        domains={1: (0, 1, 2.5)},
    )


def chains(graph, lifted, values, seed=0):
    losses = losses_of(graph)
    for kind, table in ((CompiledChain, tables_of(graph, losses)), (CallingChain, losses)):
        rng = np.random.SeedSequence(seed).generate_state(4, np.uint64)
        yield kind(lifted, values.copy(), table, rng)


def all_states(graph, covers):
    """Indices of every state of the covers, (states, variables, M), and the values."""
    sizes = [len(domain) for domain in graph.domains for _ in range(covers)]
    indices = np.array(list(itertools.product(*map(range, sizes))))
    return indices.reshape(-1, graph.variables, covers)


def lifted_energy(lifted, indices):
    domains = lifted.graph.domains
    values = [[domains[j][k] for j, k in enumerate(own)] for own in indices.T]
    return lifted.objective(values)


@pytest.mark.parametrize("rule", ["glauber", "metropolis"])
@pytest.mark.parametrize("coupling", [0.0, 0.6])
@pytest.mark.parametrize("bank", [None, 2])
def test_a_chain_samples_the_enumerated_law(rule, coupling, bank):
    graph, covers, temperature = mixed(), 2, 0.9
    if bank is None:
        lifted = graph.lift(Uniform(), covers, seed=3)
    else:
        bank = draw_bank(Uniform(), covers, 3, bank, seed=0)
        assert bank.destinations.tolist() == [1, 2]
        lifted = lift_bank(graph, bank)
    states = all_states(graph, covers)
    assert len(states) == 144
    agree = np.where(states[:, :, 0] == states[:, :, 1], 1, -1).sum(axis=1)
    energy = np.array([lifted_energy(lifted, one) for one in states])
    law = np.exp(-energy / temperature + coupling / covers * agree)
    law /= law.sum()
    chain = next(chains(graph, lifted, states[0], seed=5))
    where = {one.tobytes(): k for k, one in enumerate(states)}
    counts = np.zeros(len(states))
    for _ in range(40_000):
        chain.run(np.array([temperature]), np.array([coupling]), rule == "metropolis", 0)
        counts[where[chain.values.tobytes()]] += 1
    distance = np.abs(counts / counts.sum() - law).sum() / 2
    assert distance < 0.04  # 144 states, 40,000 correlated draws: about 0.02
    other = np.exp(-energy / temperature + (0.0 if coupling else 0.6) / covers * agree)
    assert np.abs(counts / counts.sum() - other / other.sum()).sum() / 2 > 0.08


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("metropolis", [True, False])
def test_compiled_sweeps_walk_the_trajectory_of_the_calling_chain(order, metropolis):
    graph = mixed()
    lifted = graph.lift(GaussianRing(1.0, shift=1), covers=4, seed=1)
    start = np.zeros((3, 4), dtype=np.int64)
    fast, slow = chains(graph, lifted, start, seed=7)
    temperatures, couplings = np.linspace(2, 0.2, 12), np.linspace(0, 0.5, 12)
    for k in range(12):
        how = temperatures[k : k + 1], couplings[k : k + 1], metropolis, ORDERS.index(order)
        assert fast.run(*how) == slow.run(*how)
        np.testing.assert_array_equal(fast.values, slow.values)
        assert fast.energy() == pytest.approx(slow.energy())
        assert fast.energy() == pytest.approx(lifted_energy(lifted, fast.values))
    assert not np.array_equal(fast.values, start)


@pytest.mark.parametrize(
    "method",
    [
        Vanilla(),
        RSA(3, coupling=0.5, coupling_growth=0.1),
        MCover(3, Uniform(), bank=None),
        MCover(4, GaussianRing(1.0, shift=1), bank=3, redraw_every=3, coupling=0.2),
    ],
)
def test_results_have_the_lifted_energy_and_both_chains_agree(method, monkeypatch):
    options = {"method": method, "schedule": SHORT, "num_reads": 3, "seed": 2}
    fast = anneal(mixed(), **options)
    for lifted, values, energy in zip(fast.lifts, fast.values, fast.energy, strict=True):
        assert lifted.objective(values) == pytest.approx(energy)
    for read in fast:
        assert mixed().objective(read.values) == pytest.approx(read.objective)
    monkeypatch.setattr(graph_chain, "_ENTRIES", 1)
    slow = anneal(mixed(), **options, workers=1)
    np.testing.assert_array_equal(fast.values, slow.values)
    np.testing.assert_allclose(fast.trajectory.energy, slow.trajectory.energy)
    np.testing.assert_array_equal(fast.trajectory.acceptance, slow.trajectory.acceptance)
    assert fast.proposals.tolist() == [10 * 3 * method.covers] * 3


def test_a_planted_formula_is_satisfied_with_the_defaults():
    rng = np.random.default_rng(0)
    planted, clauses = rng.choice([-1, 1], 20), []
    while len(clauses) < 80:
        at, signs = rng.choice(20, 3, replace=False), rng.choice([-1, 1], 3)
        if np.any(planted[at] == signs):
            clauses.append((clause(*signs), at.tolist()))
    formula = FactorGraph(clauses)
    result = anneal(formula, num_sweeps=300, num_reads=4, seed=0, stop_at_zero=True)
    assert result.best.objective == formula.objective(result.best.values) == 0
    assert result.sweeps.min() < 300
    assert result.finished.all()
    assert [student.read for student in result] == [0, 1, 2, 3]
    assert result[-1].read == 3
    assert len(repr(result).splitlines()) <= 10
    assert "80 factors of up to 3 of 20 variables" in repr(result)
    assert "<table>" in result._repr_html_()
    names = [axes.get_ylabel() for axes in result.plot().axes if axes.get_visible()]
    assert len(names) == 3


def test_values_of_any_kind_are_coloured():
    colours = ("red", "green", "blue")
    edges = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 2)]
    graph = FactorGraph([(lambda a, b: int(a == b), edge) for edge in edges], domains=colours)
    result = anneal(graph, num_sweeps=100, seed=0)
    best = result.best.values
    assert set(best) == set(colours)
    assert all(best[a] != best[b] for a, b in edges)
    again = anneal(graph, seed=0, initial_states=list(best), schedule=[1e-3])
    assert again.best.values == best


def test_factors_too_wide_for_a_table_are_called():
    rng = np.random.default_rng(1)
    patterns = rng.choice([-1, 1], (6, 17)) * rng.choice([-1, 1], 17)
    result = anneal(pattern_graph(patterns), Vanilla(), num_sweeps=15, seed=0)
    assert result.best.objective == 0


def test_the_best_of_a_read_may_be_a_cover():
    steep = FactorGraph([(lambda a, b: -3 * a * b - 0.1 * a, (0, 1))])
    start = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1], [-1, -1]])
    frozen = {"schedule": [1e-9], "rule": "metropolis", "seed": 0}
    result = anneal(steep, RSA(5, coupling=0), initial_states=start, **frozen)
    assert result.cover_objective.shape == (1, 5)
    assert result.best.objective == min(result.cover_objective.min(), result.objective[0])
