"""mcover: train one model as M routed copies, and get one model back.

>>> import mcover
>>> mcover.GaussianRing(sigma=1.5, shift=2).matrix(covers=3).shape
(3, 3)

Importing the package loads NumPy and nothing heavier. SciPy, numba, tqdm, matplotlib and torch are
imported by the functions that use them.
"""

import importlib
from importlib.util import find_spec
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
from mcover.extras import require
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


_MODULES = ("annealing", "permutations", "statistics")
_WITH_TORCH = ("cover_loss", "lift", "nn", "optim")
_INTEGRATIONS = ("distributed", "hf", "lightning", "optuna", "sklearn")


def __dir__() -> list[str]:
    """Without torch also without the names that need it: ``help(mcover)`` looks at all of them."""
    names = {*__all__, *_MODULES, *_WITH_TORCH, "__doc__", "__version__"}
    return sorted(names if find_spec("torch") else names - {*_WITH_TORCH})


def __getattr__(name: str) -> Any:
    """Imports torch, or an integration and its framework, when such a name is first used."""
    if name in ("nn", "optim", *_INTEGRATIONS):  # without its packages each names the extra
        return importlib.import_module(f"mcover.{name}")
    if name not in _WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with require(f"mcover.{name}", "torch", "torch"):
        from mcover import nn
    return getattr(nn, name)
