"""What a study still has to run, given the rows that are there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mcover.lab.studies.cells import Cell, Job, Key, Trial, config_of
from mcover.lab.studies.rows import Row
from mcover.lab.studies.study import Choosing

Rows = Mapping[Key, Row]


@dataclass(frozen=True)
class Plan:
    """Cells to fill, and how strengths are chosen where a cell has candidates."""

    cells: tuple[Cell, ...]
    choosing: Choosing

    def configs(self) -> set[str]:
        """All configs that rows of this plan may have, choices and their tests included."""
        tests = {one.config for cell in self.cells for one in _tests(cell)}
        return tests | {job.config for job in self._choosing_jobs()}

    def jobs(self, rows: Rows) -> list[Job]:
        """All jobs that can be named, each once.

        Tests come first and seed by seed, so that a study that is stopped is paired as far as it
        went; tests of a cell with candidates can be named once all of them have been tried.
        """
        ready = [cell for cell in (self.resolve(cell, rows) for cell in self.cells) if cell]
        seeds = range(max((cell.trials for cell in ready), default=0))
        tests = [
            Job(cell.trial, cell.config, seed, cell.label)
            for seed in seeds
            for cell in ready
            if seed < cell.trials
        ]
        unique: dict[Key, Job] = {}
        for job in tests + self._choosing_jobs():
            unique.setdefault(job.key, job)
        return list(unique.values())

    def missing(self, rows: Rows) -> list[Job]:
        """The jobs that can start now and are not there."""
        return [job for job in self.jobs(rows) if job.key not in rows]

    def total(self, rows: Rows) -> int:
        """Trials in all, also those that cannot be named yet."""
        unnamed = (cell.trials for cell in self.cells if self.resolve(cell, rows) is None)
        return len(self.jobs(rows)) + sum(unnamed)

    def resolve(self, cell: Cell, rows: Rows) -> Cell | None:
        """The cell with its settings chosen; None while candidates are missing.

        A candidate that failed with any seed does not win.
        """
        if not cell.choices:
            return cell
        means = []
        for found in self.tried(cell, rows):
            if len(found) < self.choosing.seeds:
                return None
            errors = [row.outcome.get(self.choosing.outcome, math.inf) for row in found]
            means.append(float(np.mean(errors)))
        best = cell.choices[int(np.argmin(means))]
        return replace(cell, trial=best.trial, chosen=best.label)

    def tried(self, cell: Cell, rows: Rows) -> list[list[Row]]:
        """The rows that each candidate is judged by, in the order of the candidates."""
        jobs = [self._jobs_of(cell, choice.trial) for choice in cell.choices]
        return [[rows[job.key] for job in some if job.key in rows] for some in jobs]

    def _choosing_jobs(self) -> list[Job]:
        jobs = [self._jobs_of(cell, choice.trial) for cell in self.cells for choice in cell.choices]
        return [job for some in zip(*jobs, strict=True) for job in some]  # seed by seed

    def _jobs_of(self, cell: Cell, trial: Trial) -> list[Job]:
        tried = _changed(trial, self.choosing.extra)
        config = config_of(tried)
        first = self.choosing.first_seed
        return [
            Job(tried, config, first + seed, f"choosing for {cell.label}")
            for seed in range(self.choosing.seeds)
        ]


def _changed(trial: Any, changes: Mapping[str, Any]) -> Trial:
    change = getattr(trial, "__replace__", None)
    changed: Trial = change(**changes) if change else replace(trial, **changes)
    return changed


def by_key(rows: Iterable[Row]) -> dict[Key, Row]:
    """Rows by config and seed."""
    return {row.key: row for row in rows}


def _tests(cell: Cell) -> list[Cell]:
    if not cell.choices:
        return [cell]
    return [replace(cell, trial=choice.trial) for choice in cell.choices]
