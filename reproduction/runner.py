"""Runs what is missing of a plan, and keeps each trial as it ends.

An engine is where trials run: it takes a trial and a seed and gives a future of the row. Those of
one machine are here, those of clusters in :mod:`reproduction.engines`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import resource_tracker
from typing import Protocol

from loky import ProcessPoolExecutor

from mcover.checks import check_int, cpus
from mcover.errors import McoverError
from mcover.progress import errors
from reproduction.rows import Row, Trial, by_key, make_row
from reproduction.store import LEASE_SECONDS, Store
from reproduction.study import Pending, Plan

ATTEMPTS = 3
"""How often a trial is started whose process ends under it."""
_LOOK_SECONDS = 0.5  # between two looks at the whole plan
_POLL_SECONDS = 0.5
# Threads of BLAS that wait in a spin would count as core seconds.
_ONE_CORE = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
Progress = Callable[[float, str], None]


class EngineError(McoverError):
    """An engine cannot run trials, whatever they are: the study stops, rows stay."""


class Engine(Protocol):
    """Where trials run. Only the process that leads has the store; a worker gives back a row."""

    @property
    def workers(self) -> int:
        """How many trials to have in flight, at least 1; of a cluster it may change."""

    def submit(self, trial: Trial, seed: int) -> Future[Row]:
        """A future for ``concurrent.futures.wait``: a row, or an :class:`EngineError`."""

    def shutdown(self) -> None:
        """Drops what is in flight and frees what the engine has started; twice is as once."""


def run_trial(trial: Trial, seed: int) -> Row:
    """Runs a trial with one seed; where it ends with an error, the row is a failed one.

    What a trial refuses (McoverError) is a message for people. Any other error is kept with its
    traceback, which begins here: it is the same wherever the trial ran.
    """
    begin, message = time.perf_counter(), ""
    try:
        return make_row(trial, seed, trial.run(seed), "", time.perf_counter() - begin)
    except McoverError as error:
        message = str(error) or type(error).__name__
    except (Exception, SystemExit):
        message = traceback.format_exc().rstrip()
    return make_row(trial, seed, {}, message, time.perf_counter() - begin)


def lost_row(trial: Trial, seed: int, why: object) -> Row:
    """The row of a trial whose worker ended under it as often as it was started."""
    message = f"its process ended {ATTEMPTS} times (out of memory?): {why}"
    return make_row(trial, seed, {}, message, 0.0)


class Inline:
    """This very process: for tests, and to follow a trial with a debugger."""

    workers = 1

    def submit(self, trial: Trial, seed: int) -> Future[Row]:
        future: Future[Row] = Future()
        future.set_result(run_trial(trial, seed))
        return future

    def shutdown(self) -> None:
        pass


class Processes:
    """So many processes of one core each, for one run; a trial does not know how many there are.

    Each has a thread and an executor of its own, so that a process that is killed takes no other
    trial with it. Its trial runs again, up to :data:`ATTEMPTS` times in all, and then has failed.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = cpus() if workers is None else check_int("workers", workers, 1)
        self._threads = ThreadPoolExecutor(self.workers, initializer=block_interrupts)
        self._of_thread = threading.local()
        self._executors: list[ProcessPoolExecutor] = []
        self._ended, self._lock = False, threading.Lock()

    def submit(self, trial: Trial, seed: int) -> Future[Row]:
        return self._threads.submit(self._run, trial, seed)

    def shutdown(self) -> None:
        """Drops the trials in flight, in a thread: another Ctrl-C does not stop it halfway."""
        thread = threading.Thread(target=self._end)
        thread.start()
        thread.join()

    def _end(self) -> None:
        with self._lock:
            self._ended = True
        for executor in self._executors:
            executor.shutdown(kill_workers=True)
        self._threads.shutdown()

    def _run(self, trial: Trial, seed: int) -> Row:
        why: object = ""
        for _ in range(ATTEMPTS):
            try:
                row: Row = self._executor().submit(run_trial, trial, seed).result()
                return row
            except BrokenExecutor as error:
                why = error
                del self._of_thread.executor
        return lost_row(trial, seed, why)

    def _executor(self) -> ProcessPoolExecutor:
        if not hasattr(self._of_thread, "executor"):
            with self._lock:
                if self._ended:
                    raise EngineError("the study was stopped; run it again.")
                fresh = ProcessPoolExecutor(
                    max_workers=1, initializer=_begin_worker, timeout=None, env=_ONE_CORE
                )
                self._of_thread.executor = fresh
                self._executors.append(fresh)
        executor: ProcessPoolExecutor = self._of_thread.executor
        return executor


def block_interrupts() -> None:
    """Makes Ctrl-C none of this thread's business, nor of processes it starts, from the start."""
    if hasattr(signal, "pthread_sigmask"):
        resource_tracker.ensure_running()  # to start it would let Ctrl-C through again
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where a mask is not inherited
    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()


