"""The committee machine with smooth weights: surrogate, schedules, and a fast gradient.

torch is loaded with the first use of a name that needs it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from mcover.lab.committee.schedules import FAST, SLOW, Sharpening

if TYPE_CHECKING:
    from mcover.lab.committee.machine import CommitteeMachine, collapse, machine_of, surrogate

__all__ = [
    "FAST",
    "SLOW",
    "CommitteeMachine",
    "Sharpening",
    "collapse",
    "machine_of",
    "surrogate",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("mcover.lab.committee.machine"), name)
