"""Averages over points of the sweeps of the ±1 perceptron, seed by seed.

The module reads ``loading.csv``, ``perceptron-topology.csv`` and ``covers.csv`` of the results. It
makes short tables, and paired comparisons of averages over several points, for ``pages.py``. A seed
is one instance at every point. So an average over points gives one number per seed, and n is the
number of seeds that all points of a study share.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from mcover import statistics
from mcover.statistics import Estimate
from reproduction.rows import by_key, read_csv
from reproduction.studies import find_study
from reproduction.summary import Point, Table, p_text, summarize, text

RESULTS = Path(__file__).parent / "results"
MEAN, MAJORITY, SOLVED = "generalization_error", "generalization_error_sign", "solved"
Place = tuple[str, str, float | None]
"""Panel, line and x of a point."""


class Sweep:
    """The points of a study on the seeds that all of them share."""

    def __init__(self, name: str) -> None:
        study = find_study(name)
        plan = study.plan("paper")
        rows = by_key(read_csv(RESULTS / f"{name}.csv"))
        found = summarize(study, "paper", plan, rows).points
        self.points: dict[Place, Point] = {
            (point.cell.panel, point.cell.series, point.cell.x): point for point in found
        }
        self.seeds = sorted(set.intersection(*(set(point.values) for point in found)))

    def mean(self, place: Place, shared: bool = False) -> str:
        values = self._values(place, MEAN, shared)
        return self._with_n(text(statistics.mean(values), ".4f"), len(values))

    def solved(self, place: Place, shared: bool = False) -> str:
        values = self._values(place, SOLVED, shared)
        return self._with_n(text(statistics.fraction(values > 0), ".2f"), len(values))

    def average(self, places: Iterable[Place], outcome: str) -> np.ndarray:
        """One number for each shared seed."""
        return np.mean([self._values(place, outcome, shared=True) for place in places], axis=0)

    def compare(
        self, title: str, lines: Sequence[tuple[str, Iterable[Place], Iterable[Place]]]
    ) -> Table:
        """First minus second, for both errors; Holm's rule covers the whole table."""
        found: list[tuple[str, str, Estimate, float]] = []
        for name, first, second in lines:
            ours, theirs = list(first), list(second)
            for label, outcome in (("the mean", MEAN), ("the majority", MAJORITY)):
                test = statistics.paired(self.average(ours, outcome), self.average(theirs, outcome))
                found.append((name, label, test.difference, test.p))
        corrected = statistics.holm([p for *_, p in found])
        return Table(
            f"{title}, {len(found)} comparisons",
            ("paired difference", "ε_g of", "mean [95 % interval]", "p", "p, Holm", "n"),
            tuple(
                (name, label, text(difference, ".4f"), p_text(p), p_text(q), str(difference.n))
                for (name, label, difference, p), q in zip(found, corrected, strict=True)
            ),
        )

    def hard(self, title: str, places: Iterable[Place]) -> Table:
        """The instances that some of these points did not solve."""
        solved = np.array([self._values(place, SOLVED, shared=True) > 0 for place in places])
        lines = [
            (str(seed), text(statistics.fraction(hits), ".2f"), str(len(hits)))
            for seed, hits in zip(self.seeds, solved.T, strict=True)
            if not hits.all()
        ]
        rest = len(self.seeds) - len(lines)
        always = text(statistics.fraction([True] * len(solved)), ".2f")
        lines.append((f"each of the other {rest}", always, str(len(solved))))
        return Table(title, ("instance (seed)", "solved", "points"), tuple(lines))

    def _values(self, place: Place, outcome: str, shared: bool) -> np.ndarray:
        rows = self.points[place].rows
        kept = [row for row in rows if not shared or row.seed in self.seeds]
        return np.array([row.outcome[outcome] for row in kept])

    def _with_n(self, shown: str, n: int) -> str:
        return shown if n == len(self.seeds) else f"{shown} (n = {n})"


def loading() -> list[Table]:
    sweep = Sweep("loading")
    a, b = "(a) more covers", "(b) against replicas"
    lines = {
        "vanilla": (a, "vanilla"),
        "RSA M=3": (b, "RSA M=3"),
        "M-cover M=3, σ=3": (b, "M-cover M=3"),
        "M-cover M=3, σ=1.5": (a, "M-cover M=3"),
        "M-cover M=5, σ=1.5": (a, "M-cover M=5"),
        "M-cover M=7, σ=1.5": (a, "M-cover M=7"),
    }
    loads = sorted({x for *_, x in sweep.points if x is not None})

    def table(title: str, cell: Callable[[Place], str]) -> Table:
        body = ((f"{x:g}", *(cell((*line, x)) for line in lines.values())) for x in loads)
        return Table(
            f"loading: {title}, n = {len(sweep.seeds)} where no other is given",
            ("α", *lines),
            tuple(body),
        )

    ranges = {"α ≤ 1.4": loads[:3], "α = 1.5, 1.58": loads[3:5], "α ≥ 1.7": loads[5:]}
    pairs = [
        ("M-cover M=3, σ=3", "RSA M=3"),
        ("M-cover M=5, σ=1.5", "M-cover M=3, σ=1.5"),
        ("M-cover M=7, σ=1.5", "M-cover M=3, σ=1.5"),
    ]
    compared = [
        (
            f"{first} − {second}, {name}",
            [(*lines[first], x) for x in some],
            [(*lines[second], x) for x in some],
        )
        for first, second in pairs
        for name, some in ranges.items()
    ]
    return [
        table("ε_g of the mean", sweep.mean),
        table("solved", sweep.solved),
        sweep.compare("loading: averages over loads", compared),
    ]


