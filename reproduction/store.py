"""The store of computed rows: one SQLite file with the primary key (trial, seed)."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcover import McoverError
from reproduction.rows import COLUMNS, Row, canonical

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

DEFAULT = Path("out/rows.db")
_NAMES = (*COLUMNS, "outcome")
_CREATE = """CREATE TABLE IF NOT EXISTS rows (
    trial TEXT NOT NULL, kind TEXT NOT NULL, settings TEXT NOT NULL, seed INTEGER NOT NULL,
    revision INTEGER NOT NULL, status TEXT NOT NULL, seconds REAL NOT NULL, finished TEXT NOT NULL,
    version TEXT NOT NULL, message TEXT NOT NULL, outcome TEXT NOT NULL, PRIMARY KEY (trial, seed)
)"""


class Store:
    """Rows in a file. Each added row is committed before :meth:`add` returns.

    One process at a time writes to a file.
    """

    def __init__(self, path: str | Path = DEFAULT) -> None:
        """Opens a store, or creates it if it does not exist; raises for a damaged file."""
        self.path = Path(path)
        connection = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path)
            (state,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if state != "ok":
                raise sqlite3.DatabaseError(state)
            with connection:
                connection.execute(_CREATE)
            connection.execute(f"SELECT {', '.join(_NAMES)} FROM rows LIMIT 1")
        except (sqlite3.Error, OSError) as error:
            if connection is not None:
                connection.close()
            raise McoverError(
                f"{self.path} is damaged or is not a store of rows ({error}); it was not changed. "
                "Restore a copy of it, or give another file with --store."
            ) from error
        self._connection = connection

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def add(self, row: Row) -> None:
        """Stores a row and commits it. A row with the same key is replaced."""
        values = (
            *(row.trial_id, row.kind, canonical(row.settings), row.seed, row.revision),
            *(row.status, row.seconds, row.finished, row.version, row.message),
            json.dumps(dict(row.outcome), allow_nan=False),
        )
        marks = ", ".join("?" * len(values))
        try:
            with self._connection:
                self._connection.execute(f"INSERT OR REPLACE INTO rows VALUES ({marks})", values)
        except sqlite3.Error as error:
            raise McoverError(
                f"{self.path} could not be written ({error}); all earlier rows are kept. Correct "
                "the cause and run the same command again."
            ) from error

    def rows(self, kind: str | None = None) -> list[Row]:
        """All rows, or those of one kind, by trial and seed."""
        where, given = ("WHERE kind = ?", (kind,)) if kind else ("", ())
        query = f"SELECT {', '.join(_NAMES)} FROM rows {where} ORDER BY trial, seed"
        return [_row(dict(zip(_NAMES, one, strict=True))) for one in self._select(query, given)]

    def frame(self) -> pd.DataFrame:
        """All rows as a pandas DataFrame with a column for each outcome."""
        import pandas as pd

        found = self._select(f"SELECT {', '.join(_NAMES)} FROM rows ORDER BY trial, seed", ())
        fixed = pd.DataFrame([one[:-1] for one in found], columns=list(COLUMNS))
        return fixed.join(pd.DataFrame([json.loads(one[-1]) for one in found]))

    def _select(self, query: str, given: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(query, given).fetchall()
        except sqlite3.Error as error:
            raise McoverError(
                f"{self.path} could not be read ({error}); restore a copy of it, or give another "
                "file with --store."
            ) from error


def _row(column: dict[str, Any]) -> Row:
    column["trial_id"] = column.pop("trial")
    column["settings"] = json.loads(column["settings"])
    column["outcome"] = json.loads(column["outcome"])
    return Row(**column)
