"""A kind of trial for tests of the runner: quick, and as ill-behaved as its settings say."""

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from reproduction.rows import KINDS, Kind, Metric
from reproduction.study import Cell

from mcover import McoverError

KIND = Kind((Metric("value", "value"), Metric("solved", "solved", "fraction")), "value")


def register() -> None:
    KINDS["probe"] = KIND


@dataclass(frozen=True)
class Probe:
    """Seeds at which it refuses, crashes, exits, kills itself, finds no number or tells
    how many threads BLAS may have.
    """

    kind: ClassVar[str] = "probe"

    name: str
    log: str = ""
    sleep: float = 0.0
    shift: float = 0.0
    refuse: tuple[int, ...] = ()
    crash: tuple[int, ...] = ()
    leave: tuple[int, ...] = ()
    die: tuple[int, ...] = ()
    nan: tuple[int, ...] = ()
    threads: tuple[int, ...] = ()
    validation: int = 0
    unprepared: str = ""

    def prepare(self) -> None:
        if self.unprepared:
            raise McoverError(self.unprepared)

    def run(self, seed: int) -> dict[str, float]:
        if self.log:  # one line a computation, to see whether any was done twice
            with Path(self.log).open("a") as file:
                file.write(f"{self.name} {seed} {os.getpid()}\n")
        time.sleep(self.sleep)
        if seed in self.refuse:
            raise McoverError(f"no trial {seed} today; write another seed.")
        if seed in self.crash:
            raise RuntimeError(f"broken at {seed}")
        if seed in self.leave:
            sys.exit(seed)
        if seed in self.die:
            os.kill(os.getpid(), signal.SIGKILL)
        if seed in self.nan:
            return {"value": float("nan"), "solved": 0.0}
        if seed in self.threads:
            return {"value": float(os.environ["OPENBLAS_NUM_THREADS"]), "solved": 1.0}
        return {"value": seed + self.shift, "solved": float(seed % 2)}


def cell(series: str = "plain", trials: int = 3, **settings: Any) -> Cell:
    return Cell(Probe(series, **settings), series, trials=trials)
