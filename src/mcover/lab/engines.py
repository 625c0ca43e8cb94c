"""Trials on a cluster: Dask, Ray or Slurm, behind the engine that studies and searches submit to.

Scheduling is theirs. Here is what they have to agree on: which workers may compute at all, what
becomes of a trial whose worker ends under it, and what is freed in the end. ::

    engine = make_engine("dask", address="tcp://10.0.0.1:8786")
    run(plan, store, engine)
"""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal
from uuid import uuid4

import psutil

from mcover.checks import choice, cpus, whole
from mcover.errors import McoverError
from mcover.lab.studies.rows import Row, Trial, config_of, origin
from mcover.lab.studies.runner import (
    ATTEMPTS,
    Engine,
    EngineError,
    Inline,
    Processes,
    block_interrupts,
    lost_row,
    run_trial,
)
from mcover.lab.training.options import require

EngineName = Literal["local", "dask", "ray", "slurm"]
JOBS = 100
"""Trials in the queue of Slurm at a time, where nothing else is asked for."""

_CONNECT_SECONDS = 30
_WATCH_SECONDS = 0.2
_JOB_MINUTES = 4 * 60  # which SBATCH_TIMELIMIT overrides
_OBJECT_STORE = 80_000_000  # bytes, near the least that Ray takes: rows are small
_LEAST_STARTS = 4 * ATTEMPTS  # starts of a trial on Dask, those that were never announced included


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Where trials run: fields of every verb that runs many of them."""

    engine: EngineName = "local"
    """Where trials run: on this machine, or on a cluster of Dask, Ray or Slurm."""
    address: str | None = None
    """Cluster that is running, e.g. tcp://10.0.0.1:8786 (dask) or 10.0.0.1:6379 (ray); by default
    one is started on this machine and ended with the run. For slurm, "local" tries it without."""
    workers: int | None = None
    """Trials at a time, a process of one core each (default: all cores of this machine, all workers
    of the cluster, 100 jobs of Slurm); 0 runs in this process."""

    def make_engine(self) -> Engine:
        return make_engine(self.engine, self.workers, self.address)


def make_engine(
    name: EngineName = "local", workers: int | None = None, address: str | None = None
) -> Engine:
    """An engine by its name; a cluster is started, or reached, with the first trial.

    Raises:
        McoverError: its package is not installed, or an argument does not fit it.
    """
    choice("engine", name, ("local", *_CLUSTERS))
    if name in _CLUSTERS:
        return _CLUSTERS[name](workers, address)
    if address is not None:
        raise McoverError(f"address is {address!r}, but engine local has none; write engine dask.")
    return Inline() if workers == 0 else Processes(workers)


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


def _task(here: dict[str, str]) -> Callable[[bytes], Any]:
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
        from mcover.lab.engines import run_prepared

        row = run_prepared(*pickle.loads(payload))
        return (socket.gethostname(), row) if isinstance(row, str) else row

    return task


def _refusal(host: str, found: dict[str, str] | str) -> EngineError:
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
class _Flight:
    """A trial on its way, and the future that its submitter has."""

    trial: Trial
    seed: int
    payload: bytes
    future: Future[Row] = field(default_factory=Future)
    token: str = field(default_factory=lambda: uuid4().hex)
    sent: int = 0


class _Cluster(ABC):
    """What the clusters have in common: refusals, the limit of starts, the end.

    One thread, which Ctrl-C does not reach, talks to the cluster from its start to its end:
    processes that a cluster starts inherit the mask, and those of Ray end with that thread.
    """

    name: ClassVar[str]
    package: ClassVar[str]

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        require(self.package, f"engine {self.name}", self.name)
        self._asked = None if workers is None else whole("workers", workers, 1)
        self._address = address
        self._keeper = ThreadPoolExecutor(1, self.name, initializer=block_interrupts)
        self._flying: dict[_Flight, Future[Any]] = {}
        self._opened = self._ended = False

    @property
    def workers(self) -> int:
        """As many as were asked for, or as the cluster has now."""
        if self._asked is not None:
            return self._asked
        return max(1, self._keeper.submit(self._count).result())

    def submit(self, trial: Trial, seed: int) -> Future[Row]:
        flight = _Flight(trial, seed, pickle.dumps((trial, seed)))
        self._keeper.submit(self._send, flight)
        return flight.future

    def shutdown(self) -> None:
        """Cancels what is pending, ends a cluster of our own; another Ctrl-C does not stop it."""
        if not self._ended:
            self._ended = True
            self._keeper.submit(self._end).result()
            self._keeper.shutdown()

    # What follows runs in the thread of the keeper.

    def _count(self) -> int:
        self._ready()
        return self._alive()

    def _ready(self) -> None:
        if self._opened:
            return
        try:
            self._open(_task(origin()))
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

    def _send(self, flight: _Flight) -> None:
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

    def _landed(self, flight: _Flight) -> None:
        with suppress(RuntimeError):  # the keeper has gone home
            self._keeper.submit(self._take, flight)

    def _take(self, flight: _Flight) -> None:
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
            flight.future.set_exception(_refusal(*answer))

    def _end(self) -> None:
        if self._opened:
            with suppress(Exception):  # a cluster that is gone has nothing left to free
                self._cancel(list(self._flying.values()))
            self._close()

    def _starts(self, flight: _Flight) -> int:
        return flight.sent

    @abstractmethod
    def _open(self, task: Callable[[bytes], Any]) -> None:
        """Reaches the cluster, or starts one."""

    @abstractmethod
    def _alive(self) -> int:
        """Workers that are there."""

    @abstractmethod
    def _start(self, flight: _Flight) -> Future[Any]:
        """Hands over a trial: a future of the cluster's own."""

    @abstractmethod
    def _is_loss(self, error: BaseException) -> bool:
        """Whether it says that a worker ended under its trial."""

    @abstractmethod
    def _cancel(self, natives: list[Future[Any]]) -> None: ...

    @abstractmethod
    def _close(self) -> None:
        """Leaves the cluster; ends it if it is ours. Also what :meth:`_open` left half done."""


