"""Time and memory of ``solve`` for many patterns.

    python bench/large.py [N:P ...]

Each size runs in a separate process. Peaks are the memory of the process beyond that after loading
libraries and compiling kernels. They include the patterns, one byte each.
"""

import argparse
import resource
import subprocess
import sys
import time

import mcover
from timing import rows

SIZES = ("2501:4500", "5001:9000", "10001:18000", "2001:25000", "2001:50000", "2001:100000")


def peak() -> float:
    """Megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def one(size: str) -> None:
    n, patterns = map(int, size.split(":"))
    mcover.solve(mcover.teacher_student(101, 3.0, seed=0), seed=0)
    before = peak()
    problem = mcover.teacher_student(n, patterns / n, seed=0)
    made, begin = peak(), time.perf_counter()
    found = mcover.solve(problem, seed=0, workers=1, time_limit=100)
    seconds = time.perf_counter() - begin
    cells = [f"{n:,}", f"{patterns:,}", f"{n * patterns / 1e6:.0f}", f"{made - before:.0f}",
             f"{peak() - before:.0f}", f"{found.core_seconds:.2f}", f"{seconds:.2f}",
             "yes" if found.solved else "no", str(found.restarts)]  # fmt: skip
    print("\t".join(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sizes", nargs="*", default=SIZES, metavar="N:P")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        one(given.one)
        return
    lines = []
    for size in given.sizes:
        run = [sys.executable, __file__, "--one", size]
        done = subprocess.run(run, capture_output=True, text=True, check=True)
        lines.append(done.stdout.strip().split("\t"))
    rows(
        "solve, perceptrons with a teacher, one thread",
        ["N", "P", "MB of patterns", "MB peak made", "MB peak solved", "core s", "s", "solved",
         "restarts"],
        lines,
    )  # fmt: skip


if __name__ == "__main__":
    main()
