"""Errors of topologies, routes, annealers and statistics with a specific remedy.

The malformed calls of ``test_fuzz`` test types and ranges of single arguments.
"""

import functools
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import mcover
from mcover import (
    RSA,
    Chain,
    Committee,
    Custom,
    Directed,
    FactorGraph,
    GaussianRing,
    Identity,
    LinearSchedule,
    MCover,
    McoverError,
    Perceptron,
    Uniform,
    anneal,
    mix,
    permutations,
    solve,
    teacher_student,
)
from mcover.annealing import (
    AutoSchedule,
    CustomSchedule,
    GeometricSchedule,
    amp,
    kernels,
    state_evolution,
)
from mcover.annealing.packed import pack_above, packed_fields, unpack_signs
from mcover.errors import TooLargeError, UnreachableError
from mcover.factor_graph import Factor, lift_bank
from mcover.permutations import TABLE_COVERS
from mcover.plain import from_plain
from mcover.routing import draw_bank, draw_indexed_bank, draw_mixers
from mcover.statistics import (
    fraction,
    holm,
    mean,
    paired,
    paired_time_to_solution,
    time_to_solution,
)
from mcover.topology import Topology

PROBLEM = teacher_student(20, 1.0, seed=0)
PAIR = FactorGraph([(lambda a, b: -a * b, (0, 1))])
FOUR = FactorGraph([(lambda a, b, c: a * b * c, (1, 2, 3)), (lambda a: a * a, (0,))])
GOOD = np.ones((3, 5)), np.ones(3)
ONE_WORD, TWO_WORDS = np.zeros((2, 1), np.uint64), np.zeros((2, 2), np.uint64)
ENDLESS = []
ENDLESS.append(ENDLESS)


def run(**options):
    return lambda: anneal(PROBLEM, **options)


def scheduled(make, *given):
    return lambda: anneal(PROBLEM, schedule=make(*given))


@functools.cache
def result():
    return anneal(PROBLEM, num_sweeps=2, num_reads=2, seed=0)


def at(reads):
    return lambda: result()[reads]


