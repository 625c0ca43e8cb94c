"""Trials on Slurm."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from mcover.checks import cpus
from mcover.errors import McoverError
from mcover.lab.engines.cluster import Cluster, Flight

JOBS = 100
"""Trials in the queue at a time, where nothing else is asked for."""

_WATCH_SECONDS = 0.2
_LATE_SECONDS = 15.0  # by which a network file system may show a result after its job has ended
_LONGEST = 500  # characters of what a lost job said
_JOB_MINUTES = 4 * 60  # which SBATCH_TIMELIMIT overrides


class _JobLostError(RuntimeError):
    """A job ended and left no result."""


class Slurm(Cluster):
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
        self._grace = _LATE_SECONDS if address is None else 0.0

    def _open(self, task: Callable[[bytes], Any]) -> None:
        import submitit

        self._task = task
        self._executor = submitit.AutoExecutor(self.folder, cluster=self._address or "slurm")
        minutes = _JOB_MINUTES if self._address is None else 10**6
        self._executor.update_parameters(name="mcover", timeout_min=minutes, cpus_per_task=1)
        threading.Thread(target=self._watch, name="slurm-watch").start()

    def _alive(self) -> int:
        return JOBS if self._address is None else cpus()

    def _start(self, flight: Flight) -> Future[Any]:
        future: Future[Any] = Future()
        self._jobs[future] = self._executor.submit(self._task, flight.payload)
        return future

    def _watch(self) -> None:
        """submitit's jobs do not tell when they are done."""
        ended: dict[Future[Any], float] = {}
        while not self._done.wait(_WATCH_SECONDS):
            for future, job in list(self._jobs.items()):
                if not job.done():
                    continue
                since = time.monotonic() - ended.setdefault(future, time.monotonic())
                try:
                    if job.paths.result_pickle.exists():
                        future.set_result(job.result())
                    elif since < self._grace:
                        continue
                    else:
                        why = (job.stderr() or "").strip()[-_LONGEST:]
                        future.set_exception(_JobLostError(f"{job.state} {why}"))
                except Exception as error:
                    future.set_exception(error)
                del self._jobs[future], ended[future]

    def _is_loss(self, error: BaseException) -> bool:
        return isinstance(error, _JobLostError)

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
