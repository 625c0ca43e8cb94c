"""Factor graphs, their lifts, and their annealing."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from mcover import Directed, FactorGraph, MCover, Uniform, anneal
from mcover.factor_graph import Factor, lift_bank
from mcover.routing import draw_bank

PAIR = FactorGraph([(lambda a, b: -a * b, (0, 1))])
FOUR = FactorGraph([(lambda a, b, c: a * b * c, (1, 2, 3)), (lambda a: a * a, (0,))])


def domains(given):
    return lambda: FactorGraph([(max, (0, 1))], domains=given)


ROWS = [
    ("no factors", lambda: FactorGraph([]), "needs factors"),
    ("a loss that is a number", lambda: FactorGraph([(3, (0,))]), "cannot be called"),
    ("no variables", lambda: FactorGraph([(max, ())]), "each variable once"),
    ("a variable twice", lambda: FactorGraph([(max, (0, 0))]), "each variable once"),
    ("a variable 0.5", lambda: FactorGraph([(max, (0, 0.5))]), "a variable of factor 0 is 0.5"),
    ("a loss without variables", lambda: FactorGraph([max]), "factors cannot be read"),
    ("directed losses of another variable",
     lambda: FactorGraph([Factor(max, (0, 1), {2: max})]), "write them for its own variables"),
    ("an empty domain", domains(()), "the domain of variable 0 is ()"),
    ("a value twice", domains((1, 1)), "write its values, each once"),
    ("a domain of another variable", domains({2: (0, 1)}), "from 0 to 1"),
    ("a domain of text", domains({0: "ab"}), "write its values"),
    ("symmetric wiring of three variables", lambda: FOUR.lift(Uniform(), 2, wiring="sym"),
     "write wiring='asym'"),
    ("values of one cover", lambda: FOUR.lift(Uniform(), 2, seed=0).objective([[0] * 4]),
     "covers first"),
    ("a bank of other sources", lambda: lift_bank(FOUR, draw_bank(Uniform(), 2, 3, 1, 0)),
     "sources=4"),
    ("a bank that misses a factor", lambda: lift_bank(FOUR, draw_bank(Uniform(), 2, 4, 1, 0)),
     "larger bank"),
    ("values that are a number", lambda: FOUR.objective(3), "values"),
    ("values of no axes", lambda: FOUR.lift(Uniform(), 2, seed=0).objective(np.ones(())),
     "values"),
    # Annealing.
    ("labels", lambda: anneal(PAIR, [1, 1]), "has no labels and no hidden units"),
    ("repair", lambda: anneal(PAIR, rule="repair"), "write 'glauber' or 'metropolis'"),
    ("an energy", lambda: anneal(PAIR, energy="errors"), "defines its own objective"),
    ("a bank larger than the variables", lambda: anneal(PAIR, MCover(3, bank=3)),
     "bank=None for all of them"),
    ("a routing for a method", lambda: anneal(PAIR, Directed()), "labels"),
    ("an executor", lambda: anneal(PAIR, executor=ThreadPoolExecutor(1)),
     "on threads; leave executor out"),
    ("states of another shape", lambda: anneal(PAIR, initial_states=[1, 1, 1]),
     "initial_states has shape (3,)"),
    ("a state that is no value", lambda: anneal(PAIR, initial_states=[1, 0]),
     "initial_states has 0 for variable 1"),
    ("a loss that fails", lambda: anneal(FactorGraph([(lambda a: a / 0, (0,))])),
     "fails at …ZeroDivision"),
    ("a loss of NaN", lambda: anneal(FactorGraph([(lambda a: math.nan, (0,))])),
     "needs finite numbers"),
    ("a stop at zero, above the minimum", lambda: anneal(PAIR, stop_at_zero=True),
     "loss of factor 0 is -1 at (-1, -1)…leave stop_at_zero out"),
    ("a read by name", lambda: anneal(PAIR, seed=0, num_sweeps=2)["a"], "read is 'a'"),
]  # fmt: skip
