"""Tasks on executors: lost workers, and queues."""

from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from multiprocessing import get_context

import pytest

from mcover import McoverError, solve
from mcover.annealing.tasks import run_tasks
from problems_under_test import random_labels


class Failing(Executor):
    """Answers every task with the same error."""

    def __init__(self, error):
        self.error, self.submitted = error, 0

    def submit(self, function, *arguments):
        self.submitted += 1
        future = Future()
        future.set_exception(self.error)
        return future


def run_one(executor):
    tasks = iter([(int, ())])
    run_tasks(executor, lambda: next(tasks, None), print, 2, lambda: False)


def test_a_task_that_kills_each_of_its_workers_is_given_up():
    executor = Failing(BrokenExecutor("gone"))
    with pytest.raises(McoverError, match=r"killed its worker 3 times \(BrokenExecutor.*fewer"):
        run_one(executor)
    assert executor.submitted == 3


def test_any_other_error_of_a_library_reaches_the_caller():
    class LibraryError(Exception):
        __module__ = "distributed.core"

    executor = Failing(LibraryError())
    with pytest.raises(LibraryError):
        run_one(executor)
    assert executor.submitted == 1


class Counting:
    """Notes how many tasks were unfinished at each submission."""

    def __init__(self, workers, **options):
        super().__init__(workers, **options)
        self.futures, self.unfinished = [], []

    def submit(self, function, *arguments):
        self.unfinished.append(sum(not one.done() for one in self.futures))
        self.futures.append(super().submit(function, *arguments))
        return self.futures[-1]


class Threads(Counting, ThreadPoolExecutor):
    pass


class Processes(Counting, ProcessPoolExecutor):
    pass


RANDOM = random_labels(150, 51)


def test_no_restart_waits_in_the_queue_of_a_pool():
    """There it would keep the seconds that were left when it was submitted."""
    with Processes(1, mp_context=get_context("spawn")) as pool:
        solve(RANDOM, restarts=5, time_limit=None, seed=0, executor=pool)
    assert pool.unfinished == [0] * 5


def test_restarts_on_threads_of_the_user_end_with_the_search():
    stop = iter([False, True]).__next__
    with Threads(2) as pool:
        found = solve(random_labels(3000, 501), seed=0, executor=pool, interrupt=stop)
        assert found.interrupted
        assert all(one.done() for one in pool.futures)