def topology() -> list[Table]:
    sweep = Sweep("perceptron-topology")
    sigmas, shifts, covers = (0.5, 1.0, 1.5, 2.0, 3.0, 6.0), (0, 1, 2, 3), (3, 5, 7)
    wide = sigmas[1:]

    def places(
        sigma: Sequence[float] = wide,
        shift: Sequence[int] = shifts,
        m: Sequence[int] = covers,
    ) -> list[Place]:
        # On a ring of three a shift of 3 equals no shift: the same trials, counted once.
        return [
            (f"shift μ = {c}", f"M={k}", s)
            for k in m
            for c in shift
            for s in sigma
            if (k, c) != (3, 3)
        ]

    header = [f"{what}, M={m}" for what in ("ε_g", "solved") for m in covers]
    body = (
        (
            f"{shift}",
            f"{sigma:g}",
            *(sweep.mean((f"shift μ = {shift}", f"M={m}", sigma)) for m in covers),
            *(sweep.solved((f"shift μ = {shift}", f"M={m}", sigma)) for m in covers),
        )
        for shift in shifts
        for sigma in sigmas
    )
    over = [
        (
            f"{sigma:g}",
            *(
                text(statistics.mean(sweep.average(places([sigma], m=[m]), outcome)), ".4f")
                for outcome in (MEAN, MAJORITY)
                for m in covers
            ),
        )
        for sigma in sigmas
    ]
    drifting = {"m": (5, 7)}
    compared = [
        ("σ = 0.5 − σ = 6", places([0.5]), places([6.0])),
        ("σ = 1, 1.5, 2 − σ = 6", places([1.0, 1.5, 2.0]), places([6.0])),
        ("σ = 1, 1.5, 2 − σ = 3, 6", places([1.0, 1.5, 2.0]), places([3.0, 6.0])),
        (
            "μ = 1, 2, 3 − μ = 0; M = 5, 7, σ ≥ 1",
            places(shift=(1, 2, 3), **drifting),
            places(shift=(0,), **drifting),
        ),
        (
            "μ = 2, 3 − μ = 0, 1; M = 5, 7, σ ≥ 1",
            places(shift=(2, 3), **drifting),
            places(shift=(0, 1), **drifting),
        ),
        ("M=5 − M=3; σ ≥ 1", places(m=(5,)), places(m=(3,))),
        ("M=7 − M=3; σ ≥ 1", places(m=(7,)), places(m=(3,))),
    ]
    pooled = [f"ε_g of {what}, M={m}" for what in ("the mean", "the majority") for m in covers]
    n = len(sweep.seeds)
    return [
        Table(
            f"perceptron-topology, n = {n} where no other is given",
            ("μ", "σ", *header),
            tuple(body),
        ),
        Table(
            f"perceptron-topology: averages over the shifts, n = {n}", ("σ", *pooled), tuple(over)
        ),
        sweep.compare("perceptron-topology: averages over points", compared),
        sweep.hard("perceptron-topology: instances, σ ≥ 1", places()),
    ]


def covers() -> list[Table]:
    sweep = Sweep("covers")
    kinds = ("structured routing", "uniform routing")
    panel = next(panel for panel, *_ in sweep.points)
    numbers = sorted({x for *_, x in sweep.points if x is not None})

    def places(kind: str, some: Iterable[float]) -> list[Place]:
        return [(panel, kind, float(m)) for m in some]

    body = []
    for m in numbers:
        shared = [sweep.mean((panel, kind, m), shared=True) for kind in kinds]
        shared += [sweep.solved((panel, kind, m), shared=True) for kind in kinds]
        whole = sweep.points[panel, kinds[0], m]
        more = len(whole.rows) > len(sweep.seeds)
        shared += [f"{sweep.mean((panel, kinds[0], m))}" if more else "–"]
        body.append((f"{m:g}", *shared))
    header = [f"{what}, {kind.split()[0]}" for what in ("ε_g", "solved") for kind in kinds]
    compared = [
        (
            "structured − uniform, M = 2 … 9",
            places(kinds[0], range(2, 10)),
            places(kinds[1], range(2, 10)),
        ),
        *(
            (f"{kind.split()[0]}: {first} − {second}", places(kind, ours), places(kind, theirs))
            for first, ours, second, theirs in (
                ("M = 3, 4, 5", (3, 4, 5), "M = 2", (2,)),
                ("M = 7, 8, 9", (7, 8, 9), "M = 3, 4, 5", (3, 4, 5)),
            )
            for kind in kinds
        ),
    ]
    return [
        Table(
            f"covers, on the same n = {len(sweep.seeds)} instances",
            ("M", *header, "ε_g, structured, all trials"),
            tuple(body),
        ),
        sweep.compare("covers: averages over M", compared),
        sweep.hard(
            "covers: instances, M ≥ 3",
            [one for kind in kinds for one in places(kind, range(3, 10))],
        ),
    ]


def tables() -> list[Table]:
    """All tables, in the order of the pages."""
    return [*loading(), *topology(), *covers()]
