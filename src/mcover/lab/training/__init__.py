"""One training entry for every model and method: options, trials and the loop.

torch is loaded with the first use of ``fit``, so that options can be read without it.
"""

from typing import TYPE_CHECKING, Any

from mcover.lab.training.binary import BinaryTrial
from mcover.lab.training.options import (
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
from mcover.lab.training.trials import (
    CommitteeTrial,
    CoverTrial,
    DistilledTrial,
    NetworkTrial,
    RepeatedTrial,
)

if TYPE_CHECKING:
    from mcover.lab.training.loop import fit

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
    from mcover.lab.training.loop import fit

    return fit
