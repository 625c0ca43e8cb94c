"""The committee machine with smooth weights: surrogate, schedules, and a fast lift."""

from mcover.committee.machine import CommitteeMachine, collapse, machine_of
from mcover.committee.schedules import FAST, SLOW, Sharpening
from mcover.committee.surrogate import surrogate

__all__ = [
    "FAST",
    "SLOW",
    "CommitteeMachine",
    "Sharpening",
    "collapse",
    "machine_of",
    "surrogate",
]
