"""Paired trials: every method on the same teachers, patterns and seeds."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from mcover import statistics
from mcover.annealing.annealer import anneal
from mcover.annealing.problems import Ties, teacher_student
from mcover.annealing.result import AnnealResult, Trajectory
from mcover.statistics import Estimate


@dataclass(frozen=True)
class Trial:
    """One method on one instance: a row of a results table."""

    method: str
    trial: int
    generalization_error: float
    """Of the mean of the covers, as the paper reports it."""
    generalization_error_sign: float
    """Of the majority of the covers, a student with ±1 weights."""
    training_errors: int
    """Of the majority; a margin of zero counts."""
    collapsed_energy: float
    """Linear energy of the majority; a margin of zero costs nothing."""
    energy: float
    """Lifted energy, summed over covers."""
    proposals: int
    seconds: float

    @property
    def solved(self) -> bool:
        """Whether the collapse to ±1 weights has zero energy."""
        return self.collapsed_energy == 0


@dataclass(frozen=True)
class Summary:
    """What the trials of one method say together; each figure with its 95 % interval."""

    method: str
    generalization_error: Estimate
    generalization_error_sign: Estimate
    solved: Estimate
    tts_proposals: Estimate
    """Proposals until a solution is found with 99 % certainty."""
    tts_seconds: Estimate
    """The same in seconds of one core."""


def run_trials(
    methods: Mapping[str, Mapping[str, Any]],
    n: int,
    alpha: float,
    trials: Sequence[int],
    workers: int | None = None,
    ties: Ties = "redraw",
) -> Iterator[tuple[Trial, AnnealResult]]:
    """Anneals fresh instances, yielding rows in order as they finish.

    Args:
        methods: options of :func:`mcover.anneal` by the name a row will carry.
        n: inputs.
        alpha: patterns per input.
        trials: numbers of the trials; trial k has instance seed (k, 0) and annealing seed (k, 1),
            whatever the method, so that methods compare on paired instances.
        workers: threads; all cores by default.
        ties: what becomes of patterns on which the teacher is undecided.

    Ctrl-C, or leaving the loop early, drops the trials in flight.
    """
    halt = threading.Event()

    def one(trial: int) -> list[tuple[Trial, AnnealResult]]:
        problem = teacher_student(n, alpha, seed=[trial, 0], ties=ties)
        rows = []
        for name, options in methods.items():
            seed = [trial, 1]
            result = anneal(problem, **options, seed=seed, workers=1, interrupt=halt.is_set)
            if result.interrupted:
                return []
            sign_error = problem.generalization_error(result.collapsed_sign)
            row = Trial(
                method=name,
                trial=trial,
                generalization_error=float(result.generalization_error[0]),
                generalization_error_sign=float(sign_error[0]),
                training_errors=int(result.training_errors[0]),
                collapsed_energy=float(result.collapsed_energy[0]),
                energy=float(result.energy[0]),
                proposals=int(result.proposals[0]),
                seconds=float(result.seconds[0]),
            )
            rows.append((row, result))
        return rows

    pool = ThreadPoolExecutor(workers or os.cpu_count() or 1)
    try:
        for rows in pool.map(one, trials):
            yield from rows
    finally:
        halt.set()
        pool.shutdown(wait=True, cancel_futures=True)


def summarize(method: str, rows: Sequence[Trial]) -> Summary:
    """Means, solved fraction and time to solution of one method's trials."""
    solved = [row.solved for row in rows]
    return Summary(
        method=method,
        generalization_error=statistics.mean([row.generalization_error for row in rows]),
        generalization_error_sign=statistics.mean([row.generalization_error_sign for row in rows]),
        solved=statistics.fraction(solved),
        tts_proposals=statistics.time_to_solution(solved, [row.proposals for row in rows]),
        tts_seconds=statistics.time_to_solution(solved, [row.seconds for row in rows]),
    )


def join(courses: Sequence[Trajectory]) -> Trajectory:
    """Trajectories of several one-read runs as one."""
    stacked = {
        field.name: np.concatenate([getattr(course, field.name) for course in courses])
        for field in fields(Trajectory)
        if field.name not in ("sweep", "temperature")
    }
    return replace(courses[0], **stacked)
