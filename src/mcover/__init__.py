"""mcover: train one model as M routed copies, and get one model back.

>>> import mcover
>>> mcover.GaussianRing(sigma=1.5, shift=2).matrix(covers=3).shape
(3, 3)

Importing the package loads NumPy and nothing heavier. SciPy, numba, tqdm, matplotlib and torch are
imported by the functions that use them.
"""

import importlib
from typing import TYPE_CHECKING, Any

from mcover import permutations as permutations
from mcover import statistics as statistics
from mcover.annealing import (
    RSA,
    Committee,
    LinearSchedule,
    MCover,
    Perceptron,
    Vanilla,
    anneal,
    solve,
    teacher_student,
)
from mcover.errors import McoverError
from mcover.factor_graph import FactorGraph
from mcover.lifting import Directed, Messages
from mcover.topology import (
    Chain,
    Custom,
    GaussianRing,
    Identity,
    Uniform,
    mix,
)

if TYPE_CHECKING:
    from mcover import nn as nn
    from mcover import optim as optim
    from mcover.nn.lift import lift
    from mcover.nn.loss import cover_loss

__version__ = "0.1.0"

__all__ = [
    "RSA",
    "Chain",
    "Committee",
    "Custom",
    "Directed",
    "FactorGraph",
    "GaussianRing",
    "Identity",
    "LinearSchedule",
    "MCover",
    "McoverError",
    "Messages",
    "Perceptron",
    "Uniform",
    "Vanilla",
    "anneal",
    "cover_loss",
    "lift",
    "mix",
    "solve",
    "teacher_student",
]


_MODULES = ("annealing", "nn", "optim", "permutations", "statistics")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, "__doc__", "__version__"})


def __getattr__(name: str) -> Any:
    """Imports torch when a name that needs it is first used."""
    if name not in ("cover_loss", "lift", "nn", "optim"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        if name in ("nn", "optim"):
            return importlib.import_module(f"mcover.{name}")
        from mcover import nn
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from mcover.extras import missing

        raise missing(f"mcover.{name}", "torch", "torch") from error
    return getattr(nn, name)
