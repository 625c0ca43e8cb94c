"""Where trials are kept: one SQLite file, one row a trial, found by config and seed.

Each row carries the digest of its content, and the file the sum of all digests, so that damage is
noticed: a damaged row is named and the others stay readable, but nothing is written to such a file.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import psutil

from mcover.errors import McoverError
from reproduction.rows import Key, Row, canonical, checked

DEFAULT = Path("out/studies.sqlite")
LEASE_SECONDS = 120.0

_BUSY_SECONDS = 20.0
_APPLICATION, _VERSION = 0x6D636F76, 2  # "mcov"
_TABLES = {
    "trials": """CREATE TABLE trials (
    config TEXT NOT NULL, seed INTEGER NOT NULL, row TEXT NOT NULL, digest TEXT NOT NULL,
    PRIMARY KEY (config, seed)
) WITHOUT ROWID""",
    "claims": """CREATE TABLE claims (
    config TEXT NOT NULL, seed INTEGER NOT NULL, owner TEXT NOT NULL, host TEXT NOT NULL,
    pid INTEGER NOT NULL, until REAL NOT NULL, PRIMARY KEY (config, seed)
) WITHOUT ROWID""",
    "total": "CREATE TABLE total (digest TEXT NOT NULL)",
}
_WHERE = "WHERE config = ? AND seed = ?"


class Store:
    """The rows of all studies; several processes may have the same file open.

    The primary key (config, seed) is what keeps a trial from being stored twice. Claims only spare
    work: a run claims a trial before it starts it, and others leave it alone until the claim runs
    out or the process that made it is gone.

    Attributes:
        path: the file.
        damage: what is wrong with it, a line for each row that cannot be trusted.
    """

    def __init__(self, path: str | Path = DEFAULT, *, create: bool = True) -> None:
        """Opens a store, and makes it if need be; with ``create=False`` nothing is ever written."""
        self.path = Path(path)
        self._owner, self._host = uuid.uuid4().hex, socket.gethostname()
        self._claimed = False
        with self._explained("opened"):
            if not os.path.lexists(self.path):
                if not create:
                    raise McoverError(
                        f"there is no store {self.path}; 'mcover study run NAME' makes one, or "
                        "write --store FILE."
                    )
                _create(self.path)
            if not self.path.is_file():  # a pipe would block
                raise self._foreign("is not a file")
            self._connection = _connect(self.path, create)
        try:
            self.damage = self._inspect()
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives up what is claimed and closes the file."""
        try:
            self._connection.execute("PRAGMA busy_timeout = 500")
            with suppress(McoverError):  # claims run out by themselves: not worth an error
                self.release()
        finally:
            self._connection.close()

    def put(self, rows: Iterable[Row], *, strict: bool = False) -> int:
        """Keeps rows, all or none; those that are there already stay as they are.

        Returns how many were new. ``strict`` refuses rows that contradict those that are there.
        """
        new = 0
        with self._writing() as write:
            for row in rows:
                text = canonical(asdict(row))
                try:
                    checked(json.loads(text))
                except ValueError as error:
                    raise McoverError(f"{row}: {error}; it was not kept.") from error
                there = write.execute(f"SELECT row FROM trials {_WHERE}", row.key).fetchone()
                if there is None:
                    new += 1
                    values = (*row.key, text, digest := _digest(*row.key, text))
                    write.execute("INSERT INTO trials VALUES (?, ?, ?, ?)", values)
                    self._count(digest)
                elif strict and not (known := checked(json.loads(there[0]))).agrees(row):
                    raise McoverError(
                        f"{self.path} has another outcome of a trial:\n{known}\n{row}\nNothing was "
                        "imported: remove one of them, or import to another --store."
                    )
                write.execute(f"DELETE FROM claims {_WHERE}", row.key)
        return new

    def rows(self, configs: Iterable[str] | None = None) -> list[Row]:
        """All rows that can be trusted, or those of some configs, by config and seed."""
        return [row for row in self._read(configs) if isinstance(row, Row)]

    def forget_failed(self, configs: Iterable[str]) -> int:
        """Removes failed rows, so that they run again; returns how many."""
        failed = [row for row in self.rows(configs) if row.status == "failed"]
        with self._writing() as write:
            for row in failed:
                write.execute(f"DELETE FROM trials {_WHERE}", row.key)
                self._count(_digest(*row.key, canonical(asdict(row))))
        return len(failed)

    def claim(self, key: Key) -> Literal["ours", "done", "taken"]:
        """Takes a trial for this run, unless it is there or another live run has it."""
        self._claimed = True
        with self._writing() as write:
            if write.execute(f"SELECT 1 FROM trials {_WHERE}", key).fetchone():
                return "done"
            held = write.execute(f"SELECT * FROM claims {_WHERE}", key).fetchone()
            if held is not None and self._is_held(*held[2:]):
                return "taken"
            ours = (*key, self._owner, self._host, os.getpid(), time.time() + LEASE_SECONDS)
            write.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?, ?)", ours)
        return "ours"

    def renew(self) -> None:
        """Holds on to what this run has claimed."""
        with self._writing() as write:
            until = time.time() + LEASE_SECONDS
            write.execute("UPDATE claims SET until = ? WHERE owner = ?", (until, self._owner))

    def release(self) -> None:
        """Gives up what this run has claimed, for whoever comes next."""
        if self._claimed:
            with self._writing() as write:
                write.execute("DELETE FROM claims WHERE owner = ?", (self._owner,))

    def _is_held(self, owner: Any, host: Any, pid: Any, until: Any) -> bool:
        """Whether another run has a claim that counts."""
        now = time.time()
        # No claim lasts longer than a lease: a later one is of a clock that was wrong.
        lasts = isinstance(until, float) and now < until <= now + LEASE_SECONDS + 1
        if owner == self._owner or not lasts:
            return False
        return host != self._host or (isinstance(pid, int) and _goes_on(pid))

    def _read(self, configs: Iterable[str] | None = None) -> list[Row | str]:
        """Every row, or what is wrong with it: its content must be what was put under its key."""
        found: list[Row | str] = []
        some = "" if configs is None else "WHERE config IN (SELECT value FROM json_each(?))"
        given = () if configs is None else (json.dumps(list(configs)),)
        with self._explained("read"):
            query = f"SELECT * FROM trials {some} ORDER BY config, seed"
            for config, seed, text, digest in self._connection.execute(query, given):
                name = f"row {config!r} seed {seed!r}"
                if not isinstance(text, str) or _digest(config, seed, text) != digest:
                    found.append(f"{name} is not as it was written")
                    continue
                try:
                    found.append(checked(json.loads(text)))
                except ValueError as error:
                    found.append(f"{name}: {error}")
        return found

    def _inspect(self) -> tuple[str, ...]:
        """Refuses a file that is no store or whose structure is damaged; names damaged rows."""
        read = self._connection.execute
        with self._explained("read"):
            (application,) = read("PRAGMA application_id").fetchone()
            (version,) = read("PRAGMA user_version").fetchone()
            if application != _APPLICATION:
                raise self._foreign("is a database of another program")
            if version != _VERSION:
                raise self._foreign(
                    f"has layout {version}, this mcover reads layout {_VERSION}",
                    "Use the mcover that wrote it: 'mcover study export', then import here.",
                )
            (health,) = read("PRAGMA quick_check(1)").fetchone()
            if health != "ok":
                raise self._damaged(health)
            if dict(read("SELECT name, sql FROM sqlite_master WHERE sql <> ''")) != _TABLES:
                raise self._damaged("its tables are not those of a store")
            read("BEGIN")
            try:
                damaged = [one for one in self._read() if not isinstance(one, Row)]
                digests = read("SELECT digest FROM trials").fetchall()
                total = read("SELECT digest FROM total").fetchall()
            finally:
                read("ROLLBACK")
        if not damaged and [(_sum(digest for (digest,) in digests),)] != total:
            damaged.append("rows are missing, or were added by another program")
        return tuple(damaged)

    def _count(self, digest: str) -> None:
        """Keeps the sum of all digests; the sum of a digest with itself is nothing."""
        (before,) = self._connection.execute("SELECT digest FROM total").fetchone()
        self._connection.execute("UPDATE total SET digest = ?", (_sum((before, digest)),))

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        if self.damage:
            raise self._damaged("; ".join(self.damage))
        with self._explained("written"):
            # IMMEDIATE takes the write lock at the start, so that what was read stays true.
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _explained(self, verb: str) -> Iterator[None]:
        """Turns errors of SQLite and of the system into ours."""
        try:
            yield
        except sqlite3.OperationalError as error:
            hint = "Make room or let go of the file"
            if "locked" in str(error):
                hint = "Another process holds it (stopped with Ctrl-Z?): let it go on or end it"
            raise McoverError(
                f"{self.path} cannot be {verb}: {error}; what it held before is kept. {hint}, and "
                "run again."
            ) from error
        except sqlite3.Error as error:
            raise self._damaged(str(error)) from error
        except OSError as error:
            why = error.strerror or error
            raise McoverError(f"{self.path} cannot be {verb}: {why}.") from error

    def _damaged(self, what: str) -> McoverError:
        return McoverError(
            f"{self.path} is damaged ({what}); it was left as it is. Write another --store, bring "
            "back a copy, or save the rows that can be read with 'mcover study export'."
        )

    def _foreign(self, odd: str, remedy: str = "Write another --store.") -> McoverError:
        return McoverError(f"{self.path} {odd}; it was left as it is. {remedy}")


