"""±1 weights: problems, methods and schedules, the annealer, and message passing."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mcover.annealing.annealer import AnnealStatus, anneal
from mcover.annealing.options import (
    RSA,
    AnnealOptions,
    BetaSchedule,
    CustomSchedule,
    Energy,
    GeometricSchedule,
    LinearSchedule,
    MCover,
    Method,
    Order,
    Rule,
    Schedule,
    Vanilla,
)
from mcover.annealing.problems import (
    Committee,
    Perceptron,
    Problem,
    Ties,
    load_problem,
    teacher_student,
)
from mcover.annealing.result import AnnealResult, Trajectory

if TYPE_CHECKING:
    from mcover.annealing.message_passing import (
        algorithmic_threshold,
        amp,
        information_threshold,
        state_evolution,
    )
    from mcover.annealing.packed import pack_above, pack_signs, packed_fields, unpack_signs

__all__ = [
    "RSA",
    "AnnealOptions",
    "AnnealResult",
    "AnnealStatus",
    "BetaSchedule",
    "Committee",
    "CustomSchedule",
    "Energy",
    "GeometricSchedule",
    "LinearSchedule",
    "MCover",
    "Method",
    "Order",
    "Perceptron",
    "Problem",
    "Rule",
    "Schedule",
    "Ties",
    "Trajectory",
    "Vanilla",
    "algorithmic_threshold",
    "amp",
    "anneal",
    "information_threshold",
    "load_problem",
    "pack_above",
    "pack_signs",
    "packed_fields",
    "state_evolution",
    "teacher_student",
    "unpack_signs",
]

_PACKED = ("pack_above", "pack_signs", "packed_fields", "unpack_signs")


def __getattr__(name: str) -> Any:
    """Loads SciPy with the first use of message passing, and numba with that of packed bits."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room = "packed" if name in _PACKED else "message_passing"
    return getattr(import_module(f"mcover.annealing.{room}"), name)
