"""A row: what one trial gave and where it comes from; rows as CSV, which is what is committed."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import mcover
from mcover.errors import McoverError
from mcover.files import write_atomic
from mcover.lab.studies.cells import (
    KINDS,
    Key,
    Plain,
    Trial,
    canonical,
    config_hash,
    config_of,
    settings_of,
)

_PACKAGES = ("numpy", "scipy", "numba", "torch", "scikit-learn", "pytorch_optimizer")
_MOST = 1e100  # beyond, sums and squares of outcomes leave the range of floats
_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_LONGEST = 20_000  # characters of a message
# Control characters, marks that turn or hide text, lone surrogates.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


@dataclass(frozen=True)
class Row:
    """One trial.

    Attributes:
        config: hash of kind and settings.
        seed: number of the trial.
        kind: what computed it.
        settings: all that decided it but the seed.
        status: "done", or "failed" where the computation refused (a training that diverged).
        outcome: finite numbers by name; empty for a failed trial.
        message: why it failed.
        seconds: wall time of the trial.
        finished: when, UTC.
        origin: versions of mcover, of its sources, of Python and of packages.
    """

    config: str
    seed: int
    kind: str
    settings: Plain = field(hash=False)
    status: Literal["done", "failed"]
    outcome: Mapping[str, float] = field(hash=False)
    message: str
    seconds: float
    finished: str
    origin: Mapping[str, str] = field(hash=False)

    @property
    def key(self) -> Key:
        return self.config, self.seed

    def agrees(self, other: Row) -> bool:
        """Whether both say the same; times may differ, as they do from run to run."""
        return self.status == other.status and _untimed(self.outcome) == _untimed(other.outcome)

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


def to_text(row: Row) -> str:
    """A row as one line of JSON."""
    return canonical(asdict(row))


def from_text(text: str) -> Row:
    """The row that :func:`to_text` wrote; ValueError says what is wrong with any other text."""
    plain = _parsed(text)
    if not isinstance(plain, dict) or set(plain) != {one.name for one in fields(Row)}:
        raise ValueError("it does not have the fields of a row")
    return checked(plain)


def checked(plain: dict[str, Any]) -> Row:
    """A row from its fields, whoever wrote them; ValueError says what no row can have."""
    kind, settings, facts, seed = (plain[name] for name in ("kind", "settings", "origin", "seed"))
    if not isinstance(kind, str) or not _NAME.fullmatch(kind):
        raise ValueError(f"kind is {kind!r}, no name of a kind")
    if not isinstance(settings, dict) or not isinstance(facts, dict):
        raise ValueError("settings or origin are missing")
    texts = [plain["message"], plain["finished"], plain["config"], *facts, *facts.values()]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("message, time or origin are no text")
    written = canonical(settings)
    if any(_CONTROL.search(text) for text in (*texts, written)):
        raise ValueError("a text holds control characters")
    if len(plain["message"]) > _LONGEST:
        raise ValueError(f"the message has more than {_LONGEST:,} characters")
    if (other := config_hash(kind, written)) != plain["config"]:
        raise ValueError(f"settings of config {plain['config']} belong to {other}")
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise ValueError(f"the seed is {seed!r}, not a whole number of 0 or more")
    if plain["status"] not in ("done", "failed"):
        raise ValueError(f"status is {plain['status']!r}, neither done nor failed")
    if not isinstance(plain["outcome"], dict):
        raise ValueError("the outcome is missing")
    outcome = {name: _number(value) for name, value in plain["outcome"].items()}
    if odd := [name for name in outcome if not _NAME.fullmatch(name)]:
        raise ValueError(f"{odd[0]!r} is no name of an outcome")
    needed = {KINDS[kind].metrics[0].outcome} if kind in KINDS else set()
    if plain["status"] == "failed" and (outcome or not plain["message"]):
        raise ValueError("a failed trial has a message and no outcome")
    if plain["status"] == "done" and (not outcome or needed - set(outcome)):
        raise ValueError(f"the trial is done without its outcome {', '.join(sorted(needed))}")
    return Row(**plain | {"outcome": outcome, "seconds": _number(plain["seconds"])})


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no number")
    if not abs(value) <= _MOST:
        raise ValueError(f"{float(value)!r} is not finite, or too large for a mean")
    return float(value)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error


_COLUMNS = ["config", "kind", "settings", "seed", "status", "seconds", "finished", "origin"]
_COLUMNS += ["message"]
_OUTCOME = "outcome."
_FORMULA = tuple("=+-@'\t")  # how cells begin that a spreadsheet would compute, and our mark


def write_csv(rows: Iterable[Row], path: str | Path) -> int:
    """Writes rows, by config and seed; returns how many.

    Configs, settings and origins are written where they change and left empty below, which keeps
    the file small and a diff short. Each outcome has its column, empty for rows that lack it. A
    message that a spreadsheet would take for a formula has an apostrophe before it.
    """
    ordered = sorted(rows, key=lambda row: (row.kind, row.config, row.seed))
    names = sorted({name for row in ordered for name in row.outcome})
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*_COLUMNS, *(_OUTCOME + name for name in names)])
    before: Row | None = None
    for row in ordered:
        same = before is not None and before.config == row.config
        known = before is not None and before.origin == row.origin
        what = ("", "", "") if same else (row.config, row.kind, canonical(row.settings))
        how = (row.seed, row.status, repr(row.seconds), row.finished)
        facts = "" if known else canonical(row.origin)
        message = f"'{row.message}" if row.message.startswith(_FORMULA) else row.message
        outcomes = [repr(row.outcome[name]) if name in row.outcome else "" for name in names]
        writer.writerow([*what, *how, facts, message, *outcomes])
        before = row
    write_atomic(path, file.getvalue().encode())
    return len(ordered)


def read_csv(path: str | Path) -> list[Row]:
    """Reads what :func:`write_csv` wrote; anything else is refused, with the line it is on."""
    found: dict[Key, Row] = {}
    if not Path(path).is_file():
        raise McoverError(f"{path} is not a file; write one that 'mcover study export' wrote.")
    with Path(path).open(newline="", encoding="utf-8") as file:
        lines = csv.reader(file, strict=True)
        try:
            header = next(lines, [])
            names = _outcome_names(header)
            what, facts = ["", "", ""], ""
            for line in lines:
                if len(line) != len(header):
                    raise ValueError(f"{len(line)} columns where the header has {len(header)}")
                what, facts = line[:3] if line[0] else what, line[7] or facts
                row = _row([*what, *line[3:7], facts, *line[8:]], names)
                known = found.setdefault(row.key, row)
                if not known.agrees(row):
                    raise ValueError(f"the same trial twice:\n{known}\n{row}\n")
        except (ValueError, csv.Error) as error:  # what cannot be decoded is a ValueError, too
            raise McoverError(
                f"{path}, line {lines.line_num}: {error}; nothing was imported. Write a file that "
                "'mcover study export' wrote."
            ) from error
    return list(found.values())


def _outcome_names(header: Sequence[str]) -> list[str]:
    fixed, free = header[: len(_COLUMNS)], header[len(_COLUMNS) :]
    foreign = [name for name in free if not name.startswith(_OUTCOME)]
    if list(fixed) != _COLUMNS or foreign or len(set(header)) != len(header):
        seen = printable(", ".join(header))[:500] or "none"
        raise ValueError(
            f"this is not a table of trials: its columns are {seen}, not {', '.join(_COLUMNS)} and "
            f"then {_OUTCOME}NAME"
        )
    return [name.removeprefix(_OUTCOME) for name in free]


def _row(line: list[str], names: list[str]) -> Row:
    texts = dict(zip(_COLUMNS, line, strict=False))
    outcomes = zip(names, line[len(_COLUMNS) :], strict=True)
    read = {
        "settings": _parsed(texts["settings"] or "null"),
        "origin": _parsed(texts["origin"] or "null"),
        "seed": int(texts["seed"]),
        "seconds": float(texts["seconds"]),
        "message": texts["message"].removeprefix("'"),
        "outcome": {name: float(text) for name, text in outcomes if text},
    }
    return checked(texts | read)
