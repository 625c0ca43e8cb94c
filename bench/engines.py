"""What an engine adds to a trial, and how busy it keeps two workers.

The rival is the plain executor of loky with two processes, all trials submitted at once and nothing
stored. Trials sleep, and take no core: so the figures are those of the engines, not of a machine
that has few cores or is busy. Clusters are started before the clock, by a first study of two
trials; each study has a store on disk, as any study. Slurm is not here: a job
costs what its queue makes of it.

    python bench/engines.py --engines local dask ray
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from timing import rows

sys.path.append(sys.path.pop(0))  # bench/distributed.py is not Dask's package of that name

WORKERS = 2
PACKAGES = {"local": "loky", "dask": "distributed", "ray": "ray"}
COUNTS = {0.1: 40, 2.0: 6}


@dataclass(frozen=True)
class Sleep:
    """A trial that sleeps."""

    kind: ClassVar[str] = "sleep"

    seconds: float
    batch: int = 0
    """To make a study anew whose rows are not in the store yet."""

    def run(self, seed: int) -> dict[str, float]:
        time.sleep(self.seconds)
        return {"value": float(seed)}


class Kept:
    """An engine that a study does not shut down, so that its start is not on the clock."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.submit = engine, engine.submit

    @property
    def workers(self) -> int:
        return self.engine.workers

    def shutdown(self) -> None:
        pass


def plain(repeats: int) -> dict[float, float]:
    """Seconds for all trials of each length on the plain executor."""
    from loky import ProcessPoolExecutor

    from engines import Sleep  # by its module, which the workers can import
    from mcover.lab.studies.runner import run_trial

    best = dict.fromkeys(COUNTS, float("inf"))
    with ProcessPoolExecutor(WORKERS, timeout=None) as executor:
        list(executor.map(run_trial, [Sleep(0.5)] * WORKERS, range(WORKERS)))
        for _ in range(repeats):
            for seconds, count in COUNTS.items():
                begin = time.perf_counter()
                list(executor.map(run_trial, [Sleep(seconds)] * count, range(count)))
                best[seconds] = min(best[seconds], time.perf_counter() - begin)
    return best


def measured(name: str, repeats: int) -> tuple[float, dict[float, float]]:
    """Seconds until a cluster has run its first trials, and those of each study."""
    from engines import Sleep
    from mcover.lab.engines import make_engine
    from mcover.lab.studies import Plan, Store, run
    from mcover.lab.studies.study import Cell, Choosing

    engine = make_engine(name, WORKERS)
    best = dict.fromkeys(COUNTS, float("inf"))
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "s.sqlite") as store:

        def study(seconds: float, count: int, batch: int) -> float:
            cell = Cell(Sleep(seconds, batch), "sleep", trials=count)
            begin = time.perf_counter()
            ran = run(Plan((cell,), Choosing()), store, Kept(engine))
            if (ran.new, ran.failed) != (count, 0):
                raise SystemExit(f"{name}: {ran}")
            return time.perf_counter() - begin

        try:
            start = study(0.5, WORKERS, 0)
            for batch in range(1, repeats + 1):
                for seconds, count in COUNTS.items():
                    best[seconds] = min(best[seconds], study(seconds, count, batch))
        finally:
            engine.shutdown()
    return start, best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    here = [name for name, package in PACKAGES.items() if find_spec(package) is not None]
    parser.add_argument("--engines", nargs="+", default=here, help="default: all that are here")
    parser.add_argument("--repeats", type=int, default=2, help="of which the best counts")
    given = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    paths = (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    lines = []
    results = {"plain executor": (float("nan"), plain(given.repeats))}
    results |= {name: measured(name, given.repeats) for name in given.engines}
    for name, (start, best) in results.items():
        line = [name, "–" if start != start else f"{start:.1f}"]
        for seconds, count in COUNTS.items():
            ideal = seconds * count / WORKERS
            rival = results["plain executor"][1][seconds]
            overhead = (best[seconds] - ideal) / count * WORKERS
            line += [f"{1e3 * overhead:.0f}", f"{ideal / best[seconds]:.3f}"]
            line += [f"{rival / best[seconds]:.3f}"]
        lines.append(line)
    header = ["engine", "start s"]
    for seconds in COUNTS:
        header += [f"+ms at {seconds:g} s", "efficiency", "to plain"]
    rows(f"sleeping trials on {WORKERS} workers, best of {given.repeats}", header, lines)
    print(
        "+ms: milliseconds that a worker spends on a trial beside it; efficiency: the time of the "
        "trials alone on two workers, over the time it took; to plain: the rival's time over ours"
    )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
