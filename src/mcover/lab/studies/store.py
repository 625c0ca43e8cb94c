"""Where trials are kept: one SQLite file, one row a trial, found by config and seed."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal

from mcover.errors import McoverError
from mcover.lab.studies import schema
from mcover.lab.studies.cells import Job, Key, canonical, config_hash
from mcover.lab.studies.rows import Row

DEFAULT = Path("out/studies.sqlite")
LEASE_SECONDS = 120.0

_BUSY_SECONDS = 60.0
_MANY = 500  # parameters of one statement


class Store:
    """The rows of all studies; several processes may have the same file open.

    The primary key (config, seed) is what keeps a trial from being stored twice. Claims only spare
    work: a run claims a trial before it starts it, and others leave it alone until the claim runs
    out or the process that made it is gone.
    """

    def __init__(self, path: str | Path = DEFAULT, *, create: bool = True) -> None:
        self.path = Path(path)
        if not self.path.exists():
            if not create:
                raise McoverError(
                    f"there is no store {self.path}; 'mcover study run NAME' makes one, or write "
                    "--store FILE."
                )
            schema.create(self.path)
        schema.check(self.path)
        self._owner, self._host = uuid.uuid4().hex, socket.gethostname()
        self._claimed = False
        self._connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("PRAGMA foreign_keys = ON")

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives up what is claimed and closes the file."""
        try:
            if self._claimed:
                with self._writing() as write:
                    write.execute("DELETE FROM claims WHERE owner = ?", (self._owner,))
        finally:
            self._connection.close()

    def put(self, rows: Iterable[Row]) -> int:
        """Keeps rows, all or none; those that are there already stay as they are.

        Returns:
            How many were new.
        """
        new = 0
        with self._writing() as write:
            for row in rows:
                settings, facts = canonical(row.settings), canonical(row.origin)
                if config_hash(row.kind, row.settings) != row.config:
                    raise McoverError(
                        f"row {row.config} seed {row.seed}: its settings belong to config "
                        f"{config_hash(row.kind, row.settings)}; it was not kept."
                    )
                origin = hashlib.sha256(facts.encode()).hexdigest()[:12]
                write.execute(
                    "INSERT OR IGNORE INTO configs VALUES (?, ?, ?)",
                    (row.config, row.kind, settings),
                )
                write.execute("INSERT OR IGNORE INTO origins VALUES (?, ?)", (origin, facts))
                new += write.execute(
                    "INSERT OR IGNORE INTO trials VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        *(row.config, row.seed, row.status, json.dumps(dict(row.outcome))),
                        *(row.message, row.seconds, row.finished, origin),
                    ),
                ).rowcount
                write.execute(
                    "DELETE FROM claims WHERE config = ? AND seed = ?", (row.config, row.seed)
                )
        return new

    def rows(self, configs: Iterable[str] | None = None) -> list[Row]:
        """All rows, or those of some configs, by config and seed."""
        text = "SELECT * FROM rows"
        found: list[Row] = []
        if configs is None:
            return [_read(*values) for values in self._connection.execute(f"{text} ORDER BY 1, 4")]
        wanted = sorted(set(configs))
        for start in range(0, len(wanted), _MANY):
            some = wanted[start : start + _MANY]
            places = ", ".join("?" * len(some))
            query = f"{text} WHERE config IN ({places}) ORDER BY config, seed"
            found += [_read(*values) for values in self._connection.execute(query, some)]
        return found

    def forget_failed(self, configs: Iterable[str]) -> int:
        """Removes failed rows, so that they run again; returns how many."""
        with self._writing() as write:
            return sum(
                write.execute(
                    "DELETE FROM trials WHERE config = ? AND status = 'failed'", (config,)
                ).rowcount
                for config in set(configs)
            )

    def claim(self, job: Job) -> Literal["ours", "done", "taken"]:
        """Takes a trial for this run, unless it is there or another live run has it."""
        self._claimed = True
        with self._writing() as write:
            there = "SELECT 1 FROM trials WHERE config = ? AND seed = ?"
            if write.execute(there, job.key).fetchone():
                return "done"
            held = write.execute(
                "SELECT owner, host, pid, until FROM claims WHERE config = ? AND seed = ?", job.key
            ).fetchone()
            if held is not None and held[0] != self._owner and self._is_held(*held[1:]):
                return "taken"
            write.execute(
                "INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?, ?)",
                (*job.key, self._owner, self._host, os.getpid(), time.time() + LEASE_SECONDS),
            )
        return "ours"

    def renew(self) -> None:
        """Holds on to what this run has claimed."""
        with self._writing() as write:
            until = time.time() + LEASE_SECONDS
            write.execute("UPDATE claims SET until = ? WHERE owner = ?", (until, self._owner))

    def release(self, keys: Iterable[Key]) -> None:
        """Gives up claims, for whoever comes next."""
        with self._writing() as write:
            for key in keys:
                text = "DELETE FROM claims WHERE config = ? AND seed = ? AND owner = ?"
                write.execute(text, (*key, self._owner))

    def _is_held(self, host: str, pid: int, until: float) -> bool:
        return until > time.time() and not (host == self._host and not _is_alive(pid))

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        try:
            # IMMEDIATE takes the write lock at the start, so that what was read stays true.
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise McoverError(
                f"{self.path} cannot be written: {error}; what it held before is kept. Make room "
                "or let go of the file, and run again."
            ) from error


def _read(
    config: str,
    kind: str,
    settings: str,
    seed: int,
    status: Literal["done", "failed"],
    outcome: str,
    message: str,
    seconds: float,
    finished: str,
    facts: str,
) -> Row:
    return Row(
        config=config,
        seed=seed,
        kind=kind,
        settings=json.loads(settings),
        status=status,
        outcome=json.loads(outcome),
        message=message,
        seconds=seconds,
        finished=finished,
        origin=json.loads(facts),
    )


def _is_alive(pid: int) -> bool:
    if os.name != "posix":  # elsewhere signal 0 is not a question
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
