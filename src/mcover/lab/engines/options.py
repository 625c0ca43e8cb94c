"""Which engine, as studies and searches ask for it: in Python and on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from mcover.checks import check_choice
from mcover.errors import McoverError
from mcover.lab.engines.cluster import Cluster
from mcover.lab.engines.dask import Dask
from mcover.lab.engines.ray import Ray
from mcover.lab.engines.slurm import Slurm
from mcover.lab.studies.runner import Engine, Inline, Processes

EngineName = Literal["local", "dask", "ray", "slurm"]


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
    check_choice("engine", name, get_args(EngineName))
    clusters: dict[str, type[Cluster]] = {"dask": Dask, "ray": Ray, "slurm": Slurm}
    if name in clusters:
        return clusters[name](workers, address)
    if address is not None:
        raise McoverError(f"address is {address!r}, but engine local has none; write engine dask.")
    return Inline() if workers == 0 else Processes(workers)
