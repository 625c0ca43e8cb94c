"""Timing shared by the benchmarks: medians of alternating measurements, or the best of repeats."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple


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
    """The best time of each, measured in alternation, so that load affects all of them.

    Within a turn each runs ``repeats`` times in a row, with its data in the cache. On a busy
    machine, use the clock ``time.process_time``, which excludes other processes.
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


class Times(NamedTuple):
    """Seconds of one candidate in each turn."""

    each: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.each)

    def ratio(self, baseline: "Times") -> tuple[float, float, float]:
        """Median and quartiles of the ratio to a baseline timed in the same turns."""
        ratios = [a / b for a, b in zip(self.each, baseline.each, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return middle, low, high


def in_turns(
    works: Mapping[str, Callable[[], object]], seconds: float, least: int = 7
) -> dict[str, Times]:
    """Times of each, measured in alternation, so that load affects all of them.

    In its turn each runs twice and the second run counts, because the first finds caches and memory
    of another one.
    """
    times = {key: Times([]) for key in works}
    for work in works.values():
        work()
    begin = time.perf_counter()
    while len(next(iter(times.values())).each) < least or time.perf_counter() - begin < seconds:
        for key, work in works.items():
            work()
            start = time.perf_counter()
            work()
            times[key].each.append(time.perf_counter() - start)
    return times


def shown(ratio: tuple[float, float, float]) -> str:
    """A ratio with its quartiles."""
    return "{:.2f} ({:.2f}–{:.2f})".format(*ratio)


def rows(title: str, header: list[str], lines: list[list[str]]) -> None:
    """Prints a plain table."""
    widths = [max(len(line[i]) for line in [header, *lines]) for i in range(len(header))]
    print(f"\n{title}")
    for line in [header, ["-" * width for width in widths], *lines]:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
