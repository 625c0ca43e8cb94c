"""Problems and factor graphs for the tests of annealers, and the ways to anneal them."""

from typing import Any

import numpy as np

from mcover import FactorGraph, LinearSchedule, Perceptron, teacher_student


def random_labels(patterns: int, inputs: int) -> Perceptron:
    """A perceptron of random labels; many of them are more than any weights fit."""
    one, other = (np.random.default_rng(seed) for seed in (0, 1))
    return Perceptron(one.choice([-1, 1], (patterns, inputs)), other.choice([-1, 1], patterns))


def quartic() -> FactorGraph:
    """A continuous model with factors of one, two and three variables."""
    return FactorGraph(
        [
            (lambda a: (a - 1) ** 2, (0,)),
            (lambda a, b: (a - b**2) ** 2, (0, 2)),
            (lambda a, b, c: a * b * c, (1, 2, 3)),
        ]
    )


def pattern_graph(patterns: np.ndarray, energy: str = "linear") -> FactorGraph:
    """A perceptron as a factor graph: one loss of all weights for each pattern."""

    def loss(row: np.ndarray) -> Any:
        def linear(*w: float) -> float:
            return max(0.0, -float(row @ np.array(w)) / len(row) ** 0.5)

        def errors(*w: float) -> float:
            return float(row @ np.array(w) <= 0)

        return linear if energy == "linear" else errors

    return FactorGraph([(loss(row), range(len(row))) for row in patterns])


def frustrated() -> FactorGraph:
    """A ring of nine bonds and fields, of both signs: many states of different energies."""
    bonds = [(lambda a, b, j=(-1) ** (i // 2): j * a * b, (i, (i + 1) % 9)) for i in range(9)]
    return FactorGraph([*bonds, *((lambda a, h=0.1 * i: h * a, (i,)) for i in range(9))])


PROBLEMS = {
    "perceptron": random_labels(60, 31),
    "committee": teacher_student(9, 2.0, seed=0, hidden=3),
    "teacher": teacher_student(41, 3.0, seed=0),
    "graph": frustrated(),
}
COOLING = LinearSchedule(0.4, 0.01, 0.01)
RULES: dict[str, dict[str, Any]] = {
    "glauber": {"schedule": COOLING},
    "sequential": {"schedule": COOLING, "order": "sequential"},
    "metropolis": {"schedule": COOLING, "rule": "metropolis"},
    "sequential metropolis": {"schedule": COOLING, "rule": "metropolis", "order": "sequential"},
    "errors": {"schedule": COOLING, "energy": "errors"},
    "permuted errors": {"schedule": COOLING, "energy": "errors", "order": "permutation"},
    "repair": {"schedule": [0.15] * 40, "rule": "repair"},
    "descent": {"rule": "descent", "num_sweeps": 60},
    "permuted descent": {"rule": "descent", "num_sweeps": 60, "order": "permutation"},
    "best descent": {"rule": "descent", "num_sweeps": 60, "improvement": "best"},
}
OF_GRAPHS = ("glauber", "sequential", "metropolis", "sequential metropolis")
RUNS = {
    f"{name}, {rule}": (problem, how)
    for name, problem in PROBLEMS.items()
    for rule, how in RULES.items()
    if name != "graph" or rule in OF_GRAPHS
}


def final_states(result: Any) -> np.ndarray:
    """Final weights, or values, of all covers."""
    return result.values if hasattr(result, "values") else result.weights
