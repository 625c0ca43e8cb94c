"""Reads of one annealing on an executor: they go out in chunks, and come back as one result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from mcover.annealing.options import AnnealOptions
from mcover.annealing.problems import Problem, Signs
from mcover.annealing.reads import AnnealStatus, LocalReads
from mcover.annealing.result import AnnealResult
from mcover.annealing.tasks import IN_FLIGHT, run_tasks

_CHUNKS_PER_WORKER = 4  # so that a slow worker holds up a quarter of its share


def anneal_on(
    executor: Executor,
    problem: Problem,
    options: AnnealOptions,
    seeds: Sequence[SeedSequence],
    starts: Signs | None,
    points: NDArray[np.int64],
    columns: NDArray[np.uint64],
    workers: int | None,
    interrupt: Callable[[], bool] | None,
    progress: Callable[[AnnealStatus], None] | None,
) -> AnnealResult:
    """The result that :class:`LocalReads` would give, bit for bit."""
    count = IN_FLIGHT if workers is None else _CHUNKS_PER_WORKER * workers
    size = math.ceil(len(seeds) / count)
    parts = [slice(begin, begin + size) for begin in range(0, len(seeds), size)]
    waiting = iter(parts)
    found: dict[int, AnnealResult] = {}
    begin, interrupted = time.perf_counter(), False

    def next_task() -> tuple[Callable[..., AnnealResult], tuple[Any, ...]] | None:
        part = next(waiting, None)
        if part is None:
            return None
        start = None if starts is None else np.ascontiguousarray(starts[part])
        return _chunk, (problem, options, seeds[part], start, points, columns)

    def should_stop() -> bool:
        nonlocal interrupted
        if progress is not None:
            progress(_status(found, len(seeds), time.perf_counter() - begin))
        interrupted = interrupt is not None and interrupt()
        return interrupted

    try:
        run_tasks(executor, next_task, found.__setitem__, len(parts), should_stop)
    except KeyboardInterrupt:
        interrupted = True
    if not found:
        raise KeyboardInterrupt  # stopped before the first chunk: there is nothing to return
    if progress is not None:
        progress(_status(found, len(seeds), time.perf_counter() - begin))
    return joined([found[number] for number in sorted(found)], interrupted)


def _chunk(
    problem: Problem,
    options: AnnealOptions,
    seeds: Sequence[SeedSequence],
    starts: Signs | None,
    points: NDArray[np.int64],
    columns: NDArray[np.uint64],
) -> AnnealResult:
    from mcover.annealing.states import compile_kernels

    compile_kernels(options.rule)
    return LocalReads(problem, options, seeds, starts, points, 1, columns).all(None, None)


def joined(results: Sequence[AnnealResult], interrupted: bool) -> AnnealResult:
    """Results of the same options as one, in their order."""
    first = results[0]
    course = {
        name: np.concatenate([getattr(one.trajectory, name) for one in results])
        for name in ("energy", "acceptance", "overlap", "cover_overlap")
    }
    arrays: dict[str, Any] = {
        one.name: np.concatenate([getattr(result, one.name) for result in results])
        for one in fields(first)
        if isinstance(getattr(first, one.name), np.ndarray)
    }
    trajectory = replace(first.trajectory, **course)
    return replace(first, **arrays, trajectory=trajectory, interrupted=interrupted)


def _status(found: dict[int, AnnealResult], reads: int, seconds: float) -> AnnealStatus:
    done = sum(len(one.energy) for one in found.values())
    share = done / reads
    last = next(reversed(found.values())) if found else None
    return AnnealStatus(
        reads_done=done,
        reads=reads,
        share=share,
        temperature=float(last.trajectory.temperature[-1]) if last else math.nan,
        energy=float(last.trajectory.energy[-1, -1]) if last else math.nan,
        acceptance=float(last.trajectory.acceptance[-1, -1]) if last else math.nan,
        seconds=seconds,
        seconds_left=seconds * (1 - share) / share if share else math.nan,
    )