def _create(path: Path) -> None:
    """Makes an empty store, whole or not at all, unless another run is quicker."""
    memory = sqlite3.connect(":memory:")
    memory.executescript(
        ";".join(_TABLES.values())
        + f"; INSERT INTO total VALUES ('{_sum(())}');"
        + f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {_VERSION};"
    )
    image = memory.serialize()
    memory.close()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}.new")
    try:
        with draft.open("xb") as file:
            file.write(image)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)  # which, unlike a rename, never replaces a store
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            if not path.exists():
                draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _connect(path: Path, writable: bool) -> sqlite3.Connection:
    # A journal may be that of a run that was killed, and has to be undone before anything is read.
    mode = "rw" if writable or Path(f"{path}-journal").exists() else "ro"
    name = f"{path.resolve().as_uri()}?mode={mode}"
    connection = sqlite3.connect(name, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
    connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _goes_on(pid: int) -> bool:
    """Whether a process of this machine is there and not stopped (Ctrl-Z)."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        return False
    except psutil.AccessDenied:
        return True


def _digest(config: Any, seed: Any, text: str) -> str:
    content = f"{config} {seed} {text}".encode("utf-8", "surrogateescape")
    return hashlib.sha256(content).hexdigest()


def _sum(digests: Iterable[Any]) -> str:
    """Digests added bit by bit, so that their order does not matter and one can be taken off."""
    total = 0
    for digest in digests:
        with suppress(ValueError, TypeError):  # a damaged one
            total ^= int(digest, 16)
    return f"{total:064x}"
