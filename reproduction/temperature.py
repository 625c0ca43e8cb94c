"""The temperature at which one copy accepts a given share of its proposals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mcover import Vanilla, anneal
from mcover.annealing import GeometricSchedule, Problem

ACCEPTED = 0.12
_STEPS, _SWEEPS = 33, 4
_FROM, _TO = 1 / 16, 1 / 4096
"""Shares of the largest change of energy; neighbouring temperatures differ by 19 %."""
_NEAR = 2
"""Temperatures on either side of the crossing that the line is fitted to."""


def acceptance_temperature(problem: Problem, seed: Sequence[int]) -> tuple[float, float]:
    """T₀ of a problem, where one copy accepts 12 % of its proposals, and the seconds that it took.

    A copy cools from a temperature that is too high for any data: a flip changes the energy by at
    most two steps of the margin for each pattern. T₀ is read off a straight line through
    log acceptance against log T near the crossing.
    """
    terms = problem.inputs if problem.hidden == 1 else problem.hidden
    largest = 2 * len(problem.patterns) / np.sqrt(terms)
    schedule = GeometricSchedule(_FROM * largest, _TO * largest, _STEPS, sweeps=_SWEEPS)
    cooled = anneal(problem, Vanilla(), schedule=schedule, seed=seed, workers=1, record=_STEPS)
    accepted, logs = cooled.trajectory.acceptance[0], np.log(cooled.trajectory.temperature)
    below = accepted < ACCEPTED
    first = int(np.argmax(below)) if below.any() else len(accepted) - 1
    near = slice(max(0, first - _NEAR), first + _NEAR)
    # A copy that is frozen or solved accepts nothing; the floor keeps its logarithm finite.
    slope, offset = np.polyfit(logs[near], np.log(np.maximum(accepted[near], 1e-3)), 1)
    crossing = (np.log(ACCEPTED) - offset) / slope if slope > 0 else logs[first]
    found = np.exp(np.clip(crossing, logs[near][-1], logs[near][0]))
    return float(found), float(cooled.seconds.sum())
