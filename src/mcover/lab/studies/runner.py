"""Runs what is missing of a plan, and keeps each trial as it ends.

An engine is where trials run: it takes a trial and a seed and gives a future of the row. Here are
this very process, and processes of one core each.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Protocol

from loky import ProcessPoolExecutor

from mcover.checks import cpus, whole
from mcover.errors import McoverError
from mcover.lab.studies.cells import Key, Trial
from mcover.lab.studies.rows import Row, by_key, make_row
from mcover.lab.studies.store import LEASE_SECONDS, Store
from mcover.lab.studies.study import Pending, Plan

ATTEMPTS = 3
"""How often a trial is started whose process ends under it."""
_POLL_SECONDS = 0.5


class TrialError(McoverError):
    """A trial ended with an error that is not about its settings: the study stops, rows stay."""


class Engine(Protocol):
    """Where trials run."""

    workers: int
    """How many trials may be in flight."""

    def submit(self, trial: Trial, seed: int) -> Future[Row]:
        """Starts a trial by :func:`run_trial`.

        Its future may raise what ``run_trial`` raises, or BrokenExecutor where the trial was lost
        with the process that ran it.
        """

    def shutdown(self) -> None:
        """Drops the trials in flight and leaves nothing behind."""


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
    """So many processes of one core each; a trial does not know how many there are.

    Each has an executor of its own, so that a process that is killed takes no other trial with it.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = cpus() if workers is None else whole("workers", workers, 1)
        self._idle: list[ProcessPoolExecutor] = []
        self._busy: dict[Future[Row], ProcessPoolExecutor] = {}

    def submit(self, trial: Trial, seed: int) -> Future[Row]:
        for future in [one for one in self._busy if one.done()]:
            self._idle.append(self._busy.pop(future))
        with _undisturbed():
            while self._idle:
                with contextlib.suppress(BrokenExecutor):  # its process was killed while it waited
                    return self._start(self._idle.pop(), trial, seed)
            fresh = ProcessPoolExecutor(max_workers=1, initializer=_begin_worker, timeout=None)
            return self._start(fresh, trial, seed)

    def shutdown(self) -> None:
        with _undisturbed():
            for executor in (*self._idle, *self._busy.values()):
                executor.shutdown(wait=True, kill_workers=True)
        self._idle, self._busy = [], {}

    def _start(self, executor: ProcessPoolExecutor, trial: Trial, seed: int) -> Future[Row]:
        try:
            future: Future[Row] = executor.submit(run_trial, trial, seed)
        except BrokenExecutor:
            executor.shutdown(wait=True, kill_workers=True)
            raise
        self._busy[future] = executor
        return future


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Puts Ctrl-C off, and starts processes that never hear it, not even while they start."""
    if os.name != "posix" or threading.current_thread() is not threading.main_thread():
        yield
        return
    resource_tracker.ensure_running()  # to start it would let Ctrl-C through again
    caught: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: caught.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which processes inherit
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
        if caught:
            signal.raise_signal(signal.SIGINT)


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that leads
    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()


def _follow(parent: int) -> None:
    """Ends this process with the one that leads, however that was ended."""
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)


class View:
    """What shows a run to whoever waits for it: nothing, unless its methods are written."""

    def begin(self, rows: list[Row], done: int, total: int) -> None:
        """Rows that are there already, trials of the plan among them, and trials in all."""

    def add(self, row: Row) -> None:
        """A row that is new."""

    def tick(self, running: int) -> None:
        """Called a few times a second."""


@dataclass(frozen=True)
class Ran:
    """How a run ended."""

    new: int
    """Rows that this run computed and kept."""
    failed: int
    """Of those, failed ones."""
    interrupted: bool


def run(plan: Plan, store: Store, engine: Engine, view: View | None = None) -> Ran:
    """Runs what is missing; on return all of it is in the store, or Ctrl-C was pressed.

    Rows of other runs that share the store are waited for and not computed again. Outcomes depend
    on trials and seeds alone, not on the engine. A trial whose process is killed runs again, up to
    :data:`ATTEMPTS` times in all, and then is a failed row.

    Raises:
        TrialError: a trial ended with an error other than McoverError. Those in flight are kept.
    """
    state = _Run(plan, store, engine, view or View())
    try:
        missing = plan.missing(state.have)
        for cell in {cell.config: cell for cell, _ in missing}.values():
            getattr(cell.trial, "prepare", lambda: None)()
        state.view.begin(list(state.have.values()), *plan.progress(state.have))
        while missing:
            state.execute(missing)
            missing = plan.missing(state.have)
    except KeyboardInterrupt:
        state.keep_finished()
        return Ran(state.new, state.failed, interrupted=True)
    finally:
        engine.shutdown()
        with contextlib.suppress(McoverError):  # what stopped the run is the message to show
            store.release((cell.config, seed) for cell, seed in state.flying.values())
    return Ran(state.new, state.failed, interrupted=False)


class _Run:
    """What is in flight, and what is there so far."""

    def __init__(self, plan: Plan, store: Store, engine: Engine, view: View) -> None:
        self.store, self.engine, self.view = store, engine, view
        self.have = by_key(store.rows(plan.configs()))
        self.flying: dict[Future[Row], Pending] = {}
        self.lost: Counter[Key] = Counter()  # how often a trial went with its process
        self.new = self.failed = 0
        self._renewed = time.monotonic()

    def execute(self, missing: list[Pending]) -> None:
        """Runs trials, or waits for other runs to."""
        queue, taken = deque(missing), deque[Pending]()
        while queue or taken or self.flying:
            while queue and len(self.flying) < self.engine.workers:
                cell, seed = queue.popleft()
                answer = self.store.claim((cell.config, seed))
                if answer == "ours":
                    self.flying[self.engine.submit(cell.trial, seed)] = cell, seed
                elif answer == "taken":
                    taken.append((cell, seed))
            if self.flying:
                ended, _ = wait(self.flying, _POLL_SECONDS, FIRST_COMPLETED)
                queue.extendleft(self.keep(ended))
            elif taken:
                time.sleep(_POLL_SECONDS)
            if not queue:  # whatever others have not finished by now may have been left behind
                queue, taken = taken, deque()
            if time.monotonic() - self._renewed > LEASE_SECONDS / 6:
                self._renewed = time.monotonic()
                self.store.renew()
            self.view.tick(len(self.flying))
        elsewhere = {(cell.config, seed) for cell, seed in missing} - self.have.keys()
        for row in self.store.rows(config for config, _ in elsewhere):
            if row.key in elsewhere:
                self._add(row)

    def keep(self, ended: set[Future[Row]]) -> list[Pending]:
        """Stores what has ended; returns trials that are to be tried again."""
        again: list[Pending] = []
        for future in ended:
            cell, seed = self.flying.pop(future)
            error = future.exception()
            if error is None:
                self._put(future.result())
            elif isinstance(error, BrokenExecutor):
                self.lost[cell.config, seed] += 1
                if self.lost[cell.config, seed] < ATTEMPTS:
                    again.append((cell, seed))
                else:
                    message = f"its process ended {ATTEMPTS} times (out of memory?): {error}"
                    self._put(make_row(cell.trial, seed, {}, message, 0.0))
            else:
                self.store.release([(cell.config, seed)])
                wait(self.flying)
                self.keep_finished()
                raise TrialError(
                    f"the trial '{cell.label}', seed {seed}, stopped with an error; all others are "
                    f"kept. Correct the cause and run the study again.\n{error}"
                ) from error
        return again

    def keep_finished(self) -> None:
        """Stores the trials in flight that gave a row by now."""
        for future in [one for one in self.flying if one.done()]:
            if not future.exception():
                self._put(future.result())
                del self.flying[future]

    def _put(self, row: Row) -> None:
        if self.store.put([row]):
            self.new += 1
            self.failed += row.status == "failed"
        self._add(row)

    def _add(self, row: Row) -> None:
        self.have[row.key] = row
        self.view.add(row)