class Dask(_Cluster):
    """Dask's futures, as its executor for ``concurrent.futures`` has them.

    Dask blames all trials that lay on a worker when it ended, also those that waited there. So a
    trial says when it starts: only these starts count.
    """

    name, package = "dask", "distributed"

    _client: Any = None
    _own: Any = None

    def _open(self, task: Callable[[bytes], Any]) -> None:
        import dask
        import distributed

        self._topic, self._started = f"mcover-{uuid4().hex}", Counter[str]()
        if self._address is None:
            with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
                self._own = distributed.LocalCluster(
                    n_workers=self._asked or cpus(),
                    threads_per_worker=1,
                    memory_limit=0,
                    host="127.0.0.1",
                    dashboard_address="127.0.0.1:0",
                    silence_logs=logging.CRITICAL,
                )
        self._client = distributed.Client(
            self._own or self._address, timeout=_CONNECT_SECONDS, set_as_default=False
        )
        for _, answer in self._client.run(task, b"").items():
            if answer is not None:
                raise _refusal(*answer)
        if self._asked is None and not self._alive():
            raise EngineError(
                f"dask {self._address} has no worker; start some with 'dask worker "
                f"{self._address} --nthreads 1', or write how many there will be: workers."
            )
        self._client.subscribe_topic(self._topic, lambda event: self._hear(event[1]))
        self._executor = self._client.get_executor(pure=False)
        self._run = _announcing(task, self._topic)

    def _hear(self, token: str) -> None:
        self._started[token] += 1

    def _alive(self) -> int:
        return len(self._client.nthreads())

    def _start(self, flight: _Flight) -> Future[Any]:
        future: Future[Any] = self._executor.submit(self._run, flight.payload, flight.token)
        return future

    def _is_loss(self, error: BaseException) -> bool:
        from distributed import KilledWorker

        return isinstance(error, KilledWorker)

    def _starts(self, flight: _Flight) -> int:
        heard = self._started[flight.token]
        return ATTEMPTS if flight.sent >= _LEAST_STARTS else heard

    def _cancel(self, natives: list[Future[Any]]) -> None:
        for one in natives:
            one.cancel()

    def _close(self) -> None:
        for one in (self._client, self._own):
            if one is not None:
                with suppress(Exception):
                    one.close()


def _announcing(task: Callable[[bytes], Any], topic: str) -> Callable[[bytes, str], Any]:
    """What workers of Dask run; sent by value, as the task is."""

    def announce(payload: bytes, token: str) -> Any:
        from distributed import get_worker

        worker = get_worker()
        if (threads := worker.state.nthreads) != 1:
            return worker.address, (
                f"it has {threads} threads, and a trial needs a process of its own. Start it with "
                f"'dask worker ADDRESS --nworkers {threads} --nthreads 1'."
            )
        worker.log_event(topic, token)
        return task(payload)

    return announce


