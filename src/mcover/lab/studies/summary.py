"""What the rows of a study say together: estimates of cells, and contrasts between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mcover import statistics
from mcover.lab.studies.cells import Cell
from mcover.lab.studies.kinds import Metric, find_kind
from mcover.lab.studies.rows import Row
from mcover.lab.studies.study import Plan, Rows, Scale, Study
from mcover.statistics import Estimate


@dataclass(frozen=True, eq=False)
class Point:
    """A cell with its rows."""

    cell: Cell
    rows: tuple[Row, ...]
    """Trials that gave an outcome, by seed."""
    failures: tuple[Row, ...]
    estimates: Mapping[Metric, Estimate]
    """In the order of the kind's metrics; empty without rows."""

    @property
    def failed(self) -> int:
        return len(self.failures)

    @property
    def metric(self) -> Metric:
        return find_kind(self.cell.kind).metrics[0]

    @property
    def value(self) -> Estimate | None:
        """The estimate that figures show."""
        return self.estimates.get(self.metric)

    @property
    def values(self) -> dict[int, float]:
        """That outcome of every trial, by seed."""
        return {row.seed: row.outcome[self.metric.outcome] for row in self.rows}


@dataclass(frozen=True)
class Candidate:
    """A strength that a cell might take, and what held-out data say of it."""

    cell: str
    label: str
    error: Estimate | None
    """Mean of the outcome that candidates are judged by; None where every trial failed."""
    failed: int
    chosen: bool


@dataclass(frozen=True)
class Contrast:
    """A paired comparison of two cells of a study."""

    panel: str
    x: float | None
    first: str
    second: str
    difference: Estimate
    p: float
    corrected: float
    """By Holm's rule, for all contrasts of the study."""


@dataclass(frozen=True)
class Exponent:
    """How a measured cost grows with what is swept, beside the paper's formula."""

    panel: str
    series: str
    measured: Estimate
    formula: str
    expected: float


@dataclass(frozen=True, eq=False)
class Summary:
    """A study at one scale, as far as its rows go."""

    study: Study
    scale: Scale
    points: tuple[Point, ...]
    candidates: tuple[Candidate, ...]
    contrasts: tuple[Contrast, ...]
    exponents: tuple[Exponent, ...]
    done: int
    total: int

    @property
    def panels(self) -> dict[str, list[Point]]:
        """Points by panel, in the order of the study."""
        found: dict[str, list[Point]] = {}
        for point in self.points:
            found.setdefault(point.cell.panel, []).append(point)
        return found

    @property
    def failed(self) -> int:
        return sum(point.failed for point in self.points)


def summarize(study: Study, scale: Scale, plan: Plan, rows: Rows) -> Summary:
    """All that a study says; every row of a cell counts, also beyond the trials that were asked."""
    by_config: dict[str, list[Row]] = {}
    for row in rows.values():
        by_config.setdefault(row.config, []).append(row)
    resolved = [plan.resolve(cell, rows) or cell for cell in plan.cells]
    points = tuple(_point(cell, by_config.get(cell.config, [])) for cell in resolved)
    candidates, contrasts = _candidates(plan, rows), _contrasts(study, points)
    exponents = _exponents(study, points)
    done, total = plan.progress(rows)
    return Summary(
        study, scale, points, tuple(candidates), tuple(contrasts), tuple(exponents), done, total
    )


def _point(cell: Cell, rows: Sequence[Row]) -> Point:
    good = tuple(sorted((row for row in rows if row.status == "done"), key=lambda row: row.seed))
    found = {
        metric: _estimate(metric, good)
        for metric in find_kind(cell.kind).metrics
        if good and all(metric.outcome in row.outcome for row in good)
    }
    bad = tuple(row for row in rows if row.status == "failed")
    return Point(cell, good, bad, found)


def _estimate(metric: Metric, rows: Sequence[Row]) -> Estimate:
    values = np.array([row.outcome[metric.outcome] for row in rows]) * metric.scale
    if metric.how == "fraction":
        return statistics.fraction(values > 0)
    if metric.how == "tts":
        return statistics.time_to_solution([row.outcome["solved"] > 0 for row in rows], values)
    return _mean(tuple(values.tolist()))


@lru_cache(maxsize=4096)
def _mean(values: tuple[float, ...]) -> Estimate:
    """Studies share cells: a bootstrap of the same trials is made once."""
    return statistics.mean(values)


def _candidates(plan: Plan, rows: Rows) -> list[Candidate]:
    """All candidates that were tried, chosen or not: how far apart they are belongs to a choice."""
    found = []
    name = plan.choosing.outcome
    for cell in plan.cells:
        resolved = plan.resolve(cell, rows)
        for choice, tried in zip(cell.choices, plan.tried(cell, rows), strict=True):
            if not tried:
                continue
            good = [row.outcome[name] for row in tried if name in row.outcome]
            error = _mean(tuple(good)) if good else None
            chosen = resolved is not None and choice.label == resolved.chosen
            failed = len(tried) - len(good)
            found.append(Candidate(cell.label, choice.label, error, failed, chosen))
    return found


def _contrasts(study: Study, points: Sequence[Point]) -> list[Contrast]:
    found = []
    places: dict[tuple[str, float | None], dict[str, Point]] = {}
    for point in points:
        places.setdefault((point.cell.panel, point.cell.x), {})[point.cell.series] = point
    for (panel, x), by_series in places.items():
        for first, second in study.contrasts:
            if first not in by_series or second not in by_series:
                continue
            ours, theirs = by_series[first].values, by_series[second].values
            both = sorted(set(ours) & set(theirs))
            if both:
                pairs = [ours[seed] for seed in both], [theirs[seed] for seed in both]
                found.append((panel, x, first, second, statistics.paired(*pairs)))
    order = {pair: number for number, pair in enumerate(study.contrasts)}
    rank = {panel: number for number, panel in enumerate(dict.fromkeys(p for p, _ in places))}
    found.sort(key=lambda one: (rank[one[0]], order[one[2], one[3]]))  # stable: x stays in order
    corrected = statistics.holm([comparison.p for *_, comparison in found])
    return [
        Contrast(panel, x, first, second, comparison.difference, comparison.p, float(p))
        for (panel, x, first, second, comparison), p in zip(found, corrected, strict=True)
    ]


def _exponents(study: Study, points: Sequence[Point]) -> list[Exponent]:
    """Slopes of log cost against log x, one for each seed; their mean with its interval."""
    found = []
    for (panel, series), growth in study.growth.items():
        line = [p for p in points if (p.cell.panel, p.cell.series) == (panel, series)]
        if len(line) < 2:
            continue
        sizes = [point.cell.x for point in line if point.cell.x is not None]
        seeds = set.intersection(*(set(point.values) for point in line))
        if not seeds:
            continue
        slopes = [_slope(sizes, [point.values[seed] for point in line]) for seed in sorted(seeds)]
        expected = _slope(sizes, [growth.cost(size) for size in sizes])
        found.append(Exponent(panel, series, statistics.mean(slopes), growth.formula, expected))
    return found


def _slope(sizes: Sequence[float], costs: Sequence[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])
