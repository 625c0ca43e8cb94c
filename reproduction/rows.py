"""A row: what one trial gave and where it comes from; rows as CSV, which is what is committed."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import platform
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, Protocol

import mcover
from mcover.errors import McoverError
from mcover.files import write_atomic
from mcover.plain import to_plain

Plain = Mapping[str, Any]
Key = tuple[str, int]
"""Config and seed: what a row of the store is found by."""

_PACKAGES = ("numpy", "scipy", "numba", "torch", "scikit-learn", "pytorch_optimizer")
_MOST = 1e100  # beyond, sums and squares of outcomes leave the range of floats
_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_LONGEST = 20_000  # characters of a message
# Control characters, marks that turn or hide text, lone surrogates.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


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
TIMES_TO_SOLUTION = Kind(
    (*reversed(_TIMES_TO_SOLUTION), _SOLVING[-1]), "time to solution TTS99, core seconds"
)
"""Of studies that ask what a solution costs, whatever finds it."""
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
    "cost": Kind((Metric("microseconds", "µs an update", spec=".3g"),), "microseconds an update"),
}


def settings_of(trial: Trial) -> dict[str, Any]:
    """What a row keeps of a trial beside its kind: the fields that differ from their defaults."""
    return {name: value for name, value in to_plain(trial).items() if name != "kind"}


def config_of(trial: Trial) -> str:
    """What finds the rows of a trial again."""
    return config_hash(trial.kind, settings_of(trial))


def config_hash(kind: str, settings: Plain) -> str:
    """The same from a kind and its settings."""
    return hashlib.sha256(f"{kind} {canonical(settings)}".encode()).hexdigest()[:20]


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


@dataclass(frozen=True)
class Row:
    """One trial."""

    config: str
    """Hash of kind and settings."""
    seed: int
    kind: str
    settings: Plain = field(hash=False)
    """All that decided it but the seed."""
    status: Literal["done", "failed"]
    """Failed where the computation refused, such as a training that diverged."""
    outcome: Mapping[str, float] = field(hash=False)
    """Finite numbers by name; empty for a failed trial."""
    message: str
    """Why it failed."""
    seconds: float
    finished: str
    """When, UTC."""
    origin: Mapping[str, str] = field(hash=False)
    """Versions of mcover, of its sources, of Python and of packages."""

    @property
    def key(self) -> Key:
        return self.config, self.seed

    def agrees(self, other: Row) -> bool:
        """Whether both say the same of all that both keep; times may differ from run to run.

        A later version may keep more of a trial than an earlier one did.
        """
        ours, theirs = _untimed(self.outcome), _untimed(other.outcome)
        return self.status == other.status and all(
            ours[name] == theirs[name] for name in ours.keys() & theirs.keys()
        )

    def __str__(self) -> str:
        says = self.message or ", ".join(f"{name} = {v:g}" for name, v in self.outcome.items())
        return f"{self.kind} {self.config} seed {self.seed}, {self.status}: {printable(says)}"


def make_row(
    trial: Trial, seed: int, outcome: Mapping[str, float], message: str, seconds: float
) -> Row:
    """The row of a trial that has just ended here; a message means that it failed."""
    plain = {name: float(value) for name, value in outcome.items()}
    odd = [f"{name} = {value}" for name, value in plain.items() if not abs(value) <= _MOST]
    if odd and not message:
        message = f"the outcome is not finite: {', '.join(odd)}"
    return Row(
        config=config_of(trial),
        seed=seed,
        kind=trial.kind,
        settings=settings_of(trial),
        status="failed" if message else "done",
        outcome={} if message else plain,
        message=printable(message)[:_LONGEST],
        seconds=round(seconds, 4),
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        origin=origin(),
    )


def by_key(rows: Iterable[Row]) -> dict[Key, Row]:
    """Rows by config and seed."""
    return {row.key: row for row in rows}


@cache
def origin() -> dict[str, str]:
    """Versions of what computes here; the sources of mcover as a hash, since no git is needed."""
    folder = Path(mcover.__file__).parent
    code = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        code.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    found = {"mcover": mcover.__version__, "code": code.hexdigest()[:12]}
    found["python"] = platform.python_version()
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def printable(text: str) -> str:
    r"""Text that is safe on a terminal: control characters and lone surrogates as escapes.

    >>> printable("a\x1b[31m\r\nb")
    'a\\x1b[31m\\r\nb'
    """
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def _untimed(outcome: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in outcome.items() if not name.endswith("seconds")}


_TEXTS, _TABLES = ("config", "kind", "status", "message", "finished"), ("settings", "origin")


def checked(plain: dict[str, Any]) -> Row:
    """A row from its fields, whoever wrote them; ValueError says what no row can have."""
    for names, wanted in ((_TEXTS, str), ((*_TABLES, "outcome"), dict), (("seed",), int)):
        for name in names:
            if type(plain[name]) is not wanted:  # True is no number here
                raise ValueError(f"{name} is {plain[name]!r}, which no row can have")
    kind, message, facts, seed = (plain[name] for name in ("kind", "message", "origin", "seed"))
    if not _NAME.fullmatch(kind):
        raise ValueError(f"kind is {kind!r}, no name of a kind")
    if not all(isinstance(fact, str) for fact in facts.values()):
        raise ValueError("the origin is not text")
    texts = [*(plain[name] for name in _TEXTS), canonical(plain["settings"]), *facts]
    if any(_CONTROL.search(text) for text in (*texts, *facts.values())):
        raise ValueError("a text holds control characters")
    if (other := config_hash(kind, plain["settings"])) != plain["config"]:
        raise ValueError(f"settings of config {plain['config']} belong to {other}")
    if not 0 <= seed < 2**63:
        raise ValueError(f"the seed is {seed!r}, not a whole number of 0 or more")
    outcome = {name: _number(value) for name, value in plain["outcome"].items()}
    if odd := [name for name in outcome if not _NAME.fullmatch(name)]:
        raise ValueError(f"{odd[0]!r} is no name of an outcome")
    needed = KINDS[kind].metrics[0].outcome if kind in KINDS else ""
    match plain["status"]:
        case "done":
            if not outcome or needed not in (*outcome, ""):
                raise ValueError(f"the trial is done without its outcome {needed}")
        case "failed":
            if outcome or not message:
                raise ValueError("a failed trial has a message and no outcome")
        case other:
            raise ValueError(f"status is {other!r}, neither done nor failed")
    return Row(**plain | {"outcome": outcome, "seconds": _number(plain["seconds"])})


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"{value!r} is no number")
    if not abs(value) <= _MOST:
        raise ValueError(f"{float(value)!r} is not finite, or too large for a mean")
    return float(value)


_WHAT = ["config", "kind", "settings"]
_COLUMNS = [*_WHAT, "seed", "status", "seconds", "finished", "origin", "message"]
_OUTCOME = "outcome."
_FORMULA = tuple("=+-@'\t")  # how cells begin that a spreadsheet would compute, and our mark


def write_csv(rows: Iterable[Row], path: str | Path) -> int:
    """Writes rows, by config and seed; returns how many.

    Configs, settings and origins are written where they change and left empty below, which keeps
    the file small and a diff short. Each outcome has its column, empty for rows that lack it. A
    message that a spreadsheet would take for a formula has an apostrophe before it.
    """
    ordered = sorted(rows, key=lambda row: (row.kind, row.config, row.seed))
    names = sorted({_OUTCOME + name for row in ordered for name in row.outcome})
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, [*_COLUMNS, *names], restval="", lineterminator="\n")
    writer.writeheader()
    config, facts = "", None
    for row in ordered:
        line = {"seed": row.seed, "status": row.status, "seconds": repr(row.seconds)}
        line |= {"finished": row.finished, "message": row.message}
        line |= {_OUTCOME + name: repr(value) for name, value in row.outcome.items()}
        if row.message.startswith(_FORMULA):
            line["message"] = f"'{row.message}"
        if row.config != config:
            line |= {"config": row.config, "kind": row.kind, "settings": canonical(row.settings)}
        if row.origin != facts:
            line["origin"] = canonical(row.origin)
        writer.writerow(line)
        config, facts = row.config, row.origin
    write_atomic(path, file.getvalue().encode())
    return len(ordered)


def read_csv(path: str | Path) -> list[Row]:
    """Reads what :func:`write_csv` wrote; anything else is refused, with the line it is on."""
    found: dict[Key, Row] = {}
    if not Path(path).is_file():
        raise McoverError(f"{path} is not a file; write one that 'mcover study export' wrote.")
    with Path(path).open(newline="", encoding="utf-8") as file:
        lines = csv.DictReader(file, strict=True)
        try:
            _check_header(list(lines.fieldnames or []))
            above: dict[str, str] = {}
            for texts in lines:
                if None in texts or None in texts.values():
                    raise ValueError("it has more or fewer columns than the header")
                changed = (_WHAT if texts["config"] else []) + ["origin"] * bool(texts["origin"])
                above |= {name: texts[name] for name in changed}
                row = _row(texts | above)
                known = found.setdefault(row.key, row)
                if not known.agrees(row):
                    raise ValueError(f"the same trial twice:\n{known}\n{row}\n")
        except (ValueError, csv.Error) as error:  # what cannot be decoded is a ValueError, too
            raise McoverError(
                f"{path}, line {lines.line_num}: {error}; nothing was imported. Write a file that "
                "'mcover study export' wrote."
            ) from error
    return list(found.values())


def _check_header(header: list[str]) -> None:
    fixed, free = header[: len(_COLUMNS)], header[len(_COLUMNS) :]
    foreign = [name for name in free if not name.startswith(_OUTCOME)]
    if fixed != _COLUMNS or foreign or len(set(header)) != len(header):
        seen = printable(", ".join(header))[:500] or "none"
        raise ValueError(
            f"this is not a table of trials: its columns are {seen}, not {', '.join(_COLUMNS)} and "
            f"then {_OUTCOME}NAME"
        )


def _row(texts: dict[str, str]) -> Row:
    plain: dict[str, Any] = {name: texts[name] for name in _COLUMNS}
    outcomes = {name.removeprefix(_OUTCOME): texts[name] for name in texts if name not in plain}
    try:
        plain |= {name: json.loads(plain[name] or "null") for name in _TABLES}
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error
    plain |= {"seed": int(plain["seed"]), "seconds": float(plain["seconds"])}
    plain["message"] = plain["message"].removeprefix("'")
    plain["outcome"] = {name: float(text) for name, text in outcomes.items() if text}
    return checked(plain)
