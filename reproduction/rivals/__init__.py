"""Alternatives that a user would try: solvers of ±1 weights that the library does not have.

Each solver takes the gauged patterns G (label × pattern), shape (P, N), and returns ±1 weights,
(N,).
"""

from reproduction.rivals.exact import solve_cp_sat as solve_cp_sat
from reproduction.rivals.exact import solve_highs as solve_highs
from reproduction.rivals.expectation_propagation import Posterior as Posterior
from reproduction.rivals.expectation_propagation import propagate as propagate
from reproduction.rivals.relaxed import largest_margin as largest_margin
from reproduction.rivals.relaxed import logistic_regression as logistic_regression
