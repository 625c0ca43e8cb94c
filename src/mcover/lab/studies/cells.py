"""What a study is made of: cells, each a way to compute that is repeated with many seeds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from mcover.errors import McoverError
from mcover.lab.studies.published import Published

Plain = Mapping[str, Any]
Key = tuple[str, int]
"""Config and seed: what a row of the store is found by."""

_DIGITS = 20


@dataclass(frozen=True)
class Choice:
    """One candidate of a cell whose strength is chosen before it is tested."""

    label: str
    settings: Plain


@dataclass(frozen=True, eq=False)
class Cell:
    """One way to compute, and where its outcome belongs in the picture of a study.

    Two cells of the same kind and settings are the same computation, whatever they are called and
    in whichever study they are: they share their rows.
    """

    kind: str
    settings: Plain
    series: str
    """Method or line it belongs to."""
    panel: str = ""
    x: float | None = None
    """Place on the axis, for studies that sweep something."""
    trials: int = 1
    """Seeds 0 … trials − 1; a seed gives the same instance to every cell."""
    choices: tuple[Choice, ...] = ()
    """Where given, the settings are those of the candidate that wins (see `choosing`)."""
    chosen: str = ""
    """Label of the candidate that won."""
    published: Published | None = None
    """What the paper states for this very computation."""

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
        """Hash of kind and settings."""
        return config_hash(self.kind, self.settings)


@dataclass(frozen=True)
class Job:
    """One trial: what a worker is handed."""

    kind: str
    settings: Plain = field(hash=False, compare=False)
    config: str
    seed: int
    label: str = field(default="", compare=False)

    @property
    def key(self) -> Key:
        return self.config, self.seed


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
    except (TypeError, ValueError) as error:
        raise McoverError(
            f"settings {settings!r} cannot be written as JSON ({error}); use finite numbers, text, "
            "lists and dicts."
        ) from error
    return text


def config_hash(kind: str, settings: Plain) -> str:
    """What finds the rows of a computation again."""
    text = f"{kind} {canonical(settings)}"
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(name): _whole(of) for name, of in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(of) for of in value]
    return value
