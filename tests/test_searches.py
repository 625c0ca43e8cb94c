"""Repair and descent walk the trajectories of the plain ones, and do what their names say."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import reference_annealer as reference
from mcover import (
    RSA,
    Identity,
    MCover,
    Vanilla,
    anneal,
    teacher_student,
)
from mcover.annealing import AnnealOptions, chain, kernels, searches
from mcover.annealing.reads import cover_overlap
from mcover.errors import McoverError, McoverWarning
from mcover.figures import annealing_figure
from mcover.plain import from_plain, to_plain
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


def test_repair_takes_every_unsatisfied_pair_alike():
    """All pairs of a chain by chi-square, and the weights of one pair as well."""
    gauged, routes, weights, rng = problem(9, 70, 3, 2, 2, seed=4)
    state = make(gauged, routes, weights, 3, "linear")
    wrong = searches.unsatisfied(state)
    pairs = reference.unsatisfied(gauged.astype(int), routes, weights.astype(int), 3, "linear")
    assert [searches.pick(state, wrong, r) for r in range(len(pairs))] == pairs
    assert wrong.counts.sum() == wrong.totals.sum() == len(pairs) > 50
    draws = [chain.randbelow(rng, len(pairs)) for _ in range(100 * len(pairs))]
    assert stats.chisquare(np.bincount(draws, minlength=len(pairs))).pvalue > 1e-3
    s, alpha, mu = pairs[7]
    candidates = reference.repairing(
        gauged.astype(int), routes, weights.astype(int), 3, s, alpha, mu
    )
    found = [
        searches.sample_repairing_weight(state, s, alpha, mu, rng)
        for _ in range(100 * len(candidates))
    ]
    assert all(beta == routes[s, q, alpha] for q, beta in found)
    sites = [q for q, _ in found]
    assert set(sites) == set(candidates)
    assert stats.chisquare([sites.count(q) for q in candidates]).pvalue > 1e-3


@pytest.mark.parametrize("shape", [(9, 40, 1, 2, 2), (8, 40, 1, 2, 2), (5, 30, 3, 2, 2)], ids=str)
@pytest.mark.parametrize("energy", ["linear", "errors"])
def test_repair_keeps_count_of_what_is_unsatisfied(shape, energy):
    gauged, routes, weights, rng = problem(*shape, seed=2)
    state = make(gauged, routes, weights, shape[2], energy)
    wrong, rows = searches.unsatisfied(state), np.zeros((3, 5), dtype=np.int64)
    scales, gammas = kernels.scales_of(state, np.full(5, 0.4), 0.0)
    searches._repair(state, wrong, scales, gammas, rng, False, *rows)
    assert rows[0].sum() > 0
    fresh = searches.unsatisfied(state)
    assert wrong.counts.tolist() == fresh.counts.tolist()
    assert wrong.totals.tolist() == fresh.totals.tolist()
    wide = state.weights.astype(int)
    pairs = reference.unsatisfied(gauged.astype(int), routes, wide, shape[2], energy)
    assert fresh.counts.sum() == len(pairs)


def check_descent(shape, energy, gammas, order, improvement, seed, identity=False):
    hidden = shape[2]
    gauged, routes, weights, rng = problem(*shape, seed)
    if identity:
        routes[:] = np.arange(shape[3], dtype=np.uint8)
    state = make(gauged, routes, weights, hidden, energy)
    wide, oracle = weights.astype(int), reference.Xoshiro(rng)
    inputs = gauged.astype(int), routes, wide, hidden, energy
    expected = reference.descend(*inputs, gammas, order, improvement, oracle)
    done = searches.run(state, np.zeros(len(gammas)), gammas, rng, "descent", order, improvement)
    assert done.accepted.tolist() == expected[0]
    np.testing.assert_allclose(state.unit * done.energies, expected[1], rtol=1e-12)
    assert done.proposals.tolist() == expected[2]
    assert done.over == expected[3]
    assert (state.weights == wide).all()
    assert rng.tolist() == oracle.state
    assert reference.energy_from_scratch(state) == state.energy[0] == done.energies[-1]
    return done.over


DESCENTS = [("random", "first"), ("sequential", "first"), ("permutation", "first"),
            ("random", "best")]  # fmt: skip
SMALL = [(1, 1, 1, 1, 1), (2, 5, 1, 3, 2), (7, 63, 1, 2, 3), (10, 64, 1, 3, 1), (11, 65, 1, 1, 1),
         (6, 530, 1, 2, 2), (7, 20, 3, 2, 3), (3, 64, 2, 2, 2), (4, 20, 4, 1, 1)]  # fmt: skip


@pytest.mark.parametrize("shape", SMALL, ids=str)
@pytest.mark.parametrize("energy", ["linear", "errors"])
@pytest.mark.parametrize(("order", "improvement"), DESCENTS)
def test_descent_walks_the_reference_trajectory(shape, energy, order, improvement):
    """To a state in which the reference finds no flip that improves, trying all of them."""
    sweeps = 2 if shape[1] > 500 else 200
    over = check_descent(shape, energy, np.zeros(sweeps), order, improvement, seed=sum(shape))
    assert over or shape[1] > 500


@pytest.mark.parametrize("shape", [(7, 33, 1, 3, 1), (10, 20, 1, 4, 1), (3, 20, 3, 2, 1)], ids=str)
@pytest.mark.parametrize(("order", "improvement"), DESCENTS)
@pytest.mark.parametrize("gamma", [1.0, -0.5])
def test_replicated_descent_walks_the_reference_trajectory(shape, order, improvement, gamma):
    gammas = np.full(200, gamma)
    assert check_descent(shape, "errors", gammas, order, improvement, seed=3, identity=True)


def test_replicas_in_descent_meet_where_it_costs_nothing():
    problem_ = teacher_student(21, 0.3, seed=0)
    apart, pulled = (
        anneal(problem_, RSA(3, coupling=c), rule="descent", seed=1) for c in (0.0, 2.0)
    )
    assert apart.energy[0] == pulled.energy[0] == 0
    assert cover_overlap(pulled.weights[0]) > cover_overlap(apart.weights[0]) + 0.2


def test_a_permutation_visits_every_index_once_in_any_order_alike():
    rng = np.random.SeedSequence(1).generate_state(4, np.uint64)
    sequence, seen = np.empty(4, dtype=np.int32), dict.fromkeys(itertools.permutations(range(4)), 0)
    for _ in range(24 * 200):
        chain.shuffle(sequence, rng)
        seen[tuple(sequence.tolist())] += 1
    assert stats.chisquare(list(seen.values())).pvalue > 1e-3


def test_a_sweep_in_permuted_order_flips_everything_once_when_all_is_accepted():
    gauged, routes, weights, rng = problem(12, 20, 1, 3, 2, seed=3)
    state = make(gauged, routes, weights, 1, "linear")
    accepted = kernels.advance(state, [1e9], 0.0, "metropolis", "permutation", rng).accepted
    assert accepted[0] == 36
    assert (state.weights == -weights).all()


REPAIR = {"rule": "repair", "schedule": [0.15] * 400}
DESCENT = {"rule": "descent"}
RULES = [REPAIR, DESCENT, {**DESCENT, "order": "permutation"}, {**DESCENT, "improvement": "best"}]


@pytest.mark.parametrize("how", RULES, ids=lambda how: "-".join(map(str, how.values()))[:30])
def test_identity_topology_is_independent_copies(how):
    problem_ = teacher_student(31, 1.5, seed=0)
    free = anneal(problem_, RSA(3, coupling=0.0), seed=3, **how)
    routed = anneal(problem_, MCover(3, Identity(), bank=1), seed=3, **how)
    np.testing.assert_array_equal(routed.weights, free.weights)
    assert free.energy[0] == pytest.approx(problem_.energy(free.weights[0]).sum())


def test_independent_copies_descend_as_each_does_alone():
    problem_, starts = teacher_student(31, 1.5, seed=0), np.ones((3, 31), dtype=int)
    starts[:, ::3], starts[1, ::5], starts[2, ::2] = -1, -1, -1
    how = {"rule": "descent", "order": "sequential", "seed": 0}
    together = anneal(problem_, RSA(3, coupling=0.0), initial_states=starts, **how)
    alone = [anneal(problem_, Vanilla(), initial_states=start, **how) for start in starts]
    np.testing.assert_array_equal(together.weights[0], [one.weights[0, 0] for one in alone])
    assert together.energy[0] == pytest.approx(sum(one.energy[0] for one in alone))


def test_repair_ends_where_nothing_is_left_to_repair():
    problem_ = teacher_student(51, 4.0, seed=0)
    result = anneal(problem_, Vanilla(), num_reads=4, seed=0, **REPAIR)
    assert result.solved.all()
    assert result.finished.all()
    assert np.all(result.energy == 0)
    # The last sweep was left before its end.
    assert np.all(result.proposals <= result.sweeps * 51)
    assert np.all(result.proposals > (result.sweeps - 1) * 51)
    assert np.any(result.proposals % 51)
    at_once = anneal(problem_, Vanilla(), seed=0, initial_states=problem_.teacher, **REPAIR)
    assert (at_once.proposals[0], at_once.sweeps[0]) == (0, 1)
    np.testing.assert_array_equal(at_once.weights[0, 0], problem_.teacher)


def test_slices_of_a_run_count_what_was_done():
    """However often a read looks up, its proposals and acceptance are the same."""
    problem_ = teacher_student(100, 1.5, seed=0)
    for how in ({"rule": "repair", "schedule": [0.3] * 60}, {"rule": "descent"}):
        few, many = (
            anneal(problem_, MCover(3), seed=1, record=points, **how) for points in (1, 60)
        )
        np.testing.assert_array_equal(few.weights, many.weights)
        np.testing.assert_array_equal(few.proposals, many.proposals)


def test_fresh_routes_lead_descent_out_of_a_minimum():
    problem_ = teacher_student(60, 1.4, seed=0)
    how = {"rule": "descent", "order": "sequential", "num_sweeps": 60, "seed": 0}
    quenched = anneal(problem_, MCover(3, bank=3), **how)
    assert quenched.finished[0]
    assert quenched.sweeps[0] < 20
    redrawn = anneal(problem_, MCover(3, bank=3, redraw_every=20), **how)
    assert redrawn.sweeps[0] == 60
    assert not np.array_equal(redrawn.weights, quenched.weights)


def test_descent_has_no_temperatures():
    problem_ = teacher_student(20, 1.0, seed=0)
    result = anneal(problem_, Vanilla(), rule="descent", num_sweeps=30, seed=0)
    assert not result.trajectory.temperature.any()
    with pytest.warns(McoverWarning, match="temperatures are not read, only their number, 3"):
        anneal(problem_, rule="descent", schedule=[0.3, 0.2, 0.1], seed=0)
    with pytest.warns(McoverWarning, match="only the sign of a coupling counts"):
        anneal(problem_, RSA(3, coupling_growth=0.001), rule="descent", seed=0)
    with pytest.raises(McoverError, match="descent none; write a number of points"):
        anneal(problem_, rule="descent", record=[0.3], seed=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "repair", "order": "sequential"}, "order is 'sequential', but repair goes"),
        ({"rule": "descent", "improvement": "best", "order": "permutation"}, "tries every flip"),
        ({"improvement": "best"}, 'which is of descent, and rule is .glauber.; .*rule="descent"'),
        ({"rule": "descent", "improvement": "any"}, "improvement is 'any'"),
    ],
)
def test_what_a_rule_does_not_have_is_refused(options, message):
    with pytest.raises(McoverError, match=message):
        anneal(teacher_student(20, 1.0, seed=0), **options)


def test_a_picture_without_falling_temperatures_is_against_sweeps():
    problem_ = teacher_student(20, 1.0, seed=0)
    courses = {
        "temperature T": anneal(problem_, Vanilla(), num_sweeps=5, seed=0).trajectory,
        "sweep": anneal(problem_, Vanilla(), rule="descent", num_sweeps=5, seed=0).trajectory,
    }
    for label, course in courses.items():
        axes = annealing_figure({"": course}, "").axes[0]
        assert axes.get_xlabel() == label
        assert axes.xaxis_inverted() == (label == "temperature T")


def test_rules_have_a_wire_form():
    options = AnnealOptions(Vanilla(), rule="descent", improvement="best")
    assert from_plain(AnnealOptions, to_plain(options)) == options
    assert "improvement" not in to_plain(AnnealOptions(Vanilla(), rule="repair"))
    assert from_plain(AnnealOptions, {}).improvement == "first"
