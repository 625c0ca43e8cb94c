"""What can be computed: kinds of trials, and what their outcomes say together."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

from mcover.errors import McoverError
from mcover.lab.studies.cells import Plain


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
    """A kind of trial; its module has ``run(settings, seed) -> dict[str, float]``.

    It may have ``prepare(settings)``, which is called once before any trial starts and refuses what
    no trial could do without (data that are not here, a package that is not installed).
    """

    module: str
    metrics: tuple[Metric, ...]
    """The first is what figures show and comparisons compare."""
    axis: str
    """What the first metric is, in words."""

    def load(self) -> ModuleType:
        return import_module(self.module)

    def prepare(self, settings: Plain) -> None:
        prepare = getattr(self.load(), "prepare", None)
        if prepare is not None:
            prepare(settings)


_SOLVING = (
    Metric("generalization_error", "ε_g of the mean"),
    Metric("generalization_error_sign", "ε_g of the majority"),
    Metric("solved", "solved", "fraction", ".3f"),
)
_TRAINING = (
    Metric("error", "test error of the collapse"),
    Metric("cover_error", "mean error of covers"),
    Metric("routed_error", "mean error along routes"),
    Metric("gradients", "gradients, 10³", spec=".1f", scale=1e-3),
    Metric("core_seconds", "core seconds a run", spec=".1f"),
)
_EPSILON = "generalization error ε_g"

KINDS: dict[str, Kind] = {
    "perceptron": Kind(
        "mcover.lab.perceptron",
        (
            *_SOLVING,
            Metric("proposals", "TTS99, 10⁶ proposals", "tts", ".1f", 1e-6),
            Metric("core_seconds", "TTS99, core seconds", "tts", ".2f"),
        ),
        _EPSILON,
    ),
    "message-passing": Kind("mcover.lab.perceptron", _SOLVING, _EPSILON),
    "network": Kind("", _TRAINING, "test error"),
    "repeated": Kind("", _TRAINING, "test error"),
    "committee": Kind(
        "",
        (*_TRAINING[:2], Metric("epochs", "epochs", spec=".0f"), *_TRAINING[3:]),
        "test error",
    ),
    "cost": Kind(
        "",
        (Metric("microseconds", "µs an update", spec=".3g"),),
        "microseconds an update",
    ),
}


@dataclass(frozen=True)
class PlainTrial:
    """A trial by its kind and plain settings."""

    kind: str  # type: ignore[misc]
    settings: Plain

    def run(self, seed: int) -> dict[str, float]:
        found: dict[str, float] = find_kind(self.kind).load().run(self.settings, seed)
        return found

    def prepare(self) -> None:
        find_kind(self.kind).prepare(self.settings)

    def __plain__(self) -> dict[str, Any]:
        return dict(self.settings)

    def __replace__(self, **changes: Any) -> PlainTrial:
        return PlainTrial(self.kind, {**self.settings, **changes})


def find_kind(name: str) -> Kind:
    """A kind by its name."""
    if name not in KINDS:
        raise McoverError(f"no kind of trial {name!r}; write one of {', '.join(KINDS)}.")
    return KINDS[name]
