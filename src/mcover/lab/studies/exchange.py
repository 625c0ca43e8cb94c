"""Rows as CSV: what is committed, and read back into a store to be extended."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

from mcover.errors import McoverError
from mcover.lab.studies.cells import canonical, config_hash
from mcover.lab.studies.rows import Row, Status, check_seed

_COLUMNS = ("config", "kind", "settings", "seed", "status", "seconds", "finished", "origin")
_MESSAGE = "message"
_OUTCOME = "outcome."


def write_csv(rows: Iterable[Row], path: str | Path) -> int:
    """Writes rows, by config and seed; returns how many.

    Configs, settings and origins are written where they change and left empty below, which keeps
    the file small and a diff short. Each outcome has its column, empty for rows that lack it.
    """
    ordered = sorted(rows, key=lambda row: (row.kind, row.config, row.seed))
    names = sorted({name for row in ordered for name in row.outcome})
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with draft.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*_COLUMNS, _MESSAGE, *(_OUTCOME + name for name in names)])
            before: Row | None = None
            for row in ordered:
                same = before is not None and before.config == row.config
                origin = canonical(row.origin)
                known = before is not None and canonical(before.origin) == origin
                outcomes = [
                    repr(row.outcome[name]) if name in row.outcome else "" for name in names
                ]
                what = ("", "", "") if same else (row.config, row.kind, canonical(row.settings))
                how = (row.seed, row.status, repr(row.seconds), row.finished)
                writer.writerow([*what, *how, "" if known else origin, row.message, *outcomes])
                before = row
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return len(ordered)


def read_csv(path: str | Path) -> list[Row]:
    """Reads what :func:`write_csv` wrote; anything else is refused, with the line it is on."""
    rows: list[Row] = []
    with Path(path).open(newline="", encoding="utf-8") as file:
        lines = csv.reader(file, strict=True)
        try:
            header = next(lines, [])
            names = _outcome_names(header, path)
            config, kind, settings, origin = "", "", "", ""
            for line in lines:
                if len(line) != len(header):
                    raise ValueError(f"{len(line)} columns where the header has {len(header)}")
                if line[0]:
                    config, kind, settings = line[:3]
                origin = line[7] or origin
                rows.append(_row(line, config, kind, settings, origin, names))
        except McoverError:
            raise
        except (ValueError, csv.Error, UnicodeDecodeError) as error:
            raise McoverError(
                f"{path}, line {lines.line_num}: {error}; nothing was imported. Write a file that "
                "'mcover study export' wrote."
            ) from error
    return rows


def _outcome_names(header: Sequence[str], path: str | Path) -> list[str]:
    fixed = [*_COLUMNS, _MESSAGE]
    foreign = [name for name in header[len(fixed) :] if not name.startswith(_OUTCOME)]
    if list(header[: len(fixed)]) != fixed or foreign or len(set(header)) != len(header):
        raise McoverError(
            f"{path} is not a table of trials: its columns are {', '.join(header) or 'none'}; "
            f"they must be {', '.join(fixed)} and then {_OUTCOME}NAME. Nothing was imported."
        )
    return [name.removeprefix(_OUTCOME) for name in header[len(fixed) :]]


def _row(
    line: list[str], config: str, kind: str, settings: str, origin: str, names: list[str]
) -> Row:
    plain = json.loads(settings or "null")
    facts = json.loads(origin or "null")
    if not kind or not isinstance(plain, dict) or not isinstance(facts, dict):
        raise ValueError("kind, settings or origin are missing")
    if config_hash(kind, plain) != config:
        raise ValueError(f"settings of config {config} belong to {config_hash(kind, plain)}")
    if line[4] not in ("done", "failed"):
        raise ValueError(f"status is {line[4]!r}, neither done nor failed")
    texts = zip(names, line[len(_COLUMNS) + 1 :], strict=True)
    outcome = {name: float(text) for name, text in texts if text}
    if not all(math.isfinite(value) for value in (*outcome.values(), float(line[5]))):
        raise ValueError("an outcome is not finite")
    return Row(
        config=config,
        seed=check_seed(int(line[3])),
        kind=kind,
        settings=plain,
        status=cast(Status, line[4]),
        outcome=outcome,
        message=line[len(_COLUMNS)],
        seconds=float(line[5]),
        finished=line[6],
        origin={str(name): str(value) for name, value in facts.items()},
    )
