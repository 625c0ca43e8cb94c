"""Trials on Ray."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from mcover.checks import cpus
from mcover.lab.engines.cluster import Cluster, Flight
from mcover.lab.studies.runner import EngineError

_CONNECT_SECONDS = 10
_OBJECT_STORE = 80_000_000  # bytes, near the least that Ray takes: rows are small


class Ray(Cluster):
    """Ray tasks of one CPU each."""

    name, package = "ray", "ray"

    _begun = False

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
        if found := re.fullmatch(r"(?:ray://)?(.+):(\d+)", self._address or ""):
            # Ray itself would try for minutes.
            socket.create_connection((found[1], int(found[2])), _CONNECT_SECONDS).close()
        self._begun = True
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

    def _start(self, flight: Flight) -> Future[Any]:
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
        if self._begun:
            import ray

            ray.shutdown()
