"""Trials on Dask."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any
from uuid import uuid4

from mcover.checks import cpus
from mcover.lab.engines.cluster import Cluster, Flight, refusal
from mcover.lab.studies.runner import ATTEMPTS, EngineError

_CONNECT_SECONDS = 30
_MOST_SENT = 4 * ATTEMPTS  # of a trial, those times included that it never started


class Dask(Cluster):
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
                raise refusal(*answer)
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

    def _start(self, flight: Flight) -> Future[Any]:
        future: Future[Any] = self._executor.submit(self._run, flight.payload, flight.token)
        return future

    def _is_loss(self, error: BaseException) -> bool:
        from distributed import KilledWorker

        return isinstance(error, KilledWorker)

    def _starts(self, flight: Flight) -> int:
        heard = self._started[flight.token]
        return ATTEMPTS if flight.sent >= _MOST_SENT else heard

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
