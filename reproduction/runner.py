"""Runs the missing trials of a plan on an executor and stores each row as it ends."""

from __future__ import annotations

import time
import traceback
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass

from tqdm.auto import tqdm  # type: ignore[import-untyped]

from mcover import McoverError
from reproduction.rows import Key, Row, Trial, by_key, make_row, revision_of
from reproduction.store import Store
from reproduction.study import Cell, Pending, Plan, Rows


def run_trial(trial: Trial, seed: int) -> Row:
    """Runs a trial with one seed. A trial that raises gives a failed row with the message."""
    begin = time.perf_counter()
    try:
        return make_row(trial, seed, trial.run(seed), "", time.perf_counter() - begin)
    except McoverError as error:
        message = str(error) or type(error).__name__
    except (Exception, SystemExit):
        message = traceback.format_exc().rstrip()
    return make_row(trial, seed, {}, message, time.perf_counter() - begin)


@dataclass(frozen=True)
class Ran:
    """How a run ended."""

    new: int
    """Rows that this run computed and stored."""
    failed: int
    """Failed rows among them."""
    interrupted: bool
    """Whether Ctrl-C ended the run before all rows were computed."""


def run(
    plan: Plan,
    store: Store,
    executor: Executor,
    workers: int = 1,
    known: Rows | None = None,
    *,
    renew: bool = False,
    progress: bool = True,
) -> Ran:
    """Computes the rows of a plan that neither the store nor the known rows have.

    Outcomes depend only on trials and seeds, not on the executor or the order of completion.

    Args:
        plan: what to compute.
        store: receives each row as soon as its trial ends.
        executor: runs the trials.
        workers: trials that the executor runs at a time; twice as many are submitted, so that no
            worker waits for this process. 0 is an executor that runs a trial inside ``submit``.
        known: rows that were computed elsewhere, such as the committed ones.
        renew: compute rows of an older revision again.
        progress: show a progress bar.

    Raises:
        McoverError: the executor could not run a trial, for example because a worker was killed.
    """
    rows: dict[Key, Row] = by_key((*(known or {}).values(), *store.rows()))
    if renew:
        # All candidates, not only those selected now: new rows may select another one.
        current = {name: revision_of(trial) for name, trial in plan.trials().items()}
        rows = {k: row for k, row in rows.items() if row.revision >= current.get(k[0], 0)}
    for trial in {cell.trial_id: cell.trial for cell, _ in plan.missing(rows)}.values():
        getattr(trial, "prepare", lambda: None)()
    done, total = plan.progress(rows)
    with tqdm(total=total, initial=done, unit="trial", disable=not progress) as bar:
        return _Run(plan, store, executor, rows, bar).all(max(1, 2 * workers))


class _Run:
    """The trials in flight and the rows so far."""

    def __init__(
        self, plan: Plan, store: Store, executor: Executor, rows: dict[Key, Row], bar: tqdm
    ) -> None:
        self.plan, self.store, self.executor, self.rows, self.bar = plan, store, executor, rows, bar
        self.flying: dict[Future[Row], Pending] = {}
        self.new = self.failed = 0

    def all(self, most: int) -> Ran:
        """Keeps up to ``most`` trials in flight until nothing is missing."""
        queue = deque(self.plan.missing(self.rows))
        try:
            while queue or self.flying:
                while queue and len(self.flying) < most:
                    self._submit(*queue.popleft())
                for future in wait(self.flying, return_when=FIRST_COMPLETED).done:
                    self._store(future)
                if not queue and len(self.flying) < most:
                    # Tests of a cell with candidates can be named once all candidates have rows.
                    busy = {(cell.trial_id, seed) for cell, seed in self.flying.values()}
                    missing = self.plan.missing(self.rows)
                    queue.extend(one for one in missing if (one[0].trial_id, one[1]) not in busy)
        except KeyboardInterrupt:
            for future in [one for one in self.flying if one.done() and not one.exception()]:
                self._store(future)
            for future in self.flying:
                future.cancel()
            return Ran(self.new, self.failed, interrupted=True)
        return Ran(self.new, self.failed, interrupted=False)

    def _submit(self, cell: Cell, seed: int) -> None:

        try:
            self.flying[self.executor.submit(run_trial, cell.trial, seed)] = cell, seed
        except Exception as error:
            raise self._stopped(error) from error

    def _store(self, future: Future[Row]) -> None:
        try:
            row = future.result()
        except Exception as error:
            for other in [one for one in self.flying if one.done() and not one.exception()]:
                self._store(other)
            raise self._stopped(error) from error
        self.store.add(row)
        del self.flying[future]
        self.rows[row.key] = row
        self.new += 1
        self.failed += row.status == "failed"
        self.bar.set_postfix({"failed": self.failed} if self.failed else {}, refresh=False)
        self.bar.update()

    def _stopped(self, error: Exception) -> McoverError:
        return McoverError(
            f"the executor could not run a trial ({type(error).__name__}: {error}); a worker may "
            f"have been killed or out of memory. All {self.new} rows of this run are kept in "
            f"{self.store.path}: run the same command again."
        )
