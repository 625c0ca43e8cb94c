"""A study: a table or figure of the paper as a frozen value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from mcover.errors import McoverError
from mcover.lab.studies.cells import Cell, Plain

Scale = Literal["smoke", "quick", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)

Picture = Literal["lines", "outcomes", "growth"]


@dataclass(frozen=True)
class Choosing:
    """How strengths are chosen: on data of their own, with seeds that no test has."""

    extra: Plain = field(default_factory=lambda: {"validation": 5000})
    """What is added to the settings of a candidate: images held out of the training set."""
    outcome: str = "error"
    """The candidate of least mean outcome wins."""
    seeds: int = 3
    first_seed: int = 1000


@dataclass(frozen=True)
class Study:
    """One table or figure.

    Attributes:
        name: as the command line has it.
        title: one line.
        source: what of the paper it is.
        about: what is computed, and where that departs from the paper.
        cells: the cells of each scale.
        contrasts: pairs of series that are compared wherever both are, first minus second.
        picture: the form of its figure.
        x_label: what is swept.
        x_log: whether the axis is logarithmic.
        choosing: where cells have candidates, how they are chosen, by scale.
        growth: for a study of costs: the paper's formula of each (panel, series), as a function.
    """

    name: str
    title: str
    source: str
    about: str
    cells: Mapping[Scale, tuple[Cell, ...]]
    contrasts: tuple[tuple[str, str], ...] = ()
    picture: Picture = "lines"
    x_label: str = ""
    x_log: bool = False
    choosing: Mapping[Scale, Choosing] = field(default_factory=dict)
    growth: Mapping[tuple[str, str], Growth] = field(default_factory=dict)

    def at(self, scale: Scale, trials: int | None = None, only: str = "") -> tuple[Cell, ...]:
        """The cells of a scale, with another number of trials or only those named so."""
        if trials is not None and trials < 1:
            raise McoverError(f"trials is {trials}; write at least 1.")
        cells = tuple(cell for cell in self.cells[scale] if only.lower() in cell.label.lower())
        if not cells:
            raise McoverError(
                f"no cell of {self.name} at scale {scale} has {only!r} in its name; "
                f"'mcover study show {self.name} --scale {scale}' lists them."
            )
        return cells if trials is None else tuple(replace(cell, trials=trials) for cell in cells)

    def choice(self, scale: Scale) -> Choosing:
        """How strengths are chosen at a scale."""
        return self.choosing.get(scale, Choosing())


@dataclass(frozen=True)
class Growth:
    """A cost the paper predicts: its formula in words, and as a function of what is swept."""

    formula: str
    cost: Callable[[float], float]
