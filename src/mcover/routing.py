"""Banks of routes and the mixers made of them.

A **bank** keeps S sampled destinations. For destination s, source j is read by cover α from cover
``routes[s, j, α]``; the destination's own source is read from α itself (ρ_{p→p} = identity).
An **indexed bank** keeps a table of permutations and one small index a route instead of M covers:
for whole networks, where sources are weights and counted in millions.
A **mixer** Q̂ is the average of permutation matrices of drawn routes.

The paper averages its routed local losses (eq:mlayer_routed_local_loss) over all destinations. A
bank of S of them is an unbiased sample of that mean, and S = sources is exact.
"""

from __future__ import annotations

import itertools
import math
import zlib
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from mcover import checks
from mcover.errors import McoverError
from mcover.permutations import Routes, Sampler, fill, route_type
from mcover.seeds import Seed, seed_sequence
from mcover.topology import Topology, as_topology

Float = TypeVar("Float", np.float32, np.float64)

BYTE_COVERS = 5  # up to here a byte counts all M! permutations
ALL_COVERS = 8  # up to here two bytes do
TABLE_ROWS = 2**16  # what two bytes count: rows of a table that is a sample
_CHUNK = 2**17  # indices per random stream: fixed, so that draws do not depend on the threads


@dataclass(frozen=True, eq=False)
class Bank:
    """Quenched routes of S destinations over all sources.

    Memory: S · sources · M bytes up to 256 covers, and as much again for ``inverse``.
    """

    topology: Topology  # where the routes were drawn from
    destinations: NDArray[np.int64]  # the source index p_s of each destination, (S,)
    routes: Routes  # the cover that α reads source j from, for destination s, (S, sources, M)

    @property
    def covers(self) -> int:
        return int(self.routes.shape[2])

    @property
    def sources(self) -> int:
        return int(self.routes.shape[1])

    @cached_property
    def inverse(self) -> Routes:
        """``inverse[s, j, β]``, the context that reads copy β of source j; errors return to it."""
        return inverse(self.routes)

    def redraw(self, seed: Seed) -> Bank:
        """A new bank with the same destinations and fresh routes."""
        return _fill(self.topology, self.covers, self.sources, self.destinations, seed)

    def mixers(self) -> NDArray[np.float64]:
        """Q̂ of each source, averaged over the destinations, shape (sources, M, M)."""
        return _average(self.routes, np.float64)


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
    """Quenched routes of S destinations over all sources, one index a route.

    Columns of the tables are contiguous: a gather looks up one context for many sources in a row.
    Memory: S · sources bytes up to 5 covers, twice that beyond, and the two tables.
    """

    table: Routes  # permutations that an index stands for, row 0 the identity, (K, M)
    inverse_table: Routes  # their inverses, row by row, along which errors return, (K, M)
    index: NDArray[np.unsignedinteger]  # the row of source j for destination s, (S, sources)
    destinations: NDArray[np.int64]  # the source index p_s of each destination, (S,)
    topology: Topology  # where the routes were drawn from

    @property
    def routes(self) -> Routes:
        """The cover that α reads source j from, for destination s, shape (S, sources, M)."""
        return self.table[self.index]

    def checksum(self) -> int:
        """CRC-32 of indices and table: whether a bank rebuilt from its seed is the same one."""
        return zlib.crc32(self.table.tobytes(), zlib.crc32(self.index.tobytes()))


def draw_indexed_bank(
    topology: Topology,
    covers: int,
    sources: int,
    size: int,
    seed: Seed = None,
    threads: int | None = None,
) -> IndexedBank:
    """Draws the routes of ``size`` destinations as indices into a table of permutations.

    Up to 8 covers the table has all M! permutations in lexicographic order, and indices are
    drawn by their exact probabilities. Beyond, it is a sample of the law, and indices are uniform
    over it; where there are fewer routes than rows of the largest table, each route has a row of
    its own. The same seed gives the same bank on any number of threads.

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
    sampler = Sampler(topology.matrix(covers))
    of_table, of_index = root.spawn(2)
    if all_routes:
        table = np.array(list(itertools.permutations(range(covers))), dtype=route_type(covers))
        law = np.exp(sampler.log_prob(table))
    else:
        identity = np.arange(covers, dtype=route_type(covers))
        table = np.vstack([identity, sampler.sample(rows - 1, of_table, threads)])
        law = np.append(0.0, np.ones(rows - 1))  # row 0 is there for own sources only
    if all_routes or rows == TABLE_ROWS:
        from mcover.permutation_kernels import alias_table, draw_aliased

        index = np.empty(size * sources, dtype=dtype)
        fill(index, partial(draw_aliased, *alias_table(law, dtype(0))), _CHUNK, of_index, threads)
    else:
        index = np.arange(1, rows, dtype=dtype)
    index = index.reshape(size, sources)
    index[np.arange(size), destinations] = 0
    tables = np.asfortranarray(table), np.asfortranarray(inverse(table))
    return IndexedBank(*tables, index, destinations, topology)


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
    return _average(routes, np.float32).reshape(units, blocks, covers, covers)


def inverse(routes: Routes) -> Routes:
    """Inverts permutations along the last axis, shape (..., M)."""
    result = np.empty_like(routes)
    covers = np.arange(routes.shape[-1], dtype=routes.dtype)
    np.put_along_axis(result, routes.astype(np.intp), np.broadcast_to(covers, routes.shape), -1)
    return result


def _counts(covers: int, sources: int, size: int) -> tuple[int, int, int]:
    """Covers, sources and size of a bank as plain ints, refused where no bank has them."""
    named = {"covers": covers, "sources": sources, "the bank's size": size}
    covers, sources, size = (checks.check_int(name, value, 1) for name, value in named.items())
    if size > sources:
        raise McoverError(
            f"a bank of {size} destinations was asked for, but there are {sources} sources; "
            f"write at most {sources} (that is the exact directed lift)."
        )
    return covers, sources, size


def _destinations(sources: int, size: int, seed: Seed) -> tuple[NDArray[np.int64], SeedSequence]:
    """Which sources are destinations, in order, and the seed of their routes."""
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


def _average(routes: Routes, dtype: type[Float]) -> NDArray[Float]:
    """Mean permutation matrix over the first axis, (S, n, M) → (n, M, M)."""
    size, count, covers = routes.shape
    total = np.zeros((count, covers, covers), dtype=dtype)
    for drawn in routes:
        # A permutation touches each entry at most once, so += over an index is safe.
        total[np.arange(count)[:, None], np.arange(covers), drawn] += 1
    total /= size
    return total
