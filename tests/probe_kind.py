"""A kind of trial for tests of the runner: quick, and as ill-behaved as its settings say."""

import os
import signal
import time
from pathlib import Path

from mcover import McoverError
from mcover.lab.studies.cells import Cell
from mcover.lab.studies.kinds import KINDS, Kind, Metric

KIND = Kind(
    "probe_kind", (Metric("value", "value"), Metric("solved", "solved", "fraction")), "value"
)


def register() -> None:
    KINDS["probe"] = KIND


def cell(series: str = "plain", trials: int = 3, **settings: object) -> Cell:
    return Cell("probe", {"name": series, **settings}, series, trials=trials)


def run(settings, seed: int) -> dict[str, float]:
    if "log" in settings:  # one line a computation, to see whether any was done twice
        with Path(settings["log"]).open("a") as file:
            file.write(f"{settings['name']} {seed} {os.getpid()}\n")
    time.sleep(settings.get("sleep", 0))
    if seed in settings.get("refuse", ()):
        raise McoverError(f"no trial {seed} today; write another seed.")
    if seed in settings.get("crash", ()):
        raise RuntimeError(f"broken at {seed}")
    if seed in settings.get("die", ()):
        os.kill(os.getpid(), signal.SIGKILL)
    if seed in settings.get("nan", ()):
        return {"value": float("nan"), "solved": 0.0}
    return {"value": seed + settings.get("shift", 0.0), "solved": float(seed % 2)}
