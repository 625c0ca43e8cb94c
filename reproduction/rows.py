"""A row is the outcome of one trial with one seed. This module defines rows and their CSV form."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import mcover
from mcover import McoverError
from mcover.plain import to_plain

Plain = Mapping[str, Any]
Key = tuple[str, int]
"""Trial id and seed: the primary key of a row."""

_PACKAGES = ("numpy", "numba", "torch")
COLUMNS = (
    *("trial", "kind", "settings", "seed", "revision", "status"),
    *("seconds", "finished", "version", "message"),
)
"""The fixed columns of a CSV file; the columns after them are outcomes."""


class Trial(Protocol):
    """A computation as a frozen dataclass. Its fields and a seed determine the outcome.

    A trial may have ``prepare()``, which is called once before any trial starts. It raises if a
    requirement of every seed is missing (a data set, a package).
    """

    kind: ClassVar[str]
    """Name of the class in rows."""
    revision: ClassVar[int]
    """To increase with every change of the numbers that this kind of trial computes."""

    def run(self, seed: int) -> dict[str, float]:
        """Computes the outcome: finite numbers by name."""


@dataclass(frozen=True)
class Metric:
    """An estimate over the trials of a cell, always shown with its interval."""

    outcome: str
    label: str
    how: Literal["mean", "fraction", "tts"] = "mean"
    spec: str = ".4f"
    scale: float = 1.0
    """Factor from the stored outcome to the value shown."""


@dataclass(frozen=True)
class Kind:
    """The metrics of a kind of trial."""

    metrics: tuple[Metric, ...]
    """Figures and comparisons use the first; every row with status done has it."""
    axis: str
    """Axis label of the first metric."""


_SOLVING = (
    Metric("generalization_error", "ε_g of the mean"),
    Metric("generalization_error_sign", "ε_g of the majority"),
    Metric("solved", "solved", "fraction", ".3f"),
)
_TIMES_TO_SOLUTION = (
    Metric("proposals", "TTS99, 10⁶ proposals", "tts", ".1f", 1e-6),
    Metric("core_seconds", "TTS99, core seconds", "tts", ".2f"),
)
TIMES_TO_SOLUTION = Kind(
    (*reversed(_TIMES_TO_SOLUTION), _SOLVING[-1]), "time to solution TTS99, core seconds"
)
"""For studies that compare the cost of a solution across kinds of trial."""
STRUCTURED = Kind(
    (*TIMES_TO_SOLUTION.metrics, Metric("overlap", "overlap with the teacher", spec=".3f")),
    TIMES_TO_SOLUTION.axis,
)
_TRAINING = (
    Metric("error", "test error of the collapse"),
    Metric("cover_error", "mean error of covers"),
    Metric("routed_error", "mean error along routes"),
    Metric("gradients", "gradients, 10³", spec=".1f", scale=1e-3),
    Metric("core_seconds", "core seconds a run", spec=".1f"),
)
_COMMITTEE = (
    *_TRAINING[:2],
    Metric("distance", "distance of covers", spec=".2g"),
    Metric("epochs", "epochs", spec=".0f"),
    *_TRAINING[3:],
)
_BINARY = (
    Metric("error", "test error"),
    Metric("error_signs", "of the majority of signs"),
    Metric("error_best", "of the best held-out cover"),
    *_TRAINING[1:],
)

KINDS: dict[str, Kind] = {
    "perceptron": Kind(_SOLVING + _TIMES_TO_SOLUTION, "generalization error ε_g"),
    "message-passing": Kind(_SOLVING, "generalization error ε_g"),
    "network": Kind(_TRAINING, "test error"),
    "repeated": Kind(_TRAINING, "test error"),
    "cover": Kind(_TRAINING, "test error"),
    "distilled": Kind(_TRAINING, "test error"),
    "committee": Kind(_COMMITTEE, "test error"),
    "binary-network": Kind(_BINARY, "test error"),
    "planted": Kind(
        (
            Metric("error_rate", "training error"),
            Metric("overlap", "overlap with the teacher", spec=".3f"),
            _SOLVING[-1],
            Metric("core_seconds", "core seconds a run", spec=".3f"),
        ),
        "training error",
    ),
    "cost": Kind((Metric("microseconds", "µs an update", spec=".3g"),), "microseconds an update"),
}


def revision_of(trial: Any) -> int:
    """The current revision of the kind of a trial."""
    return int(getattr(trial, "revision", 1))


def settings_of(trial: Trial) -> dict[str, Any]:
    """The fields of a trial that differ from their defaults, as plain JSON values."""
    return {name: value for name, value in to_plain(trial).items() if name != "kind"}


def trial_id(trial: Trial) -> str:
    """Identifies the rows of a trial: a hash of its kind and settings."""
    return trial_hash(trial.kind, settings_of(trial))


def trial_hash(kind: str, settings: Plain) -> str:
    """The trial id from a kind and settings."""
    return hashlib.sha256(f"{kind} {canonical(settings)}".encode()).hexdigest()[:20]


def canonical(settings: Plain) -> str:
    """JSON with the same text for equal settings: sorted names, 2.0 written as 2.

    >>> canonical({"b": 2.0, "a": [1.5, None]})
    '{"a":[1.5,null],"b":2}'
    """
    return json.dumps(
        _integers(settings),
        allow_nan=False,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
    )


def _integers(value: Any) -> Any:
    """The value with each integral float replaced by an int."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(name): _integers(of) for name, of in value.items()}
    if isinstance(value, list | tuple):
        return [_integers(of) for of in value]
    return value


