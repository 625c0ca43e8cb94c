"""Routes per second of the exact sampler, against a subset-DP that rebuilds its table per draw.

The rival is what one writes first: NumPy and Python, one dictionary-free table over column sets,
built anew for every permutation drawn.
"""

import numpy as np

from mcover import GaussianRing
from mcover.permutation_kernels import completion_table
from mcover.permutations import Sampler
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


if __name__ == "__main__":
    main()
