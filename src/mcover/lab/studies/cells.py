"""What a study is made of: cells, each a way to compute that is repeated with many seeds.

Also what outcomes of each kind of trial say together, and what the paper states of some of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

from mcover.errors import McoverError
from mcover.plain import to_plain

Plain = Mapping[str, Any]
Key = tuple[str, int]
"""Config and seed: what a row of the store is found by."""

PERCEPTRON, COMMITTEE, MLP = "perceptron", "committee machine", "MLP"
_DIGITS = 20


@dataclass(frozen=True)
class Published:
    """A value of the paper (arXiv:2605.09256), "mean ± CI"."""

    value: float
    half_width: float
    trials: int | None = None
    where: str = "Table 1"

    def __str__(self) -> str:
        digits = 4 if self.value < 0.05 or self.half_width > 0.002 else 3
        n = f" (n = {self.trials})" if self.trials else ""
        return f"{self.value:.{digits}f} ± {self.half_width:.{digits}f}{n}"


# The paper's only numbers, by panel and series: its figures carry no table.
TABLE_1: dict[tuple[str, str], Published] = {
    (PERCEPTRON, "vanilla"): Published(0.1936, 0.0113, 20),
    (PERCEPTRON, "RSA M=3"): Published(0.0539, 0.0329, 20),
    (PERCEPTRON, "M-cover M=3"): Published(0.0420, 0.0319, 20),
    (COMMITTEE, "vanilla"): Published(0.076, 0.002),
    (COMMITTEE, "rSGD M=4"): Published(0.071, 0.001),
    (COMMITTEE, "M-cover M=4"): Published(0.062, 0.001),
    (MLP, "vanilla"): Published(0.0173, 0.001),
    (MLP, "M-cover M=5"): Published(0.0167, 0.001),
}


@dataclass(frozen=True)
class Metric:
    """A figure that the trials of a cell give together; never without its interval."""

    outcome: str
    label: str
    how: Literal["mean", "fraction", "tts"] = "mean"
    spec: str = ".4f"
    scale: float = 1.0
    """What the outcome is multiplied by before it is shown."""


@dataclass(frozen=True)
class Kind:
    """What the outcomes of a kind of trial say together."""

    metrics: tuple[Metric, ...]
    """The first is what figures show and comparisons compare; every row that is done has it."""
    axis: str
    """What the first metric is, in words."""


_SOLVING = (
    Metric("generalization_error", "ε_g of the mean"),
    Metric("generalization_error_sign", "ε_g of the majority"),
    Metric("solved", "solved", "fraction", ".3f"),
)
_TIMES_TO_SOLUTION = (
    Metric("proposals", "TTS99, 10⁶ proposals", "tts", ".1f", 1e-6),
    Metric("core_seconds", "TTS99, core seconds", "tts", ".2f"),
)
_TRAINING = (
    Metric("error", "test error of the collapse"),
    Metric("cover_error", "mean error of covers"),
    Metric("routed_error", "mean error along routes"),
    Metric("gradients", "gradients, 10³", spec=".1f", scale=1e-3),
    Metric("core_seconds", "core seconds a run", spec=".1f"),
)
_COMMITTEE = (*_TRAINING[:2], Metric("epochs", "epochs", spec=".0f"), *_TRAINING[3:])
_COST = (Metric("microseconds", "µs an update", spec=".3g"),)

KINDS: dict[str, Kind] = {
    "perceptron": Kind(_SOLVING + _TIMES_TO_SOLUTION, "generalization error ε_g"),
    "message-passing": Kind(_SOLVING, "generalization error ε_g"),
    "network": Kind(_TRAINING, "test error"),
    "repeated": Kind(_TRAINING, "test error"),
    "committee": Kind(_COMMITTEE, "test error"),
    "cost": Kind(_COST, "microseconds an update"),
}


def find_kind(name: str) -> Kind:
    """A kind by its name."""
    if name not in KINDS:
        raise McoverError(f"no kind of trial {name!r}; write one of {', '.join(KINDS)}.")
    return KINDS[name]


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


def panel_cells(
    lines: Mapping[str, Trial], panel: str, trials: int, beside_paper: bool = False
) -> tuple[Cell, ...]:
    """A cell for each line of a panel, perhaps beside what the paper states for it."""
    known = TABLE_1 if beside_paper else {}
    return tuple(
        Cell(trial, series, panel, trials=trials, published=known.get((panel, series)))
        for series, trial in lines.items()
    )


def settings_of(trial: Trial) -> dict[str, Any]:
    """What a row keeps of a trial beside its kind: the fields that differ from their defaults."""
    return {name: value for name, value in to_plain(trial).items() if name != "kind"}


def config_of(trial: Trial) -> str:
    """What finds the rows of a trial again."""
    return config_hash(trial.kind, settings_of(trial))


def config_hash(kind: str, settings: Plain | str) -> str:
    """The same of a kind and its settings, which may be canonical text already."""
    text = settings if isinstance(settings, str) else canonical(settings)
    return hashlib.sha256(f"{kind} {text}".encode()).hexdigest()[:_DIGITS]


def canonical(settings: Plain) -> str:
    """JSON with one spelling for equal settings: sorted names, 2.0 written as 2.

    >>> canonical({"b": 2.0, "a": [1.5, None]})
    '{"a":[1.5,null],"b":2}'
    """
    how: Any = {"sort_keys": True, "separators": (",", ":"), "ensure_ascii": False}
    try:
        return json.dumps(_whole(settings), allow_nan=False, **how)
    except (TypeError, ValueError, RecursionError) as error:
        raise McoverError(
            f"settings cannot be written as JSON ({error}); use finite numbers, text, lists and "
            "dicts, not nested deeply."
        ) from error


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(name): _whole(of) for name, of in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(of) for of in value]
    return value
