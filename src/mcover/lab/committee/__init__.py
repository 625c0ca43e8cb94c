"""The committee machine with smooth weights: surrogate, schedules, and a fast lift."""

from mcover.lab.committee.machine import CommitteeMachine, collapse, machine_of
from mcover.lab.committee.schedules import FAST, SLOW, Sharpening
from mcover.lab.committee.surrogate import surrogate

__all__ = [
    "FAST",
    "SLOW",
    "CommitteeMachine",
    "Sharpening",
    "collapse",
    "machine_of",
    "surrogate",
]
