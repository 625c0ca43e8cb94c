"""Independent reads of one annealing on the threads of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from mcover.annealing.options import AnnealOptions, bank_size, couplings_of
from mcover.annealing.problems import Problem, Signs
from mcover.annealing.result import AnnealResult, collapse_mean, collapse_sign
from mcover.annealing.tasks import POLL_SECONDS, next_slice
from mcover.annealing.trajectory import COURSE, Trajectory, select
from mcover.routing import draw_bank

_TOGETHER = 32  # points of a trajectory for which overlaps are computed in one product


@dataclass(frozen=True)
class AnnealStatus:
    """The progress of a run, passed to ``progress`` a few times a second."""

    reads_done: int
    reads: int
    share: float  # share of all sweeps done, 0 to 1
    temperature: float
    energy: float  # lifted, per cover and pattern, of the read that was updated last
    acceptance: float
    seconds: float
    seconds_left: float

    def __str__(self) -> str:
        done = f"reads {self.reads_done}/{self.reads}"
        if np.isnan(self.energy):
            return f"starting {done}"
        moves = f"energy {self.energy:.5f} accepted {self.acceptance:.0%}"
        return f"T {self.temperature:.3g} {moves} {done}"


class ThreadedReads:
    """The reads of one run on threads; every array has one entry for each read.

    No locks are needed, because a thread writes only the entries of its own read. The caller's
    thread reads them for the progress bar, where an outdated value does no harm. Compiled code runs
    without the GIL, in slices of sweeps; interrupts take effect between slices.
    """

    def __init__(
        self,
        options: AnnealOptions,
        seeds: Sequence[SeedSequence],
        points: NDArray[np.int64],
        threads: int,
        terms: int,
    ) -> None:
        """The temperatures of ``options`` are known; ``terms`` counts patterns or factors."""
        self.options, self.seeds, self.points, self.terms = options, seeds, points, terms
        self.reads, self.threads = len(seeds), min(threads, len(seeds))
        self.covers = options.method.covers
        self.temperatures, self.couplings = options.schedule.temperatures(), couplings_of(options)
        if options.rule == "descent":
            self.temperatures = np.zeros_like(self.temperatures)
        self.energy, self.acceptance = np.full((2, self.reads), np.nan)
        self.sweeps, self.proposals = np.zeros((2, self.reads), dtype=np.int64)
        self.seconds = np.zeros(self.reads)
        self.done = np.zeros(self.reads, dtype=bool)
        self.last = 0  # the read that was updated last
        blank = {name: np.full((self.reads, len(points)), np.nan) for name in COURSE}
        self.course = Trajectory(points, self.temperatures[points], **blank)
        # Sweeps at which compiled code must return: for records and redraws, and at the end.
        length = len(self.temperatures)
        self.redraw_every = options.method.redraw_every or length
        redraws = np.arange(self.redraw_every, length, self.redraw_every)
        self.stops = np.unique(np.concatenate([points + 1, redraws, [length]]))

    def read(self, read: int, seed: SeedSequence, halt: threading.Event) -> None:
        """Anneals one read; ends with what it has once ``halt`` is set."""
        raise NotImplementedError

    def result(self, interrupted: bool) -> Any:
        """The reads that were begun."""
        raise NotImplementedError

    def all(
        self,
        interrupt: Callable[[], bool] | None,
        progress: Callable[[AnnealStatus], None] | None,
    ) -> Any:
        """Runs all reads on threads while the caller's thread reports progress."""
        begin, halt = time.perf_counter(), threading.Event()
        with ThreadPoolExecutor(self.threads) as pool:
            try:
                running: set[Future[None]] = {
                    pool.submit(self.read, *task, halt) for task in enumerate(self.seeds)
                }
                while running and not halt.is_set():
                    finished, running = wait(running, POLL_SECONDS, return_when=FIRST_EXCEPTION)
                    for future in finished:
                        future.result()
                    if progress is not None:
                        progress(self._status(begin))
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
        if not np.any(self.sweeps):
            raise KeyboardInterrupt  # stopped before the first sweep: nothing to return
        return self.result(interrupted=halt.is_set())

    def stop_after(self, here: int, sweeps: int) -> int:
        """The end of a slice of at most ``sweeps`` sweeps from ``here``."""
        return min(here + sweeps, int(self.stops[np.searchsorted(self.stops, here, side="right")]))

    def point_at(self, here: int) -> int | None:
        """The point of the trajectory that is recorded after ``here`` sweeps."""
        point = int(np.searchsorted(self.points, here - 1))
        is_one = point < len(self.points) and self.points[point] == here - 1
        return point if is_one else None

    def energy_per_term(self, read: int) -> float:
        """Energy per cover and pattern, or per cover and factor."""
        return float(self.energy[read]) / (self.covers * self.terms)

    def _status(self, begin: float) -> AnnealStatus:
        elapsed = time.perf_counter() - begin
        share = float(self.sweeps.sum() / (self.reads * len(self.temperatures)))
        share = max(share, float(self.done.mean()))
        return AnnealStatus(
            reads_done=int(self.done.sum()),
            reads=self.reads,
            share=share,
            temperature=float(self.temperatures[max(int(self.sweeps[self.last]) - 1, 0)]),
            energy=self.energy_per_term(self.last),
            acceptance=float(self.acceptance[self.last]),
            seconds=elapsed,
            seconds_left=elapsed * (1 - share) / share if share else np.nan,
        )


