"""A quick trial for tests of the runner. It misbehaves at the seeds that its fields name."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mcover import McoverError
from reproduction.study import Cell


@dataclass(frozen=True)
class Probe:
    """Refuses, crashes, kills its process or returns NaN at the given seeds."""

    kind: ClassVar[str] = "probe"
    revision: ClassVar[int] = 2

    name: str
    log: str = ""
    sleep: float = 0.0
    shift: float = 0.0
    refuse: tuple[int, ...] = ()
    crash: tuple[int, ...] = ()
    die: tuple[int, ...] = ()
    nan: tuple[int, ...] = ()
    validation: int = 0
    unprepared: str = ""

    def prepare(self) -> None:
        if self.unprepared:
            raise McoverError(self.unprepared)

    def run(self, seed: int) -> dict[str, float]:
        if self.log:  # one line for each computation: shows whether any was repeated
            with Path(self.log).open("a") as file:
                file.write(f"{seed}\n")
        time.sleep(self.sleep)
        if seed in self.refuse:
            raise McoverError(f"seed {seed} is refused")
        if seed in self.crash:
            raise RuntimeError(f"broken at {seed}")
        if seed in self.die:
            os.kill(os.getpid(), signal.SIGKILL)
        value = float("nan") if seed in self.nan else seed + self.shift
        threads = float(os.environ.get("OPENBLAS_NUM_THREADS", 0))
        return {"value": value, "threads": threads, "pid": float(os.getpid())}


def cell(series: str = "plain", trials: int = 3, **settings: Any) -> Cell:
    return Cell(Probe(series, **settings), series, trials=trials)
