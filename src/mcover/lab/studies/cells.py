"""What a study is made of: cells, each a way to compute that is repeated with many seeds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from mcover.errors import McoverError
from mcover.lab.studies.published import Published
from mcover.plain import to_plain

Plain = Mapping[str, Any]
Key = tuple[str, int]
"""Config and seed: what a row of the store is found by."""
TableOfPaper = Mapping[tuple[str, str], Published]
"""By panel and series."""

_DIGITS = 20


class Trial(Protocol):
    """A way to compute, as a frozen dataclass: all that decides an outcome but the seed.

    It may have ``prepare()``, which is called once before any trial starts and refuses what no
    trial could do without (data that are not here, a package that is not installed).
    """

    @property
    def kind(self) -> str:
        """Name of the class (a ClassVar), by which its outcomes are known."""

    def run(self, seed: int) -> dict[str, float]:
        """Finite numbers by name."""


def settings_of(trial: Trial) -> dict[str, Any]:
    """What a row keeps of a trial beside its kind: the fields that differ from their defaults."""
    plain: dict[str, Any] = to_plain(trial)
    return {name: value for name, value in plain.items() if name != "kind"}


@dataclass(frozen=True)
class Choice:
    """One candidate of a cell whose strength is chosen before it is tested."""

    label: str
    trial: Trial


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
    choices: tuple[Choice, ...] = ()
    """Where given, the trial is that of the candidate that wins (see `choosing`)."""
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


def canonical(settings: Plain) -> str:
    """JSON with one spelling for equal settings: sorted names, 2.0 written as 2.

    >>> canonical({"b": 2.0, "a": [1.5, None]})
    '{"a":[1.5,null],"b":2}'
    """
    try:
        text = json.dumps(
            _whole(settings),
            sort_keys=True,
            separators=(",", ":"),
            ensure_ascii=False,
            allow_nan=False,
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise McoverError(
            f"settings cannot be written as JSON ({error}); use finite numbers, text, lists and "
            "dicts, not nested deeply."
        ) from error
    return text


def config_hash(kind: str, settings: Plain) -> str:
    """What finds the rows of a computation again."""
    return text_hash(kind, canonical(settings))


def text_hash(kind: str, text: str) -> str:
    """The same of settings that are canonical text already."""
    return hashlib.sha256(f"{kind} {text}".encode()).hexdigest()[:_DIGITS]


def config_of(trial: Trial) -> str:
    """The same of a trial."""
    return config_hash(trial.kind, settings_of(trial))


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(name): _whole(of) for name, of in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(of) for of in value]
    return value


def panel_cells(
    lines: Mapping[str, Trial], panel: str, trials: int, published: TableOfPaper | None = None
) -> tuple[Cell, ...]:
    """A cell for each line of a panel, beside what the paper states for it."""
    known = published or {}
    return tuple(
        Cell(trial, series, panel, trials=trials, published=known.get((panel, series)))
        for series, trial in lines.items()
    )
