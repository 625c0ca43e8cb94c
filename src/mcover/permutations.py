"""Routes and their law: P_Q(ρ) = Π_α Q[α, ρ(α)] / perm(Q), over permutations ρ of the covers.

Two ways to draw from it:

- **exact** (to :data:`EXACT_COVERS` covers, on request to :data:`TABLE_COVERS`): a table over the
  2^M sets of columns holds the permanent of what is left, so each row is drawn from its exact
  conditional. The table is built once per :class:`Sampler`; draws are independent.
- **chain** (beyond): a swap chain with the law as its stationary distribution. It makes
  :func:`chain_sweeps` sweeps before the first draw and again between draws.

A third, **assign** (Gumbel noise, then the best assignment), is often used for its speed. It is
*biased* (its total variation from the law is about 0.2 at M = 5, σ = 0.7) and here for comparison.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from mcover.errors import McoverError
from mcover.limits import require_memory
from mcover.seeds import Seed, streams
from mcover.topology import balance, log_weights

Method = Literal["auto", "exact", "chain", "assign"]
Routes = NDArray[np.unsignedinteger]

EXACT_COVERS = 20
TABLE_COVERS = 26
_CHUNK = 4096  # routes per random stream: fixed, so that draws do not depend on the threads


def chain_sweeps(covers: int) -> int:
    """Sweeps (M swaps and one turn) before and between the draws of the swap chain: 8 + 8⌈log₂M⌉.

    At M = 20 its marginals are within sampling noise of the exact ones after 8 sweeps, for rings of
    σ from 0.4 to ∞ with fractional shifts, chains and the uniform law; mixing slows like log M.
    """
    return 8 + 8 * math.ceil(math.log2(max(covers, 2)))


def route_type(covers: int) -> type[np.unsignedinteger]:
    """The most compact dtype that holds a cover index."""
    return np.uint8 if covers <= 256 else np.uint16 if covers <= 65536 else np.uint32


class Sampler:
    """Draws routes from the law of one kernel.

    Args:
        kernel: topology matrix or any non-negative matrix with a possible permutation, (M, M).
        method: "auto" takes exact where it is cheap, else chain.

    >>> sampler = Sampler([[1, 1, 0], [0, 1, 1], [1, 0, 1]])  # only the identity and one turn
    >>> sorted({tuple(route) for route in sampler.sample(100, seed=0).tolist()})
    [(0, 1, 2), (1, 2, 0)]
    """

    def __init__(self, kernel: ArrayLike, method: Method = "auto") -> None:
        self._log_kernel = log_weights(kernel)
        self.matrix = balance(self._log_kernel, "this kernel")
        self.covers = len(self.matrix)
        self.method = self._resolve(method)

    def sample(self, size: int, seed: Seed = None, threads: int | None = None) -> Routes:
        """Draws routes; the same seed gives the same routes on any number of threads.

        Shape: (size, M), ``out[n, α]`` the cover that α reads. Memory: size · M bytes (M ≤ 256).
        """
        if not isinstance(size, int | np.integer) or size < 0:
            raise McoverError(f"size is {size!r}; write a whole number of at least 0.")
        dtype = route_type(self.covers)
        needed = size * self.covers * np.dtype(dtype).itemsize
        require_memory(needed, f"{size} routes of {self.covers} covers", "draw fewer at a time")
        out = np.empty((size, self.covers), dtype=dtype)
        draw = {"exact": self._exact, "chain": self._chain, "assign": self._assign}[self.method]
        parts = [out[start : start + _CHUNK] for start in range(0, size, _CHUNK)]
        rngs = streams(seed, len(parts))
        # The first part is drawn here, so that tables are built and loops compiled just once.
        for rng, part in zip(rngs[:1], parts[:1], strict=True):
            draw(rng, part)
        if len(parts) > 1:
            with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
                list(pool.map(draw, rngs[1:], parts[1:]))
        return out

    @cached_property
    def log_permanent(self) -> float:
        """log perm of the kernel as it was given (exact; needs the subset table)."""
        # Balancing multiplied every permutation's weight by one constant: read it off any of them.
        rows, route = np.arange(self.covers), self._best_route
        constant = np.sum(self._log_kernel[rows, route] - np.log(self.matrix[rows, route]))
        return float(np.log(self._table[0]) + constant)

    def log_prob(self, routes: ArrayLike) -> NDArray[np.float64]:
        """log P_Q of each route, shape (..., M) → (...); −inf for an impossible one."""
        given = np.asarray(routes)
        if given.shape[-1:] != (self.covers,) or not np.array_equal(
            np.sort(given, axis=-1), np.broadcast_to(np.arange(self.covers), given.shape)
        ):
            raise McoverError(
                f"routes must be permutations of 0..{self.covers - 1} along the last axis, "
                f"shape (..., {self.covers}); got shape {given.shape}."
            )
        total = np.sum(self._log_kernel[np.arange(self.covers), given], axis=-1)
        return np.asarray(total - self.log_permanent)

    @cached_property
    def marginals(self) -> NDArray[np.float64]:
        """P(ρ(α) = β), shape (M, M), exact. Doubly stochastic, but not Q itself."""
        from mcover.permutation_kernels import exact_marginals

        return exact_marginals(self.matrix, self._table)

    def _resolve(self, method: Method) -> Method:
        if method not in ("auto", "exact", "chain", "assign"):
            raise McoverError(f"method is {method!r}; write 'auto', 'exact', 'chain' or 'assign'.")
        positive = bool(np.all(self.matrix > 0))
        if method == "auto":
            limit = EXACT_COVERS if positive else TABLE_COVERS
            method = "exact" if self.covers <= limit or self._is_forced else "chain"
        if method == "chain" and not positive and not self._is_forced:
            raise McoverError(
                "the swap chain needs a kernel without zeros: with them it may never reach some "
                f"permutations. Write method='exact' (to {TABLE_COVERS} covers), or mix in a "
                "little Uniform(): mix(topology, Uniform(), weights=[0.99, 0.01])."
            )
        return method

    @cached_property
    def _is_forced(self) -> bool:
        """Whether just one permutation is possible, as under the Identity topology."""
        return bool(np.count_nonzero(self.matrix) == self.covers)

    @cached_property
    def _best_route(self) -> NDArray[np.int64]:
        return _assign(np.log(np.maximum(self.matrix, np.finfo(float).tiny)))

    @cached_property
    def _table(self) -> NDArray[np.float64]:
        if self.covers > TABLE_COVERS:
            raise McoverError(
                f"exact permanents, probabilities and marginals go to {TABLE_COVERS} covers; this "
                f"kernel has {self.covers}. Draw routes with method='chain' and average them."
            )
        bytes_needed = 17 << self.covers
        require_memory(bytes_needed, f"the table for {self.covers} covers", "take fewer covers")
        from mcover.permutation_kernels import completion_table

        return completion_table(self.matrix)

    def _exact(self, rng: Generator, out: Routes) -> None:
        if self._is_forced:
            out[:] = self._best_route
            return
        from mcover.permutation_kernels import exact_routes

        exact_routes(self.matrix, self._table, rng, out)

    def _chain(self, rng: Generator, out: Routes) -> None:
        from mcover.permutation_kernels import chain_routes

        chain_routes(self.matrix, self._best_route, chain_sweeps(self.covers), rng, out)

    def _assign(self, rng: Generator, out: Routes) -> None:
        log_q = np.log(np.maximum(self.matrix, np.finfo(float).tiny))
        for route in out:
            route[:] = _assign(log_q + rng.gumbel(size=log_q.shape))


def sample(
    kernel: ArrayLike,
    size: int,
    seed: Seed = None,
    method: Method = "auto",
    threads: int | None = None,
) -> Routes:
    """``size`` routes from the law of ``kernel``, shape (size, M). See :class:`Sampler`.

    >>> from mcover.topology import Identity
    >>> sample(Identity().matrix(3), size=2, seed=0)
    array([[0, 1, 2],
           [0, 1, 2]], dtype=uint8)
    """
    return Sampler(kernel, method).sample(size, seed, threads)


def log_permanent(kernel: ArrayLike) -> float:
    """log of the permanent of a non-negative matrix, shape (M, M).

    >>> round(math.exp(log_permanent(np.ones((5, 5)))), 6)
    120.0
    """
    return Sampler(kernel).log_permanent


def log_prob(kernel: ArrayLike, routes: ArrayLike) -> NDArray[np.float64]:
    """log P_Q of given routes, shape (..., M) → (...)."""
    return Sampler(kernel).log_prob(routes)


def marginals(kernel: ArrayLike) -> NDArray[np.float64]:
    """Exact P(ρ(α) = β) under the law of ``kernel``, shape (M, M)."""
    return Sampler(kernel).marginals


def _assign(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """The permutation of the highest total score."""
    from scipy.optimize import linear_sum_assignment

    best: NDArray[np.int64] = linear_sum_assignment(scores, maximize=True)[1]
    return best
