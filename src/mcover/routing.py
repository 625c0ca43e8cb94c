"""Banks of routes, and mixers.

A **bank** keeps S sampled destinations. For destination s, cover α reads source j from cover
``routes[s, j, α]``; the destination's own source is read from α (ρ_{p→p} = identity). An **indexed
bank** stores a table of permutations and one small index per route instead of M covers. It is for
networks, whose sources are millions of weights. A **mixer** Q̂ is the average of the permutation
matrices of drawn routes.

The paper averages its routed local losses (eq:mlayer_routed_local_loss) over all destinations. A
bank of S of them is an unbiased sample of that mean, and S = sources is exact.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from mcover import checks
from mcover.errors import McoverError
from mcover.permutations import Routes, Sampler, fill, route_type
from mcover.seeds import Seed, seed_sequence
from mcover.topology import Topology, as_topology

BYTE_COVERS = 5  # up to this number a byte indexes all M! permutations
ALL_COVERS = 8  # up to this number two bytes do
TABLE_ROWS = 2**16  # rows that two bytes index, for a table that is a sample
_CHUNK = 2**17  # indices per random stream; fixed, so that draws do not depend on the threads


@dataclass(frozen=True, eq=False)
class Bank:
    """Quenched routes of S destinations over all sources.

    Memory: S · sources · M bytes up to 256 covers.
    """

    topology: Topology  # where the routes were drawn from
    destinations: NDArray[np.int64]  # the source index p_s of each destination, (S,)
    routes: Routes  # the cover from which α reads source j, for destination s, (S, sources, M)

    @property
    def covers(self) -> int:
        return int(self.routes.shape[2])

    @property
    def sources(self) -> int:
        return int(self.routes.shape[1])

    def redraw(self, seed: Seed) -> Bank:
        """A new bank with the same destinations and new routes."""
        return _fill(self.topology, self.covers, self.sources, self.destinations, seed)


def draw_bank(topology: Topology, covers: int, sources: int, size: int, seed: Seed = None) -> Bank:
    """Draws a bank of ``size`` destinations, chosen among the sources without repetition.

    ``size=sources`` is the exact directed lift, with all destinations in order.

    >>> from mcover.topology import GaussianRing
    >>> bank = draw_bank(GaussianRing(1.0), covers=3, sources=4, size=2, seed=0)
    >>> bank.routes.shape, [bank.routes[s, p].tolist() for s, p in enumerate(bank.destinations)]
    ((2, 4, 3), [[0, 1, 2], [0, 1, 2]])
    """
    topology = as_topology(topology)
    covers, sources, size = _counts(covers, sources, size)
    needed = 2 * size * sources * covers * np.dtype(route_type(covers)).itemsize
    checks.check_memory(needed, f"a bank of {size} × {sources} routes", "keep fewer destinations")
    destinations, routes = _destinations(sources, size, seed)
    return _fill(topology, covers, sources, destinations, routes)


@dataclass(frozen=True, eq=False)
class IndexedBank:
    """Quenched routes of S destinations over all sources, one index per route.

    Columns of the tables are contiguous, because a gather looks up one context for many sources in
    sequence. Memory: S · sources bytes up to 5 covers, twice that for more, and the two tables.
    """

    table: Routes  # the indexed permutations, (K, M); row 0 is the identity
    inverse_table: Routes  # their inverses, along which gradients return, (K, M)
    index: NDArray[np.unsignedinteger]  # the row of source j for destination s, (S, sources)
    destinations: NDArray[np.int64]  # the source index p_s of each destination, (S,)

    @property
    def routes(self) -> Routes:
        """The cover from which α reads source j, for destination s, shape (S, sources, M)."""
        return self.table[self.index]


def draw_indexed_bank(
    topology: Topology,
    covers: int,
    sources: int,
    size: int,
    seed: Seed = None,
    threads: int | None = None,
) -> IndexedBank:
    """Draws the routes of ``size`` destinations as indices into a table of permutations.

    Up to 8 covers the table has all M! permutations in lexicographic order, and indices are drawn
    with their exact probabilities. For more covers the table is a sample of the law, and indices
    are uniform over it; if there are fewer routes than rows of the largest table, each route has
    its own row. The same seed gives the same bank with any number of threads.

    >>> from mcover.topology import Uniform
    >>> bank = draw_indexed_bank(Uniform(), covers=3, sources=4, size=2, seed=0)
    >>> bank.table.shape, bank.index.dtype, bank.routes.shape
    ((6, 3), dtype('uint8'), (2, 4, 3))
    """
    topology = as_topology(topology)
    covers, sources, size = _counts(covers, sources, size)
    all_routes = covers <= ALL_COVERS
    rows = math.factorial(covers) if all_routes else min(TABLE_ROWS, 1 + size * sources)
    dtype: type[np.unsignedinteger] = np.uint8 if covers <= BYTE_COVERS else np.uint16
    needed = size * sources * np.dtype(dtype).itemsize
    needed += 2 * rows * covers * np.dtype(route_type(covers)).itemsize
    checks.check_memory(needed, f"a bank of {size} × {sources} routes", "keep fewer destinations")
    destinations, root = _destinations(sources, size, seed)
    of_table, of_index = root.spawn(2)
    matrix = topology.matrix(covers)
    if all_routes:
        table, inverses, *alias = _all_routes(matrix.tobytes(), covers)
    else:
        identity = np.arange(covers, dtype=route_type(covers))
        table = np.vstack([identity, Sampler(matrix).sample(rows - 1, of_table, threads)])
        inverses = inverse(table)
        law = np.append(0.0, np.ones(rows - 1))  # row 0 is only for the destinations' own sources
        alias = list(_alias(law, dtype)) if rows == TABLE_ROWS else []
    if alias:
        from mcover.permutation_kernels import draw_aliased

        index = np.empty(size * sources, dtype=dtype)
        fill(index, partial(draw_aliased, *alias), _CHUNK, of_index, threads)
    else:
        index = np.arange(1, rows, dtype=dtype)
    index = index.reshape(size, sources)
    index[np.arange(size), destinations] = 0
    tables = np.asfortranarray(table), np.asfortranarray(inverses)
    return IndexedBank(*tables, index, destinations)


@lru_cache(maxsize=4)
def _all_routes(kernel: bytes, covers: int) -> tuple[NDArray[Any], ...]:
    """All permutations, their inverses, and the alias table of their law.

    It is cached, because the directed lift redraws its routes from the same kernel again and again.
    """
    table = np.array(list(itertools.permutations(range(covers))), dtype=route_type(covers))
    law = np.exp(Sampler(np.frombuffer(kernel).reshape(covers, covers)).log_prob(table))
    return table, inverse(table), *_alias(law, np.uint8 if covers <= BYTE_COVERS else np.uint16)


def _alias(law: NDArray[np.float64], dtype: type[np.unsignedinteger]) -> tuple[NDArray[Any], ...]:
    from mcover.permutation_kernels import alias_table

    return tuple(alias_table(law, dtype(0)))


def draw_mixers(
    topology: Topology, covers: int, units: int, blocks: int, draws: int, seed: Seed = None
) -> NDArray[np.float32]:
    """Q̂ of each output unit and input block: averages of ``draws`` drawn permutation matrices.

    Shape: (units, blocks, M, M), row β the cover that reads, column α the cover that is read.
    Memory: units · blocks · M · (4M + draws) bytes.
    """
    named = {"covers": covers, "units": units, "blocks": blocks, "draws": draws}
    covers, units, blocks, draws = (checks.check_int(n, value, 1) for n, value in named.items())
    needed = units * blocks * covers * (4 * covers + draws)
    checks.check_memory(needed, f"mixers of {units} units and {blocks} blocks", "use fewer blocks")
    sampler = Sampler(as_topology(topology).matrix(covers))
    routes = sampler.sample(draws * units * blocks, seed).reshape(draws, units * blocks, covers)
    total = np.zeros((units * blocks, covers, covers), dtype=np.float32)
    for drawn in routes:
        # A permutation has each index at most once, so += over an index is safe.
        total[np.arange(units * blocks)[:, None], np.arange(covers), drawn] += 1
    total /= draws
    return total.reshape(units, blocks, covers, covers)


def inverse(routes: Routes) -> Routes:
    """Inverts permutations along the last axis, shape (..., M)."""
    result = np.empty_like(routes)
    covers = np.arange(routes.shape[-1], dtype=routes.dtype)
    np.put_along_axis(result, routes.astype(np.intp), np.broadcast_to(covers, routes.shape), -1)
    return result


def _counts(covers: int, sources: int, size: int) -> tuple[int, int, int]:
    """Covers, sources and size of a bank as plain ints; refuses impossible ones."""
    named = {"covers": covers, "sources": sources, "the bank's size": size}
    covers, sources, size = (checks.check_int(name, value, 1) for name, value in named.items())
    if size > sources:
        raise McoverError(
            f"a bank of {size} destinations was requested, but there are {sources} sources; "
            f"write at most {sources} (the exact directed lift)."
        )
    return covers, sources, size


def _destinations(sources: int, size: int, seed: Seed) -> tuple[NDArray[np.int64], SeedSequence]:
    """The sources that are destinations, in order, and the seed of their routes."""
    where, routes = seed_sequence(seed).spawn(2)
    chosen = np.random.default_rng(where).choice(sources, size=size, replace=False)
    return np.sort(chosen), routes


def _fill(
    topology: Topology, covers: int, sources: int, destinations: NDArray[np.int64], seed: Seed
) -> Bank:
    size = len(destinations)
    routes = Sampler(topology.matrix(covers)).sample(size * sources, seed)
    routes = routes.reshape(size, sources, covers)
    routes[np.arange(size), destinations] = np.arange(covers)
    routes.setflags(write=False)
    return Bank(topology, destinations, routes)
