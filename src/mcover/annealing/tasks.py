"""Runs numbered tasks on threads of this process or on a user's executor.

A task is a function and its arguments, which include its seed. The number and the arguments of a
task never depend on which task finished first. So a seed gives the same results with any number of
workers and on any executor, and a task whose worker died can run again with the same result. A task
that kept state outside its arguments, or a plan that read results in the order of arrival, would
break both.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from typing import Any, TypeVar

from mcover import checks
from mcover.errors import McoverError, McoverWarning

POLL_SECONDS = 0.2
IN_FLIGHT = 32  # tasks on an executor whose number of workers is not known
SLICE_SECONDS = 0.05
_LOSSES = 3  # of the workers of one task

T = TypeVar("T")


def check_executor(executor: Any) -> Executor | None:
    """Refuses anything but an executor of `concurrent.futures`, or None."""
    submit = getattr(executor, "submit", None)
    if executor is None or (callable(submit) and not isinstance(executor, type)):
        return executor
    example = "a concurrent.futures.Executor, e.g. ProcessPoolExecutor(4) or client.get_executor()"
    return checks.check_instance("executor", executor, Executor, example)


def workers_of(executor: Executor) -> int:
    """The number of workers of an executor, or `IN_FLIGHT` if it is not known.

    ``concurrent.futures`` has no public name for it. Its pools and loky's have this attribute.
    """
    workers = getattr(executor, "_max_workers", None)
    return workers if isinstance(workers, int) else IN_FLIGHT


def run_tasks(
    executor: Executor,
    next_task: Callable[[], tuple[Callable[..., T], tuple[Any, ...]] | None],
    receive: Callable[[int, T], None],
    in_flight: int,
    should_stop: Callable[[], bool],
    halt: threading.Event | None = None,
) -> None:
    """Runs tasks 0, 1, … until there are no more, or ``should_stop`` returns true.

    Args:
        executor: runs the tasks. A task whose worker died is submitted again, at most twice; once
            the executor is broken, the remaining tasks run in this process.
        next_task: returns the next function and its arguments, or None if there is none now.
        receive: called in this thread with the number and the result of each task.
        in_flight: the number of tasks that are submitted at a time.
        should_stop: called a few times a second; if it returns true, tasks that have not started
            are cancelled.
        halt: an event that is set at the end. Tasks that are still running then return early, and
            their results are received too. Without it, running tasks are abandoned.
    """
    running: dict[Future[T], int] = {}
    tasks: dict[int, tuple[Callable[..., T], tuple[Any, ...]]] = {}
    losses: Counter[int] = Counter()
    broken = False
    count = 0

    def begin(number: int) -> None:
        nonlocal broken
        function, arguments = tasks[number]
        if not broken:
            try:
                running[executor.submit(function, *arguments)] = number
                return
            except BrokenExecutor as error:
                broken = True
                _say_broken(error)
        receive(number, function(*arguments))
        del tasks[number]

    def repeat(number: int, error: Exception) -> None:
        losses[number] += 1
        if losses[number] == _LOSSES:
            raise McoverError(
                f"a task killed its worker {_LOSSES} times ({type(error).__name__}), probably for "
                "lack of memory; start fewer workers on each machine, or write fewer reads, fewer "
                "covers or a smaller bank."
            ) from error
        begin(number)

    try:
        while not should_stop():
            while len(running) < in_flight and (task := next_task()) is not None:
                tasks[count] = task
                count += 1
                begin(count - 1)
            if not running:
                return
            done, _ = wait(running, POLL_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                number = running.pop(future)
                try:
                    result = future.result()
                except Exception as error:
                    if not _is_of_a_dead_worker(error):
                        raise
                    repeat(number, error)
                    continue
                del tasks[number]
                receive(number, result)
    finally:
        left = {future: number for future, number in running.items() if not future.cancel()}
        if halt is not None:
            halt.set()
            for future, number in left.items():
                receive(number, future.result())


def _is_of_a_dead_worker(error: Exception) -> bool:
    """Whether a worker failed and not the task: a broken pool, also loky's, or Dask's error."""
    if isinstance(error, BrokenExecutor):
        return True
    dask = sys.modules.get("distributed")  # imported if the error is from there
    return dask is not None and isinstance(error, dask.KilledWorker)


def _say_broken(error: Exception) -> None:
    warnings.warn(
        f"the executor is broken ({type(error).__name__}: a worker died); the rest runs in "
        "this process. Write a new executor for the next call.",
        McoverWarning,
        stacklevel=5,
    )


def next_slice(sweeps: int, made: int, seconds: float) -> int:
    """The number of sweeps of the next slice, after a slice of ``made`` in ``seconds``.

    Compiled code cannot be interrupted, so it runs for a twentieth of a second at a time. The
    length of slices depends on the clock, but does not change the trajectory, because the whole
    state is in the chain and its generator. State that lasted for one slice only would break this.
    """
    return max(1, min(2 * sweeps, int(made * SLICE_SECONDS / max(seconds, 1e-6))))


class Deadline:
    """A time limit in seconds, on the clock of this process."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.start()

    def start(self) -> None:
        """Restarts the clock."""
        self.begin = time.perf_counter()

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.begin

    def left(self) -> float | None:
        """Seconds left; None without a limit."""
        return None if self.seconds is None else max(0.0, self.seconds - self.elapsed())

    def is_over(self) -> bool:
        """Whether no time is left."""
        return self.left() == 0.0
