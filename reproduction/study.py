"""A study is a table or figure as a frozen value; a plan lists its missing trials.

A study consists of cells. A cell is a trial that is repeated with several seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, get_args

import numpy as np

from mcover import McoverError, statistics
from reproduction.rows import Key, Kind, Plain, Row, Trial, trial_id

Scale = Literal["smoke", "quick", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
PERCEPTRON, COMMITTEE, MLP = "perceptron", "committee machine", "MLP"
Rows = Mapping[Key, Row]


@dataclass(frozen=True)
class Published:
    """A value of Table 1 of the paper (arXiv:2605.09256), "mean ± CI"."""

    value: float
    half_width: float
    trials: int | None = None

    def __str__(self) -> str:
        digits = 4 if self.value < 0.05 or self.half_width > 0.002 else 3
        n = f" (n = {self.trials})" if self.trials else ""
        return f"{self.value:.{digits}f} ± {self.half_width:.{digits}f}{n}"


# All numbers in the paper, by panel and series; its figures have no tables.
PUBLISHED: dict[tuple[str, str], Published] = {
    (PERCEPTRON, "vanilla"): Published(0.1936, 0.0113, 20),
    (PERCEPTRON, "RSA M=3"): Published(0.0539, 0.0329, 20),
    (PERCEPTRON, "M-cover M=3"): Published(0.0420, 0.0319, 20),
    (COMMITTEE, "vanilla"): Published(0.076, 0.002),
    (COMMITTEE, "rSGD M=4"): Published(0.071, 0.001),
    (COMMITTEE, "M-cover M=4"): Published(0.062, 0.001),
    (MLP, "vanilla"): Published(0.0173, 0.001),
    (MLP, "M-cover M=5"): Published(0.0167, 0.001),
}


@dataclass(frozen=True, eq=False)
class Cell:
    """A trial, its number of seeds, and its place in the tables and figures of a study.

    Cells with equal trials share their rows, also across studies.
    """

    trial: Trial
    series: str
    """Name of the line or method."""
    panel: str = ""
    x: float | None = None
    """Value on the x axis, in studies with a sweep."""
    trials: int = 1
    """Number of seeds, from 0; equal seeds give every cell the same instance."""
    choices: Mapping[str, Trial] = field(default_factory=dict)
    """Candidates by label. If given, `Choosing` selects the trial among them."""
    tried_on: Plain = field(default_factory=dict)
    """More fields that are replaced while candidates are compared, e.g. fewer images."""
    chosen: str = ""
    """Label of the selected candidate."""
    published: Published | None = None
    """The value in the paper for this computation."""

    @property
    def kind(self) -> str:
        return self.trial.kind

    @property
    def label(self) -> str:
        """Unique within a study and scale."""
        return f"{self.panel + ': ' if self.panel else ''}{self.line}"

    @property
    def line(self) -> str:
        """Unique within its panel."""
        return self.series if self.x is None else f"{self.series} at {self.x:g}"

    @cached_property
    def trial_id(self) -> str:
        """Hash of the trial."""
        return trial_id(self.trial)


Cells = tuple[Cell, ...]
Pending = tuple[Cell, int]
"""A cell and a seed: one row to compute."""


def panel_cells(
    lines: Mapping[str, Trial], panel: str, trials: int, beside_paper: bool = False
) -> Cells:
    """A cell for each line of a panel, optionally with the value in the paper."""
    known = PUBLISHED if beside_paper else {}
    return tuple(
        Cell(trial, series, panel, trials=trials, published=known.get((panel, series)))
        for series, trial in lines.items()
    )


@dataclass(frozen=True)
class Choosing:
    """How a candidate is selected: on held-out data, with seeds that no test uses."""

    extra: Plain = field(default_factory=lambda: {"validation": 5000})
    """Fields that are replaced while candidates are compared: held-out images."""
    outcome: str = "error"
    how: Literal["mean", "tts"] = "mean"
    """Selects the candidate with the least mean outcome, or with the least TTS99."""
    seeds: int = 3
    first_seed: int = 1000

    @property
    def own_seeds(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)

    def score(self, tried: Sequence[Row]) -> tuple[float, float]:
        """The score of a candidate; lower is better. A candidate with a failed row is last.

        If no candidate solved anything, the most expensive one is selected: it is the most likely
        to solve an instance.
        """
        if not all(self.outcome in row.outcome for row in tried):
            return math.inf, math.inf
        found = [row.outcome[self.outcome] for row in tried]
        if self.how == "mean":
            return float(np.mean(found)), 0.0
        solved = tuple(row.outcome["solved"] > 0 for row in tried)
        return _time_to_solution(solved, tuple(found)), -float(np.mean(found))


@lru_cache(maxsize=10_000)  # called again whenever rows arrive
def _time_to_solution(solved: tuple[bool, ...], costs: tuple[float, ...]) -> float:
    return statistics.time_to_solution(solved, costs).value


@dataclass(frozen=True)
class Study:
    """One table or figure."""

    name: str
    """Name on the command line."""
    title: str
    source: str
    """The part of the paper that it reproduces."""
    about: str
    """What is computed, and how it differs from the paper."""
    cells: Mapping[Scale, Cells]
    contrasts: tuple[tuple[str, ...], ...] = ()
    """Series that are compared in every panel: the first minus each of the others."""
    rivals: tuple[str, ...] = ()
    """Gains are measured over the series of least mean outcome among these."""
    gains: tuple[str, ...] = ()
    """Series whose gains are tested; the gains of other series are only drawn."""
    picture: Literal["lines", "outcomes", "growth", "times", "gain", "families"] = "lines"
    shows: Kind | None = None
    """Metrics that replace those of the kinds of trial (`rows.KINDS`)."""
    more: Callable[[Any], tuple[Any, ...]] = lambda summary: ()
    """Makes additional tables from the summary of the study."""
    x_label: str = ""
    """Label of the swept quantity."""
    x_log: bool = False
    choosing: Mapping[Scale, Choosing] = field(default_factory=dict)
    """How candidates are selected at each scale."""
    growth: Mapping[tuple[str, str], tuple[str, Callable[[float], float]]] = field(
        default_factory=dict
    )
    """The paper's formula of the cost for (panel, series), as text and as a function of x."""

    def plan(self, scale: Scale, trials: int | None = None, only: str = "") -> Plan:
        """The plan of a scale, optionally with another number of trials or fewer cells."""
        return Plan(self.at(scale, trials, only), self.choosing.get(scale, Choosing()))

    def at(self, scale: Scale, trials: int | None = None, only: str = "") -> Cells:
        """The cells of a scale whose label contains ``only``."""
        if scale not in SCALES:
            raise McoverError(f"scale is {scale!r}; write one of {', '.join(SCALES)}.")
        cells = self.cells[scale]
        if trials is not None:
            if trials < 1:
                raise McoverError(f"trials is {trials}; write an integer of at least 1.")
            cells = tuple(replace(cell, trials=trials) for cell in cells)
        cells = tuple(cell for cell in cells if only.lower() in cell.label.lower())
        if not cells:
            raise McoverError(
                f"no cell of {self.name} at scale {scale} has {only!r} in its label; its "
                f"labels are {'; '.join(cell.label for cell in self.cells[scale])[:500]}."
            )
        return cells


