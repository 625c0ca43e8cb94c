"""Lowest objectives that annealing finds on ±1 spin glasses, with and without routes.

Each instance is an 8 × 8 torus with random ±1 bonds. All methods make the same number of proposals:
five copies of 100 sweeps. Differences are paired, to replicas that attract each other.

    python bench/graphs.py          # a few seconds
"""

import numpy as np

import mcover
from mcover.statistics import mean, paired
from timing import rows

SIZE, INSTANCES, SWEEPS = 8, 30, 100
METHODS = {
    "replicas": mcover.RSA(5, coupling=0.3),
    "plain, five reads": mcover.Vanilla(),
    "routes": mcover.MCover(5, bank=None),
    "routes and attraction": mcover.MCover(5, bank=None, coupling=0.3),
}


def spin_glass(seed: int) -> mcover.FactorGraph:
    rng = np.random.default_rng([seed, 77])
    sites = np.arange(SIZE**2).reshape(SIZE, SIZE)
    pairs = [
        (int(a), int(b))
        for axis in (1, 0)
        for a, b in zip(sites.ravel(), np.roll(sites, -1, axis).ravel(), strict=True)
    ]
    signs = {True: lambda a, b: -a * b, False: lambda a, b: a * b}
    return mcover.FactorGraph([(signs[bool(rng.integers(2))], pair) for pair in pairs])


def main() -> None:
    found: dict[str, list[float]] = {name: [] for name in METHODS}
    for seed in range(INSTANCES):
        graph = spin_glass(seed)
        for name, method in METHODS.items():
            reads = 5 if method.covers == 1 else 1
            result = mcover.anneal(graph, method, num_sweeps=SWEEPS, num_reads=reads, seed=seed)
            found[name].append(result.best.objective)
    lines = []
    for name, of in found.items():
        to = "" if name == "replicas" else f"{paired(of, found['replicas']).difference:+.2f}"
        lines.append([name, f"{mean(of):.1f}", to])
    header = ["method", "lowest objective [95 %]", "less replicas"]
    rows(f"{SIZE} × {SIZE} spin glasses, n = {INSTANCES}", header, lines)


if __name__ == "__main__":
    main()
