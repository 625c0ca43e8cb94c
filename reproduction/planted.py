"""Trials on patterns of `patterns.py`: the ±1 weights that a solver finds, and their cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mcover import LinearSchedule, MCover, McoverError, Vanilla, anneal, solve, teacher_student
from mcover.annealing import AutoSchedule, Method, Problem, Schedule, amp
from mcover.plain import Tagged
from reproduction import rivals
from reproduction.checks import check_choice, check_counts, check_numbers, check_type
from reproduction.patterns import Patterns

Signs = NDArray[np.int8]
Students = NDArray[np.int8]
"""Candidates, shape (count, weights); the one with the fewest training errors is used."""
_COOLED = 8
"""Annealing ends at this fraction of its first temperature."""


@dataclass(frozen=True)
class Annealed(Tagged, kind="annealed"):
    """Annealing by the library; linear from a temperature to an eighth of it, until solved."""

    method: Method = field(default_factory=MCover)
    start: float = 0.5
    """First temperature, in units of T₀ if T₀ is measured."""
    automatic: bool = True
    """Whether to measure T₀, at which one copy accepts 12 % of its proposals, on the instance."""
    sweeps: int = 500
    reads: int = 1

    def __post_init__(self) -> None:
        check_numbers(self, "start", above=0)
        check_type("automatic", self.automatic, bool, "True or False")
        check_counts(self, "sweeps", least=2)
        check_counts(self, "reads")

    @property
    def schedule(self) -> Schedule:
        """Linear to an eighth of the first temperature."""
        if self.automatic:
            return AutoSchedule(self.sweeps, self.start, _COOLED)
        low = self.start / _COOLED
        return LinearSchedule(self.start, low, (self.start - low) / (self.sweeps - 1))

    def prepare(self) -> None:
        """Compiles the annealer, or loads it, so that no trial includes this time."""
        anneal(teacher_student(51, 3.0, seed=0), Vanilla(), num_sweeps=2, seed=0, workers=1)

    def students(self, problem: Problem, seed: int) -> tuple[Students, dict[str, float]]:
        """Majority of the covers and every cover, of each read."""
        self.prepare()  # in this process; afterwards it takes a millisecond
        begin = time.process_time()
        found = anneal(
            problem,
            self.method,
            schedule=self.schedule,
            num_reads=self.reads,
            seed=[seed, 1],
            workers=1,
            record=1,
            stop_at_zero=True,
        )
        spent = time.process_time() - begin
        if found.interrupted:
            raise KeyboardInterrupt  # an unfinished annealing has no outcome
        covers = found.weights.reshape(-1, problem.sites)
        cost = {"core_seconds": spent, "proposals": float(found.proposals.sum())}
        return np.concatenate([found.collapsed_sign, covers]), cost


@dataclass(frozen=True)
class Solve(Tagged, kind="solve"):
    """`mcover.solve` on one thread, until a student has no errors or the restarts are used up."""

    restarts: int = 60

    def __post_init__(self) -> None:
        check_counts(self, "restarts")

    def students(self, problem: Problem, seed: int) -> tuple[Students, dict[str, float]]:
        Annealed().prepare()
        begin = time.process_time()
        found = solve(problem, time_limit=None, restarts=self.restarts, seed=[seed, 1], workers=1)
        spent = time.process_time() - begin
        if found.interrupted:
            raise KeyboardInterrupt
        cost = {"core_seconds": spent, "proposals": float(found.proposals)}
        return found.weights.astype(np.int8)[None], cost | {"restarts": float(found.restarts)}


@dataclass(frozen=True)
class MessagePassing(Tagged, kind="message-passing"):
    """Approximate message passing, plain, damped or reinforced, from random starts."""

    damping: float = 0.0
    reinforcement: float = 0.0
    max_iterations: int = 300
    reads: int = 1

    def __post_init__(self) -> None:
        check_numbers(self, "damping", "reinforcement", least=0, below=1)
        check_counts(self, "max_iterations", "reads")

    def students(self, problem: Problem, seed: int) -> tuple[Students, dict[str, float]]:
        return _timed(self._found(problem, read, seed) for read in range(self.reads))

    def _found(self, problem: Problem, read: int, seed: int) -> Signs:
        return amp(
            problem.patterns,
            problem.labels,
            seed=[seed, 1, read],
            max_iterations=self.max_iterations,
            damping=self.damping,
            reinforcement=self.reinforcement,
            stop_at_zero=True,
        ).weights


@dataclass(frozen=True)
class ExpectationPropagation(Tagged, kind="expectation-propagation"):
    """The signs of the means of `rivals.propagate`."""

    damping: float = 0.5
    max_iterations: int = 60

    def __post_init__(self) -> None:
        check_numbers(self, "damping", least=0, below=1)
        check_counts(self, "max_iterations")

    def students(self, problem: Problem, seed: int) -> tuple[Students, dict[str, float]]:
        def found() -> Iterator[Signs]:
            means = rivals.propagate(
                problem.gauged, self.max_iterations, self.damping, stop_at_zero=True
            ).mean
            yield np.where(means >= 0, 1, -1).astype(np.int8)

        return _timed(found())


@dataclass(frozen=True)
class Program(Tagged, kind="program"):
    """Exact solvers, and signs of real-valued weights, with a time limit in seconds."""

    solver: str = "highs"
    seconds: float = 10.0

    def __post_init__(self) -> None:
        check_choice("solver", self.solver, ("highs", "cp-sat", "largest-margin"))
        check_numbers(self, "seconds", above=0)

    def students(self, problem: Problem, seed: int) -> tuple[Students, dict[str, float]]:
        def found() -> Iterator[Signs]:
            if self.solver == "cp-sat":
                weights = rivals.solve_cp_sat(problem.gauged, self.seconds, seed)
            else:
                by = {"highs": rivals.solve_highs, "largest-margin": rivals.largest_margin}
                weights = by[self.solver](problem.gauged, self.seconds)
            yield np.ones(problem.sites, np.int8) if weights is None else weights

        return _timed(found())


@dataclass(frozen=True)
class Logistic(Tagged, kind="logistic"):
    """The signs of a logistic regression of strength C."""

    strength: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(self, "strength", above=0)

    def students(self, problem: Problem, seed: int) -> tuple[Students, dict[str, float]]:
        def found() -> Iterator[Signs]:  # a generator, so that its work is timed
            yield rivals.logistic_regression(problem.gauged, self.strength)

        return _timed(found())


Solver: TypeAlias = Annealed | Solve | MessagePassing | ExpectationPropagation | Program | Logistic


@dataclass(frozen=True)
class PlantedTrial:
    """A solver on the instances of a family; equal seeds are equal instances."""

    kind: ClassVar[str] = "planted"
    # 2: temperatures are those of the library, and the time includes the whole call.
    revision: ClassVar[int] = 2

    patterns: Patterns
    solver: Solver

    def __post_init__(self) -> None:
        check_type("patterns", self.patterns, Patterns, 'Patterns("iid", 501, 1.6)')
        check_type("solver", self.solver, Solver.__args__, "Annealed()")
        if self.patterns.hidden > 1 and not isinstance(self.solver, Annealed | Solve):
            raise McoverError(
                f"hidden is {self.patterns.hidden}, and {self.solver.kind} is for one unit; "
                "write hidden=1, or Annealed()."
            )

    def prepare(self) -> None:
        self.patterns.prepare()

    def run(self, seed: int) -> dict[str, float]:
        """The outcome is the student with the fewest training errors."""
        problem = self.patterns.problem(seed)
        students, spent = self.solver.students(problem, seed)
        errors = problem.training_errors(students)
        best = int(np.argmin(errors))  # the majority, if it is as good as a cover
        return {
            "solved": float(errors[best] == 0),
            "training_errors": float(errors[best]),
            "error_rate": float(errors[best]) / len(problem.patterns),
            "overlap": float(problem.overlap(students[best])),
            **spent,
        }


def _timed(students: Iterator[Signs]) -> tuple[Students, dict[str, float]]:
    """All students and the processor time that they took."""
    begin = time.process_time()
    found = np.stack(list(students))
    return found, {"core_seconds": time.process_time() - begin}
