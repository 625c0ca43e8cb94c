"""mcover: train one model as M routed copies, and get one model back.

>>> import mcover
>>> mcover.GaussianRing(sigma=1.5, shift=2).matrix(covers=3).shape
(3, 3)

Importing the package loads NumPy and nothing heavier: compilers, plots and torch are imported by
the rooms that use them, when they are used.
"""

from mcover import permutations, statistics
from mcover.discrete import Committee, LinearSchedule, Perceptron, anneal, teacher_student
from mcover.errors import McoverError
from mcover.factor_graph import FactorGraph
from mcover.topology import (
    Band,
    Blocks,
    Chain,
    Custom,
    GaussianRing,
    Identity,
    Torus,
    Uniform,
    mix,
)

__version__ = "0.1.0"

__all__ = [
    "Band",
    "Blocks",
    "Chain",
    "Committee",
    "Custom",
    "FactorGraph",
    "GaussianRing",
    "Identity",
    "LinearSchedule",
    "McoverError",
    "Perceptron",
    "Torus",
    "Uniform",
    "anneal",
    "mix",
    "permutations",
    "statistics",
    "teacher_student",
]
