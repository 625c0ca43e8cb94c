"""Executors that run trials: this process, a process pool, Dask, Ray or Slurm.

A worker imports ``reproduction`` and ``mcover``. Workers started here inherit a ``PYTHONPATH`` with
the root of the clone. On a cluster that is already running, start its workers in the root of the
clone, or set ``PYTHONPATH`` to it before they start; Slurm jobs need a file system that all nodes
share.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import connection
from pathlib import Path
from typing import Any, Literal, get_args

from mcover import McoverError

Engine = Literal["local", "dask", "ray", "slurm"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
SLURM_FOLDER = Path("out/slurm")
_ROOT = Path(__file__).parents[1]
_POLL_SECONDS = 0.2
_JOB_MINUTES = 4 * 60
# A trial uses one core: BLAS threads that spin while they wait would count as core seconds.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@contextmanager
def make_executor(
    engine: Engine = "local", workers: int = 1, address: str | None = None
) -> Iterator[Executor]:
    """An executor for trials; on exit it is shut down, and running trials are dropped.

    Args:
        engine: the kind of executor.
        workers: the number of processes, or of jobs at a time; 0 runs trials in this process.
        address: the address of a running Dask scheduler or Ray cluster; for slurm, ``local`` runs
            jobs as local processes.
    """
    if engine not in ENGINES:
        raise McoverError(f"engine is {engine!r}; write one of {', '.join(ENGINES)}.")
    if workers < 0:
        raise McoverError(f"workers is {workers}; write an integer of at least 0.")
    if address is not None and (engine == "local" or workers == 0):
        raise McoverError(f"address is {address!r}, which only dask, ray and slurm have.")
    if workers == 0:
        yield InlineExecutor()
        return
    make = {"local": _local, "dask": _dask, "ray": _ray, "slurm": _slurm}[engine]
    with _environment(), make(workers, address) as executor:
        yield executor


@contextmanager
def _environment() -> Iterator[None]:
    """Sets environment variables for workers, and restores them afterwards."""
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    ours = {"PYTHONPATH": path} | dict.fromkeys(_ONE_THREAD, "1")
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


class InlineExecutor(Executor):
    """Runs each call in this process inside ``submit``."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@contextmanager
def _local(workers: int, _: str | None) -> Iterator[Executor]:
    before = set(multiprocessing.active_children())
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=spawn, initializer=_begin_worker)
    try:
        yield pool
    finally:
        # Kills the workers, since a trial that is still running may take hours.
        for process in set(multiprocessing.active_children()) - before:
            process.kill()
        pool.shutdown(cancel_futures=True)


def _begin_worker() -> None:
    """Leaves Ctrl-C to the main process, and ends this worker when the main process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Otherwise a worker that waits for its queue would survive a killed main process: the worker
    # also holds the writing end of the queue, so it never reads an end of file.
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_with, args=(parent.sentinel,), daemon=True).start()


def _exit_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


@contextmanager
def _dask(workers: int, address: str | None) -> Iterator[Executor]:
    from distributed import Client

    own = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    with Client(address, **({} if address else own)) as client:
        yield client.get_executor(pure=False)


@contextmanager
def _ray(workers: int, address: str | None) -> Iterator[Executor]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    own = {"num_cpus": workers, "include_dashboard": False}
    ray.init(address or "local", log_to_driver=False, **({} if address else own))
    try:
        yield RayExecutor(ray)
    finally:
        ray.shutdown()


class RayExecutor(Executor):
    """Each call is a Ray task of one CPU. Ray must be initialized."""

    def __init__(self, ray: Any) -> None:
        self._ray, self._references = ray, dict[Future[Any], Any]()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        task = self._ray.remote(num_cpus=1, max_retries=0)(fn)
        reference = task.remote(*args, **kwargs)
        future: Future[Any] = reference.future()
        # Ray may drop the result of a task without references.
        self._references[future] = reference
        future.add_done_callback(self._references.pop)
        return future


@contextmanager
def _slurm(workers: int, address: str | None) -> Iterator[Executor]:
    if address not in (None, "local"):
        raise McoverError(f"address is {address!r}; slurm has none, or local to try it without.")
    if address is None and shutil.which("sbatch") is None:
        raise McoverError(
            "engine slurm needs sbatch, which was not found: run this on a login node of the "
            "cluster, or write --address local to try it without."
        )
    import submitit

    jobs = submitit.AutoExecutor(SLURM_FOLDER, cluster=address or "slurm")
    jobs.update_parameters(name="mcover", timeout_min=_JOB_MINUTES, cpus_per_task=1)
    executor = SlurmExecutor(jobs)
    try:
        yield executor
    finally:
        executor.shutdown()


class SlurmExecutor(Executor):
    """Each call is a submitit job. A thread polls the jobs, because they do not notify."""

    def __init__(self, jobs: Any) -> None:
        self._submit, self._jobs = jobs.submit, dict[Future[Any], Any]()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._jobs[future] = self._submit(fn, *args, **kwargs)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancels the jobs that are queued or running."""
        self._stop.set()
        self._thread.join()
        for job in self._jobs.values():
            job.cancel(check=False)

    def _poll(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            for future, job in list(self._jobs.items()):
                if job.done() and not future.done():
                    try:
                        future.set_result(job.result())
                    except Exception as error:
                        future.set_exception(error)
                if future.done():
                    del self._jobs[future]