def at_scales(make: Callable[..., Cells], **given: tuple[Any, ...]) -> dict[Scale, Cells]:
    """The cells of each scale: ``make`` called with the scale and the arguments for it."""
    return {scale: make(scale, *given[scale]) for scale in SCALES}


@dataclass(frozen=True)
class Plan:
    """The cells to compute, and how candidates are selected."""

    cells: Cells
    choosing: Choosing = Choosing()

    def trials(self) -> dict[str, Trial]:
        """All trials of this plan by their id, including every candidate."""
        given = [one for cell in self.cells for one in (cell.choices.values() or [cell.trial])]
        tried = [cell.trial for cell, _ in self._tries]
        return {trial_id(trial): trial for trial in (*given, *tried)}

    def pending(self, rows: Rows) -> list[Pending]:
        """All rows of the plan that are known so far, computed or not, without duplicates.

        Tests come first, seed by seed, so that the rows of an interrupted run are paired. The tests
        of a cell with candidates are known once all of its candidates have been compared.
        """
        ready = [cell for cell in (self.resolve(cell, rows) for cell in self.cells) if cell]
        seeds = range(max((cell.trials for cell in ready), default=0))
        tests = [(cell, seed) for seed in seeds for cell in ready if seed < cell.trials]
        unique: dict[Key, Pending] = {}
        for cell, seed in tests + self._tries:
            unique.setdefault((cell.trial_id, seed), (cell, seed))
        return list(unique.values())

    def missing(self, rows: Rows) -> list[Pending]:
        """The rows that can be computed now and are not in ``rows``."""
        return [one for one in self.pending(rows) if (one[0].trial_id, one[1]) not in rows]

    def progress(self, rows: Rows) -> tuple[int, int]:
        """Number of computed rows and of all rows, including those not known yet."""
        known = self.pending(rows)
        unknown = sum(cell.trials for cell in self.cells if self.resolve(cell, rows) is None)
        done = sum((cell.trial_id, seed) in rows for cell, seed in known)
        return done, len(known) + unknown

    def resolve(self, cell: Cell, rows: Rows) -> Cell | None:
        """The cell with its selected trial; None while rows of candidates are missing."""
        if not cell.choices:
            return cell
        scores = {}
        for label, found in self.tried(cell, rows).items():
            if len(found) < self.choosing.seeds:
                return None
            scores[label] = self.choosing.score(found)
        best = min(scores, key=lambda label: scores[label])
        return replace(cell, trial=cell.choices[best], chosen=best)

    def tried(self, cell: Cell, rows: Rows) -> dict[str, list[Row]]:
        """The rows by which each candidate is scored."""
        return {
            label: [
                rows[one.trial_id, s] for s in self.choosing.own_seeds if (one.trial_id, s) in rows
            ]
            for label, one in self._candidates[cell.label].items()
        }

    @cached_property
    def _candidates(self) -> dict[str, dict[str, Cell]]:
        """The candidates of each cell as separate cells, on held-out data."""

        def as_tried(trial: Any, cell: Cell) -> Cell:
            extra = {**self.choosing.extra, **cell.tried_on}
            return Cell(replace(trial, **extra), f"choosing for {cell.label}")

        return {
            cell.label: {label: as_tried(trial, cell) for label, trial in cell.choices.items()}
            for cell in self.cells
        }

    @cached_property
    def _tries(self) -> list[Pending]:
        cells = [one for some in self._candidates.values() for one in some.values()]
        return [(cell, seed) for seed in self.choosing.own_seeds for cell in cells]
