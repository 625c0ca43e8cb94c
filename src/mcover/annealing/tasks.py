"""Calls on threads of this process or on a user's executor, with what a dead worker lost run again.

Tasks are numbered. Which task has which number, and what it computes, never depends on who is done
first: results of a seed are the same on any number of workers and on any executor.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from typing import Any, TypeVar

from mcover import checks
from mcover.errors import McoverWarning

POLL_SECONDS = 0.2
IN_FLIGHT = 32  # on an executor, whose number of workers is not known

T = TypeVar("T")


def check_executor(executor: Any) -> Executor | None:
    """An executor of `concurrent.futures`, or None."""
    submit = getattr(executor, "submit", None)
    if executor is None or (callable(submit) and not isinstance(executor, type)):
        return executor
    example = "a concurrent.futures.Executor, e.g. ProcessPoolExecutor(4) or client.get_executor()"
    return checks.check_instance("executor", executor, Executor, example)


def run_tasks(
    executor: Executor,
    next_task: Callable[[], tuple[Callable[..., T], tuple[Any, ...]] | None],
    receive: Callable[[int, T], None],
    in_flight: int,
    should_stop: Callable[[], bool],
    halt: threading.Event | None = None,
) -> None:
    """Runs tasks 0, 1, … until there are no more, or ``should_stop``.

    Args:
        executor: where they run. A task whose worker died runs again there, and in this process
            where the executor is broken.
        next_task: the next function and its arguments; None where there is none before another
            result has come in, or at all.
        receive: called in this thread with the number and the result of each task.
        in_flight: tasks that are submitted at a time.
        should_stop: asked a few times a second; tasks that have not begun are cancelled then.
        halt: set at the end; tasks look at it, and what those still running return then is received
            too. Without it they are left to themselves.
    """
    running: dict[Future[T], int] = {}
    tasks: dict[int, tuple[Callable[..., T], tuple[Any, ...]]] = {}
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
                    begin(number)
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
    """Whether the pool failed and not the task, e.g. by Dask's KilledWorker."""
    libraries = ("distributed", "loky", "joblib")
    return isinstance(error, BrokenExecutor) or type(error).__module__.split(".")[0] in libraries


def _say_broken(error: Exception) -> None:
    warnings.warn(
        f"the executor is broken ({type(error).__name__}: a worker died); what is left runs in "
        "this process. Write a new executor for the next call.",
        McoverWarning,
        stacklevel=5,
    )


class Deadline:
    """Whether the time is over: of a limit in seconds, on the clock of this process."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.start()

    def start(self) -> None:
        """Starts the clock once more."""
        self.begin = time.perf_counter()

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.begin

    def left(self) -> float | None:
        """Seconds that are left; None without a limit."""
        return None if self.seconds is None else max(0.0, self.seconds - self.elapsed())

    def is_over(self) -> bool:
        """Whether no time is left."""
        return self.left() == 0.0
