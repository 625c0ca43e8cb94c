"""Annealing of factor graphs of discrete variables, along the routes of their M-covers.

This is the general lift of the paper, for any objective that is a sum of local losses. It is meant
for small graphs; the annealer of ±1 patterns is hundreds of times faster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import ArrayLike, NDArray

from mcover import checks
from mcover.annealing.options import RSA, AnnealOptions, bank_size
from mcover.annealing.reads import ThreadedReads
from mcover.annealing.result import RunResult, reads_text
from mcover.annealing.schedules import AutoSchedule
from mcover.annealing.tasks import next_slice
from mcover.annealing.trajectory import Trajectory, select
from mcover.errors import McoverError
from mcover.factor_graph import FactorGraph, GraphCover, lift_bank
from mcover.plain import brief
from mcover.routing import draw_bank
from mcover.topology import Identity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHOD = RSA(5, coupling=0.3)
"""The default method of :func:`mcover.anneal` for graphs: on spin glasses, which have no planted
solution, routes were not seen to find lower minima (``bench/graphs.py``)."""


@dataclass(frozen=True, eq=False, repr=False)
class Assignment:
    """A value for each variable of a graph, and the objective there."""

    values: tuple[Any, ...]
    objective: float
    read: int
    cover: int | None  # the index of the cover; None for the majority of the covers

    def __repr__(self) -> str:
        whose = "the majority" if self.cover is None else f"cover {self.cover}"
        where = f"{whose} of read {self.read}"
        return f"<Assignment: objective {self.objective:.6g}, {where}, {checks.shown(self.values)}>"


@dataclass(frozen=True, eq=False, repr=False)
class GraphResult(RunResult[Assignment]):
    """The result of :func:`mcover.anneal` for a factor graph; arrays have an entry for each read.

    ``len(result)``, ``result[3]`` and iteration give the best :class:`Assignment` of each read.
    It is the best of the covers and their majority, because on graphs without a planted solution
    the covers need not agree.
    """

    values: NDArray[Any]  # final values of all covers, (reads, M, variables)
    energy: NDArray[np.float64]  # final lifted objective, summed over covers
    majority: NDArray[Any]  # the most frequent value of each variable; cover 0 decides ties
    objective: NDArray[np.float64]  # of the majority
    cover_objective: NDArray[np.float64]  # of each cover, (reads, M)
    proposals: NDArray[np.int64]
    seconds: NDArray[np.float64]  # CPU time of the read's thread
    sweeps: NDArray[np.int64]  # fewer than planned if a read was interrupted or ended at zero
    finished: NDArray[np.bool_]
    trajectory: Trajectory
    lifts: tuple[GraphCover, ...]  # the lifted graph of each read, with its final routes
    options: AnnealOptions
    interrupted: bool

    def __getitem__(self, read: int) -> Assignment:
        read = self._number(checks.check_int("read", read))
        cover = int(np.argmin(self.cover_objective[read]))
        if self.objective[read] <= self.cover_objective[read, cover]:
            of, objective, chosen = self.majority[read], self.objective[read], None
        else:
            of, chosen = self.values[read, cover], cover
            objective = self.cover_objective[read, cover]
        return Assignment(tuple(of.tolist()), float(objective), read, chosen)

    @property
    def best(self) -> Assignment:
        """The assignment with the lowest objective."""
        return min(self, key=lambda one: one.objective)

    def plot(self) -> Figure:
        """Energy, acceptance and overlap of covers, for each read (thin) and on average (thick)."""
        return self.trajectory.plot(f"{brief(self.options.method)}, {reads_text(len(self))}")

    def _outcome(self) -> list[list[str]]:
        best = self.best
        whose = "majority" if best.cover is None else f"cover {best.cover}"
        return [
            ["graph", repr(self.lifts[0].graph).strip("<>").removeprefix("FactorGraph: ")],
            ["best objective", f"{best.objective:.6g} ({whose} of read {best.read})"],
        ]


def check_options(graph: FactorGraph, options: AnnealOptions) -> None:
    """Refuses options that apply only to ±1 patterns."""
    if options.rule not in ("glauber", "metropolis"):
        raise McoverError(
            f"rule {options.rule!r} works for patterns only; write 'glauber' or 'metropolis'."
        )
    if options.energy != AnnealOptions.energy:
        raise McoverError("a factor graph defines its own objective; leave energy out.")
    if options.method.covers > 1 and not isinstance(options.method.topology, Identity):
        bank_size(options.method, graph.variables)


class GraphReads(ThreadedReads):
    """Independent reads of a graph on threads, each with its own routes."""

    def __init__(
        self,
        graph: FactorGraph,
        options: AnnealOptions,
        seeds: Sequence[SeedSequence],
        initial_states: ArrayLike | None,
        record: Callable[[AnnealOptions], NDArray[np.int64]],
        threads: int,
    ) -> None:
        """``record`` selects the sweeps after which the trajectory is kept."""
        from mcover.annealing.graph_chain import losses_of, tables_of, typical_change

        check_options(graph, options)
        self.graph = graph
        self.losses = losses_of(graph, options.stop_at_zero)
        self.tables = tables_of(graph, self.losses)
        if isinstance(options.schedule, AutoSchedule):
            # At a temperature equal to a typical change, about half of the proposals are accepted;
            # at an eighth of it, hardly any.
            scale = typical_change(graph, self.losses) or 1.0
            options = replace(options, schedule=options.schedule.from_temperature(scale, 1.0))
        super().__init__(options, seeds, record(options), threads, len(graph.factors))
        incidences = sum(len(factor.variables) ** 2 for factor in graph.factors)
        needed = self.threads * 64 * self.covers * incidences
        remedy = "take a smaller bank, fewer covers or workers"
        checks.check_memory(needed, f"{self.covers} covers of {graph!r}", remedy)
        self.starts = self._starts(initial_states)
        shape = (self.reads, graph.variables, self.covers)
        self.indices = np.zeros(shape, dtype=np.int64)
        self.lifts: list[GraphCover | None] = [None] * self.reads

    def read(self, read: int, seed: SeedSequence, halt: threading.Event) -> None:
        """Anneals one read; ends early when ``halt`` is set."""
        from mcover.annealing.chain import ORDERS, generator
        from mcover.annealing.graph_chain import random_values

        begin, options, length = time.thread_time(), self.options, len(self.temperatures)
        route_seed, redraw_seed, chain_seed = seed.spawn(3)
        rng = generator(chain_seed)
        values = random_values(rng, [len(one) for one in self.graph.domains], self.covers)
        if self.starts is not None:
            values = self.starts[read].copy()
        chain: Any = None
        here, slice_, accepted_since, moves_since, ended = 0, 1, 0, 0, False
        while here < length and not ended and not halt.is_set():
            if here % self.redraw_every == 0:
                lifted = self._lift(redraw_seed.spawn(1)[0] if here else route_seed)
                chain, self.lifts[read] = self._chain(lifted, values, rng), lifted
            there = here + 1 if options.stop_at_zero else self.stop_after(here, slice_)
            since = time.perf_counter()
            accepted_since += chain.run(
                self.temperatures[here:there],
                self.couplings[here:there],
                options.rule == "metropolis",
                ORDERS.index(options.order),
            )
            slice_ = next_slice(slice_, there - here, time.perf_counter() - since)
            moves_since += (there - here) * values.size
            self.proposals[read] += (there - here) * values.size
            here = there
            self.indices[read], self.sweeps[read], self.last = values, here, read
            self.energy[read], self.acceptance[read] = chain.energy(), accepted_since / moves_since
            self.seconds[read] = time.thread_time() - begin
            ended = options.stop_at_zero and self._value(_majority(values)) == 0
            if (point := self.point_at(here)) is not None:
                self.course.energy[read, point] = self.energy_per_term(read)
                self.course.acceptance[read, point] = self.acceptance[read]
                if self.covers > 1:
                    self.course.cover_overlap[read, point] = _agreement(values)
                accepted_since = moves_since = 0
        self.done[read] = ended or here == length

    def result(self, interrupted: bool) -> GraphResult:
        """The result of the reads that were started."""
        begun = np.flatnonzero(self.sweeps)
        indices = self.indices[begun]
        majority = np.stack([_majority(one) for one in indices])
        return GraphResult(
            values=self._decoded(indices.transpose(0, 2, 1)),
            energy=self.energy[begun],
            majority=self._decoded(majority),
            objective=np.array([self._value(one) for one in majority]),
            cover_objective=np.array([[self._value(own) for own in one.T] for one in indices]),
            proposals=self.proposals[begun],
            seconds=self.seconds[begun],
            sweeps=self.sweeps[begun],
            finished=self.done[begun],
            trajectory=select(self.course, begun),
            lifts=tuple(one for read in begun if (one := self.lifts[read]) is not None),
            options=self.options,
            interrupted=interrupted,
        )

    def _lift(self, seed: SeedSequence) -> GraphCover:
        method, graph = self.options.method, self.graph
        if isinstance(method.topology, Identity):
            # Contexts are whole covers, so all destinations of a factor give the same term.
            kept = {a: factor.variables[:1] for a, factor in enumerate(graph.factors)}
            itself = range(self.covers)
            keys = [(a, i, j) for a, of in kept.items() for i in of
                    for j in graph.factors[a].variables if i != j]  # fmt: skip
            if all(not factor.directed for factor in graph.factors):
                return GraphCover(graph, self.covers, kept, dict.fromkeys(keys, itself))
        if method.bank is None or isinstance(method.topology, Identity):
            return graph.lift(method.topology, self.covers, seed=seed)
        size = bank_size(method, graph.variables)
        bank = draw_bank(method.topology, self.covers, graph.variables, size, seed)
        return lift_bank(graph, bank)

    def _chain(self, lifted: GraphCover, values: NDArray[np.int64], rng: Any) -> Any:
        from mcover.annealing.graph_chain import CallingChain, CompiledChain

        if self.tables is None:
            return CallingChain(lifted, values, self.losses, rng)
        return CompiledChain(lifted, values, self.tables, rng)

    def _value(self, indices: NDArray[np.int64]) -> float:
        """The base objective at indices into the domains."""
        return sum(
            float(factor.loss(*(self.graph.domains[j][indices[j]] for j in factor.variables)))
            for factor in self.graph.factors
        )

    def _decoded(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        """The values for indices into the domains, variables last."""
        found = np.empty(indices.shape, dtype=object)
        for j, domain in enumerate(self.graph.domains):
            for k, value in enumerate(domain):
                found[..., j][indices[..., j] == k] = value
        kinds = {type(value) for domain in self.graph.domains for value in domain}
        if kinds <= {int}:
            return found.astype(np.int64)
        return found.astype(bool) if kinds == {bool} else found

    def _starts(self, initial_states: ArrayLike | None) -> NDArray[np.int64] | None:
        """Indices into the domains of given values, (reads, variables, M)."""
        if initial_states is None:
            return None
        given, variables = np.asarray(initial_states), self.graph.variables
        full = (self.reads, self.covers, variables)
        if given.ndim == 0 or given.shape != full[3 - given.ndim :]:
            raise McoverError(
                f"initial_states has shape {given.shape}; write the values of the {variables} "
                f"variables, of the covers, {full[1:]}, or of all reads too, {full}."
            )
        found = np.empty(full, dtype=np.int64)
        given = np.broadcast_to(given, full)
        for j, domain in enumerate(self.graph.domains):
            places = {value: k for k, value in enumerate(domain)}
            for at in np.ndindex(full[:2]):
                value = given[at][j]
                value = value.item() if isinstance(value, np.generic) else value
                if value not in places:
                    raise McoverError(
                        f"initial_states has {value!r} for variable {j}; write one of its values, "
                        f"{checks.shown(domain)}."
                    )
                found[at][j] = places[value]
        return found.transpose(0, 2, 1).copy()


def _majority(indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """The most frequent index of each row, (variables, M) → (variables,); cover 0 decides ties."""
    votes = (indices[:, :, None] == indices[:, None, :]).sum(axis=2)
    return np.take_along_axis(indices, votes.argmax(axis=1)[:, None], axis=1)[:, 0]


def _agreement(indices: NDArray[np.int64]) -> float:
    """The overlap of covers: the mean over pairs of +1 if they agree and −1 if they do not."""
    covers = indices.shape[1]
    agree = (indices[:, :, None] == indices[:, None, :]).sum(axis=(1, 2)) - covers
    return float(np.mean(2 * agree / (covers * (covers - 1)) - 1))
