"""Routes and their law: P_Q(ρ) = Π_α Q[α, ρ(α)] / perm(Q), over permutations ρ of the covers.

This is the Q-weighted law of permutations of the paper (eq:mlayer_Q_weighted_permutation_law).

There are two ways to draw from it:

- **exact** (up to ``EXACT_COVERS`` = 20 covers, on request up to ``TABLE_COVERS`` = 26): a table
  over the 2^M sets of columns holds the permanents of the remaining rows, so each row is drawn from
  its exact conditional distribution. The uniform law and a law with a single permutation need no
  table, for any M.
- **chain** (for more covers): :class:`LoopChain`, whose stationary distribution is the law. Before
  the first draw it is tested, and it is refused if it does not forget its initial state.

A third way, **assign** (Gumbel noise, then the best assignment), is often used because it is fast.
It is *biased* (its total variation from the law is about 0.2 at M = 5, σ = 0.7) and included for
comparison.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike, NDArray

from mcover import checks
from mcover.balancing import balance, log_weights
from mcover.errors import McoverError, McoverWarning
from mcover.seeds import Seed, streams

__all__ = [
    "Routes",
    "Sampler",
    "log_permanent",
    "log_prob",
    "marginals",
    "sample",
]

Sampling = Literal["auto", "exact", "chain", "assign"]
Routes = NDArray[np.unsignedinteger]

EXACT_COVERS = 20  # up to this number "auto" builds the table
TABLE_COVERS = 26  # up to this number method="exact" builds it
_CHUNK = 4096  # routes per random stream; fixed, so that draws do not depend on the threads
_FLAT = 1e-12  # kernels this flat count as uniform; the total variation is below M times this
_CHAINS, _DRAWS = 32, 64  # in the test: the number of chains, and of draws from each
_AGREEMENT = 2.5  # the largest factor F that passes the test, with its sampling noise
_SPACING = 8  # loops between draws, as a multiple of the loops that passed the test
_LOOPS = 64  # the largest number of loops that is tested, as a multiple of M
_STEPS = 2**26  # the largest number of steps of one chain in one test


def route_type(covers: int) -> type[np.unsignedinteger]:
    """The smallest dtype for a cover index."""
    return np.uint8 if covers <= 256 else np.uint16 if covers <= 65536 else np.uint32


class Sampler:
    """Draws routes from the law of one kernel.

    Args:
        kernel: a topology's matrix, or any non-negative matrix with a possible permutation, (M, M).
        method: "auto" is exact if that is cheap, and chain otherwise. If the chain does not pass
            its test, "auto" refuses to draw, and "chain" draws with a warning.

    >>> sampler = Sampler([[1, 1, 0], [0, 1, 1], [1, 0, 1]])  # the identity and one rotation
    >>> sorted({tuple(route) for route in sampler.sample(100, seed=0).tolist()})
    [(0, 1, 2), (1, 2, 0)]
    """

    def __init__(self, kernel: ArrayLike, method: Sampling = "auto") -> None:
        self._log_kernel = log_weights(kernel)
        self.matrix = balance(self._log_kernel, "this kernel")
        self.covers = len(self.matrix)
        method = checks.check_choice("method", method, ("auto", "exact", "chain", "assign"))
        self._insists = method == "chain"
        if method == "auto":
            easy = self.covers <= EXACT_COVERS or self._is_forced or self._is_flat
            method = "exact" if easy else "chain"
        self.method = method

    def sample(self, size: int, seed: Seed = None, threads: int | None = None) -> Routes:
        """Draws routes; the same seed gives the same routes on any number of threads.

        Shape: (size, M), ``out[n, α]`` the cover that α reads. Memory: size · M bytes (M ≤ 256).
        """
        size = checks.check_int("size", size, 0)
        dtype = route_type(self.covers)
        needed = size * self.covers * np.dtype(dtype).itemsize
        checks.check_memory(
            needed, f"{size} routes of {self.covers} covers", "draw fewer at a time"
        )
        out = np.empty((size, self.covers), dtype=dtype)
        draw = {"exact": self._exact, "chain": self._chain, "assign": self._assign}[self.method]
        fill(out, draw, _CHUNK, seed, threads)
        return out

    @cached_property
    def log_permanent(self) -> float:
        """The logarithm of the permanent of the given kernel (exact; needs the table)."""
        # Balancing multiplies the weights of all permutations by one factor, found from any one.
        rows, route = np.arange(self.covers), self._best_route
        constant = np.sum(self._log_kernel[rows, route] - np.log(self.matrix[rows, route]))
        return float(np.log(self._table[0]) + constant)

    def log_prob(self, routes: ArrayLike) -> NDArray[np.float64]:
        """log P_Q of each route, shape (..., M) → (...); −inf for an impossible one."""
        given = checks.check_floats("routes", routes)
        if given.shape[-1:] != (self.covers,) or not np.array_equal(
            np.sort(given, axis=-1), np.broadcast_to(np.arange(self.covers), given.shape)
        ):
            raise McoverError(
                f"routes must be permutations of 0..{self.covers - 1} along the last axis, "
                f"shape (..., {self.covers}); got shape {given.shape}."
            )
        total = np.sum(self._log_kernel[np.arange(self.covers), given.astype(np.intp)], axis=-1)
        return np.asarray(total - self.log_permanent)

    @cached_property
    def marginals(self) -> NDArray[np.float64]:
        """The exact P(ρ(α) = β), shape (M, M). It is doubly stochastic, but differs from Q."""
        from mcover.permutation_kernels import exact_marginals

        return exact_marginals(self.matrix, self._table)

    @cached_property
    def _is_forced(self) -> bool:
        """Whether only one permutation is possible, as for the Identity topology."""
        return bool(np.count_nonzero(self.matrix) == self.covers)

    @cached_property
    def _is_flat(self) -> bool:
        """Whether all permutations are equally likely."""
        return bool(self.matrix.max() <= self.matrix.min() * (1 + _FLAT))

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
        checks.check_memory(
            17 << self.covers, f"the table for {self.covers} covers", "take fewer covers"
        )
        from mcover.permutation_kernels import completion_table

        return completion_table(self.matrix)

    def _exact(self, rng: Generator, out: Routes) -> None:
        if self._is_forced:
            out[:] = self._best_route
        elif self._is_flat and self.covers > EXACT_COVERS:
            out[:] = np.arange(self.covers)
            rng.permuted(out, axis=1, out=out)
        else:
            from mcover.permutation_kernels import exact_routes

            exact_routes(self.matrix, self._table, rng, out)

    @cached_property
    def _loop_chain(self) -> LoopChain:
        chain = LoopChain(self.matrix, self._best_route)
        if chain.disagreement > _AGREEMENT:
            exact = "method='exact'" if self.covers <= TABLE_COVERS else "fewer covers"
            problem = (
                f"routes of this kernel of {self.covers} covers cannot be drawn reliably: chains "
                f"from different starts disagree ({chain.disagreement:.3g} times the variance of "
                f"independent draws). Write {exact}, or mix in some Uniform(): "
                "mix(topology, Uniform(), weights=[0.99, 0.01])."
            )
            if not self._insists or math.isinf(chain.disagreement):
                raise McoverError(problem)
            # At the caller's request for routes.
            warnings.warn(problem, McoverWarning, stacklevel=6)
        return chain

    def _chain(self, rng: Generator, out: Routes) -> None:
        self._loop_chain.draw(rng, out)

    def _assign(self, rng: Generator, out: Routes) -> None:
        log_q = np.log(np.maximum(self.matrix, np.finfo(float).tiny))
        for route in out:
            route[:] = _assign(log_q + rng.gumbel(size=log_q.shape))


class LoopChain:
    """The Markov chain of Jerrum and Sinclair on routes, without rejections.

    It is the chain of "Approximating the permanent" (1989), in physics a worm algorithm. It moves
    through routes that lack one row and one column, so it can rotate a ring or follow any other
    alternating cycle one entry at a time (``permutation_kernels.loop_routes``). Swaps of two rows
    cannot, if the routes in between are improbable. Kernels may contain zeros.

    The number of loops between two draws is measured. ``_CHAINS`` chains, half of them from the
    best route and half from uniform permutations, make ``_DRAWS`` draws each. The number of loops
    is doubled until in every row the variance of the marginals between chains is close to that of
    independent draws. If it is F times as large, a draw is worth 1/F independent draws; chains that
    never move have F = ``_DRAWS``. An autocorrelation r of successive draws gives F = (1 + r) / (1
    − r), so r up to about 0.4 passes, and with ``_SPACING`` times as many loops r is about 0.001.
    The test does not detect routes that no chain has visited, nor differences in rows that change
    in fewer than 1/``_DRAWS`` of the draws.

    The draws follow the law of a kernel with entries rounded to 2⁻⁵⁰. To first order the total
    variation from the exact law is at most 2⁻⁵⁰ Σ_αβ perm(Q without α, β) / perm(Q), where the sum
    is M times the mean number of steps in a loop: about 2e-12 for 50 steps at M = 40.

    ``loops`` is the number of loops between two draws; ``disagreement`` is the largest factor F of
    any row in the last test, or inf if a loop did not end.
    """

    def __init__(self, matrix: NDArray[np.float64], best: NDArray[np.int64]) -> None:
        covers = len(matrix)
        cumulative = np.cumsum(matrix.T, axis=1)
        self._cumulative = cumulative / cumulative[:, -1:]
        steps = np.arange(covers) / covers
        guide = [np.searchsorted(column, steps, side="right") for column in self._cumulative]
        self._guide = np.array(guide, dtype=np.int32)
        rngs = streams([covers, _CHAINS, _DRAWS], _CHAINS)  # one test, whatever the seed
        self._states = np.stack([rng.permutation(covers) for rng in rngs])
        self._states[::2] = best
        tested = 8
        self.disagreement = self._test(tested, rngs)
        while _AGREEMENT < self.disagreement < math.inf and tested < _LOOPS * covers:
            tested *= 2
            self.disagreement = self._test(tested, rngs)
        self.loops = _SPACING * tested

    def draw(self, rng: Generator, out: Routes) -> None:
        """Fills out (size, M), starting from the final state of one of the chains of the test."""
        self._run(self._states[rng.integers(_CHAINS)].copy(), self.loops, rng, out, 2**62)

    def _run(self, state: Any, loops: int, rng: Generator, out: Routes, limit: int) -> int:
        from mcover.permutation_kernels import loop_routes

        return int(loop_routes(self._cumulative, self._guide, state, loops, limit, rng, out))

    def _test(self, loops: int, rngs: list[Generator]) -> float:
        """Continues each chain, and returns the largest F of any row."""
        covers = len(self._guide)
        drawn = np.empty((_DRAWS, covers), dtype=route_type(covers))
        total, squares = np.zeros((2, covers * covers))
        for state, rng in zip(self._states, rngs, strict=True):
            if self._run(state, loops, rng, drawn, _STEPS) < 0:
                return math.inf
            entries = np.arange(covers) * covers + drawn
            counts = np.bincount(entries.ravel(), minlength=covers * covers)
            total += counts
            squares += counts**2
        mean = total / (_CHAINS * _DRAWS)
        seen = (squares - total**2 / _CHAINS) / (_DRAWS * (_CHAINS - 1))
        seen, independent = (x.reshape(covers, covers).sum(axis=1) for x in (seen, mean - mean**2))
        return float(np.max(seen / (independent + 1 / _DRAWS)))


def fill(
    out: NDArray[Any],
    draw: Callable[[Generator, NDArray[Any]], None],
    chunk: int,
    seed: Seed,
    threads: int | None,
) -> None:
    """Fills ``out`` with ``draw(rng, part)``, with one random stream for each ``chunk`` rows."""
    workers = checks.cpus() if threads is None else checks.check_int("threads", threads, 1)
    parts = [out[start : start + chunk] for start in range(0, len(out), chunk)]
    rngs = streams(seed, len(parts))
    # The first part is drawn alone, so that tables are built and loops compiled only once.
    list(map(draw, rngs[:1], parts[:1]))
    if len(parts) > 1:
        with ThreadPoolExecutor(min(workers, len(parts))) as pool:
            list(pool.map(draw, rngs[1:], parts[1:]))


def sample(
    kernel: ArrayLike,
    size: int,
    seed: Seed = None,
    method: Sampling = "auto",
    threads: int | None = None,
) -> Routes:
    """``size`` routes from the law of ``kernel``, shape (size, M). See :class:`Sampler`."""
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

    return np.asarray(linear_sum_assignment(scores, maximize=True)[1])
