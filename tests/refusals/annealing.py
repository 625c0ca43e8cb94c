"""Problems of ±1 weights, methods, schedules, searches and results."""

import functools
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from mcover import (
    RSA,
    Committee,
    LinearSchedule,
    MCover,
    Perceptron,
    anneal,
    solve,
    teacher_student,
)
from mcover.annealing import (
    AutoSchedule,
    CustomSchedule,
    GeometricSchedule,
    amp,
)
from mcover.annealing.packed import pack_above, packed_fields, unpack_signs

PROBLEM = teacher_student(20, 1.0, seed=0)
PATTERNS, LABELS = np.ones((3, 5)), np.ones(3)
ONE_WORD, TWO_WORDS = np.zeros((2, 1), np.uint64), np.zeros((2, 2), np.uint64)


def run(*given, **options):
    return lambda: anneal(PROBLEM, *given, **options)


def scheduled(make, *given):
    return lambda: anneal(PROBLEM, schedule=make(*given))


@functools.cache
def result():
    """Of two reads."""
    return anneal(PROBLEM, num_sweeps=2, num_reads=2, seed=0)


def reads(chosen):
    return lambda: result()[chosen]


ROWS = [
    ("patterns of 0 and 2", lambda: Perceptron([[0, 2]], [1]),
     "patterns must be ±1, 0 and 1, or bool…median…are 0, 2."),
    ("patterns of text", lambda: Perceptron([["a", "b"]], [1]),
     "patterns must be an array of -1 and"),
    ("masked patterns", lambda: Perceptron(np.ma.ones((1, 2)), [1]), "patterns is a masked array"),
    ("ragged patterns", lambda: Perceptron([[1, [1]]], [1]), "array of numbers"),
    ("a single pattern", lambda: Perceptron([1, 1], [1]),
     "patterns is an array of shape …(any, any)"),
    ("labels of one value", lambda: Perceptron([[1, 1]], [2]),
     "labels must have two values; got 1: 2"),
    ("labels of three values", lambda: Perceptron([[1, 1]] * 3, ["a", "b", "c"]),
     "got 3: 'a', 'b', 'c'"),
    ("a label of NaN", lambda: Perceptron([[1, 1]] * 2, [0.0, math.nan]),
     "labels must have two values"),
    ("labels without an order", lambda: Perceptron([[1, 1]] * 2, [{}, None]),
     "two values with an order"),
    ("more labels than patterns", lambda: Perceptron([[1, 1]], [1, 1]),
     "labels have shape (2,); write one for each of"),
    ("a teacher of another size", lambda: Perceptron([[1, 1]], [1], teacher=[1]),
     "teacher is an array of shape …(2,)"),
    ("weights of another size", lambda: Perceptron([[1, 1]], [1]).energy(np.ones(3)),
     "write 2 of them"),
    ("1.5 hidden units", lambda: Committee([[1, 1]], [1], hidden=1.5), "hidden is 1.5"),
    ("patterns beyond the memory", lambda: teacher_student(10**6, 10**3),
     "would take …a smaller n or alpha"),
    ("alpha too large", lambda: teacher_student(10, 1e308), "alpha is 1e+308"),
    ("alpha that gives no patterns", lambda: teacher_student(10, 0.01),
     "which gives no patterns; write a number of at least"),
    ("a teacher that is undecided",
     lambda: [teacher_student(1, 9.0, seed, hidden=2) for seed in range(9)], "undecided"),
    ("words of another width", lambda: packed_fields(ONE_WORD, TWO_WORDS, 100),
     "words of uint64 per row"),
    ("more signs than bits", lambda: unpack_signs(ONE_WORD, 65), "words of uint64 per row"),
    ("a column out of range",
     lambda: pack_above(np.zeros((2, 3)), np.array([0, 3]), np.zeros(2)), "columns go from"),
    ("columns of another number",
     lambda: pack_above(np.zeros((2, 3)), np.array([0]), np.zeros(2)),
     "as many columns as thresholds"),
    # Annealing.
    ("an unknown method", run(method="quantum"), "method is 'quantum'; write mcover.MCover"),
    ("a class of methods", run(method=MCover), "method is …; write mcover.MCover"),
    ("a bank larger than the weights", run(method=MCover(bank=21)), "at most 20, or bank=None"),
    ("sweeps beside a schedule", run(schedule=LinearSchedule(0.4, 0.1, 0.1), num_sweeps=3),
     "leave one of them out"),
    ("reads beyond the memory", run(num_reads=10**12), "fewer covers, reads"),
    ("a state of another size", run(initial_states=np.ones(19)),
     "initial_states …write one of shape (20,)"),
    ("states of other covers", run(method=MCover(5), initial_states=np.ones((2, 20))),
     "write one of shape (5, 20)"),
    ("states of 0", run(initial_states=np.zeros(20)),
     "initial_states must be -1 and +1…2 * initial_states - 1…are 0.0"),
    ("an order of repair", run(rule="repair", order="sequential"),
     "order is 'sequential', but repair draws"),
    ("an order of the best descent", run(rule="descent", improvement="best", order="permutation"),
     "tries every flip"),
    ("improvement without descent", run(improvement="best"),
     "an option of descent, and rule is 'glauber'; …rule=\"descent\""),
    ("temperatures of descent", run(rule="descent", record=[0.3]),
     "descent does not have; write a number of points"),
    ("a class of executors", run(executor=ThreadPoolExecutor),
     "write a concurrent.futures.Executor"),
    ("hidden units beside a problem", run(hidden=2), "a problem has its own hidden"),
    ("patterns without labels", lambda: anneal([[1, -1]]),
     "write mcover.teacher_student…patterns followed by their labels"),
    ("labels beside a problem", run([1]), "a problem has its own labels; leave labels out"),
    ("two methods", run(RSA(3), RSA(2)), "two methods were given"),
    ("300 covers", lambda: MCover(300), "covers is 300; write a whole number from 1 to 255"),
    ("an unknown topology", lambda: MCover(topology="moon"), "topology is 'moon'"),
    ("a negative coupling", lambda: RSA(coupling=-1.0), "coupling is -1.0; …from 0 to 300"),
    ("a coupling that grows out of range", run(method=RSA(coupling_growth=1.0)),
     "must stay between 0"),
    ("a schedule that rises", scheduled(LinearSchedule, 0.1, 0.4, 0.1), "write start ≥ stop"),
    ("a step too small", scheduled(LinearSchedule, 0.4, 0.1, 1e-300), "fewer temperatures"),
    ("temperatures beyond the memory", scheduled(GeometricSchedule, 0.4, 0.1, 10**15),
     "fewer temperatures"),
    ("automatic sweeps beyond the memory", scheduled(AutoSchedule, 10**15), "fewer temperatures"),
    ("a temperature of 0", scheduled(CustomSchedule, (0.3, 0.0)),
     "positive temperatures, the smallest here is 0"),
    ("no temperatures", scheduled(list), "write a list or array of numbers"),
    ("a span below 1", lambda: AutoSchedule(span=0.5), "span is 0.5; …at least 1"),
    ("temperatures of an automatic schedule", lambda: AutoSchedule().temperatures(),
     "read result.options.schedule"),
    # Results.
    ("a read by name", reads("three"), "has none at 'three'"),
    ("an empty list of reads", reads([]), "has none at"),
    ("a read that is not there", reads([9]), "has none at"),
    ("a table of reads", reads([[0, 1]]), "selects no read"),
    # Searches and message passing.
    ("no time", lambda: solve(PROBLEM, time_limit=0),
     "time_limit is 0; write a finite number above 0"),
    ("9 bits", lambda: solve(PROBLEM, bits=9), "bits is 9; write a whole number from 1 to 8"),
    ("hidden units of a search", lambda: solve(PROBLEM, hidden=0), "a problem has its own hidden"),
    ("a single pattern of amp", lambda: amp(np.ones(5), LABELS),
     "patterns is an array of shape (5,)"),
    ("labels of another number", lambda: amp(PATTERNS, np.ones(4)),
     "labels have shape (4,); write one for each of the 3 patterns"),
    ("a damping of 1", lambda: amp(PATTERNS, LABELS, damping=1.0),
     "damping is 1.0; write …at least 0 and below 1"),
]  # fmt: skip
