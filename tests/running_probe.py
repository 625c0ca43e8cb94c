"""Runs a slow probe study in a process of its own, for tests that kill it or run two at once."""

import sys
from pathlib import Path

from reproduction.engines import make_engine
from reproduction.studies import Plan, Store, run
from reproduction.study import Choosing

import probe_kind


def main(path: str, trials: str, workers: str, sleep: str, name: str = "local", *at: str) -> None:
    probe_kind.register()
    log = str(Path(path).with_suffix(".log"))
    cell = probe_kind.cell(trials=int(trials), sleep=float(sleep), log=log)
    engine = make_engine(name, int(workers), *at)
    with Store(path) as store:
        print(run(Plan((cell,), Choosing()), store, engine).new)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
