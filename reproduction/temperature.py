"""The temperature at which one copy accepts a given share of its proposals."""

from __future__ import annotations

import time

import numpy as np

from mcover import Vanilla, anneal
from mcover.annealing import GeometricSchedule, Problem

ACCEPTED = 0.12
_STEPS, _SWEEPS, _SPAN = 96, 2, 4096.0
"""Neighbouring temperatures differ by 9 %; each is held for two sweeps."""


def acceptance_temperature(problem: Problem, seed: object, share: float = ACCEPTED) -> float:
    """T₀ of a problem: one copy cools from a temperature that is too high for any data.

    No flip changes the energy by more than that of all patterns wrong by one step each, so at the
    start nearly half of the proposals are accepted. T₀ is read off a straight line through the
    acceptance against log T, where it is between half and twice the share.
    """
    terms = problem.inputs if problem.hidden == 1 else problem.hidden
    high = 2 * len(problem.patterns) / np.sqrt(terms)
    schedule = GeometricSchedule(high, high / _SPAN, _STEPS, sweeps=_SWEEPS)
    cooled = anneal(
        problem, Vanilla(), schedule=schedule, seed=seed, workers=1, record=_STEPS, stop_at_zero=True
    )
    accepted, logs = cooled.trajectory.acceptance[0], np.log(cooled.trajectory.temperature)
    known = ~np.isnan(accepted)
    accepted, logs = accepted[known], logs[known]
    below = accepted < share
    first = int(np.argmax(below)) if below.any() else len(accepted) - 1
    near = slice(max(0, first - 6), first + 5)
    slope, offset = np.polyfit(logs[near], accepted[near], 1)
    if slope <= 0:
        return float(np.exp(logs[first]))
    return float(np.exp(np.clip((share - offset) / slope, logs[near][-1], logs[near][0])))


def timed_temperature(problem: Problem, seed: object) -> tuple[float, float]:
    """T₀ and the processor time that it took."""
    begin = time.process_time()
    found = acceptance_temperature(problem, seed)
    return found, time.process_time() - begin
