"""Finds ±1 weights that fit the patterns, by restarts of a portfolio of annealers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import ArrayLike, NDArray

from mcover import checks
from mcover.annealing.attempts import Attempt, Budget, attempt
from mcover.annealing.options import AnnealOptions, Method, bank_size, check_method
from mcover.annealing.portfolio import PORTFOLIO, Plan
from mcover.annealing.problems import Problem, problem_of
from mcover.annealing.progress import check_callbacks, reporting
from mcover.annealing.readouts import Readout
from mcover.annealing.solution import Solution
from mcover.annealing.tasks import Deadline, check_executor, run_tasks, workers_of
from mcover.seeds import Seed, seed_sequence

_MOST_BITS = 8
_MOST_RESTARTS = 10**6


@dataclass(frozen=True)
class SolveStatus:
    """The progress of a search, passed to ``progress`` a few times a second."""

    restarts: int  # restarts that have ended
    errors: int | None  # errors of the best student so far
    patterns: int
    seconds: float
    time_limit: float | None

    def __str__(self) -> str:
        best = "none yet" if self.errors is None else f"{self.errors:,} of {self.patterns:,} wrong"
        return f"restarts {self.restarts}, best: {best}"


def solve(
    problem: Problem | ArrayLike,
    labels: ArrayLike | None = None,
    *,
    hidden: int | None = None,
    time_limit: float | None = 60.0,
    restarts: int | None = None,
    method: Method | None = None,
    readout: Readout = "best",
    bits: int = 1,
    seed: Seed = None,
    workers: int | None = None,
    executor: Executor | None = None,
    interrupt: Callable[[], bool] | None = None,
    progress: bool | Callable[[SolveStatus], None] = False,
) -> Solution:
    """Finds ±1 weights that fit all patterns, or else the best ones, without any tuning.

    Restarts of several lengths run through a portfolio of methods, with temperatures from the data,
    until a student without errors is found, or the time or the number of restarts is exhausted. The
    result is the student with the fewest errors. Ctrl-C returns the best one so far.

    The outcome depends on the seed and the number of restarts, not on the workers: if several
    restarts solve the problem, the one with the lowest number counts, and the search ends when all
    before it have ended. If the time limit is reached, it determines the number of restarts.

    Args:
        problem: patterns (P, N) of two values, or a :class:`~mcover.Perceptron`, a
            :class:`~mcover.Committee` or a :func:`~mcover.teacher_student`.
        labels: the labels of the patterns, (P,), any two values.
        hidden: the number K of hidden units; 1 by default, a perceptron.
        time_limit: seconds of search, not counting the compilation of kernels; None searches until
            the problem is solved, or for ``restarts``.
        restarts: the maximum number of restarts.
        method: what every restart anneals, in place of the portfolio of three methods.
        readout: "best" for the student with the fewest errors: the majority of the covers, a cover,
            or one of these annealed further; or "majority" for the majority of the covers of a
            restart.
        bits: bits per weight. With b bits, weights are odd numbers up to 2^b − 1 in size, sums of
            2^b − 1 ±1 students. They fit more patterns if no ±1 student fits all; the how-to on
            ``solve`` has measurements.
        seed: the seed of all random numbers.
        workers: threads, one for each CPU by default; or tasks in flight on an executor, by default
            one for each worker of a local pool, and 32 on a cluster. A task that waits in a queue
            may exceed the time limit, so write the number of workers.
        executor: any executor of ``concurrent.futures`` to use instead of threads.
        interrupt: a function that is called a few times a second; once it returns true, the search
            ends.
        progress: True for a progress bar with the best student so far, or a function of a
            :class:`~mcover.annealing.SolveStatus`.

    >>> import mcover
    >>> problem = mcover.teacher_student(101, alpha=2.0, seed=0)
    >>> solution = mcover.solve(problem.patterns, problem.labels, seed=0)
    >>> solution.solved, solution.errors
    (True, 0)
    """
    given = problem_of(problem, labels, hidden)
    if time_limit is not None:
        time_limit = checks.check_float("time_limit", time_limit, above=0)
    most = _MOST_RESTARTS
    if restarts is not None:
        most = checks.check_int("restarts", restarts, 1, _MOST_RESTARTS)
    bits = checks.check_int("bits", bits, 1, _MOST_BITS)
    if workers is not None:
        workers = checks.check_int("workers", workers, 1)
    if method is not None:
        check_method(method)
        bank_size(method, given.sites)
    checks.check_choice("readout", readout, get_args(Readout))
    executor = check_executor(executor)
    check_callbacks(interrupt, progress, "a SolveStatus")
    methods = PORTFOLIO if method is None else (method,)
    search = _Search(given, seed_sequence(seed), most, bits, time_limit, methods, readout)
    bar = "" if time_limit is None else "{percentage:3.0f}%|{bar:10}| "

    def share(status: SolveStatus) -> float:
        return 0.0 if time_limit is None else min(status.seconds / time_limit, 1.0)

    with reporting(progress, bar + "{desc} [{elapsed}]", share) as report:
        search.run(executor, workers, interrupt, report)
    return search.solution()


class _Search:
    """The restarts of a search, by number."""

    def __init__(
        self,
        problem: Problem,
        seed: SeedSequence,
        most: int,
        bits: int,
        limit: float | None,
        methods: tuple[Method, ...],
        readout: Readout,
    ) -> None:
        self.problem, self.seed, self.most, self.bits = problem, seed, most, bits
        self.deadline, self.plan, self.readout = Deadline(limit), Plan(methods), readout
        self.size = problem.size
        self.attempts: dict[int, Attempt] = {}
        self.known: dict[int, AnnealOptions] = {}
        self.begun = 0
        self.first_solved = most
        self.interrupted = False

    def run(
        self,
        executor: Executor | None,
        workers: int | None,
        interrupt: Callable[[], bool] | None,
        report: Callable[[SolveStatus], None] | None,
    ) -> None:
        """Searches until the problem is solved or the search is over."""
        from mcover.annealing.states import compile_kernels, pack_columns
        from mcover.annealing.temperatures import freezing_temperature

        def show() -> None:
            if report is not None:
                report(self.status())

        show()
        compile_kernels()
        self.columns = pack_columns(self.problem.patterns, self.problem.labels)
        self.hot, self.hot_errors = (
            freezing_temperature(self.columns, self.size, energy) for energy in ("linear", "errors")
        )
        self.deadline.start()
        # A task knows the time that was left when it was submitted, so none should wait in a queue.
        if workers is None:
            workers = checks.cpus() if executor is None else workers_of(executor)
        # Threads share this event; other workers do not.
        in_process = executor is None or isinstance(executor, ThreadPoolExecutor)
        halt = threading.Event() if in_process else None

        def should_stop() -> bool:
            show()
            self.interrupted = self.interrupted or (interrupt is not None and interrupt())
            is_over = self.interrupted or self.deadline.is_over()
            if is_over and halt is not None:
                halt.set()
            # As long as no attempt has ended, there is no student to return.
            return self._is_decided() or (is_over and bool(self.attempts))

        own = ThreadPoolExecutor(workers) if executor is None else nullcontext(executor)
        try:
            with own as pool:
                run_tasks(
                    pool, partial(self._next, halt), self._receive, workers, should_stop, halt
                )
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            show()

    def _next(self, halt: threading.Event | None) -> Any:
        from mcover.annealing.temperatures import with_temperature

        number = self.begun
        is_over = self.interrupted or self.deadline.is_over()
        if number >= min(self.most, self.first_solved) or (number and is_over):
            return None
        errors = {place: one.errors for place, one in self.attempts.items()}
        options = self.plan.options_of(number, errors)
        if options is None:
            return None
        self.begun += 1
        self.known[number] = options = with_temperature(options, self.hot)
        child = SeedSequence(self.seed.entropy, spawn_key=(*self.seed.spawn_key, number))
        budget = Budget(halt, self.deadline.left())
        given = self.columns, self.size, options, child, budget, self.hot_errors, self.readout
        return attempt, given

    def _receive(self, number: int, one: Attempt) -> None:
        self.attempts[number] = one
        if one.errors == 0:
            self.first_solved = min(self.first_solved, number)

    def _is_decided(self) -> bool:
        """Whether a restart solved the problem, and all before it have ended."""
        if self.first_solved == self.most:
            return False
        return all(number in self.attempts for number in range(self.first_solved))

    def status(self) -> SolveStatus:
        """A snapshot for the progress bar."""
        best = min((one.errors for one in self.attempts.values()), default=None)
        limit, elapsed = self.deadline.seconds, self.deadline.elapsed()
        return SolveStatus(len(self.attempts), best, self.size[0], elapsed, limit)

    def _counted(self) -> dict[int, Attempt]:
        """The restarts that count for the outcome.

        These are all up to the first that solved the problem, or else 0, 1, … up to the first that
        is missing. When the time is over, a restart may have finished before an earlier one. It
        does not count, because the outcome would depend on the workers. If no restart is left by
        this rule, all count, since any student is better than none.
        """
        done = {n: one for n, one in sorted(self.attempts.items()) if one.finished}
        if self.first_solved in done:
            return {n: one for n, one in done.items() if n <= self.first_solved}
        unbroken = {n: one for n, one in done.items() if all(k in done for k in range(n))}
        return unbroken or done or dict(sorted(self.attempts.items()))

    def solution(self) -> Solution:
        """The best student, checked on every pattern."""
        counted = self._counted()
        if not counted:
            raise KeyboardInterrupt  # stopped before anything was found
        number = min(counted, key=lambda n: counted[n].errors)
        best = counted[number]
        weights, readout = best.weights.astype(np.int16), best.readout
        if self.bits > 1:
            weights = weights * (2**self.bits - 1)
            if best.errors:
                weights, number, readout = self._summed(counted, weights, number, readout)
        errors, margin = check_student(self.problem, weights)
        if self.bits == 1 and errors != best.errors:
            raise RuntimeError(
                f"the search counted {best.errors} errors and the check {errors}: this is a bug "
                "in mcover; please report it with the seed."
            )
        return Solution(
            weights=weights,
            bits=self.bits,
            hidden=self.problem.hidden,
            classes=self.problem.classes,
            solved=errors == 0,
            errors=errors,
            patterns=self.size[0],
            margin=margin,
            restarts=sum(one.finished for one in counted.values()),
            restart=number,
            readout=readout,
            options=self.known[number],
            seconds=self.deadline.elapsed(),
            core_seconds=sum(one.seconds for one in counted.values()),
            proposals=sum(one.proposals for one in counted.values()),
            interrupted=self.interrupted,
        )

    def _summed(
        self, counted: dict[int, Attempt], single: NDArray[np.int16], number: int, readout: str
    ) -> tuple[NDArray[np.int16], int, str]:
        """The best of: the single student, a sum of the best students, and sums of covers."""
        terms = 2**self.bits - 1
        candidates = [(single, number, readout)]
        ordered = sorted(counted, key=lambda n: (counted[n].errors, n))
        if len(ordered) >= terms:
            students = np.stack([counted[n].weights for n in ordered[:terms]])
            total = students.sum(axis=0, dtype=np.int16)
            candidates.append((total, ordered[0], f"sum of {terms} restarts"))
        for place in ordered:
            covers = counted[place].covers
            if len(covers) >= terms:
                total = covers[:terms].sum(axis=0, dtype=np.int16)
                candidates.append((total, place, f"sum of {terms} covers"))
        errors = [check_student(self.problem, one[0])[0] for one in candidates]
        return candidates[int(np.argmin(errors))]


def check_student(problem: Problem, weights: NDArray[np.integer[Any]]) -> tuple[int, float]:
    """Errors and smallest margin, computed from patterns and weights without packed bits.

    Shape: weights (sites,), integers.
    """
    units = weights.reshape(problem.hidden, problem.inputs).astype(np.float64)
    errors, margin = 0, np.inf
    step = max(1, 2**22 // problem.inputs)  # rows at a time, 32 MB of floats
    for begin in range(0, len(problem.patterns), step):
        part = slice(begin, begin + step)
        fields = problem.patterns[part].astype(np.float64) @ units.T
        fields *= problem.labels[part, None]
        if problem.hidden == 1:
            margins = fields[:, 0] / np.linalg.norm(units)
        else:
            votes = 2 * (fields > 0).sum(axis=1) - problem.hidden
            margins = votes / np.sqrt(problem.hidden)
        errors += int(np.sum(margins <= 0))
        margin = min(margin, float(margins.min()))
    return errors, margin
