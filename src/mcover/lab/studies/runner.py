"""Runs what is missing of a plan, and keeps each trial as it ends."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from mcover.errors import McoverError
from mcover.lab.studies.cells import Job, Key
from mcover.lab.studies.plan import Plan, by_key
from mcover.lab.studies.rows import Row, make_row
from mcover.lab.studies.store import LEASE_SECONDS, Store
from mcover.lab.studies.workers import Ended, Engine

_POLL_SECONDS = 0.5


class TrialError(McoverError):
    """A trial ended with an error that is not about its settings: the study stops, rows stay."""


class View(Protocol):
    """What shows a run to whoever waits for it."""

    def begin(self, rows: list[Row], done: int, total: int) -> None:
        """Rows that are there already, trials of the plan among them, and trials in all."""

    def add(self, row: Row) -> None:
        """A row that is new."""

    def tick(self, running: int) -> None:
        """Called a few times a second."""


class Quiet:
    """Shows nothing."""

    def begin(self, rows: list[Row], done: int, total: int) -> None: ...

    def add(self, row: Row) -> None: ...

    def tick(self, running: int) -> None: ...


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
    on settings and seeds alone, not on the engine.

    Raises:
        TrialError: a trial ended with an error other than McoverError. Those in flight are kept.
    """
    state = _Run(store, engine, view or Quiet())
    rows = store.rows(plan.configs())
    have = by_key(rows)
    try:
        jobs = plan.missing(have)
        for job in {job.config: job for job in jobs}.values():
            prepare = getattr(job.trial, "prepare", None)
            if prepare is not None:
                prepare()
        state.view.begin(rows, len(plan.jobs(have)) - len(jobs), plan.total(have))
        while jobs:
            have |= by_key(state.execute(jobs))
            jobs = plan.missing(have)
    except KeyboardInterrupt:
        state.keep(engine.collect(0))
        return Ran(state.new, state.failed, interrupted=True)
    finally:
        engine.close()
        with contextlib.suppress(McoverError):  # what stopped the run is the message to show
            store.release(state.flying)
    return Ran(state.new, state.failed, interrupted=False)


class _Run:
    """What is in flight, and what has been kept so far."""

    def __init__(self, store: Store, engine: Engine, view: View) -> None:
        self.store, self.engine, self.view = store, engine, view
        self.flying: dict[Key, Job] = {}
        self.new = self.failed = 0
        self._renewed = time.monotonic()

    def execute(self, jobs: list[Job]) -> list[Row]:
        """Runs jobs, or waits for other runs to; returns their rows."""
        queue, taken = deque(jobs), deque[Job]()
        elsewhere: list[str] = []
        rows: list[Row] = []
        while queue or taken or self.flying:
            while queue and self.engine.free:
                job = queue.popleft()
                answer = self.store.claim(job)
                if answer == "ours":
                    self.flying[job.key] = job
                    self.engine.submit(job)
                elif answer == "taken":
                    taken.append(job)
                else:
                    elsewhere.append(job.config)
            if self.flying:
                rows += self.keep(self.engine.collect(_POLL_SECONDS))
            elif taken:
                time.sleep(_POLL_SECONDS)
            if not queue:  # whatever others have not finished by now may have been left behind
                queue, taken = taken, deque()
            self._renew()
            self.view.tick(len(self.flying))
        keys = {job.key for job in jobs}
        others = [row for row in self.store.rows(elsewhere) if row.key in keys]
        for row in others:
            self.view.add(row)
        return rows + others

    def keep(self, ended: list[Ended]) -> list[Row]:
        """Stores what has ended; an error stops the run once the trials in flight are kept."""
        rows, broken = [], [one for one in ended if one.error]
        for one in ended:
            self.flying.pop(one.job.key, None)
            if one.error:
                continue
            row = make_row(one.job, one.outcome, one.refusal, one.seconds)
            if self.store.put([row]):
                self.new += 1
                self.failed += row.status == "failed"
            self.view.add(row)
            rows.append(row)
        if broken:
            self.store.release(one.job.key for one in broken)
            while self.flying:
                late = self.engine.collect(_POLL_SECONDS)
                self.keep([one for one in late if not one.error])
                for one in late:
                    self.flying.pop(one.job.key, None)
            job, error = broken[0].job, broken[0].error
            raise TrialError(
                f"the trial '{job.label}', seed {job.seed}, stopped with an error; all others are "
                f"kept. Correct the cause and run the study again.\n{error}"
            )
        return rows

    def _renew(self) -> None:
        if time.monotonic() - self._renewed > LEASE_SECONDS / 6:
            self._renewed = time.monotonic()
            self.store.renew()
