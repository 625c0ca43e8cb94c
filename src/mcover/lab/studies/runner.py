"""Runs what is missing of a plan, and keeps each trial as it ends.

An engine is where trials run: it takes a trial and a seed and gives a future of the row.
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

from loky import ProcessPoolExecutor

from mcover.checks import cpus, whole
from mcover.errors import McoverError
from mcover.lab.studies.rows import Row, Trial, by_key, make_row
from mcover.lab.studies.store import LEASE_SECONDS, Store
from mcover.lab.studies.study import Pending, Plan
from mcover.progress import errors

ATTEMPTS = 3
"""How often a trial is started whose process ends under it."""
_POLL_SECONDS = 0.5
Progress = Callable[[float, str], None]


class TrialError(McoverError):
    """A trial ended with an error that is not about its settings: the study stops, rows stay."""


def run_trial(trial: Trial, seed: int) -> Row:
    """Runs a trial with one seed; where it refuses (McoverError), the row is a failed one.

    Raises:
        TrialError: with the traceback of any other error, so that it survives being sent.
    """
    begin = time.perf_counter()
    outcome, refusal = dict[str, float](), ""
    try:
        outcome = trial.run(seed)
    except McoverError as error:
        refusal = str(error) or type(error).__name__
    except Exception:
        raise TrialError(traceback.format_exc().rstrip()) from None
    return make_row(trial, seed, outcome, refusal, time.perf_counter() - begin)


class Inline:
    """This very process: for tests, and to follow a trial with a debugger."""

    workers = 1

    def submit(self, trial: Trial, seed: int) -> Future[Row]:
        future: Future[Row] = Future()
        try:
            future.set_result(run_trial(trial, seed))
        except TrialError as error:
            future.set_exception(error)
        return future

    def shutdown(self) -> None:
        pass


class Processes:
    """So many processes of one core each, for one run; a trial does not know how many there are.

    Each has a thread and an executor of its own, so that a process that is killed takes no other
    trial with it. Its trial runs again, up to :data:`ATTEMPTS` times in all, and then has failed.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = cpus() if workers is None else whole("workers", workers, 1)
        self._threads = ThreadPoolExecutor(self.workers, initializer=_block_interrupts)
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
        message = ""
        for _ in range(ATTEMPTS):
            try:
                row: Row = self._executor().submit(run_trial, trial, seed).result()
                return row
            except BrokenExecutor as error:
                message = f"its process ended {ATTEMPTS} times (out of memory?): {error}"
                del self._of_thread.executor
        return make_row(trial, seed, {}, message, 0.0)

    def _executor(self) -> ProcessPoolExecutor:
        if not hasattr(self._of_thread, "executor"):
            with self._lock:
                if self._ended:
                    raise TrialError("the study was stopped; run it again.")
                fresh = ProcessPoolExecutor(max_workers=1, initializer=_begin_worker, timeout=None)
                self._of_thread.executor = fresh
                self._executors.append(fresh)
        executor: ProcessPoolExecutor = self._of_thread.executor
        return executor


def _block_interrupts() -> None:
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


Engine = Inline | Processes


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
        TrialError: a trial ended with an error other than McoverError. Those in flight are kept.
    """
    state = _Run(plan, store, engine)
    interrupted = False
    try:
        missing = plan.missing(state.have)
        for cell in {cell.config: cell for cell, _ in missing}.values():
            getattr(cell.trial, "prepare", lambda: None)()
        while missing:
            state.step(missing)
            tell(*state.progress())
            missing = plan.missing(state.have)
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
            raise TrialError(
                f"the trial '{cell.label}', seed {seed}, stopped with an error; all others are "
                f"kept. Correct the cause and run the study again.\n{error}"
            ) from error
        if time.monotonic() - self._renewed > LEASE_SECONDS / 6:
            self._renewed = time.monotonic()
            self.store.renew()

    def _start(self, missing: list[Pending]) -> None:
        running = {(cell.config, seed) for cell, seed in self.flying.values()}
        for cell, seed in missing:
            key = cell.config, seed
            if len(self.flying) == self.engine.workers:
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
        done, total = self.plan.progress(self.have)
        failed = sum(row.status == "failed" for row in self.have.values())
        broken = f", {failed} failed" if failed else ""
        text = f"{done}/{total} trials{broken}, {len(self.flying)} running"
        if self.new and not errors.is_terminal:  # where the live line does not say it
            seconds = (time.monotonic() - self._begin) / len(self.new) * (total - done)
            text += f", about {timedelta(seconds=round(seconds))} left"
        return done / total, text
