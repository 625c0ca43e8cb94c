"""Runs a slow probe study in a process of its own, for tests that kill it or run two at once."""

import sys
from pathlib import Path

import probe_kind
from mcover.lab.studies import Plan, Processes, Store, run
from mcover.lab.studies.study import Choosing


def main(path: str, trials: int, workers: int, sleep: float) -> None:
    probe_kind.register()
    log = str(Path(path).with_suffix(".log"))
    plan = Plan((probe_kind.cell(trials=trials, sleep=sleep, log=log),), Choosing())
    with Store(path) as store:
        print(run(plan, store, Processes(workers)).new)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
