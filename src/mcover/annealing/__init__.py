"""±1 weights: problems, schedules and the annealer."""

from mcover.annealing.annealer import anneal
from mcover.annealing.chains import Status
from mcover.annealing.problems import Committee, Perceptron, Problem, teacher_student
from mcover.annealing.result import AnnealResult, Trajectory
from mcover.annealing.schedules import (
    BetaSchedule,
    CustomSchedule,
    GeometricSchedule,
    LinearSchedule,
)
from mcover.annealing.settings import Settings

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
