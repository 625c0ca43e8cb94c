"""Estimates and tests."""

import numpy as np

from mcover.statistics import (
    fraction,
    holm,
    mean,
    paired,
    paired_time_to_solution,
    time_to_solution,
)

ENDLESS = []
ENDLESS.append(ENDLESS)
ROWS = [
    ("a mean of nothing", lambda: mean([]), "values is"),
    ("a mean of text", lambda: mean(["1"]), "values is"),
    ("a mean of True", lambda: mean([True]), "values is"),
    ("a list in itself", lambda: mean(ENDLESS), "values is"),
    ("a mean of NaN", lambda: mean([np.nan]), "finite numbers"),
    ("a fraction of nothing", lambda: fraction([]), "hits is"),
    ("a fraction of numbers", lambda: fraction([1, 0]), "True and False"),
    ("fewer costs than trials", lambda: time_to_solution([True, False], [1.0]),
     "cost has 1 entries"),
    ("a negative cost", lambda: time_to_solution([True, False], [1.0, -2.0]), "the smallest -2"),
    ("certainty of 1", lambda: time_to_solution([True], [1.0], certainty=1.0),
     "certainty is 1.0"),
    ("pairs of two lengths", lambda: paired([1.0, 2.0], [1.0]), "both sides"),
    ("a list for a seed", lambda: paired([1.0, 2.0], [2.0, 3.0], seed=ENDLESS), "seed is"),
    ("times to solution of two lengths",
     lambda: paired_time_to_solution(([True], [1.0]), ([True, False], [1.0, 1.0])),
     "as many values on both sides; got 1 and 2"),
    ("a p-value above 1", lambda: holm([0.1, 1.1]), "between 0 and 1"),
    ("a table of p-values", lambda: holm([[0.1, 0.2]]), "p_values is"),
]  # fmt: skip
