"""Trials of the ±1 perceptron: annealing, and message passing, on teacher-student instances.

Instance, annealing and message passing use the seeds (seed, 0), (seed, 1) and (seed, 2), so that
trials with equal n, alpha and ties have paired instances.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from mcover import LinearSchedule, MCover, anneal, teacher_student
from mcover.annealing import AnnealOptions, Method, Problem, Rule, Schedule, Ties, amp
from reproduction.checks import check_choice, check_counts, check_numbers, check_type

Outcome = dict[str, float]


@dataclass(frozen=True)
class Instance:
    """A ±1 perceptron that learns from a ±1 teacher, one instance per seed."""

    n: int
    """Inputs N."""
    alpha: float
    """Patterns per input, P/N."""
    ties: Ties = "redraw"
    """Patterns on which the teacher is undecided: redraw them, or label them +1."""

    def __post_init__(self) -> None:
        check_counts(self, "n")
        check_numbers(self, "alpha", above=0)
        check_choice("ties", self.ties, ("redraw", "plus"))

    def problem(self, seed: int) -> Problem:
        """The instance of a seed."""
        return teacher_student(self.n, self.alpha, seed=[seed, 0], ties=self.ties)


@dataclass(frozen=True)
class PerceptronTrial(Instance):
    """Annealing. The outcome is the read with the least energy on the training patterns."""

    kind: ClassVar[str] = "perceptron"
    # 1: tests rerun committed rows, which are equal.
    revision: ClassVar[int] = 1

    method: Method = field(default_factory=MCover)
    schedule: Schedule = field(default_factory=LinearSchedule)
    reads: int = 1
    rule: Rule = "glauber"
    stop_at_zero: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "reads")
        _ = self.options

    @property
    def options(self) -> AnnealOptions:
        """The annealer's options; it checks them."""
        given = self.method, self.schedule, self.rule
        return AnnealOptions(*given, stop_at_zero=self.stop_at_zero)

    def run(self, seed: int) -> Outcome:
        """Anneals the instance of a seed."""
        problem = self.problem(seed)
        result = anneal(
            problem,
            num_reads=self.reads,
            seed=[seed, 1],
            workers=1,
            record=2,
            **vars(self.options),
        )
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
        }


@dataclass(frozen=True)
class MessagePassingTrial(Instance):
    """Approximate message passing on the annealers' instances, as a reference."""

    kind: ClassVar[str] = "message-passing"
    # 1: tests rerun committed rows, which are equal.
    revision: ClassVar[int] = 1

    reinforcement: float = 0.0
    max_iterations: int = 500
    stop_at_zero: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "reinforcement", least=0, below=1)
        check_counts(self, "max_iterations")
        check_type("stop_at_zero", self.stop_at_zero, bool, "True or False")

    def run(self, seed: int) -> Outcome:
        """Runs AMP on the instance of a seed."""
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
