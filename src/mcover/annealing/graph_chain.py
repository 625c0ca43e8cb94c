"""One Markov chain over the covers of a factor graph.

The lifted objective is a sum of terms, one for each retained incidence a→i and each cover: the loss
ℓ_{a→i} in one routed context, times its share. Changing one copy of a variable changes the terms
that read it, and no others. Sites, the copies of variables, are numbered variable · M + cover.

If each factor has few enough combinations of values, the losses become tables and the sweeps are
compiled; otherwise :class:`CallingChain` calls the losses. Both use the same random numbers and add
in the same order, so their trajectories are equal, which the tests check.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mcover.annealing.bits import Words
from mcover.annealing.chain import (
    PERMUTATION,
    new_sequence,
    next64,
    next_index,
    randbelow,
    shuffle,
    uniform,
)
from mcover.compiled import njit
from mcover.errors import McoverError
from mcover.factor_graph import FactorGraph, GraphCover

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Losses = dict[tuple[int, int], Callable[..., float]]  # by incidence (a, i), of indices into domains

_ENTRIES = 2**16  # of the table of one loss
_ALL_ENTRIES = 2**22


class Terms(NamedTuple):
    """The data of compiled sweeps; ``at`` changes with the values.

    Shape: tables (entries,); share (terms,); at (terms,), the current entry of each term; starts
    (sites + 1,), the first index of each site in term and stride (incidences,).
    """

    tables: Floats
    share: Floats
    at: Integers
    starts: Integers
    term: Integers
    stride: Integers


def losses_of(graph: FactorGraph, stop_at_zero: bool = False) -> Losses:
    """The loss of each incidence as a checked function of indices into the domains.

    An objective of zero is known to be a minimum only if no loss is negative.
    """
    found: Losses = {}
    for a, factor in enumerate(graph.factors):
        domains = [graph.domains[j] for j in factor.variables]
        for i in factor.variables:
            loss = factor.directed.get(i, factor.loss)
            found[a, i] = _indexed(a, loss, domains, stop_at_zero)
    return found


def _indexed(
    a: int, loss: Callable[..., Any], domains: list[tuple[Any, ...]], stop_at_zero: bool
) -> Callable[..., float]:
    def value(*indices: int) -> float:
        values = [domain[k] for domain, k in zip(domains, indices, strict=True)]
        try:
            result = float(loss(*values))
        except Exception as error:  # a loss that a user wrote may raise anything
            raise McoverError(
                f"the loss of factor {a} fails at {tuple(values)}: {type(error).__name__}: {error}."
            ) from error
        if not math.isfinite(result):
            raise McoverError(
                f"the loss of factor {a} is {result} at {tuple(values)}; annealing needs finite "
                "numbers."
            )
        if stop_at_zero and result < 0:
            raise McoverError(
                f"the loss of factor {a} is {result:g} at {tuple(values)}, so a minimum may be "
                "below zero; add a constant to the loss, or leave stop_at_zero out."
            )
        return result

    return value


class LossTables(NamedTuple):
    """All values of all losses in one array, and where those of each incidence start."""

    entries: Floats
    offsets: dict[tuple[int, int], int]


def tables_of(graph: FactorGraph, losses: Losses) -> LossTables | None:
    """The losses as tables; None if a factor has too many combinations of values."""
    sizes = [[len(graph.domains[j]) for j in factor.variables] for factor in graph.factors]
    if max(math.prod(of) for of in sizes) > _ENTRIES:
        return None
    known: dict[Any, int] = {}
    offsets: dict[tuple[int, int], int] = {}
    entries: list[float] = []
    for (a, i), loss in losses.items():
        factor = graph.factors[a]
        # Factors that share a function and domains share a table.
        key = factor.directed.get(i, factor.loss), *(graph.domains[j] for j in factor.variables)
        if key not in known:
            if len(entries) + math.prod(sizes[a]) > _ALL_ENTRIES:
                return None
            known[key] = len(entries)
            entries += [loss(*indices) for indices in itertools.product(*map(range, sizes[a]))]
        offsets[a, i] = known[key]
    return LossTables(np.array(entries), offsets)


class CompiledChain:
    """A chain whose losses are tables."""

    def __init__(
        self,
        lifted: GraphCover,
        values: Integers,
        tables: LossTables,
        rng: Words,
    ) -> None:
        """``values`` are indices into the domains, (variables, M); they change in place."""
        self.values, self.rng = values, rng
        self.sizes = np.array([len(domain) for domain in lifted.graph.domains])
        share: list[float] = []
        at: list[int] = []
        reading: list[list[tuple[int, int]]] = [[] for _ in range(values.size)]
        for (a, i), part, contexts in _contexts(lifted):
            sizes = [int(self.sizes[j]) for j in lifted.graph.factors[a].variables]
            strides = [math.prod(sizes[k + 1 :]) for k in range(len(sizes))]
            for sites in contexts:
                for site, stride in zip(sites, strides, strict=True):
                    reading[site].append((len(at), stride))
                place = sum(int(values.flat[s]) * w for s, w in zip(sites, strides, strict=True))
                at.append(tables.offsets[a, i] + place)
                share.append(part)
        pairs = np.array([pair for of in reading for pair in of], dtype=np.int64).reshape(-1, 2)
        starts = np.cumsum([0, *map(len, reading)])
        self.terms = Terms(
            tables.entries, np.array(share), np.array(at), starts,
            np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1]),
        )  # fmt: skip

    def energy(self) -> float:
        """The lifted objective."""
        return float(self.terms.share @ self.terms.tables[self.terms.at])

    def run(self, temperatures: Floats, couplings: Floats, metropolis: bool, order: int) -> int:
        """A sweep at each temperature; returns how many proposals were accepted."""
        how = temperatures, couplings, metropolis, order
        return int(_sweeps(self.terms, self.values, self.sizes, *how, self.rng))


@njit()
def _sweeps(
    terms: Terms,
    values: Integers,
    sizes: Integers,
    temperatures: Floats,
    couplings: Floats,
    metropolis: bool,
    order: int,
    rng: Words,
) -> int:
    covers, accepted = values.shape[1], 0
    sequence = new_sequence(order, values.size)
    for sweep in range(temperatures.size):
        if order == PERMUTATION:
            shuffle(sequence, rng)
        for move in range(values.size):
            site = next_index(order, sequence, move, values.size, rng)
            variable, cover = site // covers, site % covers
            size, old = sizes[variable], values[variable, cover]
            if size == 1:
                continue
            new = (old + 1 + randbelow(rng, size - 1)) % size
            change = 0.0
            for k in range(terms.starts[site], terms.starts[site + 1]):
                t = terms.term[k]
                after = terms.tables[terms.at[t] + terms.stride[k] * (new - old)]
                change += terms.share[t] * (after - terms.tables[terms.at[t]])
            # The number of other copies with the value `new`, minus those with `old`. The loop
            # counts this copy among the latter, hence the 1.
            gained = 1
            for other in values[variable]:
                gained += (other == new) - (other == old)
            x = change / temperatures[sweep] - 2 * couplings[sweep] / covers * gained
            if not accepts(x, uniform(rng), metropolis):
                continue
            for k in range(terms.starts[site], terms.starts[site + 1]):
                terms.at[terms.term[k]] += terms.stride[k] * (new - old)
            values[variable, cover] = new
            accepted += 1
    return accepted


@njit()
def accepts(x: float, u: float, metropolis: bool) -> bool:
    """Whether a change of x = ΔE/T is accepted, for a uniform number u."""
    if x > 700:  # exp would overflow
        return False
    if metropolis:
        return bool(u < np.exp(-max(x, 0.0)))
    return bool(u * (1 + np.exp(x)) < 1)


class CallingChain:
    """A chain that calls the losses, for factors whose tables would be too large."""

    def __init__(self, lifted: GraphCover, values: Integers, losses: Losses, rng: Words) -> None:
        """``values`` are indices into the domains, (variables, M); they change in place."""
        self.values, self.rng = values, rng
        self.sizes = [len(domain) for domain in lifted.graph.domains]
        self.terms = [
            (share, losses[incidence], sites)
            for incidence, share, contexts in _contexts(lifted)
            for sites in contexts
        ]
        self.reading: list[list[int]] = [[] for _ in range(values.size)]
        for t, (_, _, sites) in enumerate(self.terms):
            for site in sites:
                self.reading[site].append(t)
        self.now = [self._value(t) for t in range(len(self.terms))]

    def _value(self, term: int) -> float:
        _, loss, sites = self.terms[term]
        return loss(*(int(self.values.flat[site]) for site in sites))

    def energy(self) -> float:
        """The lifted objective."""
        return sum(share * now for (share, _, _), now in zip(self.terms, self.now, strict=True))

    def run(self, temperatures: Floats, couplings: Floats, metropolis: bool, order: int) -> int:
        """A sweep at each temperature; returns how many proposals were accepted."""
        values, rng = self.values, self.rng
        covers, accepted = values.shape[1], 0
        sequence = new_sequence(order, values.size)
        for temperature, coupling in zip(temperatures, couplings, strict=True):
            if order == PERMUTATION:
                shuffle(sequence, rng)
            for move in range(values.size):
                site = next_index(order, sequence, move, values.size, rng)
                variable, cover = divmod(site, covers)
                if self.sizes[variable] == 1:
                    continue
                old = int(values[variable, cover])
                new = (old + 1 + randbelow(rng, self.sizes[variable] - 1)) % self.sizes[variable]
                values[variable, cover] = new
                after = [self._value(t) for t in self.reading[site]]
                change = 0.0
                for t, then in zip(self.reading[site], after, strict=True):
                    change += self.terms[t][0] * (then - self.now[t])
                row = values[variable]
                gained = int(np.sum(row == new)) - 1 - int(np.sum(row == old))
                x = change / temperature - 2 * coupling / covers * gained
                if not accepts(x, uniform(rng), metropolis):
                    values[variable, cover] = old
                    continue
                for t, then in zip(self.reading[site], after, strict=True):
                    self.now[t] = then
                accepted += 1
        return accepted


def _contexts(lifted: GraphCover) -> Any:
    """Incidence, share, and the sites that the context of each cover reads."""
    covers = lifted.covers
    for a, factor in enumerate(lifted.graph.factors):
        share = 1 / len(lifted.destinations[a])
        for i in lifted.destinations[a]:
            contexts = [
                [
                    j * covers + (cover if j == i else int(lifted.routes[a, i, j][cover]))
                    for j in factor.variables
                ]
                for cover in range(covers)
            ]
            yield (a, i), share, contexts


def random_values(rng: Words, sizes: list[int], covers: int) -> Integers:
    """Uniform indices into the domains, (variables, M)."""
    draws = [[randbelow(rng, size) for _ in range(covers)] for size in sizes]
    return np.array(draws, dtype=np.int64)


def typical_change(graph: FactorGraph, losses: Losses) -> float:
    """Mean of |ΔL| over random changes of one variable, without those that do not change L.

    It sets the scale of the temperatures and depends only on the graph; it is 0 if no change
    changes L.
    """
    rng = np.array([1, 2, 3, 4], dtype=np.uint64)
    for _ in range(16):
        next64(rng)
    around: list[list[int]] = [[] for _ in graph.domains]
    for a, factor in enumerate(graph.factors):
        for j in factor.variables:
            around[j].append(a)
    sizes = [len(domain) for domain in graph.domains]

    @cache
    def value(a: int, indices: tuple[int, ...]) -> float:
        return losses[a, graph.factors[a].variables[0]](*indices)

    changes = []
    for _ in range(256):
        variable = randbelow(rng, len(sizes))
        if sizes[variable] == 1:
            continue
        near = {j for a in around[variable] for j in graph.factors[a].variables}
        state = {j: randbelow(rng, sizes[j]) for j in sorted(near)}
        moved = state | {variable: (state[variable] + 1 + randbelow(rng, sizes[variable] - 1))
                         % sizes[variable]}  # fmt: skip
        change = 0.0
        for a in around[variable]:
            variables = graph.factors[a].variables
            change += value(a, tuple(moved[j] for j in variables))
            change -= value(a, tuple(state[j] for j in variables))
        changes.append(abs(change))
    found = [change for change in changes if change > 1e-12]
    return float(np.mean(found)) if found else 0.0
