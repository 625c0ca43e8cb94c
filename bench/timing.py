"""Timing shared by the benchmarks: the best of a few repeats, since these machines are noisy."""

import time
from collections.abc import Callable


def best_seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """The shortest of ``repeats`` timings of ``work()``."""
    timings = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        timings.append(time.perf_counter() - start)
    return min(timings)


def rows(title: str, header: list[str], lines: list[list[str]]) -> None:
    """Prints a plain table."""
    widths = [max(len(line[i]) for line in [header, *lines]) for i in range(len(header))]
    print(f"\n{title}")
    for line in [header, ["-" * width for width in widths], *lines]:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
