"""The committee machine with smooth weights: its surrogate, schedules, and fast lifted gradients."""

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
