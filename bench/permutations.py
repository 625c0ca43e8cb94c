"""Routes per second of the exact sampler, and the error of the chain that replaces it at large M.

The baseline of the exact sampler is a simple implementation in NumPy and Python: one table over
sets of columns, rebuilt for every permutation. The chain is measured on a grid of topologies: the
time for 1,000 routes and, if M is small enough for the exact table, the largest error of a marginal
of 2,000 routes, that of 2,000 exact routes, and the largest deviation in standard errors.
"""

import itertools
import time

import numpy as np

from mcover import Chain, Custom, GaussianRing, Identity, Uniform, mix
from mcover.permutation_kernels import completion_table
from mcover.permutations import TABLE_COVERS, Sampler
from mcover.topology import Topology
from timing import best_seconds, rows


def rival_draw(q: np.ndarray, rng: np.random.Generator) -> list[int]:
    """One exact draw: permanents of the remaining rows by column set, then row by row."""
    covers = len(q)
    full = (1 << covers) - 1
    table = np.zeros(1 << covers)
    table[full] = 1.0
    for used in range(full - 1, -1, -1):
        free = [c for c in range(covers) if not used >> c & 1]
        row = q[covers - len(free)]
        table[used] = sum(row[c] * table[used | 1 << c] for c in free)
    used, route = 0, []
    for row in range(covers):
        free = [c for c in range(covers) if not used >> c & 1]
        weights = np.array([q[row, c] * table[used | 1 << c] for c in free])
        route.append(int(rng.choice(free, p=weights / weights.sum())))
        used |= 1 << route[-1]
    return route


def band(width: int, covers: int) -> Custom:
    """Equal reads within ``width`` steps on the ring, in both directions."""
    ahead = (np.arange(covers) - np.arange(covers)[:, None]) % covers
    return Custom(np.minimum(ahead, covers - ahead) <= width)


def torus(rows: int, cols: int, sigma: float, row_shift: float, col_shift: float) -> Custom:
    """Covers on a rows × cols torus, with a Gaussian read in both directions."""
    rings = GaussianRing(sigma, row_shift).matrix(rows), GaussianRing(sigma, col_shift).matrix(cols)
    return Custom(np.kron(*rings))


def grid() -> list[tuple[Topology, int]]:
    """All topologies and parameters at 21 to 24 covers, and a few with many covers."""
    sizes, shifts = (0.1, 0.3, 0.45, 0.8, 1.5, 4.0), (0.0, 0.25, 0.5, 2.0)
    return [
        *((GaussianRing(s, m), 21) for s, m in itertools.product(sizes, shifts)),
        *((Chain(s), 22) for s in sizes[2:]),
        *(
            (torus(3, 7, s, r, c), 21)
            for s, r, c in itertools.product(sizes[:4], (0.0, 0.5), shifts[:3])
        ),
        *((band(w, 22), 22) for w in (1, 2, 4)),
        (mix(Identity(), GaussianRing(0.3, 5)), 21),
        (mix(Identity(), Uniform(), weights=[9, 1]), 24),
        (mix(GaussianRing(0.3, 0.5), Uniform(), weights=[999, 1]), 24),
        (GaussianRing(1.0, 0.5), 64),
        (GaussianRing(1.0, 0.5), 300),
        (torus(10, 10, 0.3, 0.5, 0.5), 100),
        (Chain(1.0), 100),
        (band(1, 300), 300),
    ]


def largest_error(routes: np.ndarray, exact: np.ndarray) -> tuple[float, float]:
    """The largest error of a marginal, absolute and in standard errors (for at least 4 counts)."""
    seen = np.stack([np.mean(routes == beta, axis=0) for beta in range(len(exact))], axis=1)
    spread = np.sqrt(np.maximum(exact * (1 - exact), 4 / len(routes)) / len(routes))
    return np.abs(seen - exact).max(), np.abs((seen - exact) / spread).max()


def chains() -> None:
    """The chain of loops on the grid."""
    lines = []
    for topology, covers in grid():
        matrix = topology.matrix(covers)
        sampler = Sampler(matrix)
        begin = time.perf_counter()
        sampler.sample(1, seed=0)  # the test of the chain
        tested = time.perf_counter() - begin
        size = 2_000 if covers <= TABLE_COVERS else 200
        begin = time.perf_counter()
        routes = sampler.sample(size, seed=0, threads=1)
        line = [f"{(time.perf_counter() - begin) / size * 1e6:,.0f}", f"{1e3 * tested:,.0f}"]
        if covers <= TABLE_COVERS:
            exact = Sampler(matrix, "exact")
            error, deviation = largest_error(routes, exact.marginals)
            rival, _ = largest_error(exact.sample(size, seed=0), exact.marginals)
            line += [f"{error:.3f}", f"{rival:.3f}", f"{deviation:.1f}"]
        lines.append([repr(topology), str(covers), *line, *["–"] * (5 - len(line))])
    header = ["topology", "M", "ms per 1,000", "test ms", "error", "exact's", "deviation"]
    rows("beyond 20 covers, one core", header, lines)


def main() -> None:
    rng = np.random.default_rng(0)
    lines = []
    for covers in (3, 5, 10, 16, 20):
        matrix = GaussianRing(1.5, shift=2).matrix(covers)
        sampler = Sampler(matrix)
        sampler.sample(1, seed=0)  # compiles the loops and builds the table
        build = best_seconds(lambda m=matrix: completion_table(m))
        size = 400_000
        draw = best_seconds(lambda s=sampler, n=size: s.sample(n, seed=0, threads=1), 3)
        repeats = {3: 300, 5: 100, 10: 5}.get(covers, 1)
        rival = best_seconds(lambda m=matrix, n=repeats: [rival_draw(m, rng) for _ in range(n)], 1)
        rival /= repeats
        against = [f"{1 / rival:,.1f}", f"{size / draw * rival:,.0f}"]
        lines.append([str(covers), f"{size / draw:,.0f}", f"{1e3 * build:.3f}", *against])
    header = ["M", "routes/s", "table ms", "rival routes/s", "ratio"]
    rows("exact sampler, one core, ring sigma=1.5 shift=2", header, lines)
    chains()


if __name__ == "__main__":
    main()