class Ray(_Cluster):
    """Ray tasks of one CPU each."""

    name, package = "ray", "ray"

    def _open(self, task: Callable[[bytes], Any]) -> None:
        own = {
            "num_cpus": self._asked or cpus(),
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE,
            "_node_ip_address": "127.0.0.1",
        }
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
        import ray

        if ray.is_initialized():
            raise EngineError("this process uses Ray already; call ray.shutdown() before.")
        ray.init(
            self._address or "local",
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            **({} if self._address else own),
        )
        # Ray starts again without limit what runs out of memory, unless max_retries is 0: the
        # limit of starts is ours.
        self._remote = ray.remote(num_cpus=1, max_retries=0)(task)
        self._references: dict[Future[Any], Any] = {}

    def _alive(self) -> int:
        import ray

        return int(ray.cluster_resources().get("CPU", 0))

    def _start(self, flight: _Flight) -> Future[Any]:
        reference = self._remote.remote(flight.payload)
        future: Future[Any] = reference.future()
        self._references[future] = reference
        future.add_done_callback(self._references.pop)
        return future

    def _is_loss(self, error: BaseException) -> bool:
        from ray import exceptions as of

        return isinstance(error, of.WorkerCrashedError | of.NodeDiedError | of.OutOfMemoryError)

    def _cancel(self, natives: list[Future[Any]]) -> None:
        import ray

        for one in natives:
            if (reference := self._references.get(one)) is not None:
                ray.cancel(reference, force=True)

    def _close(self) -> None:
        import ray

        ray.shutdown()


class Slurm(_Cluster):
    """One job of Slurm for each trial, through submitit; the folder has to be seen by all nodes.

    Partition, account and limits are those of the environment (SBATCH_PARTITION, …).
    """

    name, package = "slurm", "submitit"
    folder = Path("out/slurm")

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        super().__init__(workers, address)
        if address not in (None, "local"):
            raise McoverError(
                f"address is {address!r}, but Slurm has none: run this on a machine that has "
                "sbatch, or write address local to try it without."
            )
        if address is None and shutil.which("sbatch") is None:
            raise McoverError(
                "engine slurm needs sbatch, which is not here: run this on a login node of the "
                "cluster, or write address local to try it without."
            )
        self._jobs: dict[Future[Any], Any] = {}
        self._done = threading.Event()

    def _open(self, task: Callable[[bytes], Any]) -> None:
        import submitit

        self._task = task
        self._executor = submitit.AutoExecutor(self.folder, cluster=self._address or "slurm")
        minutes = _JOB_MINUTES if self._address is None else 10**6
        self._executor.update_parameters(name="mcover", timeout_min=minutes, cpus_per_task=1)
        threading.Thread(target=self._watch, name="slurm-watch").start()

    def _alive(self) -> int:
        return JOBS if self._address is None else cpus()

    def _start(self, flight: _Flight) -> Future[Any]:
        future: Future[Any] = Future()
        self._jobs[future] = self._executor.submit(self._task, flight.payload)
        return future

    def _watch(self) -> None:
        """submitit's jobs do not tell when they are done."""
        while not self._done.wait(_WATCH_SECONDS):
            for future, job in list(self._jobs.items()):
                if not job.done():
                    continue
                del self._jobs[future]
                try:
                    future.set_result(job.result())
                except Exception as error:
                    future.set_exception(error)

    def _is_loss(self, error: BaseException) -> bool:
        from submitit.core.utils import FailedJobError, UncompletedJobError

        return isinstance(error, UncompletedJobError) and not isinstance(error, FailedJobError)

    def _cancel(self, natives: list[Future[Any]]) -> None:
        for job in list(self._jobs.values()):
            if self._address is None:
                job.cancel(check=False)
                continue
            with suppress(psutil.NoSuchProcess):  # whose number is that of the process here
                leader = psutil.Process(int(job.job_id))
                for one in (leader, *leader.children(recursive=True)):
                    one.kill()

    def _close(self) -> None:
        self._done.set()


_CLUSTERS: dict[str, type[_Cluster]] = {"dask": Dask, "ray": Ray, "slurm": Slurm}