@dataclass(frozen=True)
class Run:
    """The data of reads of ±1 patterns, for threads or an executor."""

    problem: Problem
    options: AnnealOptions  # with known temperatures
    seeds: Sequence[SeedSequence]  # of the reads
    starts: Signs | None  # (reads, M, sites); random if None
    points: NDArray[np.int64]  # sweeps after which the trajectory is recorded
    columns: NDArray[np.uint64]  # the packed patterns

    def part(self, reads: slice) -> Run:
        """Some of the reads."""
        starts = None if self.starts is None else np.ascontiguousarray(self.starts[reads])
        return replace(self, seeds=self.seeds[reads], starts=starts)


class LocalReads(ThreadedReads):
    """Reads of ±1 patterns."""

    def __init__(self, run: Run, threads: int) -> None:
        problem = run.problem
        super().__init__(run.options, run.seeds, run.points, threads, len(problem.patterns))
        self.problem, self.columns, self.starts = problem, run.columns, run.starts
        self.bank = bank_size(run.options.method, problem.sites)
        self.weights = np.zeros((self.reads, self.covers, problem.sites), dtype=np.int8)

    def read(self, read: int, seed: SeedSequence, halt: threading.Event) -> None:
        """Anneals one read; ends with what it has once ``halt`` is set."""
        from mcover.annealing.chain import generator
        from mcover.annealing.searches import run
        from mcover.annealing.states import make_state, random_weights

        begin = time.thread_time()
        problem, options, length = self.problem, self.options, len(self.temperatures)
        columns = self.columns
        route_seed, redraw_seed, chain_seed = seed.spawn(3)
        rng = generator(chain_seed)
        weights = random_weights(rng, self.covers, problem.sites)
        if self.starts is not None:
            weights = self.starts[read]
        bank = draw_bank(options.method.topology, self.covers, problem.sites, self.bank, route_seed)
        state = make_state(columns, *problem.size, bank.routes, weights, options.energy)
        here, slice_, accepted_since, proposals_since = 0, 1, 0, 0
        recorded: list[Signs] = []
        ended = False
        while here < length and not ended and not halt.is_set():
            if here and here % self.redraw_every == 0:
                bank = bank.redraw(redraw_seed.spawn(1)[0])
                state = make_state(
                    columns, *problem.size, bank.routes, state.weights, options.energy
                )
            there = self.stop_after(here, slice_)
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
                # A minimum along these routes need not be one after a redraw.
                stop_at_minimum=options.method.redraw_every is None,
            )
            made = len(done.energies)
            slice_ = next_slice(slice_, made, time.perf_counter() - since)
            accepted_since += int(done.accepted.sum())
            proposals_since += int(done.proposals.sum())
            ended = done.ended
            here += made
            self.energy[read] = float(done.energies[-1]) * state.unit
            self.acceptance[read] = accepted_since / max(proposals_since, 1)
            self.proposals[read] += done.proposals.sum()
            self.weights[read], self.sweeps[read], self.last = state.weights, here, read
            self.seconds[read] = time.thread_time() - begin
            if (point := self.point_at(here)) is not None:
                self.course.energy[read, point] = self.energy_per_term(read)
                self.course.acceptance[read, point] = self.acceptance[read]
                recorded.append(state.weights.copy())
                accepted_since = proposals_since = 0
                if len(recorded) == _TOGETHER:
                    self._overlaps(read, point + 1, recorded)
        self._overlaps(read, int(np.searchsorted(self.points, here)), recorded)
        self.done[read] = ended or here == length

    def result(self, interrupted: bool) -> AnnealResult:
        """The reads that were begun."""
        begun = self.sweeps > 0
        weights = self.weights[begun]
        mean, sign = collapse_mean(weights), collapse_sign(weights)
        collapsed_energy, training_errors, margin = self._collapsed(sign)
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
            trajectory=select(self.course, begun),
            options=self.options,
            patterns=self.terms,
            interrupted=interrupted,
        )

    def _collapsed(
        self, students: Signs
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
        """Energies, training errors and smallest margins of ±1 weights.

        They are read from the counters of a chain of one cover. ``Problem`` computes the same
        numbers, but by a matrix product that would start the threads of BLAS.
        """
        from mcover.annealing.states import margins, single

        chains = (single(self.columns, self.problem.size, one, "linear") for one in students)
        found = np.concatenate([margins(chain) for chain in chains])
        errors = np.sum(found <= 0, axis=-1)
        terms = self.problem.inputs if self.problem.hidden == 1 else self.problem.hidden
        scaled = found / np.sqrt(terms)
        if self.options.energy == "errors":
            return errors.astype(np.float64), errors, scaled.min(axis=-1)
        return np.maximum(0.0, -scaled).sum(axis=-1), errors, scaled.min(axis=-1)

    def _overlaps(self, read: int, end: int, recorded: list[Signs]) -> None:
        """Computes the overlaps of the recorded points before ``end``, and clears the list."""
        if not recorded:
            return
        weights, these = np.stack(recorded), slice(end - len(recorded), end)
        self.course.overlap[read, these] = self.problem.overlap(collapse_mean(weights))
        if self.covers > 1:
            self.course.cover_overlap[read, these] = cover_overlap(weights)
        recorded.clear()


def cover_overlap(weights: Signs) -> NDArray[np.float64]:
    """Mean of w_a·w_b / sites over the pairs of covers, shape (..., M, sites) → (...)."""
    covers, sites = weights.shape[-2:]
    total = weights.sum(axis=-2, dtype=np.int64)
    return (np.sum(total**2, axis=-1) / sites - covers) / (covers * (covers - 1))
