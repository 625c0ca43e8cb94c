"""Trials of the ±1 perceptron: one instance for each seed, whatever is done with it.

Instance, annealing and message passing have the seeds (seed, 0), (seed, 1) and (seed, 2), so that
trials of equal n, alpha and ties compare on paired instances.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np

from mcover import LinearSchedule, MCover, anneal, checks, statistics, teacher_student
from mcover.annealing import (
    AnnealOptions,
    Method,
    Problem,
    Rule,
    Schedule,
    Ties,
    Trajectory,
    amp,
)
from mcover.statistics import Estimate

Outcome = dict[str, float]


@dataclass(frozen=True)
class _Instance:
    n: int
    """Inputs N."""
    alpha: float
    """Patterns per input, P/N."""
    ties: Ties = "redraw"
    """Patterns on which the teacher is undecided: draw them again, or label them +1."""

    def __post_init__(self) -> None:
        checks.check_count_fields(self, "n")
        checks.check_float_fields(self, "alpha", above=0)
        checks.check_choice("ties", self.ties, ("redraw", "plus"))

    def problem(self, seed: int) -> Problem:
        """The instance of a seed."""
        return teacher_student(self.n, self.alpha, seed=[seed, 0], ties=self.ties)


@dataclass(frozen=True)
class PerceptronTrial(_Instance):
    """A ±1 perceptron with its teacher, annealed.

    Of several reads the one of least energy counts, judged on the training patterns alone.
    """

    kind: ClassVar[str] = "perceptron"

    method: Method = field(default_factory=MCover)
    schedule: Schedule = field(default_factory=LinearSchedule)
    reads: int = 1
    rule: Rule = "glauber"
    stop_at_zero: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.options
        checks.check_count_fields(self, "reads")

    @property
    def options(self) -> AnnealOptions:
        """How each read is annealed."""
        given = self.method, self.schedule, self.rule
        return AnnealOptions(*given, stop_at_zero=self.stop_at_zero)

    def anneal(self, seed: int, **how: Any) -> tuple[Outcome, Trajectory]:
        """The outcome of the best read, and the course of all of them."""
        problem = self.problem(seed)
        how = {"num_reads": self.reads, "record": 2, **how, **vars(self.options)}
        result = anneal(problem, seed=[seed, 1], workers=1, **how)
        if result.interrupted:
            raise KeyboardInterrupt  # an unfinished annealing has no outcome
        best = int(np.argmin(result.collapsed_energy))
        sign_error = problem.generalization_error(result.collapsed_sign)
        return {
            "generalization_error": float(result.generalization_error[best]),
            "generalization_error_sign": float(sign_error[best]),
            "training_errors": float(result.training_errors[best]),
            "collapsed_energy": float(result.collapsed_energy[best]),
            "solved": float(result.collapsed_energy[best] == 0),
            "energy": float(result.energy[best]),
            "proposals": float(result.proposals.sum()),
            "core_seconds": float(result.seconds.sum()),
        }, result.trajectory

    def run(self, seed: int) -> Outcome:
        """Anneals a fresh instance."""
        return self.anneal(seed)[0]


@dataclass(frozen=True)
class MessagePassingTrial(_Instance):
    """Message passing on the instances that annealers meet: what the data allow without them."""

    kind: ClassVar[str] = "message-passing"

    reinforcement: float = 0.0
    max_iterations: int = 500
    stop_at_zero: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_float_fields(self, "reinforcement", least=0, below=1)
        checks.check_count_fields(self, "max_iterations")
        checks.check_bool_fields(self, "stop_at_zero")

    def run(self, seed: int) -> Outcome:
        """Runs AMP on a fresh instance."""
        problem = self.problem(seed)
        begin = time.process_time()
        found = amp(
            problem.patterns,
            problem.labels,
            seed=[seed, 2],
            max_iterations=self.max_iterations,
            reinforcement=self.reinforcement,
            stop_at_zero=self.stop_at_zero,
        )
        energy = float(problem.energy(found.weights))
        return {
            "generalization_error": float(problem.generalization_error(found.magnetization)),
            "generalization_error_sign": float(problem.generalization_error(found.weights)),
            "training_errors": float(problem.training_errors(found.weights)),
            "collapsed_energy": energy,
            "solved": float(energy == 0),
            "core_seconds": time.process_time() - begin,
        }


def run_paired(
    trials: Mapping[str, PerceptronTrial], seeds: Sequence[int], workers: int | None = None
) -> Iterator[tuple[str, Outcome, Trajectory]]:
    """Runs every trial with every seed on threads, yielding outcomes by name as they come.

    Seeds come in order. Ctrl-C, or leaving the loop early, drops the trials in flight.
    """
    halt = threading.Event()

    def one(seed: int) -> list[tuple[str, Outcome, Trajectory]]:
        try:
            found = {n: t.anneal(seed, record=50, interrupt=halt.is_set) for n, t in trials.items()}
        except KeyboardInterrupt:  # halted
            return []
        return [(name, *pair) for name, pair in found.items()]

    pool = ThreadPoolExecutor(workers or checks.cpus())
    try:
        for found in pool.map(one, seeds):
            yield from found
    finally:
        halt.set()
        pool.shutdown(wait=True, cancel_futures=True)


def summarize(outcomes: Sequence[Outcome]) -> dict[str, Estimate]:
    """The error, the solved fraction, and the cost of a solution with 99 % certainty (TTS99)."""
    by_name = {name: [one[name] for one in outcomes] for name in outcomes[0]}
    solved = [value > 0 for value in by_name["solved"]]
    return {
        "generalization_error": statistics.mean(by_name["generalization_error"]),
        "solved": statistics.fraction(solved),
        "tts_proposals": statistics.time_to_solution(solved, by_name["proposals"]),
        "tts_seconds": statistics.time_to_solution(solved, by_name["core_seconds"]),
    }


def join(courses: Sequence[Trajectory]) -> Trajectory:
    """Trajectories of several runs with the same schedule as one."""
    names = {one.name for one in fields(Trajectory)} - {"sweep", "temperature"}
    stacked = {n: np.concatenate([getattr(course, n) for course in courses]) for n in names}
    return replace(courses[0], **stacked)
