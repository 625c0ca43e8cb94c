"""The chains of one run: what the threads share, and the loop that anneals one read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import ArrayLike, NDArray

from mcover import checks
from mcover.annealing.problems import Problem, Signs, as_signs
from mcover.annealing.result import AnnealResult, Trajectory, collapse_mean, collapse_sign
from mcover.annealing.settings import Settings
from mcover.errors import McoverError
from mcover.routing import draw_bank
from mcover.topology import Identity

_SLICE_SECONDS = 0.1  # how long compiled code runs before it looks up


@dataclass(frozen=True)
class Status:
    """Where a run is: handed to ``progress`` a few times a second."""

    reads_done: int
    reads: int
    share: float
    """Share of all sweeps that are done, 0 to 1."""
    temperature: float
    energy: float
    """Lifted energy per cover and pattern of the read that moved last."""
    acceptance: float
    seconds: float
    seconds_left: float

    def __str__(self) -> str:
        return (
            f"T {self.temperature:.4f}  energy {self.energy:.5f}  "
            f"accepted {self.acceptance:5.1%}  reads {self.reads_done}/{self.reads}"
        )


class Job:
    """What the threads share: the packed problem, and for each read a row in every array."""

    def __init__(
        self,
        problem: Problem,
        settings: Settings,
        reads: int,
        initial_states: ArrayLike | None,
        record: int | Sequence[float],
    ) -> None:
        self.problem, self.settings, self.reads = problem, settings, reads
        self.covers = int(settings.covers or 1)
        self.bank = settings.bank_size(problem.sites)
        self.temperatures, self.couplings = settings.temperatures(), settings.couplings()
        self.points = _record_points(record, self.temperatures)
        self.starts = _starts(initial_states, reads, self.covers, problem.sites)
        shape = (reads, len(self.points))
        self.weights = np.zeros((reads, self.covers, problem.sites), dtype=np.int8)
        self.energy = np.full(reads, np.nan)
        self.acceptance = np.full(reads, np.nan)
        self.sweeps = np.zeros(reads, dtype=np.int64)
        self.seconds = np.zeros(reads)
        self.done = np.zeros(reads, dtype=bool)
        self.last = 0
        self.course = {
            name: np.full(shape, np.nan)
            for name in ("energy", "acceptance", "overlap", "cover_overlap")
        }

    def check_memory(self, threads: int) -> None:
        from mcover.annealing.states import state_bytes

        size = (len(self.problem.patterns), self.problem.hidden, self.covers, self.bank)
        chain = state_bytes(self.problem.inputs, *size)
        rest = self.weights.nbytes + sum(array.nbytes for array in self.course.values())
        checks.memory(
            threads * chain + rest,
            f"{threads} chains of {self.covers} covers and {self.bank} destinations",
            "take a smaller bank, fewer covers or fewer workers",
        )

    def run(self, read: int, seed: SeedSequence, columns: NDArray[np.uint64], halt: Any) -> None:
        """Anneals one read; looks at ``halt`` between slices of about a tenth of a second."""
        from mcover.annealing.kernels import (
            GLAUBER,
            METROPOLIS,
            RANDOM,
            SEQUENTIAL,
            advance,
        )
        from mcover.annealing.states import make_state
        from mcover.annealing.xoshiro import random_weights

        begin = time.thread_time()
        problem, settings = self.problem, self.settings
        route_seed, redraw_seed, chain_seed = seed.spawn(3)
        rng = chain_seed.generate_state(4, np.uint64).astype(np.uint64)
        weights = random_weights(rng, self.covers, problem.sites)
        if self.starts is not None:
            weights = self.starts[read]
        rule = GLAUBER if settings.rule == "glauber" else METROPOLIS
        order = RANDOM if settings.order == "random" else SEQUENTIAL
        size = (len(problem.patterns), problem.hidden, problem.inputs)
        bank = draw_bank(
            settings.topology or Identity(), self.covers, problem.sites, self.bank, route_seed
        )
        state = make_state(columns, *size, bank.routes, weights, settings.energy)
        stops = _stops(self.points, settings.redraw_every, len(self.temperatures))
        slice_, accepted_since, sweeps_since = 1, 0, 0
        while self.sweeps[read] < len(self.temperatures) and not halt.is_set():
            here = int(self.sweeps[read])
            if settings.redraw_every and here and here % settings.redraw_every == 0:
                bank = bank.redraw(redraw_seed.spawn(1)[0])
                state = make_state(columns, *size, bank.routes, state.weights, settings.energy)
            there = min(here + slice_, stops[np.searchsorted(stops, here, side="right")])
            since = time.perf_counter()
            accepted, energies = advance(
                state,
                self.temperatures[here:there],
                self.couplings[here:there],
                rule,
                order,
                rng,
                settings.stop_at_zero,
            )
            made = len(accepted)
            now = time.perf_counter()
            slice_ = max(1, min(2 * slice_, int(made * _SLICE_SECONDS / max(now - since, 1e-6))))
            accepted_since, sweeps_since = accepted_since + int(accepted.sum()), sweeps_since + made
            share = accepted_since / (sweeps_since * self.covers * problem.sites)
            self.energy[read] = float(energies[-1]) * state.unit
            self.acceptance[read] = share
            self.weights[read] = state.weights
            self.sweeps[read] = here + made
            self.seconds[read] = time.thread_time() - begin
            self.last = read
            point = np.searchsorted(self.points, here + made - 1)
            if point < len(self.points) and self.points[point] == here + made - 1:
                self._record(read, int(point), share)
                accepted_since = sweeps_since = 0
            if made < there - here or (settings.stop_at_zero and energies[-1] == 0):
                break
        self.done[read] = not halt.is_set()

    def result(self, interrupted: bool) -> AnnealResult:
        """Gathers the reads that were begun."""
        begun = self.sweeps > 0
        if not np.any(begun):
            raise KeyboardInterrupt  # stopped before the first sweep: there is nothing to return
        weights = self.weights[begun]
        mean, sign = collapse_mean(weights), collapse_sign(weights)
        course = {name: array[begun] for name, array in self.course.items()}
        sites = self.covers * self.problem.sites
        return AnnealResult(
            weights=weights,
            energy=self.energy[begun],
            collapsed_energy=self.problem.energy(sign, self.settings.energy),
            training_errors=self.problem.training_errors(sign),
            overlap=self.problem.overlap(mean),
            generalization_error=self.problem.generalization_error(mean),
            proposals=self.sweeps[begun] * sites,
            seconds=self.seconds[begun],
            sweeps=self.sweeps[begun],
            trajectory=Trajectory(self.points, self.temperatures[self.points], **course),
            settings=self.settings.to_dict(),
            interrupted=interrupted,
        )

    def status(self, begin: float) -> Status:
        """A snapshot for the progress line."""
        elapsed = time.perf_counter() - begin
        share = float(self.sweeps.sum() / (self.reads * len(self.temperatures)))
        share = max(share, float(self.done.mean()))
        at = max(int(self.sweeps[self.last]) - 1, 0)
        return Status(
            reads_done=int(self.done.sum()),
            reads=self.reads,
            share=share,
            temperature=float(self.temperatures[at]),
            energy=self._per_pattern(self.energy[self.last]),
            acceptance=float(self.acceptance[self.last]),
            seconds=elapsed,
            seconds_left=elapsed * (1 - share) / share if share else np.nan,
        )

    def _per_pattern(self, energy: float) -> float:
        return float(energy) / (self.covers * len(self.problem.patterns))

    def _record(self, read: int, point: int, acceptance: float) -> None:
        weights = self.weights[read]
        self.course["energy"][read, point] = self._per_pattern(self.energy[read])
        self.course["acceptance"][read, point] = acceptance
        self.course["overlap"][read, point] = self.problem.overlap(collapse_mean(weights))
        if self.covers > 1:
            self.course["cover_overlap"][read, point] = cover_overlap(weights)


def cover_overlap(weights: Signs) -> float:
    """Mean of w_a·w_b / sites over the pairs of covers, from weights (M, sites)."""
    covers, sites = weights.shape
    total = weights.sum(axis=0, dtype=np.int64)
    return float((np.sum(total**2) / sites - covers) / (covers * (covers - 1)))


def _record_points(
    record: int | Sequence[float], temperatures: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Indices of the sweeps after which the trajectory is kept."""
    last = len(temperatures) - 1
    if isinstance(record, int | np.integer):
        if record < 1:
            raise McoverError(f"record is {record!r}; write at least 1 point, or temperatures.")
        return np.unique(np.linspace(0, last, min(record, last + 1)).round().astype(np.int64))
    wanted = np.asarray(record, dtype=float)
    if wanted.ndim != 1 or not wanted.size or not np.all(np.isfinite(wanted)):
        raise McoverError(f"record is {record!r}; write a number of points, or temperatures.")
    nearest = [int(np.argmin(np.abs(temperatures - value))) for value in wanted]
    return np.unique(np.array(nearest, dtype=np.int64))


def _stops(points: NDArray[np.int64], redraw_every: int | None, sweeps: int) -> NDArray[np.int64]:
    """Sweep counts at which compiled code must come back: records, redraws, the end."""
    redraws = np.arange(redraw_every or sweeps, sweeps, redraw_every or sweeps)
    return np.unique(np.concatenate([points + 1, redraws, [sweeps]]).astype(np.int64))


def _starts(initial_states: ArrayLike | None, reads: int, covers: int, sites: int) -> Signs | None:
    if initial_states is None:
        return None
    given = np.asarray(initial_states)
    shapes = {1: (sites,), 2: (covers, sites), 3: (reads, covers, sites)}
    signs = as_signs("initial_states", given, shapes.get(given.ndim, (reads, covers, sites)))
    return np.broadcast_to(signs, (reads, covers, sites))
