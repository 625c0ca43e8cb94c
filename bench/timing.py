"""Timing shared by the benchmarks: the best of a few repeats, since these machines are noisy."""

import math
import time
from collections.abc import Callable, Mapping


def best_seconds(
    work: Callable[[], object], repeats: int = 5, clock: Callable[[], float] = time.perf_counter
) -> float:
    """The shortest of ``repeats`` timings of ``work()``."""
    timings = []
    for _ in range(repeats):
        start = clock()
        work()
        timings.append(clock() - start)
    return min(timings)


def best_in_turns(
    works: Mapping[object, Callable[[], object]],
    seconds: float,
    turns: int = 2,
    repeats: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[object, float]:
    """The best time of each; taking turns, so that a busy moment of the machine hits all.

    Within a turn each runs ``repeats`` times in a row, and finds its own data in the cache.
    On a busy machine ``time.process_time`` as the clock leaves out what others took.
    """
    best = dict.fromkeys(works, math.inf)
    for work in works.values():
        work()
    begin, done = time.perf_counter(), 0
    while done < turns or time.perf_counter() - begin < seconds:
        for key, work in works.items():
            best[key] = min(best[key], best_seconds(work, repeats, clock))
        done += 1
    return best


def rows(title: str, header: list[str], lines: list[list[str]]) -> None:
    """Prints a plain table."""
    widths = [max(len(line[i]) for line in [header, *lines]) for i in range(len(header))]
    print(f"\n{title}")
    for line in [header, ["-" * width for width in widths], *lines]:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
