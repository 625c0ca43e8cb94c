"""Runs the reads of one annealing on an executor, in chunks that are joined to one result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any

import numpy as np

from mcover.annealing.reads import AnnealStatus, LocalReads, Run
from mcover.annealing.result import ARRAYS, AnnealResult
from mcover.annealing.tasks import IN_FLIGHT, run_tasks
from mcover.annealing.trajectory import joined

_CHUNKS_PER_WORKER = 4  # so that others can take over most of the share of a slow worker


def anneal_on(
    executor: Executor,
    run: Run,
    workers: int | None,
    interrupt: Callable[[], bool] | None,
    progress: Callable[[AnnealStatus], None] | None,
) -> AnnealResult:
    """The same result as that of :class:`LocalReads`, bit for bit.

    The division into chunks cannot change it, because each read has its own seed and shares no
    other random numbers.
    """
    reads = len(run.seeds)
    count = IN_FLIGHT if workers is None else _CHUNKS_PER_WORKER * workers
    size = math.ceil(reads / count)
    parts = [slice(begin, begin + size) for begin in range(0, reads, size)]
    waiting = iter(parts)
    found: dict[int, AnnealResult] = {}
    begin, interrupted = time.perf_counter(), False

    def next_task() -> tuple[Callable[..., AnnealResult], tuple[Any, ...]] | None:
        part = next(waiting, None)
        return None if part is None else (_anneal_chunk, (run.part(part),))

    def should_stop() -> bool:
        nonlocal interrupted
        if progress is not None:
            progress(_status(found, reads, time.perf_counter() - begin))
        interrupted = interrupt is not None and interrupt()
        return interrupted

    try:
        run_tasks(executor, next_task, found.__setitem__, len(parts), should_stop)
    except KeyboardInterrupt:
        interrupted = True
    if not found:
        raise KeyboardInterrupt  # stopped before the first chunk ended: nothing to return
    if progress is not None:
        progress(_status(found, reads, time.perf_counter() - begin))
    return _joined([found[number] for number in sorted(found)], interrupted)


def _anneal_chunk(run: Run) -> AnnealResult:
    """Runs in a worker, on one thread."""
    from mcover.annealing.states import compile_kernels

    compile_kernels(run.options.rule)
    result: AnnealResult = LocalReads(run, 1).all(None, None)
    return result


def _joined(results: Sequence[AnnealResult], interrupted: bool) -> AnnealResult:
    """Joins results of the same options, in their order."""
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(one, name) for one in results]) for name in ARRAYS
    }
    course = joined([one.trajectory for one in results])
    return replace(results[0], **arrays, trajectory=course, interrupted=interrupted)


def _status(found: dict[int, AnnealResult], reads: int, seconds: float) -> AnnealStatus:
    """Progress so far; temperature, energy and acceptance are those of the last chunk."""
    done = sum(len(one.energy) for one in found.values())
    share = done / reads
    last = next(reversed(found.values())).trajectory if found else None
    return AnnealStatus(
        reads_done=done,
        reads=reads,
        share=share,
        temperature=float(last.temperature[-1]) if last else math.nan,
        energy=float(last.energy[-1, -1]) if last else math.nan,
        acceptance=float(last.acceptance[-1, -1]) if last else math.nan,
        seconds=seconds,
        seconds_left=seconds * (1 - share) / share if share else math.nan,
    )
