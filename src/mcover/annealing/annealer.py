"""Simulated annealing of ±1 weights: one copy, replicas that attract, or routed covers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import ArrayLike

from mcover.annealing.chains import Job, Status
from mcover.annealing.problems import Problem
from mcover.annealing.result import AnnealResult
from mcover.annealing.schedules import CustomSchedule, LinearSchedule, Schedule
from mcover.annealing.settings import Method, Settings
from mcover.errors import McoverError
from mcover.seeds import Seed, seed_sequence

_POLL_SECONDS = 0.2


def anneal(
    problem: Problem,
    method: Method = "mcover",
    *,
    schedule: Schedule | ArrayLike | None = None,
    num_sweeps: int | None = None,
    num_reads: int = 1,
    seed: Seed = None,
    initial_states: ArrayLike | None = None,
    record: int | Sequence[float] = 50,
    interrupt: Callable[[], bool] | None = None,
    progress: bool | Callable[[Status], None] = False,
    workers: int | None = None,
    **options: Any,
) -> AnnealResult:
    """Anneals a perceptron or a committee machine with ±1 weights.

    Args:
        problem: :func:`~mcover.teacher_student`, :class:`~mcover.Perceptron` or
            :class:`~mcover.Committee`.
        method: "mcover", "exact", "rsa" or "vanilla".
        schedule: temperatures, one a sweep; the paper's LinearSchedule(0.4, 0.01, 1e-4) by
            default. A plain sequence of numbers is taken as it is.
        num_sweeps: in place of a schedule: so many sweeps from T = 0.4 to 0.01, linearly.
        num_reads: independent runs, each with its own start and routes.
        seed: the same seed gives the same result, bit for bit, on any number of workers, and read
            r does not depend on how many reads there are.
        initial_states: ±1 weights to start from, shape (sites,), (M, sites) or (reads, M, sites);
            random and independent for each cover by default.
        record: how many points of the trajectory to keep, or the temperatures to keep.
        interrupt: called a few times a second; once it is true, the run ends with what it has.
            Ctrl-C does the same.
        progress: True for a live line on stderr (temperature, energy, acceptance, time left), or
            a function that is called a few times a second with a :class:`Status`.
        workers: threads; all cores by default.
        **options: covers, topology, bank, coupling, coupling_growth, redraw_every, energy, rule,
            order and stop_at_zero: see :class:`~mcover.annealing.settings.Settings`.

    >>> import mcover
    >>> problem = mcover.teacher_student(51, alpha=3.0, seed=0)
    >>> result = mcover.anneal(problem, covers=3, bank=4, num_sweeps=200, num_reads=4, seed=0)
    >>> result.weights.shape, result.collapsed.shape, result.energy.shape
    ((4, 3, 51), (4, 51), (4,))
    """
    if schedule is not None and num_sweeps is not None:
        raise McoverError("both schedule and num_sweeps were given; leave one of them out.")
    settings = Settings(method, schedule=_schedule(schedule, num_sweeps), **options)
    for name, count in (("num_reads", num_reads), ("workers", 1 if workers is None else workers)):
        if not isinstance(count, int | np.integer) or count < 1:
            raise McoverError(f"{name} is {count!r}; write a whole number of at least 1.")
    job = Job(problem, settings, num_reads, initial_states, record)
    threads = min(workers or os.cpu_count() or 1, num_reads)
    job.check_memory(threads)
    seeds = seed_sequence(seed).spawn(num_reads)
    if progress is True:
        from mcover.progress import live_line

        with live_line() as line:
            cut = _supervise(job, seeds, threads, interrupt, lambda at: line(at.share, str(at)))
    else:
        cut = _supervise(job, seeds, threads, interrupt, progress or None)
    return job.result(cut)


def _supervise(
    job: Job,
    seeds: list[SeedSequence],
    threads: int,
    interrupt: Callable[[], bool] | None,
    progress: Callable[[Status], None] | None,
) -> bool:
    """Runs all reads on threads while the caller's thread listens; true if cut short."""
    from mcover.annealing.states import compile_kernels, pack_columns

    compile_kernels()
    columns = pack_columns(job.problem.gauged)
    halt = threading.Event()
    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        try:
            running: set[Future[None]] = {
                pool.submit(job.run, read, seed, columns, halt) for read, seed in enumerate(seeds)
            }
            while running and not halt.is_set():
                finished, running = wait(running, _POLL_SECONDS, return_when=FIRST_EXCEPTION)
                for future in finished:
                    future.result()
                if progress is not None:
                    progress(job.status(begin))
                if interrupt is not None and running and interrupt():
                    halt.set()
        except KeyboardInterrupt:
            halt.set()
        except BaseException:
            halt.set()
            raise
        finally:
            if halt.is_set():
                pool.shutdown(wait=True, cancel_futures=True)
    return halt.is_set()


def _schedule(schedule: Schedule | ArrayLike | None, num_sweeps: int | None) -> Schedule:
    if num_sweeps is not None:
        if not isinstance(num_sweeps, int | np.integer) or num_sweeps < 1:
            raise McoverError(f"num_sweeps is {num_sweeps!r}; write a whole number, at least 1.")
        paper = LinearSchedule()
        if num_sweeps == 1:
            return CustomSchedule((paper.start,))
        step = (paper.start - paper.stop) / (num_sweeps - 1)
        return LinearSchedule(paper.start, paper.stop, step)
    if schedule is None:
        return LinearSchedule()
    if isinstance(schedule, Sequence | np.ndarray) and not isinstance(schedule, str):
        return CustomSchedule(tuple(np.asarray(schedule, dtype=float).tolist()))
    return schedule  # type: ignore[return-value]
