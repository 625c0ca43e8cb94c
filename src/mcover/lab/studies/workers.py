"""Where trials run: in this process, or in processes of one core each."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Protocol, cast

from mcover.errors import McoverError
from mcover.lab.studies.cells import Job


@dataclass(frozen=True)
class Ended:
    """How a trial ended: with an outcome, refused (McoverError), or with an error that is none."""

    job: Job
    outcome: Mapping[str, float]
    refusal: str = ""
    error: str = ""
    seconds: float = 0.0


class Engine(Protocol):
    """What a runner needs of the place where trials run."""

    @property
    def free(self) -> int:
        """How many trials may be handed over now."""

    def submit(self, job: Job) -> None:
        """Hands over a trial."""

    def collect(self, seconds: float) -> list[Ended]:
        """What has ended, after waiting so long at most."""

    def close(self) -> None:
        """Drops the trials in flight and leaves nothing behind."""


class Inline:
    """This very process: for tests, and to follow a trial with a debugger."""

    def __init__(self) -> None:
        self._waiting: list[Job] = []

    @property
    def free(self) -> int:
        return 1 - len(self._waiting)

    def submit(self, job: Job) -> None:
        self._waiting.append(job)

    def collect(self, seconds: float) -> list[Ended]:
        jobs, self._waiting = self._waiting, []
        return [_try(job) for job in jobs]

    def close(self) -> None:
        self._waiting.clear()


class Processes:
    """So many processes of one core each; a trial does not know how many there are."""

    def __init__(self, count: int | None = None) -> None:
        count = (os.cpu_count() or 1) if count is None else count
        if count < 1:
            raise McoverError(f"workers is {count}; write at least 1.")
        self._idle = [_Worker() for _ in range(count)]
        self._busy: dict[Connection, _Worker] = {}

    @property
    def free(self) -> int:
        return len(self._idle)

    def submit(self, job: Job) -> None:
        worker = self._idle.pop()
        worker.start(job)
        self._busy[worker.connection] = worker

    def collect(self, seconds: float) -> list[Ended]:
        ended = []
        for ready in wait(list(self._busy), seconds):
            worker = self._busy.pop(cast(Connection, ready))
            ended.append(worker.finish())
            self._idle.append(worker)
        return ended

    def close(self) -> None:
        for worker in (*self._idle, *self._busy.values()):
            worker.stop()
        self._idle, self._busy = [], {}


class _Worker:
    """A process and the line to it; started when it is first needed."""

    def __init__(self) -> None:
        self._process: SpawnProcess | None = None
        self.connection: Connection
        self._job: Job

    def start(self, job: Job) -> None:
        if self._process is None:
            context = get_context("spawn")
            self.connection, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
        self._job = job
        self.connection.send(job)

    def finish(self) -> Ended:
        try:
            ended: Ended = self.connection.recv()
        except (EOFError, ConnectionResetError):
            process = cast(SpawnProcess, self._process)  # one that sent a job was started
            process.join()
            code = process.exitcode
            self._process = None
            hint = " (killed: out of memory?)" if code == -signal.SIGKILL else ""
            return Ended(self._job, {}, error=f"its process ended with code {code}{hint}")
        return ended

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.join()
            self.connection.close()
            self._process = None


def _serve(connection: Connection) -> None:
    """A worker's life: trials come in, what they gave goes out, until the line is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that leads
    threading.Thread(target=_follow_parent, daemon=True).start()
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        connection.send(_try(job))


def _follow_parent() -> None:
    """Ends this process with the one that leads, however that was ended."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _try(job: Job) -> Ended:
    begin = time.perf_counter()

    def ended(outcome: Mapping[str, float], **how: Any) -> Ended:
        return Ended(job, outcome, seconds=time.perf_counter() - begin, **how)

    try:
        outcome = job.trial.run(job.seed)
    except McoverError as error:
        return ended({}, refusal=str(error))
    except Exception:
        return ended({}, error=traceback.format_exc().rstrip())
    return ended(outcome)
