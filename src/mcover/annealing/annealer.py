"""Simulated annealing of ±1 weights: one copy, replicas that attract, or routed covers."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import ArrayLike, NDArray

from mcover import checks
from mcover.annealing.options import (
    AnnealOptions,
    Energy,
    Improvement,
    LinearSchedule,
    Method,
    Order,
    Rule,
    Schedule,
    Temperatures,
    bank_size,
    couplings_of,
    schedule_of,
)
from mcover.annealing.problems import Problem, Signs, as_signs
from mcover.annealing.result import AnnealResult, collapse_mean, collapse_sign
from mcover.annealing.trajectory import Trajectory
from mcover.errors import McoverError, McoverWarning
from mcover.routing import draw_bank
from mcover.seeds import Seed, seed_sequence

_POLL_SECONDS = 0.2
_SLICE_SECONDS = 0.1  # of compiled code between two checks for an interrupt
_TOGETHER = 32  # points of a trajectory whose overlaps are computed in one go
_COURSE = ("energy", "acceptance", "overlap", "cover_overlap")


def anneal(
    problem: Problem,
    method: Method = AnnealOptions.method,
    *,
    schedule: Schedule | ArrayLike | None = None,
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
) -> AnnealResult:
    """Anneals a perceptron or a committee machine with ±1 weights.

    Args:
        problem: :func:`~mcover.teacher_student`, :class:`~mcover.Perceptron` or
            :class:`~mcover.Committee`.
        method: :class:`~mcover.MCover`, :class:`~mcover.RSA` or :class:`~mcover.Vanilla`.
        schedule: one temperature for each sweep of M · sites proposals, also as plain numbers; the
            paper's LinearSchedule(0.4, 0.01, 1e-4) by default.
        num_sweeps: in place of a schedule: so many sweeps from T = 0.4 to 0.01, linearly.
        rule: acceptance of flips. This and the next four are fields of
            :class:`~mcover.annealing.AnnealOptions`, which has their defaults and values.
        energy: what is minimised.
        order: of proposals in a sweep.
        stop_at_zero: whether to end a read at its first solution.
        improvement: which flips descent takes.
        num_reads: independent runs, each with its own start and routes.
        seed: the same seed gives the same bits on any number of workers, and read r does not depend
            on how many reads there are.
        initial_states: ±1 weights to start from, shape (sites,), (M, sites) or (reads, M, sites);
            random and independent for each cover by default.
        record: how many points of the trajectory to keep, or the temperatures to keep.
        interrupt: called a few times a second; once it is true, the run ends with what it has.
            Ctrl-C does the same.
        progress: True for a progress bar of tqdm's (temperature, energy, acceptance, time left),
            or a function that is called a few times a second with an
            :class:`~mcover.annealing.AnnealStatus`.
        workers: threads; one for each CPU by default.

    >>> import mcover
    >>> problem = mcover.teacher_student(51, alpha=3.0, seed=0)
    >>> result = mcover.anneal(problem, mcover.MCover(covers=3), num_sweeps=20, num_reads=4, seed=0)
    >>> result.weights.shape, result.collapsed.shape, result.energy.shape
    ((4, 3, 51), (4, 51), (4,))
    """
    checks.check_instance(
        "problem", problem, Problem, "mcover.teacher_student(1001, 1.5), for example"
    )
    schedule = schedule_of(schedule, num_sweeps)
    options = AnnealOptions(method, schedule, rule, energy, order, stop_at_zero, improvement)
    if rule == "descent":
        if num_sweeps is None and schedule != LinearSchedule():
            _warn(
                f"its temperatures are not read, only their number, {len(schedule.temperatures())}",
                "num_sweeps",
            )
        if method.coupling_growth:
            _warn("only the sign of a coupling counts, not its growth", "coupling_growth=0")
    num_reads = checks.check_int("num_reads", num_reads, 1)
    threads = checks.cpus() if workers is None else checks.check_int("workers", workers, 1)
    if interrupt is not None:
        checks.check_callable("interrupt", interrupt, "a function that says when to stop, or None")
    if not isinstance(progress, bool):
        checks.check_callable("progress", progress, "True, False or a function of an AnnealStatus")
    run = _Annealing(problem, options, num_reads, initial_states, record, min(threads, num_reads))
    seeds = seed_sequence(seed).spawn(num_reads)
    if progress is not True:
        return run.all(seeds, interrupt, progress or None)
    from tqdm.auto import tqdm

    # The bar counts shares of the whole run, because reads end at different times.
    form = "{percentage:3.0f}%|{bar:10}| {desc} [{elapsed}<{remaining}]"
    with tqdm(total=1.0, bar_format=form, desc="starting") as bar:

        def show(at: AnnealStatus) -> None:
            bar.set_description_str(str(at), refresh=False)
            bar.update(at.share - bar.n)

        return run.all(seeds, interrupt, show)


@dataclass(frozen=True)
class AnnealStatus:
    """How far a run is: passed to ``progress`` a few times a second."""

    reads_done: int
    reads: int
    share: float  # of all sweeps that are done, 0 to 1
    temperature: float
    energy: float  # lifted, per cover and pattern, of the read that moved last
    acceptance: float
    seconds: float
    seconds_left: float

    def __str__(self) -> str:
        done = f"reads {self.reads_done}/{self.reads}"
        if np.isnan(self.energy):
            return f"starting {done}"
        moves = f"energy {self.energy:.5f} accepted {self.acceptance:.0%}"
        return f"T {self.temperature:.3g} {moves} {done}"


class _Annealing:
    """What the threads share: the problem, and for each read a row in every array."""

    def __init__(
        self,
        problem: Problem,
        options: AnnealOptions,
        reads: int,
        initial_states: ArrayLike | None,
        record: int | Sequence[float],
        threads: int,
    ) -> None:
        from mcover.annealing.states import state_bytes

        self.problem, self.options, self.reads, self.threads = problem, options, reads, threads
        self.covers, self.bank = options.method.covers, bank_size(options.method, problem.sites)
        self.temperatures, self.couplings = options.schedule.temperatures(), couplings_of(options)
        if options.rule == "descent":
            self.temperatures = np.zeros_like(self.temperatures)
        self.points = _record_points(record, self.temperatures)
        self.size = (len(problem.patterns), problem.hidden, problem.inputs)
        chain = state_bytes(problem.inputs, *self.size[:2], self.covers, self.bank)
        of_a_read = self.covers * problem.sites + 8 * len(_COURSE) * len(self.points) + 56
        what = f"{reads} reads on {threads} threads, of {self.covers} covers and {self.bank} "
        remedy = "take a smaller bank, fewer covers, reads or workers"
        checks.check_memory(threads * chain + reads * of_a_read, what + "destinations", remedy)
        self.starts = _starts(initial_states, reads, self.covers, problem.sites)
        self.weights = np.zeros((reads, self.covers, problem.sites), dtype=np.int8)
        self.energy, self.acceptance = np.full((2, reads), np.nan)
        self.sweeps, self.proposals = np.zeros((2, reads), dtype=np.int64)
        self.seconds = np.zeros(reads)
        self.done = np.zeros(reads, dtype=bool)
        self.last = 0  # the read that moved last
        blank = {name: np.full((reads, len(self.points)), np.nan) for name in _COURSE}
        self.course = Trajectory(self.points, self.temperatures[self.points], **blank)

    def all(
        self,
        seeds: list[SeedSequence],
        interrupt: Callable[[], bool] | None,
        progress: Callable[[AnnealStatus], None] | None,
    ) -> AnnealResult:
        """Runs all reads on threads while the caller's thread listens."""
        from mcover.annealing.states import compile_kernels, pack_columns

        compile_kernels(self.options.rule)
        self.columns = pack_columns(self.problem.gauged)
        halt = threading.Event()
        begin = time.perf_counter()
        with ThreadPoolExecutor(self.threads) as pool:
            try:
                running: set[Future[None]] = {
                    pool.submit(self.read, read, seed, halt) for read, seed in enumerate(seeds)
                }
                while running and not halt.is_set():
                    finished, running = wait(running, _POLL_SECONDS, return_when=FIRST_EXCEPTION)
                    for future in finished:
                        future.result()
                    if progress is not None:
                        progress(self.status(begin))
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
        return self.result(interrupted=halt.is_set())

    def read(self, read: int, seed: SeedSequence, halt: threading.Event) -> None:
        """Anneals one read; looks at ``halt`` between slices of about a tenth of a second."""
        from mcover.annealing.searches import run
        from mcover.annealing.states import make_state, random_weights

        begin = time.thread_time()
        problem, options, length = self.problem, self.options, len(self.temperatures)
        columns = self.columns
        redraw_every = options.method.redraw_every or length
        route_seed, redraw_seed, chain_seed = seed.spawn(3)
        rng = chain_seed.generate_state(4, np.uint64).astype(np.uint64)
        weights = random_weights(rng, self.covers, problem.sites)
        if self.starts is not None:
            weights = self.starts[read]
        bank = draw_bank(options.method.topology, self.covers, problem.sites, self.bank, route_seed)
        state = make_state(columns, *self.size, bank.routes, weights, options.energy)
        # Where compiled code must come back: records, redraws, the end.
        redraws = np.arange(redraw_every, length, redraw_every)
        stops = np.unique(np.concatenate([self.points + 1, redraws, [length]]))
        here, slice_, accepted_since, proposals_since = 0, 1, 0, 0
        recorded: list[Signs] = []
        over = False
        while here < length and not over and not halt.is_set():
            if here and here % redraw_every == 0:
                bank = bank.redraw(redraw_seed.spawn(1)[0])
                state = make_state(columns, *self.size, bank.routes, state.weights, options.energy)
            there = min(here + slice_, int(stops[np.searchsorted(stops, here, side="right")]))
            since = time.perf_counter()
            done = run(
                state,
                self.temperatures[here:there],
                self.couplings[here:there],
                rng,
                options.rule,
                options.order,
                options.improvement,
                options.stop_at_zero,
                # Fresh routes lead out of a minimum.
                stop_at_minimum=options.method.redraw_every is None,
            )
            made, took = len(done.energies), max(time.perf_counter() - since, 1e-6)
            slice_ = max(1, min(2 * slice_, int(made * _SLICE_SECONDS / took)))
            accepted_since += int(done.accepted.sum())
            proposals_since += int(done.proposals.sum())
            over = done.over
            here += made
            self.energy[read] = float(done.energies[-1]) * state.unit
            self.acceptance[read] = accepted_since / max(proposals_since, 1)
            self.proposals[read] += done.proposals.sum()
            self.weights[read], self.sweeps[read], self.last = state.weights, here, read
            self.seconds[read] = time.thread_time() - begin
            point = int(np.searchsorted(self.points, here - 1))
            if point < len(self.points) and self.points[point] == here - 1:
                self.course.energy[read, point] = self.energy[read] / (self.covers * self.size[0])
                self.course.acceptance[read, point] = self.acceptance[read]
                recorded.append(state.weights.copy())
                accepted_since = proposals_since = 0
                if len(recorded) == _TOGETHER:
                    self._overlaps(read, point + 1, recorded)
        self._overlaps(read, int(np.searchsorted(self.points, here)), recorded)
        self.done[read] = over or here == length

    def result(self, interrupted: bool) -> AnnealResult:
        """Gathers the reads that were begun."""
        begun = self.sweeps > 0
        if not np.any(begun):
            raise KeyboardInterrupt  # stopped before the first sweep: there is nothing to return
        weights = self.weights[begun]
        mean, sign = collapse_mean(weights), collapse_sign(weights)
        collapsed_energy, training_errors, margin = self._collapsed(sign)
        course = {name: getattr(self.course, name)[begun] for name in _COURSE}
        return AnnealResult(
            weights=weights,
            energy=self.energy[begun],
            collapsed_energy=collapsed_energy,
            training_errors=training_errors,
            margin=margin,
            overlap=self.problem.overlap(mean),
            generalization_error=self.problem.generalization_error(mean),
            proposals=self.proposals[begun],
            seconds=self.seconds[begun],
            sweeps=self.sweeps[begun],
            finished=self.done[begun],
            trajectory=replace(self.course, **course),
            options=self.options,
            patterns=self.size[0],
            interrupted=interrupted,
        )

    def _collapsed(
        self, students: Signs
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
        """Energies, training errors and smallest margins of ±1 weights.

        Each is a chain of one cover that never moves. The numbers are those of ``Problem``, which
        would ask BLAS for one product and wake its threads.
        """
        from mcover.annealing.states import make_state, margins

        itself = np.zeros((1, self.problem.sites, 1), dtype=np.uint8)
        chains = (make_state(self.columns, *self.size, itself, one[None]) for one in students)
        found = np.concatenate([margins(chain) for chain in chains])
        errors = np.sum(found <= 0, axis=-1)
        terms = self.problem.inputs if self.problem.hidden == 1 else self.problem.hidden
        scaled = found / np.sqrt(terms)
        if self.options.energy == "errors":
            return errors.astype(np.float64), errors, scaled.min(axis=-1)
        return np.maximum(0.0, -scaled).sum(axis=-1), errors, scaled.min(axis=-1)

    def status(self, begin: float) -> AnnealStatus:
        """A snapshot for the progress bar."""
        elapsed = time.perf_counter() - begin
        share = float(self.sweeps.sum() / (self.reads * len(self.temperatures)))
        share = max(share, float(self.done.mean()))
        at = max(int(self.sweeps[self.last]) - 1, 0)
        return AnnealStatus(
            reads_done=int(self.done.sum()),
            reads=self.reads,
            share=share,
            temperature=float(self.temperatures[at]),
            energy=float(self.energy[self.last]) / (self.covers * self.size[0]),
            acceptance=float(self.acceptance[self.last]),
            seconds=elapsed,
            seconds_left=elapsed * (1 - share) / share if share else np.nan,
        )

    def _overlaps(self, read: int, end: int, recorded: list[Signs]) -> None:
        """Fills in the overlaps of the last recorded points before ``end``, and forgets them."""
        if not recorded:
            return
        weights, these = np.stack(recorded), slice(end - len(recorded), end)
        self.course.overlap[read, these] = self.problem.overlap(collapse_mean(weights))
        if self.covers > 1:
            self.course.cover_overlap[read, these] = cover_overlap(weights)
        recorded.clear()


def _warn(problem: str, write: str) -> None:
    warnings.warn(f"rule is 'descent': {problem}; write {write}.", McoverWarning, stacklevel=3)


def cover_overlap(weights: Signs) -> NDArray[np.float64]:
    """Mean of w_a·w_b / sites over the pairs of covers, shape (..., M, sites) → (...)."""
    covers, sites = weights.shape[-2:]
    total = weights.sum(axis=-2, dtype=np.int64)
    return (np.sum(total**2, axis=-1) / sites - covers) / (covers * (covers - 1))


def _record_points(record: int | Sequence[float], temperatures: Temperatures) -> NDArray[np.int64]:
    """Indices of the sweeps after which the trajectory is kept."""
    if isinstance(record, Sequence | np.ndarray) and not isinstance(record, str | bytes):
        wanted = checks.check_floats("record", record, ndim=1)
        if not temperatures.any():
            raise McoverError(
                "record has temperatures, and descent none; write a number of points."
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
