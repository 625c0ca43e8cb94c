"""What the clusters have in common: which workers may compute, the limit of starts, the end.

Scheduling is theirs.
"""

from __future__ import annotations

import gc
import pickle
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, ClassVar
from uuid import uuid4

from mcover.checks import check_int
from mcover.errors import McoverError
from mcover.lab.studies.rows import Row, Trial, config_of, origin
from mcover.lab.studies.runner import (
    ATTEMPTS,
    EngineError,
    block_interrupts,
    lost_row,
    run_trial,
)
from mcover.lab.training.options import require


def run_prepared(trial: Trial, seed: int) -> Row | str:
    """Runs a trial on a worker; a text instead of the row says why none like it can run here."""
    config = config_of(trial)
    if config not in _prepared:
        try:
            getattr(trial, "prepare", lambda: None)()
        except McoverError as error:
            return str(error)
        _prepared.add(config)
    return run_trial(trial, seed)


_prepared: set[str] = set()


def task_of(here: dict[str, str]) -> Callable[[bytes], Any]:
    """What workers run. It is sent by value, since they may have another mcover, or none."""

    def task(payload: bytes) -> Any:
        import pickle
        import socket

        found: dict[str, str] = {}
        try:
            import mcover

            found = {"mcover": mcover.__version__}
            from mcover.lab.studies.rows import origin

            found = origin()
        except ImportError:
            pass
        if found != here:
            return socket.gethostname(), found
        if not payload:
            return None
        from mcover.lab.engines.cluster import run_prepared

        row = run_prepared(*pickle.loads(payload))
        return (socket.gethostname(), row) if isinstance(row, str) else row

    return task


def refusal(host: str, found: dict[str, str] | str) -> EngineError:
    """Why a worker is not to be used."""
    if isinstance(found, str):
        return EngineError(f"a worker on {host} cannot run it: {found}")
    here = origin()
    names = [name for name in {**here, **found} if here.get(name) != found.get(name)]
    theirs, ours = (", ".join(f"{n} {of.get(n, 'none')}" for n in names) for of in (found, here))
    return EngineError(
        f"a worker on {host} was refused: it has {theirs}, this process has {ours}. Install the "
        "same versions there and start its workers again."
    )


@dataclass(eq=False)
class Flight:
    """A trial on its way, and the future that its submitter has."""

    trial: Trial
    seed: int
    payload: bytes
    future: Future[Row] = field(default_factory=Future)
    token: str = field(default_factory=lambda: uuid4().hex)
    sent: int = 0


class Cluster(ABC):
    """What the clusters have in common: refusals, the limit of starts, the end.

    One thread, which Ctrl-C does not reach, talks to the cluster from its start to its end:
    processes that a cluster starts inherit the mask, and those of Ray end with that thread.
    """

    name: ClassVar[str]
    package: ClassVar[str]

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        require(self.package, f"engine {self.name}", self.name)
        self._asked = None if workers is None else check_int("workers", workers, 1)
        self._address = address
        self._keeper = ThreadPoolExecutor(1, self.name, initializer=block_interrupts)
        self._flying: dict[Flight, Future[Any]] = {}
        self._opened = self._ended = self._interrupted = False
        self._handler: Any = None

    @property
    def workers(self) -> int:
        """As many as were asked for, or as the cluster has now.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed where Python lost it.
        """
        self._heed_interrupts()
        if self._asked is not None:
            return self._asked
        return max(1, self._keeper.submit(self._count).result())

    def submit(self, trial: Trial, seed: int) -> Future[Row]:
        flight = Flight(trial, seed, pickle.dumps((trial, seed)))
        self._keeper.submit(self._send, flight)
        return flight.future

    def shutdown(self) -> None:
        """Cancels what is pending, ends a cluster of our own; another Ctrl-C does not stop it."""
        if not self._ended:
            self._ended = True
            if self._handler is not None:
                signal.signal(signal.SIGINT, self._handler)
            self._keeper.submit(self._end).result()
            self._keeper.shutdown()

    def _heed_interrupts(self) -> None:
        """Remembers Ctrl-C: in a callback of the garbage collector, as Dask has one, it is lost."""
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt
        usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if usual and threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, number: int, frame: Any) -> None:
        self._interrupted = True
        if not _is_collecting(frame):  # there Python would print the exception, and go on
            signal.default_int_handler(number, frame)

    # What follows runs in the thread of the keeper.

    def _count(self) -> int:
        self._ready()
        return self._alive()

    def _ready(self) -> None:
        if self._opened:
            return
        try:
            self._open(task_of(origin()))
        except McoverError:
            self._close()
            raise
        except Exception as error:  # each of them has errors of its own
            self._close()
            where = self._address or "on this machine"
            raise EngineError(
                f"{self.name} {where} cannot be reached: {error}. Start it, or write another "
                "address."
            ) from error
        self._opened = True

    def _send(self, flight: Flight) -> None:
        if self._ended:
            flight.future.cancel()
            return
        try:
            self._ready()
            flight.sent += 1
            native = self._start(flight)
        except Exception as error:
            flight.future.set_exception(error)
            return
        self._flying[flight] = native
        native.add_done_callback(lambda _: self._landed(flight))

    def _landed(self, flight: Flight) -> None:
        with suppress(RuntimeError):  # the keeper has gone home
            self._keeper.submit(self._take, flight)

    def _take(self, flight: Flight) -> None:
        native = self._flying.pop(flight)
        if self._ended:
            flight.future.cancel()
            return
        error = None if native.cancelled() else native.exception()
        if native.cancelled() or (error and not self._is_loss(error)):
            flight.future.set_exception(
                EngineError(f"{self.name} gave up a trial: {error or 'its connection is lost'}")
            )
        elif error and self._starts(flight) < ATTEMPTS:
            self._send(flight)
        elif error:
            flight.future.set_result(lost_row(flight.trial, flight.seed, error))
        elif isinstance(answer := native.result(), Row):
            flight.future.set_result(answer)
        else:
            flight.future.set_exception(refusal(*answer))

    def _end(self) -> None:
        if self._opened:
            with suppress(Exception):  # a cluster that is gone has nothing left to free
                self._cancel(list(self._flying.values()))
            self._close()

    def _starts(self, flight: Flight) -> int:
        return flight.sent

    @abstractmethod
    def _open(self, task: Callable[[bytes], Any]) -> None:
        """Reaches the cluster, or starts one."""

    @abstractmethod
    def _alive(self) -> int:
        """Workers that are there."""

    @abstractmethod
    def _start(self, flight: Flight) -> Future[Any]:
        """Hands over a trial: a future of the cluster's own."""

    @abstractmethod
    def _is_loss(self, error: BaseException) -> bool:
        """Whether it says that a worker ended under its trial."""

    @abstractmethod
    def _cancel(self, natives: list[Future[Any]]) -> None: ...

    @abstractmethod
    def _close(self) -> None:
        """Leaves the cluster; ends it if it is ours. Also what :meth:`_open` left half done."""


def _is_collecting(frame: FrameType | None) -> bool:
    """Whether a callback of the garbage collector is running."""
    functions = [getattr(callback, "__func__", callback) for callback in gc.callbacks]
    codes = {getattr(function, "__code__", None) for function in functions}
    while frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False
