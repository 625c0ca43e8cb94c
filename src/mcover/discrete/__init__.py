"""±1 weights: problems, schedules and the annealer."""

from mcover.discrete.annealer import anneal
from mcover.discrete.chains import Status
from mcover.discrete.problems import Committee, Perceptron, Problem, teacher_student
from mcover.discrete.result import AnnealResult, Trajectory
from mcover.discrete.schedules import (
    BetaSchedule,
    CustomSchedule,
    GeometricSchedule,
    LinearSchedule,
)
from mcover.discrete.settings import Settings

__all__ = [
    "AnnealResult",
    "BetaSchedule",
    "Committee",
    "CustomSchedule",
    "GeometricSchedule",
    "LinearSchedule",
    "Perceptron",
    "Problem",
    "Settings",
    "Status",
    "Trajectory",
    "anneal",
    "teacher_student",
]
