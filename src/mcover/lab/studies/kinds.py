"""What can be computed: kinds of trials, and what their outcomes say together."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Literal

from mcover.errors import McoverError
from mcover.lab.studies.cells import Trial


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
    """A kind of trial. Rows of a kind are summarized by this table, without importing its class."""

    trial: str
    """Where its class is: module and name, with a colon between."""
    metrics: tuple[Metric, ...]
    """The first is what figures show and comparisons compare; every row that is done has it."""
    axis: str
    """What the first metric is, in words."""

    def load(self) -> type[Trial]:
        module, _, name = self.trial.partition(":")
        found: type[Trial] = getattr(import_module(module), name)
        return found


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
        "mcover.lab.perceptron:PerceptronTrial",
        (
            *_SOLVING,
            Metric("proposals", "TTS99, 10⁶ proposals", "tts", ".1f", 1e-6),
            Metric("core_seconds", "TTS99, core seconds", "tts", ".2f"),
        ),
        _EPSILON,
    ),
    "message-passing": Kind("mcover.lab.perceptron:MessagePassingTrial", _SOLVING, _EPSILON),
    "network": Kind("mcover.lab.training:NetworkTrial", _TRAINING, "test error"),
    "repeated": Kind("mcover.lab.training:RepeatedTrial", _TRAINING, "test error"),
    "committee": Kind(
        "mcover.lab.training:CommitteeTrial",
        (*_TRAINING[:2], Metric("epochs", "epochs", spec=".0f"), *_TRAINING[3:]),
        "test error",
    ),
    "cost": Kind(
        "mcover.lab.studies.catalogue.costs:CostTrial",
        (Metric("microseconds", "µs an update", spec=".3g"),),
        "microseconds an update",
    ),
}


def find_kind(name: str) -> Kind:
    """A kind by its name."""
    if name not in KINDS:
        raise McoverError(f"no kind of trial {name!r}; write one of {', '.join(KINDS)}.")
    return KINDS[name]
