"""Independent reads of one annealing on the threads of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from mcover.annealing.options import AnnealOptions, bank_size, couplings_of
from mcover.annealing.problems import Problem, Signs
from mcover.annealing.result import AnnealResult, collapse_mean, collapse_sign
from mcover.annealing.trajectory import Trajectory
from mcover.routing import draw_bank

_POLL_SECONDS = 0.2
_SLICE_SECONDS = 0.1  # how long compiled code runs before it looks up
_TOGETHER = 32  # points of a trajectory whose overlaps are computed in one go
COURSE = ("energy", "acceptance", "overlap", "cover_overlap")


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


def listen(
    threads: int,
    read: Callable[[int, SeedSequence, threading.Event], None],
    tasks: Sequence[tuple[int, SeedSequence]],
    interrupt: Callable[[], bool] | None,
    show: Callable[[], None] | None,
) -> bool:
    """Runs reads on threads while the caller's thread listens; returns whether it was interrupted.

    Each read looks at the event, and ends with what it has once that is set.
    """
    halt = threading.Event()
    with ThreadPoolExecutor(threads) as pool:
        try:
            running: set[Future[None]] = {pool.submit(read, *task, halt) for task in tasks}
            while running and not halt.is_set():
                finished, running = wait(running, _POLL_SECONDS, return_when=FIRST_EXCEPTION)
                for future in finished:
                    future.result()
                if show is not None:
                    show()
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


class LocalReads:
    """What the threads share: the problem, and for each read a row in every array."""

    def __init__(
        self,
        problem: Problem,
        options: AnnealOptions,
        seeds: Sequence[SeedSequence],
        starts: Signs | None,
        points: NDArray[np.int64],
        threads: int,
        columns: NDArray[np.uint64],
    ) -> None:
        """Of options whose temperatures are known; starts are (reads, M, sites)."""
        self.problem, self.options, self.seeds, self.columns = problem, options, seeds, columns
        self.starts, self.points, self.reads = starts, points, len(seeds)
        self.threads = min(threads, self.reads)
        self.covers, self.bank = options.method.covers, bank_size(options.method, problem.sites)
        self.size = (len(problem.patterns), problem.hidden, problem.inputs)
        self.temperatures, self.couplings = options.schedule.temperatures(), couplings_of(options)
        if options.rule == "descent":
            self.temperatures = np.zeros_like(self.temperatures)
        self.weights = np.zeros((self.reads, self.covers, problem.sites), dtype=np.int8)
        self.energy, self.acceptance = np.full((2, self.reads), np.nan)
        self.sweeps, self.proposals = np.zeros((2, self.reads), dtype=np.int64)
        self.seconds = np.zeros(self.reads)
        self.done = np.zeros(self.reads, dtype=bool)
        self.last = 0  # the read that moved last
        blank = {name: np.full((self.reads, len(self.points)), np.nan) for name in COURSE}
        self.course = Trajectory(self.points, self.temperatures[self.points], **blank)

    def all(
        self,
        interrupt: Callable[[], bool] | None,
        progress: Callable[[AnnealStatus], None] | None,
    ) -> AnnealResult:
        """Runs all reads on threads while the caller's thread listens."""
        begin = time.perf_counter()
        show = None if progress is None else lambda: progress(self.status(begin))
        tasks = list(enumerate(self.seeds))
        return self.result(interrupted=listen(self.threads, self.read, tasks, interrupt, show))

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
        course = {name: getattr(self.course, name)[begun] for name in COURSE}
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


def cover_overlap(weights: Signs) -> NDArray[np.float64]:
    """Mean of w_a·w_b / sites over the pairs of covers, shape (..., M, sites) → (...)."""
    covers, sites = weights.shape[-2:]
    total = weights.sum(axis=-2, dtype=np.int64)
    return (np.sum(total**2, axis=-1) / sites - covers) / (covers * (covers - 1))