TOPOLOGIES = [
    (lambda: GaussianRing(0), "sigma of GaussianRing is 0; write a number above 0"),
    (lambda: GaussianRing(1, shift=np.inf), "shift of GaussianRing is inf; write a finite"),
    (lambda: GaussianRing(shift=1e308), r"from -4.29497e\+09 to 4.29497e\+09"),
    (lambda: GaussianRing(1e-160, shift=0.3), "at least 1e-100"),
    (lambda: Chain(10**400), "more than 20 digits"),
    (lambda: Custom([[1, 2, 3], [1, 2, 3]]), r"square.*\(2, 3\)"),
    (lambda: Custom([[1, -2], [1, 1]]), r"entry \(0, 1\) is -2"),
    (lambda: Custom([[1, np.inf], [1, 1]]), "finite"),
    (lambda: Custom(np.empty((0, 0))), "at least one cover"),
    (lambda: Custom([["1", "2"], ["3", "4"]]), "array of numbers"),
    (lambda: Custom([[1, 2], [3]]), "array of numbers"),
    (lambda: Custom([[1, 1], [1, 1]]).matrix(3), "write covers=2"),
    (lambda: Custom([[1, 1, 0]] * 3), "no permutation.*Uniform"),
    (lambda: Uniform().matrix(10**7), r"kernel of 10000000 covers.*fewer covers"),
    (lambda: Uniform().plot(0), "covers is 0"),
    (lambda: mix(), "mix takes topologies"),
    (lambda: mix(Uniform(), weights=[1, 2]), "one positive number for each"),
    (lambda: mix(Uniform(), Identity(), weights=[1e308, 1e308]), "a finite sum"),
    (lambda: mix(Uniform(), Identity(), weights=[1e308, 5e-324]), "one positive number"),
    (lambda: from_plain(Topology, {"kind": "moebius"}), "of kind 'moebius'; write one of"),
    (lambda: from_plain(Topology, {"kind": "ring", "width": 1}), "no width; its fields are"),
    (lambda: from_plain(Topology, {"kind": "custom"}), "needs values"),
]
ROUTES = [
    (lambda: permutations.sample([[1, -1], [1, 1]], 1), "negative"),
    (lambda: permutations.sample([[0, 1], [0, 1]], 1), "no permutation"),
    (lambda: permutations.sample([[1]], 10**15), "draw fewer"),
    (lambda: permutations.log_prob(np.ones((3, 3)), [0, 1, 1]), "permutations of"),
    (lambda: permutations.log_prob(np.ones((3, 3)), [0, 1]), "permutations of"),
    (lambda: permutations.marginals(np.ones((TABLE_COVERS + 1,) * 2)), "average them"),
    (lambda: draw_bank(Uniform(), 2, 5, 6), "write at most 5"),
    (lambda: draw_bank(Uniform(), 2, True, 1), "sources is True"),
    (lambda: draw_indexed_bank(Uniform(), 2, 5, 6), "write at most 5"),
    (lambda: draw_indexed_bank(Uniform(), 2, 5.0, 1), r"sources is 5\.0"),
    (lambda: draw_mixers(Uniform(), 2, 0, 1, 1), "units is 0"),
]
GRAPHS = [
    (lambda: FactorGraph([]), "needs factors"),
    (lambda: FactorGraph([(3, (0,))]), "cannot be called"),
    (lambda: FactorGraph([(max, ())]), "each variable once"),
    (lambda: FactorGraph([(max, (0, 0))]), "each variable once"),
    (lambda: FactorGraph([(max, (0, 0.5))]), "a variable of factor 0 is 0.5"),
    (lambda: FactorGraph([max]), "factors cannot be read"),
    (lambda: FactorGraph([Factor(max, (0, 1), {2: max})]), "write them for its own variables"),
    (lambda: FactorGraph([(max, (0, 1))], domains=()), r"the domain of variable 0 is \(\)"),
    (lambda: FactorGraph([(max, (0, 1))], domains=(1, 1)), "write its values, each once"),
    (lambda: FactorGraph([(max, (0, 1))], domains={2: (0, 1)}), "from 0 to 1"),
    (lambda: FactorGraph([(max, (0, 1))], domains={0: "ab"}), "write its values"),
    (lambda: FOUR.lift(Uniform(), 2, wiring="sym"), "write wiring='asym'"),
    (lambda: FOUR.lift(Uniform(), 2, seed=0).objective([[0] * 4]), "covers first"),
    (lambda: lift_bank(FOUR, draw_bank(Uniform(), 2, 3, 1, 0)), "sources=4"),
    (lambda: lift_bank(FOUR, draw_bank(Uniform(), 2, 4, 1, 0)), "larger bank"),
    (lambda: FOUR.objective(3), "values"),
    (lambda: FOUR.lift(Uniform(), 2, seed=0).objective(np.ones(())), "values"),
    (lambda: anneal(PAIR, [1, 1]), "has no labels and no hidden units"),
    (lambda: anneal(PAIR, rule="repair"), "write .glauber. or .metropolis."),
    (lambda: anneal(PAIR, energy="errors"), "defines its own objective"),
    (lambda: anneal(PAIR, MCover(3, bank=3)), "bank=None for all of them"),
    (lambda: anneal(PAIR, Directed()), "labels|method is"),
    (lambda: anneal(PAIR, executor=ThreadPoolExecutor(1)), "on threads; leave executor out"),
    (lambda: anneal(PAIR, initial_states=[1, 1, 1]), r"initial_states has shape \(3,\)"),
    (lambda: anneal(PAIR, initial_states=[1, 0]), "initial_states has 0 for variable 1"),
    (lambda: anneal(FactorGraph([(lambda a: a / 0, (0,))])), "fails at .*ZeroDivision"),
    (lambda: anneal(FactorGraph([(lambda a: math.nan, (0,))])), "needs finite numbers"),
    (lambda: anneal(PAIR, seed=0, num_sweeps=2)["a"], "read is 'a'"),
]
PROBLEMS = [
    (lambda: Perceptron([[0, 2]], [1]), r"patterns must be -1 or \+1.*got .*2.*median"),
    (lambda: Perceptron([["a", "b"]], [1]), "patterns must be an array of -1 and"),
    (lambda: Perceptron(np.ma.ones((1, 2)), [1]), "patterns is a masked array"),
    (lambda: Perceptron([[1, [1]]], [1]), "array of numbers"),
    (lambda: Perceptron([1, 1], [1]), r"patterns is an array of shape .*\(any, any\)"),
    (lambda: Perceptron([[1, 1]], [2]), "labels must have two values; got 1: 2"),
    (lambda: Perceptron([[1, 1]] * 3, ["a", "b", "c"]), "got 3: 'a', 'b', 'c'"),
    (lambda: Perceptron([[1, 1]] * 2, [0.0, math.nan]), "labels must have two values"),
    (lambda: Perceptron([[1, 1]] * 2, [{}, None]), "two values with an order"),
    (lambda: Perceptron([[1, 1]], [1, 1]), r"labels have shape \(2,\); write one for each of"),
    (lambda: Perceptron([[1, 1]], [1], teacher=[1]), r"teacher is an array of shape .*\(2,\)"),
    (lambda: Perceptron([[1, 1]], [1]).energy(np.ones(3)), "write 2 of them"),
    (lambda: Committee([[1, 1]], [1], hidden=1.5), "hidden is 1.5"),
    (lambda: teacher_student(10**6, 10**3), "would take .* a smaller n or alpha"),
    (lambda: teacher_student(10, 1e308), "alpha is 1e.308"),
    (lambda: teacher_student(10, 0.01), "which gives no patterns; write a number of at least"),
    (lambda: [teacher_student(1, 9.0, s, hidden=2) for s in range(9)], "undecided"),
    (lambda: packed_fields(ONE_WORD, TWO_WORDS, 100), "words of uint64 per row"),
    (lambda: unpack_signs(ONE_WORD, 65), "words of uint64 per row"),
    (lambda: pack_above(np.zeros((2, 3)), np.array([0, 3]), np.zeros(2)), "columns go from"),
    (
        lambda: pack_above(np.zeros((2, 3)), np.array([0]), np.zeros(2)),
        "as many columns as thresholds",
    ),
]
ANNEALING = [
    (run(method="quantum"), r"method is 'quantum'; write mcover.MCover"),
    (run(method=MCover), "method is .*; write mcover.MCover"),
    (run(method=MCover(bank=21)), "at most 20, or bank=None"),
    (run(schedule=LinearSchedule(0.4, 0.1, 0.1), num_sweeps=3), "leave one of them out"),
    (run(num_reads=10**12), "fewer covers, reads"),
    (run(initial_states=np.ones(19)), r"initial_states .* write one of shape \(20,\)"),
    (run(initial_states=np.ones((2, 20))), r"write one of shape \(5, 20\)"),
    (run(initial_states=np.zeros(20)), "initial_states must be -1 or"),
    (run(rule="repair", order="sequential"), "order is 'sequential', but repair draws"),
    (run(rule="descent", improvement="best", order="permutation"), "tries every flip"),
    (run(improvement="best"), 'an option of descent, and rule is .glauber.; .*rule="descent"'),
    (run(rule="descent", record=[0.3]), "descent does not have; write a number of points"),
    (run(executor=ThreadPoolExecutor), "write a concurrent.futures.Executor"),
    (run(hidden=2), "a problem has its own hidden"),
    (lambda: anneal([[1, -1]]), "write mcover.teacher_student.* patterns followed by their labels"),
    (lambda: anneal(PROBLEM, [1]), "a problem has its own labels; leave labels out"),
    (lambda: anneal(PROBLEM, RSA(3), RSA(2)), "two methods were given"),
    (lambda: MCover(300), "covers is 300; write a whole number from 1 to 255"),
    (lambda: MCover(topology="moon"), "topology is 'moon'"),
    (lambda: RSA(coupling=-1.0), "coupling is -1.0; .* from 0 to 300"),
    (run(method=RSA(coupling_growth=1.0)), "must stay between 0"),
    (scheduled(LinearSchedule, 0.1, 0.4, 0.1), "write start ≥ stop"),
    (scheduled(LinearSchedule, 0.4, 0.1, 1e-300), "fewer temperatures"),
    (scheduled(GeometricSchedule, 0.4, 0.1, 10**15), "fewer temperatures"),
    (scheduled(AutoSchedule, 10**15), "fewer temperatures"),
    (scheduled(CustomSchedule, (0.3, 0.0)), "positive temperatures, the smallest here is 0"),
    (scheduled(list), "write a list or array of numbers"),
    (lambda: AutoSchedule(span=0.5), "span is 0.5; .* at least 1"),
    (lambda: AutoSchedule().temperatures(), r"read result\.options\.schedule"),
    (lambda: kernels.scales_of(None, [1.0], 301.0), "within ±300"),
    (at("three"), "selects no read|has none at"),
    (at([]), "has none at"),
    (at([9]), "has none at"),
    (at([[0, 1]]), "selects no read"),
    (lambda: solve(PROBLEM, time_limit=0), "time_limit is 0; write a finite number above 0"),
    (lambda: solve(PROBLEM, bits=9), "bits is 9; write a whole number from 1 to 8"),
    (lambda: solve(PROBLEM, hidden=0), "a problem has its own hidden"),
    (lambda: amp(np.ones(5), GOOD[1]), r"patterns is an array of shape \(5,\)"),
    (lambda: amp(GOOD[0], np.ones(4)), r"labels is an array of .*write one of shape \(3,\)"),
    (lambda: amp(*GOOD, damping=1.0), "damping is 1.0; write .* at least 0 and below 1"),
    (lambda: state_evolution(1, "cold"), "start is 'cold'; write 'uninformed' or 'informed'"),
]
STATISTICS = [
    (lambda: mean([]), "values is"),
    (lambda: mean(["1"]), "values is"),
    (lambda: mean([True]), "values is"),
    (lambda: mean(ENDLESS), "values is"),
    (lambda: mean([np.nan]), "finite numbers"),
    (lambda: fraction([]), "hits is"),
    (lambda: fraction([1, 0]), "True and False"),
    (lambda: time_to_solution([True, False], [1.0]), "cost has 1 entries"),
    (lambda: time_to_solution([True, False], [1.0, -2.0]), "the smallest -2"),
    (lambda: time_to_solution([True], [1.0], certainty=1.0), "certainty is 1.0"),
    (lambda: paired([1.0, 2.0], [1.0]), "both sides"),
    (lambda: paired([1.0, 2.0], [2.0, 3.0], seed=ENDLESS), "seed is"),
    (
        lambda: paired_time_to_solution(([True], [1.0]), ([True, False], [1.0, 1.0])),
        "as many values on both sides; got 1 and 2",
    ),
    (lambda: holm([0.1, 1.1]), "between 0 and 1"),
    (lambda: holm([[0.1, 0.2]]), "p_values is"),
]
TABLE = [*TOPOLOGIES, *ROUTES, *GRAPHS, *PROBLEMS, *ANNEALING, *STATISTICS]


@pytest.mark.parametrize(("call", "remedy"), TABLE, ids=[remedy for _, remedy in TABLE])
def test_what_cannot_be_meant_is_refused_with_its_remedy(call, remedy):
    with pytest.raises(McoverError, match=remedy):
        call()


def test_errors_say_what_kind_they_are():
    for call, kind in (
        (lambda: Custom([[1, 1, 0]] * 3), UnreachableError),
        (lambda: permutations.sample([[0, 1], [0, 1]], 1), UnreachableError),
        (lambda: permutations.sample([[1]], 10**15), TooLargeError),
        (lambda: Identity().matrix(10**7), TooLargeError),
    ):
        with pytest.raises(kind):
            call()
    with pytest.raises(IndexError, match="there is no read 6; the result has 2"):
        result()[6]
    assert issubclass(mcover.McoverError, ValueError)
