"""A study: a table or figure of the paper as a frozen value, and what of it is still to run.

It is made of cells, each a way to compute that is repeated with many seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, get_args

import numpy as np

from mcover import statistics
from mcover.checks import check_choice, check_int
from mcover.errors import McoverError
from reproduction.rows import Key, Kind, Plain, Row, Trial, config_of

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


# The paper's only numbers, by panel and series: its figures carry no table.
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
    """One way to compute, and where its outcome belongs in the picture of a study.

    Two cells of equal trials are the same computation, whatever they are called and in whichever
    study they are: they share their rows.
    """

    trial: Trial
    series: str
    """Method or line it belongs to."""
    panel: str = ""
    x: float | None = None
    """Place on the axis, for studies that sweep something."""
    trials: int = 1
    """Seeds 0 … trials − 1; a seed gives the same instance to every cell."""
    choices: Mapping[str, Trial] = field(default_factory=dict)
    """Candidates by label: where given, the trial is that of the one that wins (`Choosing`)."""
    tried_on: Plain = field(default_factory=dict)
    """Fields of a candidate's trial that differ further while it is tried, e.g. fewer images."""
    chosen: str = ""
    """Label of the candidate that won."""
    published: Published | None = None
    """What the paper states for this very computation."""

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
    def config(self) -> str:
        """Hash of the trial."""
        return config_of(self.trial)


Cells = tuple[Cell, ...]
Pending = tuple[Cell, int]
"""A cell and a seed: one run of its trial."""


def panel_cells(
    lines: Mapping[str, Trial], panel: str, trials: int, beside_paper: bool = False
) -> Cells:
    """A cell for each line of a panel, perhaps beside what the paper states for it."""
    known = PUBLISHED if beside_paper else {}
    return tuple(
        Cell(trial, series, panel, trials=trials, published=known.get((panel, series)))
        for series, trial in lines.items()
    )


@dataclass(frozen=True)
class Choosing:
    """How strengths are chosen: on data of their own, with seeds that no test has."""

    extra: Plain = field(default_factory=lambda: {"validation": 5000})
    """Fields of a candidate's trial that differ while it is tried: images held out of training."""
    outcome: str = "error"
    how: Literal["mean", "tts"] = "mean"
    """The candidate wins whose outcome has the least mean, or, as a cost, gives the least TTS99."""
    seeds: int = 3
    first_seed: int = 1000

    @property
    def own_seeds(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)

    def score(self, tried: Sequence[Row]) -> tuple[float, float]:
        """What a candidate is judged by, less is better; one that failed with any seed is last.

        Where none of the candidates solved anything, the dearest of them wins: its chance is best.
        """
        if not all(self.outcome in row.outcome for row in tried):
            return math.inf, math.inf
        found = [row.outcome[self.outcome] for row in tried]
        if self.how == "mean":
            return float(np.mean(found)), 0.0
        solved = tuple(row.outcome["solved"] > 0 for row in tried)
        return _time_to_solution(solved, tuple(found)), -float(np.mean(found))


@lru_cache(maxsize=10_000)  # a run asks again and again, while rows come in
def _time_to_solution(solved: tuple[bool, ...], costs: tuple[float, ...]) -> float:
    return statistics.time_to_solution(solved, costs).value