@dataclass(frozen=True)
class Row:
    """The outcome of one trial with one seed."""

    trial_id: str
    """Hash of kind and settings."""
    kind: str
    settings: Plain = field(hash=False)
    seed: int
    revision: int
    """Revision of the kind of trial when the row was computed."""
    status: Literal["done", "failed"]
    seconds: float
    finished: str
    """Time of completion, UTC; empty if unknown."""
    version: str
    """Versions of mcover and of the packages that compute."""
    message: str
    """Why the trial failed; empty if it is done."""
    outcome: Mapping[str, float] = field(hash=False)
    """Finite numbers by name; empty for a failed trial."""

    @property
    def key(self) -> Key:
        return self.trial_id, self.seed


def make_row(
    trial: Trial, seed: int, outcome: Mapping[str, float], message: str, seconds: float
) -> Row:
    """The row of a trial that has just ended; a message marks it as failed."""
    numbers = {name: float(value) for name, value in outcome.items()}
    odd = [f"{name} = {value}" for name, value in numbers.items() if not math.isfinite(value)]
    if odd and not message:
        message = f"the outcome is not finite: {', '.join(odd)}"
    return Row(
        trial_id=trial_id(trial),
        kind=trial.kind,
        settings=settings_of(trial),
        seed=seed,
        revision=revision_of(trial),
        status="failed" if message else "done",
        seconds=round(seconds, 4),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        version=versions(),
        message=message,
        outcome={} if message else numbers,
    )


def by_key(rows: Iterable[Row]) -> dict[Key, Row]:
    """Rows by trial id and seed; for rows with the same key, the one of the newest revision.

    If rows have the same key and revision, the last is kept.
    """
    found: dict[Key, Row] = {}
    for row in rows:
        if row.key not in found or row.revision >= found[row.key].revision:
            found[row.key] = row
    return found


@cache
def versions() -> str:
    """Versions of mcover and of the packages that compute, in one short text."""
    found = [f"mcover {mcover.__version__}"]
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(found)


def write_csv(rows: Iterable[Row], path: str | Path) -> int:
    """Writes rows in the order of kind, trial and seed; returns their number.

    Every line is complete, so ``pandas.read_csv`` can read the file. Each outcome has a column,
    which is empty for rows without it.
    """
    ordered = sorted(rows, key=lambda row: (row.kind, row.trial_id, row.seed))
    names = sorted({name for row in ordered for name in row.outcome})
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*COLUMNS, *names])
        for row in ordered:
            numbers = [repr(row.outcome[name]) if name in row.outcome else "" for name in names]
            writer.writerow(
                [
                    *(row.trial_id, row.kind, canonical(row.settings), row.seed, row.revision),
                    *(row.status, repr(row.seconds), row.finished, row.version, row.message),
                    *numbers,
                ]
            )
    return len(ordered)


def read_csv(path: str | Path) -> list[Row]:
    """Reads a file that :func:`write_csv` wrote."""
    csv.field_size_limit(2**27)  # a message may hold a long traceback
    if not Path(path).is_file():
        raise McoverError(f"{path} is not a file; give a CSV file of rows.")
    with Path(path).open(newline="", encoding="utf-8") as file:
        lines = csv.reader(file)
        header = next(lines, [])
        if tuple(header[: len(COLUMNS)]) != COLUMNS:
            raise McoverError(
                f"{path} has the columns {', '.join(header)[:300] or 'of an empty file'}; a CSV "
                f"file of rows starts with {', '.join(COLUMNS)}."
            )
        try:
            return [_row(line, header[len(COLUMNS) :]) for line in lines]
        except (ValueError, csv.Error) as error:
            raise McoverError(
                f"{path}, line {lines.line_num}: {error}; restore the file or remove the line."
            ) from error


def _row(line: list[str], names: list[str]) -> Row:
    if len(line) != len(COLUMNS) + len(names):
        raise ValueError(f"{len(line)} columns instead of {len(COLUMNS) + len(names)}")
    text = dict(zip(COLUMNS, line, strict=False))
    status: Any = text["status"]
    return Row(
        trial_id=text["trial"],
        kind=text["kind"],
        settings=json.loads(text["settings"]),
        seed=int(text["seed"]),
        revision=int(text["revision"]),
        status=status,
        seconds=float(text["seconds"]),
        finished=text["finished"],
        version=text["version"],
        message=text["message"],
        outcome={n: float(v) for n, v in zip(names, line[len(COLUMNS) :], strict=True) if v},
    )
