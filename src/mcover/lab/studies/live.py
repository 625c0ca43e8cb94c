"""A run as people watch it: trials done, running means with intervals, time left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mcover import progress, statistics
from mcover.lab.studies.cells import Cell, find_kind
from mcover.lab.studies.rows import Row, by_key
from mcover.lab.studies.runner import View
from mcover.lab.studies.study import Plan
from mcover.lab.studies.summary import NOTHING, text

_PLAIN_SECONDS = 10.0  # between lines where nobody watches a terminal
_REFRESH_SECONDS = 0.5
_FRAME = 7  # lines of the view that are not cells
_COLUMNS = 80  # of a plain line


class Watch(View):
    """Keeps count of a run and says it in words; a terminal shows it as a table."""

    def __init__(self, plan: Plan, live: Live | None = None) -> None:
        self._plan, self._live = plan, live
        self._rows: dict[tuple[str, int], Row] = {}
        self._new = self._before = self._total = 0
        self._touched: dict[str, float] = {}
        self._begin = time.monotonic()
        self._shown = -_PLAIN_SECONDS

    def begin(self, rows: list[Row], done: int, total: int) -> None:
        self._rows, self._before, self._total = by_key(rows), done, total
        self._begin = time.monotonic()
        if done:
            progress.errors.print(f"{done} trials are there and are not run again")

    def add(self, row: Row) -> None:
        self._rows[row.key] = row
        self._touched[row.config] = time.monotonic()
        self._new += 1

    def tick(self, running: int) -> None:
        since = time.monotonic() - self._shown
        if since <= (_PLAIN_SECONDS if self._live is None else _REFRESH_SECONDS):
            return
        self._shown = time.monotonic()
        if self._live is not None:
            self._live.update(self.table(running, progress.errors.height), refresh=True)
        else:
            progress.errors.print(self.headline(running), markup=False)
            if moved := [cell for cell in self._cells() if cell.config in self._touched]:
                last = max(moved, key=lambda cell: self._touched[cell.config])
                value = self.estimate(last)
                label = shorten(last.label, _COLUMNS - len(value) - 4, placeholder="…")
                progress.errors.print(f"  {label}: {value}", markup=False)

    def headline(self, running: int) -> str:
        """Trials done and time left."""
        done = self._before + self._new
        failed = sum(row.status == "failed" for row in self._rows.values())
        broken = f", {failed} failed" if failed else ""
        said = f"{done}/{self._total} trials{broken}, {running} running"
        elapsed = time.monotonic() - self._begin
        if self._new:
            left = elapsed / self._new * (self._total - done)
            said += f", {_clock(elapsed)} so far, about {_clock(left)} left"
        return said

    def estimate(self, cell: Cell) -> str:
        """The running mean of a cell with its interval and n."""
        metric = find_kind(cell.kind).metrics[0]
        values = [
            row.outcome[metric.outcome] * metric.scale
            for row in self._rows.values()
            if row.config == cell.config and row.status == "done"
        ]
        if not values:
            return NOTHING
        found = statistics.mean(values)
        return f"{text(found, metric.spec)} (n = {found.n})"

    def table(self, running: int, height: int) -> Group:
        """The cells that moved last, as many as fit."""
        cells = self._cells()
        moved = sorted(cells, key=lambda cell: -self._touched.get(cell.config, 0))
        kept = {cell.label for cell in moved[: max(1, height - _FRAME)]}
        table = Table(show_edge=False, pad_edge=False)
        table.add_column("cell", no_wrap=True, overflow="ellipsis")
        table.add_column("mean [95 % interval]", justify="right", no_wrap=True)
        for cell in (cell for cell in cells if cell.label in kept):
            table.add_row(Text(cell.label), self.estimate(cell))
        return Group(Text(self.headline(running)), table)

    def _cells(self) -> list[Cell]:
        return [self._plan.resolve(cell, self._rows) or cell for cell in self._plan.cells]


@contextmanager
def watching(plan: Plan) -> Iterator[View]:
    """A live table on a terminal; elsewhere a plain line at once and every ten seconds."""
    if not progress.errors.is_terminal:
        yield Watch(plan)
        return
    with Live(console=progress.errors, transient=True, auto_refresh=False) as live:
        yield Watch(plan, live)


def _clock(seconds: float) -> str:
    """Seconds as people say them.

    >>> _clock(59.6), _clock(3725)
    ('1:00', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
