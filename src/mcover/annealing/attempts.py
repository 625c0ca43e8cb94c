"""One restart of :func:`mcover.solve`: an annealing, and the best student that it leaves.

Covers need not agree. With a ±1 teacher behind the labels their majority is the solution; without
one it may be worse than each of them. So the student is the best, by errors on all patterns, of
the majority, every cover, and a polish: one copy that anneals on from the best of these, cold, with
the number of errors as its energy.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from mcover.annealing.options import AnnealOptions, bank_size, couplings_of
from mcover.annealing.problems import Signs
from mcover.annealing.result import collapse_sign
from mcover.routing import draw_bank

_SLICE_SECONDS = 0.05
_POLISH_SHARE = 4  # a polish has a quarter of the sweeps
_POLISH_HOT = 0.25  # temperature of the start of a polish, as a share of the annealing's T₀

Columns = NDArray[np.uint64]
Size = tuple[int, int, int]
"""Patterns, hidden units, inputs."""


@dataclass(frozen=True)
class Attempt:
    """What a restart came to."""

    weights: Signs  # of the best student, (sites,)
    errors: int  # patterns that it gets wrong
    readout: str  # which student it is: "majority", "cover 3", "polish"
    covers: Signs  # the final covers, (M, sites)
    finished: bool  # whether it came to its end
    proposals: int
    seconds: float  # CPU time of its thread


@dataclass(frozen=True)
class Budget:
    """When an attempt ends early: a flag of this process, and a time."""

    halt: threading.Event | None
    seconds: float | None


def attempt(
    columns: Columns, size: Size, options: AnnealOptions, seed: SeedSequence, budget: Budget
) -> Attempt:
    """Anneals once and reads out; of options whose temperatures are known."""
    from mcover.annealing.searches import run
    from mcover.annealing.states import compile_kernels, make_state, random_weights

    compile_kernels(options.rule)
    begin, cpu = time.perf_counter(), time.thread_time()
    halt, limit = budget.halt, budget.seconds

    def is_over() -> bool:
        late = limit is not None and time.perf_counter() - begin > limit
        return late or (halt is not None and halt.is_set())

    sites, covers = size[1] * size[2], options.method.covers
    route_seed, polish_seed, chain_seed = seed.spawn(3)
    rng = chain_seed.generate_state(4, np.uint64).astype(np.uint64)
    weights = random_weights(rng, covers, sites)
    bank = draw_bank(
        options.method.topology, covers, sites, bank_size(options.method, sites), route_seed
    )
    state = make_state(columns, *size, bank.routes, weights, options.energy)
    temperatures, couplings = options.schedule.temperatures(), couplings_of(options)
    here, slice_, over, proposals = 0, 1, False, 0
    while here < len(temperatures) and not over and not (here and is_over()):
        since = time.perf_counter()
        part = slice(here, here + slice_)
        done = run(state, temperatures[part], couplings[part], rng, options.rule, stop_at_zero=True)
        made, took = len(done.energies), max(time.perf_counter() - since, 1e-6)
        slice_ = max(1, min(2 * slice_, int(made * _SLICE_SECONDS / took)))
        here, over, proposals = here + made, done.over, proposals + int(done.proposals.sum())
    finished = over or here >= len(temperatures)
    best, errors, readout = _best(columns, size, state.weights)
    if errors and finished and not is_over():
        options = replace(options, energy="errors")
        polished, more = _polish(columns, size, best, options, polish_seed)
        proposals += more
        left = count_errors(columns, size, polished)
        if left < errors:
            best, errors, readout = polished, left, "polish"
    seconds = time.thread_time() - cpu
    covers_ = state.weights.copy()
    return Attempt(best, errors, readout, covers_, finished, proposals, seconds)


def count_errors(columns: Columns, size: Size, student: Signs) -> int:
    """Patterns that a ±1 student gets wrong, by the counters of a chain that never moves."""
    from mcover.annealing.states import make_state, margins

    routes = np.zeros((1, student.size, 1), dtype=np.uint8)
    chain = make_state(columns, *size, routes, student.reshape(1, -1), "errors")
    return int(np.sum(margins(chain) <= 0))


def _best(columns: Columns, size: Size, weights: Signs) -> tuple[Signs, int, str]:
    """The majority, or the cover that has fewer errors."""
    students = [("majority", collapse_sign(weights))]
    if len(weights) > 1:
        students += [(f"cover {place}", one) for place, one in enumerate(weights)]
    best, errors, readout = students[0][1], -1, ""
    for name, student in students:
        found = count_errors(columns, size, student)
        if errors < 0 or found < errors:
            best, errors, readout = student.copy(), found, name
        if errors == 0:
            break
    return best, errors, readout


def _polish(
    columns: Columns, size: Size, student: Signs, options: AnnealOptions, seed: SeedSequence
) -> tuple[Signs, int]:
    """One copy that anneals on from a student, cold; the best of what it passes at its end."""
    from mcover.annealing.searches import run
    from mcover.annealing.states import make_state
    from mcover.annealing.temperatures import freezing_temperature

    hot = _POLISH_HOT * freezing_temperature(columns, size, "errors")
    sweeps = max(1, len(options.schedule.temperatures()) // _POLISH_SHARE)
    routes = np.zeros((1, student.size, 1), dtype=np.uint8)
    rng = seed.generate_state(4, np.uint64).astype(np.uint64)
    state = make_state(columns, *size, routes, student[None], "errors")
    done = run(state, np.linspace(hot, 0.2 * hot, sweeps), 0.0, rng, "glauber", stop_at_zero=True)
    return state.weights[0].copy(), int(done.proposals.sum())
