"""One restart of :func:`mcover.solve`: an annealing, and the best student of its covers."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from numpy.random import SeedSequence

from mcover.annealing.options import AnnealOptions, bank_size, couplings_of
from mcover.annealing.problems import Signs, Size
from mcover.annealing.readouts import Columns, Readout, read_out
from mcover.annealing.tasks import next_slice
from mcover.routing import draw_bank


@dataclass(frozen=True)
class Attempt:
    """The outcome of a restart."""

    weights: Signs  # of the best student, (sites,)
    errors: int  # number of patterns that it misclassifies
    readout: str  # how it was chosen: "majority", "cover 3", "polish"
    covers: Signs  # the final covers, (M, sites)
    finished: bool  # False if it ended early
    proposals: int
    seconds: float  # CPU time of its thread


@dataclass(frozen=True)
class Budget:
    """When an attempt ends early; None means never."""

    halt: threading.Event | None  # when it is set; on threads of this process
    seconds: float | None  # after this time


def attempt(
    columns: Columns,
    size: Size,
    options: AnnealOptions,
    seed: SeedSequence,
    budget: Budget,
    hot: float | None = None,
    readout: Readout = "best",
) -> Attempt:
    """Anneals once and chooses a student; the temperatures of ``options`` are known.

    A restart that ends early still returns a student, so that an interrupted search has one. It
    runs at least one slice of sweeps, and its student is not polished. ``hot`` and ``readout`` are
    as in `read_out`.
    """
    from mcover.annealing.chain import generator
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
    rng = generator(chain_seed)
    weights = random_weights(rng, covers, sites)
    bank = draw_bank(
        options.method.topology, covers, sites, bank_size(options.method, sites), route_seed
    )
    state = make_state(columns, *size, bank.routes, weights, options.energy)
    temperatures, couplings = options.schedule.temperatures(), couplings_of(options)
    here, slice_, ended, proposals = 0, 1, False, 0
    while here < len(temperatures) and not ended and not (here and is_over()):
        since = time.perf_counter()
        part = slice(here, here + slice_)
        done = run(state, temperatures[part], couplings[part], rng, options.rule, stop_at_zero=True)
        made = len(done.energies)
        slice_ = next_slice(slice_, made, time.perf_counter() - since)
        here, ended, proposals = here + made, done.ended, proposals + int(done.proposals.sum())
    finished = ended or here >= len(temperatures)
    sweeps = len(temperatures) if finished and not is_over() else 0
    best, errors, chosen, more = read_out(
        columns, size, state.weights, sweeps, polish_seed, hot, readout
    )
    return Attempt(
        weights=best,
        errors=errors,
        readout=chosen,
        covers=state.weights.copy(),
        finished=finished,
        proposals=proposals + more,
        seconds=time.thread_time() - cpu,
    )
