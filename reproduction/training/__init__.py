"""Training of every model with every method: options, trials and the loop.

``fit`` imports torch at its first use, because listing studies does not need torch.
"""

from typing import TYPE_CHECKING, Any

from reproduction.training.binary import BinaryTrial
from reproduction.training.options import (
    EMA,
    RSGD,
    SAM,
    SGD,
    SWA,
    Elastic,
    Entropy,
    Flips,
    Lifted,
    Method,
    Soup,
    Training,
)
from reproduction.training.trials import (
    CommitteeTrial,
    CoverTrial,
    DistilledTrial,
    NetworkTrial,
    RepeatedTrial,
)

if TYPE_CHECKING:
    from reproduction.training.loop import fit

__all__ = [
    "EMA",
    "RSGD",
    "SAM",
    "SGD",
    "SWA",
    "BinaryTrial",
    "CommitteeTrial",
    "CoverTrial",
    "DistilledTrial",
    "Elastic",
    "Entropy",
    "Flips",
    "Lifted",
    "Method",
    "NetworkTrial",
    "RepeatedTrial",
    "Soup",
    "Training",
    "fit",
]


def __getattr__(name: str) -> Any:
    if name != "fit":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from reproduction.training.loop import fit

    return fit