@dataclass(frozen=True)
class Study:
    """One table or figure."""

    name: str
    """As the command line has it."""
    title: str
    source: str
    """What of the paper it is."""
    about: str
    """What is computed, and where that departs from the paper."""
    cells: Mapping[Scale, Cells]
    contrasts: tuple[tuple[str, ...], ...] = ()
    """Series that are compared wherever they are: the first minus each of the others."""
    rivals: tuple[str, ...] = ()
    """Series whose better one, of less mean outcome in a cell, gains are measured over."""
    gains: tuple[str, ...] = ()
    """Series whose gains are tested; of the others they are drawn only."""
    picture: Literal["lines", "outcomes", "growth", "times", "gain"] = "lines"
    shows: Kind | None = None
    """What is shown in place of what its kinds of trial show (`rows.KINDS`)."""
    x_label: str = ""
    """What is swept."""
    x_log: bool = False
    choosing: Mapping[Scale, Choosing] = field(default_factory=dict)
    """How candidates are chosen, where cells have them."""
    growth: Mapping[tuple[str, str], tuple[str, Callable[[float], float]]] = field(
        default_factory=dict
    )
    """Of costs: the paper's formula of each (panel, series), in words and as a function of x."""

    def plan(self, scale: Scale, trials: int | None = None, only: str = "") -> Plan:
        """What to run at a scale, perhaps with another number of trials or only some cells."""
        return Plan(self.at(scale, trials, only), self.choosing.get(scale, Choosing()))

    def at(self, scale: Scale, trials: int | None = None, only: str = "") -> Cells:
        """The cells of a scale, with another number of trials or only those named so."""
        cells = self.cells[check_choice("scale", scale, SCALES)]
        if trials is not None:
            count = check_int("trials", trials, 1)
            cells = tuple(replace(cell, trials=count) for cell in cells)
        cells = tuple(cell for cell in cells if only.lower() in cell.label.lower())
        if not cells:
            raise McoverError(
                f"no cell of {self.name} at scale {scale} has {only!r} in its name; "
                f"'mcover study show {self.name} --scale {scale}' lists them."
            )
        return cells


def at_scales(make: Callable[..., Cells], **given: tuple[Any, ...]) -> dict[Scale, Cells]:
    """The cells of each scale, made of its name and of what is given for it."""
    return {scale: make(scale, *given[scale]) for scale in SCALES}


@dataclass(frozen=True)
class Plan:
    """Cells to fill, and how strengths are chosen where a cell has candidates."""

    cells: Cells
    choosing: Choosing = Choosing()

    def configs(self) -> set[str]:
        """All configs that rows of this plan may have, candidates included."""
        trials = [one for cell in self.cells for one in (cell.choices.values() or [cell.trial])]
        return {config_of(trial) for trial in trials} | {cell.config for cell, _ in self._tries}

    def pending(self, rows: Rows) -> list[Pending]:
        """All runs that can be named, each once, whether their rows are there or not.

        Tests come first and seed by seed, so that a study that is stopped is paired as far as it
        went; tests of a cell with candidates can be named once all of them have been tried.
        """
        ready = [cell for cell in (self.resolve(cell, rows) for cell in self.cells) if cell]
        seeds = range(max((cell.trials for cell in ready), default=0))
        tests = [(cell, seed) for seed in seeds for cell in ready if seed < cell.trials]
        unique: dict[Key, Pending] = {}
        for cell, seed in tests + self._tries:
            unique.setdefault((cell.config, seed), (cell, seed))
        return list(unique.values())

    def missing(self, rows: Rows) -> list[Pending]:
        """The runs that can start now and are not there."""
        return [one for one in self.pending(rows) if (one[0].config, one[1]) not in rows]

    def progress(self, rows: Rows) -> tuple[int, int]:
        """Runs that are there, and runs in all, also those that cannot be named yet."""
        named = self.pending(rows)
        unnamed = sum(cell.trials for cell in self.cells if self.resolve(cell, rows) is None)
        done = sum((cell.config, seed) in rows for cell, seed in named)
        return done, len(named) + unnamed

    def resolve(self, cell: Cell, rows: Rows) -> Cell | None:
        """The cell with its trial chosen; None while candidates are missing.

        A candidate that failed with any seed does not win.
        """
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
        """The rows that each candidate is judged by."""
        return {
            label: [rows[one.config, s] for s in self.choosing.own_seeds if (one.config, s) in rows]
            for label, one in self._candidates[cell.label].items()
        }

    @cached_property
    def _candidates(self) -> dict[str, dict[str, Cell]]:
        """The candidates of each cell as cells of their own, as they are tried."""

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
