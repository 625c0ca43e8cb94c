"""The layout of a store on disk, and the checks it passes before anything is written to it."""

from __future__ import annotations

import os
import sqlite3
import struct
import tempfile
from pathlib import Path

from mcover.errors import McoverError

APPLICATION = 0x6D636F76  # "mcov"
VERSION = 1

_MAGIC = b"SQLite format 3\0"
_HEADER = 100
_SCHEMA = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
CREATE TABLE configs (
    config TEXT PRIMARY KEY, kind TEXT NOT NULL, settings TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE origins (origin TEXT PRIMARY KEY, facts TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE trials (
    config TEXT NOT NULL REFERENCES configs, seed INTEGER NOT NULL, status TEXT NOT NULL,
    outcome TEXT NOT NULL, message TEXT NOT NULL, seconds REAL NOT NULL, finished TEXT NOT NULL,
    origin TEXT NOT NULL REFERENCES origins, PRIMARY KEY (config, seed)
) WITHOUT ROWID;
CREATE TABLE claims (
    config TEXT NOT NULL, seed INTEGER NOT NULL, owner TEXT NOT NULL, host TEXT NOT NULL,
    pid INTEGER NOT NULL, until REAL NOT NULL, PRIMARY KEY (config, seed)
) WITHOUT ROWID;
CREATE VIEW rows AS
    SELECT config, kind, settings, seed, status, outcome, message, seconds, finished, facts
    FROM trials JOIN configs USING (config) JOIN origins USING (origin);
"""
_COLUMNS = {
    "configs": {"config", "kind", "settings"},
    "origins": {"origin", "facts"},
    "trials": {
        *("config", "seed", "status", "outcome", "message", "seconds", "finished", "origin"),
    },
    "claims": {"config", "seed", "owner", "host", "pid", "until"},
}


def create(path: Path) -> None:
    """Makes an empty store, whole or not at all; one that another run made meanwhile is kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    draft = Path(name)
    try:
        connection = sqlite3.connect(draft)
        connection.executescript(_SCHEMA)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.close()
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            if not path.exists():
                draft.replace(path)
    finally:
        for left in (draft, Path(f"{draft}-wal"), Path(f"{draft}-shm")):
            left.unlink(missing_ok=True)


def check(path: Path) -> None:
    """Refuses a file that is not a healthy store of this version, without writing to it."""
    _check_header(path)
    try:
        # Read-only, so that not even a write-ahead log of a killed run is folded in.
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=30)
        try:
            (health,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            columns = {
                table: {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
                for table in _COLUMNS
            }
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise McoverError(f"{path} cannot be read as a store: {error}.") from error
        raise _damaged(path, str(error)) from error
    if health != "ok":
        raise _damaged(path, health)
    if columns != _COLUMNS:
        raise _damaged(path, "its tables are not those of a store")


def _check_header(path: Path) -> None:
    with path.open("rb") as file:
        header = file.read(_HEADER)
    if len(header) < _HEADER or not header.startswith(_MAGIC):
        raise McoverError(
            f"{path} is not a store of studies (no SQLite file); it was left as it is. Write "
            "another --store."
        )
    (version,) = struct.unpack_from(">I", header, 60)
    (application,) = struct.unpack_from(">I", header, 68)
    if application != APPLICATION:
        raise McoverError(
            f"{path} is a database of another program; it was left as it is. Write another --store."
        )
    if version != VERSION:
        raise McoverError(
            f"{path} has layout {version}, this mcover reads layout {VERSION}; it was left as it "
            "is. Use the mcover that wrote it: 'mcover study export', then import here."
        )


def _damaged(path: Path, what: str) -> McoverError:
    return McoverError(
        f"{path} is damaged ({what}); it was left as it is. Write another --store, or bring back a "
        "copy."
    )