def _follow(parent: int) -> None:
    """Ends this process with the one that leads, however that was ended."""
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)


@dataclass(frozen=True)
class Ran:
    """How a run ended."""

    new: int
    """Rows that this run computed and kept."""
    failed: int
    """Of those, failed ones."""
    interrupted: bool


def run(plan: Plan, store: Store, engine: Engine, tell: Progress = lambda share, text: None) -> Ran:
    """Runs what is missing; on return all of it is in the store, or Ctrl-C was pressed.

    Rows of other runs that share the store are waited for and not computed again. Outcomes depend
    on trials and seeds alone, not on the engine. ``tell`` hears the share that is done and what
    goes on, a few times a second.

    Raises:
        EngineError: the engine could not run a trial. Those in flight are kept.
    """
    state = _Run(plan, store, engine)
    interrupted = False
    try:
        missing = state.look()
        for cell in {cell.config: cell for cell, _ in missing}.values():
            getattr(cell.trial, "prepare", lambda: None)()
        while missing:
            state.step(missing)
            tell(*state.progress())
            if state.is_idle(missing) or time.monotonic() - state.looked > _LOOK_SECONDS:
                missing = state.look()
    except KeyboardInterrupt:
        state.keep_finished()
        interrupted = True
    finally:
        engine.shutdown()
        with suppress(McoverError):  # what stopped the run is the message to show
            store.release()
    return Ran(len(state.new), sum(row.status == "failed" for row in state.new), interrupted)


class _Run:
    """What is in flight, and what is there so far."""

    def __init__(self, plan: Plan, store: Store, engine: Engine) -> None:
        self.plan, self.store, self.engine = plan, store, engine
        self.have = by_key(store.rows(plan.configs()))
        self.new: list[Row] = []
        self.flying: dict[Future[Row], Pending] = {}
        self._begin = self._renewed = time.monotonic()

    def step(self, missing: list[Pending]) -> None:
        """Starts what there is room for, waits a little and keeps what has ended."""
        self._start(missing)
        if self.flying:
            wait(self.flying, _POLL_SECONDS, FIRST_COMPLETED)
        elif any((cell.config, seed) not in self.have for cell, seed in missing):
            time.sleep(_POLL_SECONDS)  # all that is left is of other runs
        self.keep_finished()
        for future, (cell, seed) in self.flying.items():
            if not future.done() or (error := future.exception()) is None:
                continue
            wait(self.flying)
            self.keep_finished()
            raise EngineError(
                f"the trial '{cell.label}', seed {seed}, could not be run; all others are kept. "
                f"Correct the cause and run the same command again.\n{error}"
            ) from error
        if time.monotonic() - self._renewed > LEASE_SECONDS / 6:
            self._renewed = time.monotonic()
            self.store.renew()

    def look(self) -> list[Pending]:
        """What is missing now. A large plan takes longer to read than a short trial to run."""
        missing = self.plan.missing(self.have)
        self._known = (*self.plan.progress(self.have), len(self.have))
        self.looked = time.monotonic()
        return missing

    def is_idle(self, missing: list[Pending]) -> bool:
        """Whether all that was missing is there or under way, and a worker has nothing to do."""
        under_way = {(cell.config, seed) for cell, seed in self.flying.values()}
        return len(under_way) < self.engine.workers and all(
            (cell.config, seed) in self.have or (cell.config, seed) in under_way
            for cell, seed in missing
        )

    def _start(self, missing: list[Pending]) -> None:
        running = {(cell.config, seed) for cell, seed in self.flying.values()}
        room = self.engine.workers
        for cell, seed in missing:
            key = cell.config, seed
            if len(self.flying) >= room:
                return
            if key in running or key in self.have:
                continue
            answer = self.store.claim(key)
            if answer == "ours":
                self.flying[self.engine.submit(cell.trial, seed)] = cell, seed
            elif answer == "done":  # by another run
                self.have |= by_key(self.store.rows([cell.config]))

    def keep_finished(self) -> None:
        """Stores the trials in flight that gave a row by now."""
        for future in [one for one in self.flying if one.done() and not one.exception()]:
            row = future.result()
            if self.store.put([row]):
                self.new.append(row)
            self.have[row.key] = row
            del self.flying[future]

    def progress(self) -> tuple[float, str]:
        """The share of trials done, and how many that is in words."""
        done, total, had = self._known
        done += len(self.have) - had
        failed = sum(row.status == "failed" for row in self.have.values())
        broken = f", {failed} failed" if failed else ""
        text = f"{done}/{total} trials{broken}, {len(self.flying)} running"
        if self.new and not errors.is_terminal:  # where the live line does not say it
            seconds = (time.monotonic() - self._begin) / len(self.new) * (total - done)
            text += f", about {timedelta(seconds=round(seconds))} left"
        return done / total, text
