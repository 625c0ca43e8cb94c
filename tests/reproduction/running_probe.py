"""Runs a slow probe in a separate process, for tests that kill or interrupt it."""

import sys
from pathlib import Path

import probe_kind

from reproduction.executors import make_executor
from reproduction.runner import run
from reproduction.store import Store
from reproduction.study import Plan


def main(path: str, trials: str, workers: str, sleep: str) -> None:
    log = str(Path(path).with_suffix(".log"))
    cell = probe_kind.cell(trials=int(trials), sleep=float(sleep), log=log)
    with Store(path) as store, make_executor("local", int(workers)) as executor:
        sys.stdout.write(f"{run(Plan((cell,)), store, executor, int(workers))}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
