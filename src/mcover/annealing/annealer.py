"""Simulated annealing of ±1 weights: one copy, attracting replicas, or routed covers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcover import checks
from mcover.annealing.chunks import anneal_on
from mcover.annealing.graphs import METHOD, GraphReads
from mcover.annealing.options import (
    AnnealOptions,
    Energy,
    Improvement,
    Method,
    Order,
    Rule,
    bank_size,
)
from mcover.annealing.problems import Problem, Signs, as_signs, problem_of
from mcover.annealing.progress import check_callbacks, reporting
from mcover.annealing.reads import AnnealStatus, LocalReads, Run
from mcover.annealing.schedules import (
    AutoSchedule,
    Schedule,
    schedule_of,
    sweeps_of,
)
from mcover.annealing.tasks import check_executor
from mcover.annealing.trajectory import COURSE
from mcover.errors import McoverError, McoverWarning
from mcover.factor_graph import FactorGraph
from mcover.seeds import Seed, seed_sequence


def anneal(
    problem: Problem | FactorGraph | ArrayLike,
    labels: ArrayLike | Method | None = None,
    method: Method | None = None,
    *,
    hidden: int | None = None,
    schedule: Schedule | ArrayLike | Literal["auto"] | None = None,
    num_sweeps: int | None = None,
    rule: Rule = AnnealOptions.rule,
    energy: Energy = AnnealOptions.energy,
    order: Order = AnnealOptions.order,
    stop_at_zero: bool = AnnealOptions.stop_at_zero,
    improvement: Improvement = AnnealOptions.improvement,
    num_reads: int = 1,
    seed: Seed = None,
    initial_states: ArrayLike | None = None,
    record: int | Sequence[float] = 50,
    interrupt: Callable[[], bool] | None = None,
    progress: bool | Callable[[AnnealStatus], None] = False,
    workers: int | None = None,
    executor: Executor | None = None,
) -> Any:
    """Anneals ±1 weights of a perceptron or a committee machine, ``anneal(X, y)``.

    The defaults are the settings that did best in our study; ``anneal(problem,
    **vars(mcover.annealing.PAPER))`` uses the paper's.

    Args:
        problem: patterns (P, N) of two values (±1, 0 and 1, or bool); or a problem object from
            :func:`~mcover.teacher_student`, :class:`~mcover.Perceptron` or
            :class:`~mcover.Committee`, in which case the method may be the second argument; or a
            :class:`~mcover.FactorGraph`, which is annealed over its ``domains``.
        labels: the labels of the patterns, (P,), any two values; the second in sorted order is +1.
        method: :class:`~mcover.MCover`, :class:`~mcover.RSA` or :class:`~mcover.Vanilla`.
        hidden: the number K of hidden units; 1 by default, a perceptron.
        schedule: "auto" or an :class:`~mcover.annealing.AutoSchedule`, which derives temperatures
            from the data; or one temperature for each sweep of M · sites proposals, as a schedule
            such as :class:`~mcover.LinearSchedule` or as plain numbers.
        num_sweeps: the number of sweeps of the automatic schedule.
        rule: how flips are accepted. For this argument and the next four, see the fields of
            :class:`~mcover.annealing.AnnealOptions`.
        energy: the energy to minimise.
        order: the order of proposals in a sweep.
        stop_at_zero: whether to end a read at its first solution; for a graph, at an objective of
            zero, if no loss is negative.
        improvement: which flips the rule "descent" takes.
        num_reads: independent runs, each with its own start and routes.
        seed: the same seed gives bit-identical results with any number of workers, and read r does
            not depend on the number of reads.
        initial_states: ±1 weights to start from, shape (sites,), (M, sites) or (reads, M, sites);
            random and independent for each cover by default.
        record: the number of points of the trajectory to keep, or their temperatures.
        interrupt: a function that is called a few times a second; once it returns true, the run
            ends and returns its current state. Ctrl-C does the same.
        progress: True for a tqdm progress bar (temperature, energy, acceptance, time left), or a
            function that is called a few times a second with an
            :class:`~mcover.annealing.AnnealStatus`.
        workers: threads; one for each CPU by default.
        executor: any executor of ``concurrent.futures`` to use instead of threads, e.g. a process
            pool or Dask's ``client.get_executor()``. Reads are submitted in chunks, four for each
            of ``workers``; chunks of a killed worker run again.

    Returns:
        An :class:`~mcover.annealing.AnnealResult`, or a :class:`~mcover.annealing.GraphResult` for
        a factor graph.

    >>> import mcover
    >>> problem = mcover.teacher_student(51, alpha=3.0, seed=0)
    >>> result = mcover.anneal(problem, mcover.MCover(covers=3), num_sweeps=20, num_reads=4, seed=0)
    >>> result.weights.shape, result.collapsed.shape, result.energy.shape
    ((4, 3, 51), (4, 51), (4,))
    """
    if isinstance(labels, Method.__args__):
        if method is not None:
            raise McoverError(f"two methods were given, {labels!r} and {method!r}; write one.")
        labels, method = None, labels
    graph = problem if isinstance(problem, FactorGraph) else None
    if graph is not None and (labels is not None or hidden is not None):
        raise McoverError("a factor graph has no labels and no hidden units; leave them out.")
    data: Any = graph if graph is not None else problem_of(problem, labels, hidden)
    schedule = schedule_of(schedule, num_sweeps)
    if method is None:
        method = AnnealOptions.method if graph is None else METHOD
    options = AnnealOptions(method, schedule, rule, energy, order, stop_at_zero, improvement)
    if rule == "descent":
        if not isinstance(schedule, AutoSchedule):
            count = sweeps_of(schedule)
            _warn(f"its temperatures are not read, only their number, {count}", "num_sweeps")
        if method.coupling_growth:
            _warn("only the sign of a coupling counts, not its growth", "coupling_growth=0")
    num_reads = checks.check_int("num_reads", num_reads, 1)
    threads = checks.cpus() if workers is None else checks.check_int("workers", workers, 1)
    check_callbacks(interrupt, progress, "an AnnealStatus")
    executor = check_executor(executor)
    if graph is not None and executor is not None:
        raise McoverError("a factor graph is annealed on threads; leave executor out.")
    # Before anything is allocated for each read.
    if graph is None:
        _check_memory(data, options, num_reads, record, min(threads, num_reads))
    checks.check_memory(1024 * num_reads, f"{num_reads} reads", "take fewer reads")
    if graph is None:
        starts = _starts(initial_states, num_reads, method.covers, data.sites)
    seeds = seed_sequence(seed).spawn(num_reads)

    # The bar shows the share of the whole run, because reads end at different times.
    form = "{percentage:3.0f}%|{bar:10}| {desc} [{elapsed}<{remaining}]"
    with reporting(progress, form, lambda status: status.share) as show:
        if graph is not None:
            points_of = partial(_record_points, record)
            reads = GraphReads(graph, options, seeds, initial_states, points_of, threads)
            return reads.all(interrupt, show)
        from mcover.annealing.states import compile_kernels, pack_columns
        from mcover.annealing.temperatures import resolve

        compile_kernels(rule)
        columns = pack_columns(data.patterns, data.labels)
        known = resolve(options, data, columns)
        points = _record_points(record, known)
        run = Run(data, known, seeds, starts, points, columns)
        if executor is not None:
            return anneal_on(executor, run, workers, interrupt, show)
        return LocalReads(run, threads).all(interrupt, show)


def _warn(problem: str, write: str) -> None:
    warnings.warn(f"rule is 'descent': {problem}; write {write}.", McoverWarning, stacklevel=3)


def _check_memory(
    problem: Problem,
    options: AnnealOptions,
    reads: int,
    record: int | Sequence[float],
    threads: int,
) -> None:
    from mcover.annealing.states import state_bytes

    covers, bank = options.method.covers, bank_size(options.method, problem.sites)
    chain = state_bytes(problem.inputs, len(problem.patterns), problem.hidden, covers, bank)
    points = sweeps_of(options.schedule)
    if isinstance(record, int):
        points = min(record, points)
    of_a_read = covers * problem.sites + 8 * len(COURSE) * points + 56
    what = f"{reads} reads on {threads} threads, of {covers} covers and {bank} destinations"
    remedy = "take a smaller bank, fewer covers, reads or workers"
    checks.check_memory(threads * chain + reads * of_a_read, what, remedy)


def _record_points(record: int | Sequence[float], options: AnnealOptions) -> NDArray[np.int64]:
    """Indices of the sweeps after which the trajectory is kept."""
    temperatures = options.schedule.temperatures()
    if isinstance(record, Sequence | np.ndarray) and not isinstance(record, str | bytes):
        wanted = checks.check_floats("record", record, ndim=1)
        if options.rule == "descent":
            raise McoverError(
                "record gives temperatures, which descent does not have; write a number of points."
            )
        nearest = [int(np.argmin(np.abs(temperatures - value))) for value in wanted]
        return np.unique(np.array(nearest, dtype=np.int64))
    last = len(temperatures) - 1
    points = min(checks.check_int("record", record, 1), last + 1)
    return np.unique(np.linspace(0, last, points).round().astype(np.int64))


def _starts(initial_states: ArrayLike | None, reads: int, covers: int, sites: int) -> Signs | None:
    if initial_states is None:
        return None
    given = checks.check_floats("initial_states", initial_states)
    shapes = {1: (sites,), 2: (covers, sites), 3: (reads, covers, sites)}
    signs = as_signs("initial_states", given, shapes.get(given.ndim, shapes[3]))
    return np.broadcast_to(signs, (reads, covers, sites))
