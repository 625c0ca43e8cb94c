"""``anneal`` with two workers on executors, against two threads of this process.

The reads of one call are sent in chunks. The efficiency is the time of the threads over that of the
executor, as median and quartiles of alternating calls. Workers have started and compiled before.
Executors without an installed package are skipped.

    python bench/executors.py [--reads 64] [--seconds 20]
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context

import mcover
from timing import in_turns, rows, shown

WORKERS = 2


@contextlib.contextmanager
def executors() -> Iterator[dict[str, Executor]]:
    with contextlib.ExitStack() as stack:
        pool = ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn"))
        found: dict[str, Executor] = {"process pool": stack.enter_context(pool)}
        with contextlib.suppress(ModuleNotFoundError):
            from joblib.externals import loky

            found["loky"] = stack.enter_context(loky.ProcessPoolExecutor(WORKERS))
        with contextlib.suppress(ModuleNotFoundError):
            import distributed

            client = distributed.Client(
                n_workers=WORKERS, threads_per_worker=1, dashboard_address=None
            )
            found["Dask"] = stack.enter_context(client).get_executor(pure=False)
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reads", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    lines = []
    with executors() as found:
        for n in (501, 1001):
            problem = mcover.teacher_student(n, 1.58, seed=0)

            def call(executor: Executor | None = None, problem=problem) -> object:
                return mcover.anneal(
                    problem, num_reads=given.reads, seed=0, workers=WORKERS, executor=executor
                )

            works = {"threads": call}
            works |= {key: (lambda e=e, call=call: call(e)) for key, e in found.items()}
            times = in_turns(works, given.seconds, least=5)
            base = times["threads"]
            for key, own in times.items():
                ratio = tuple(1 / r for r in own.ratio(base))
                lines.append([
                    str(n), key, str(len(own.each)), f"{own.median:.2f}",
                    shown((ratio[0], ratio[2], ratio[1])),
                ])  # fmt: skip
    header = ["N", "workers", "turns", "s", "efficiency"]
    rows(f"{given.reads} reads of 500 sweeps, two workers: median (quartiles)", header, lines)


if __name__ == "__main__":
    main()
