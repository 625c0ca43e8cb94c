"""±1 weights: problems, methods and schedules, the annealer, and message passing."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mcover.annealing.annealer import anneal as anneal
from mcover.annealing.graphs import Assignment as Assignment
from mcover.annealing.graphs import GraphResult as GraphResult
from mcover.annealing.loading import load_problem as load_problem
from mcover.annealing.options import PAPER as PAPER
from mcover.annealing.options import RECOMMENDED as RECOMMENDED
from mcover.annealing.options import RSA as RSA
from mcover.annealing.options import AnnealOptions as AnnealOptions
from mcover.annealing.options import MCover as MCover
from mcover.annealing.options import Method as Method
from mcover.annealing.options import Rule as Rule
from mcover.annealing.options import Vanilla as Vanilla
from mcover.annealing.problems import Committee as Committee
from mcover.annealing.problems import Perceptron as Perceptron
from mcover.annealing.problems import Problem as Problem
from mcover.annealing.problems import Ties as Ties
from mcover.annealing.problems import teacher_student as teacher_student
from mcover.annealing.reads import AnnealStatus as AnnealStatus
from mcover.annealing.result import AnnealResult as AnnealResult
from mcover.annealing.result import Student as Student
from mcover.annealing.result import Summary as Summary
from mcover.annealing.schedules import AutoSchedule as AutoSchedule
from mcover.annealing.schedules import BetaSchedule as BetaSchedule
from mcover.annealing.schedules import CustomSchedule as CustomSchedule
from mcover.annealing.schedules import GeometricSchedule as GeometricSchedule
from mcover.annealing.schedules import LinearSchedule as LinearSchedule
from mcover.annealing.schedules import Schedule as Schedule
from mcover.annealing.solution import Solution as Solution
from mcover.annealing.solve import SolveStatus as SolveStatus
from mcover.annealing.solve import solve as solve
from mcover.annealing.trajectory import Trajectory as Trajectory

if TYPE_CHECKING:
    from mcover.annealing.message_passing import amp as amp


def __getattr__(name: str) -> Any:
    """Loads SciPy with the first use of message passing."""
    if name != "amp":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("mcover.annealing.message_passing").amp
