"""What the rows of a study say together: estimates of cells, and tables of what they amount to."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from mcover import statistics
from mcover.errors import McoverError
from mcover.lab.studies.rows import KINDS, Metric, Row
from mcover.lab.studies.study import Cell, Plan, Rows, Scale, Study
from mcover.statistics import Comparison, Estimate

NOTHING = "–"
CHOSEN = "✓"


@dataclass(frozen=True)
class Table:
    """Lines of text under a header: for the terminal, the report and Markdown alike."""

    title: str
    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, title: str, header: Sequence[str], lines: Sequence[Sequence[str | None]]) -> Table:
        """A table without the columns that are None in every line."""
        kept = [n for n in range(len(header)) if any(line[n] is not None for line in lines)]
        texts = tuple(tuple(line[n] or "" for n in kept) for line in lines)
        return cls(title, tuple(header[n] for n in kept), texts)

    def markdown(self) -> str:
        """The table for a Markdown page."""
        lines = [self.header, ["---"] * len(self.header), *self.lines]
        escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
        return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def text(value: Estimate | None, spec: str) -> str:
    """An estimate with its interval; thousands in full rather than as powers of ten."""
    if value is None:
        return NOTHING
    plain = re.sub(r"[\d.]+e\+\d+", lambda found: f"{float(found[0]):,.0f}", f"{value:{spec}}")
    return plain.replace("-", "−")


def p_text(p: float) -> str:
    """A p-value in two digits."""
    if math.isnan(p):
        return NOTHING
    return f"{p:.2g}" if p >= 1e-3 else f"{p:.0e}".replace("e-0", "e-").replace("-", "−")


@dataclass(frozen=True, eq=False)
class Point:
    """A cell with its rows."""

    cell: Cell
    rows: tuple[Row, ...]
    """Trials that gave an outcome, by seed."""
    failures: tuple[Row, ...]

    @property
    def x(self) -> str | None:
        """What is swept, where something is."""
        return None if self.cell.x is None else f"{self.cell.x:g}"

    @property
    def metric(self) -> Metric:
        return KINDS[self.cell.kind].metrics[0]

    @property
    def value(self) -> Estimate | None:
        """The estimate that figures show."""
        return self.estimates.get(self.metric)

    @property
    def values(self) -> dict[int, float]:
        """That outcome of every trial, by seed."""
        return {row.seed: row.outcome[self.metric.outcome] for row in self.rows}

    @cached_property
    def estimates(self) -> Mapping[Metric, Estimate]:
        """In the order of the kind's metrics; empty without rows."""
        return {
            metric: _estimate(metric, self.rows)
            for metric in KINDS[self.cell.kind].metrics
            if self.rows and all(metric.outcome in row.outcome for row in self.rows)
        }


@dataclass(frozen=True, eq=False)
class Summary:
    """A study at one scale, as far as its rows go."""

    study: Study
    scale: Scale
    points: tuple[Point, ...]
    measured: tuple[Table, ...]
    """For each panel that has trials, a line for each cell."""
    further: tuple[Table, ...]
    """How the cells came about and what they say together."""
    done: int
    total: int

    @property
    def drawn(self) -> dict[str, list[Point]]:
        """Points that have a value, by panel, in the order of the study."""
        return _panels(point for point in self.points if point.rows)

    @property
    def tables(self) -> tuple[Table, ...]:
        """Every table that has anything in it."""
        return self.measured + self.further

    @property
    def failed(self) -> int:
        return sum(len(point.failures) for point in self.points)


def summarize(study: Study, scale: Scale, plan: Plan, rows: Rows) -> Summary:
    """All that a study says; every row of a cell counts, also beyond the trials that were asked."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows.values(), key=lambda row: row.seed):
        found.setdefault((row.config, row.status), []).append(row)
    points = tuple(
        Point(cell, *(tuple(found.get((cell.config, how), ())) for how in ("done", "failed")))
        for cell in (plan.resolve(cell, rows) or cell for cell in plan.cells)
    )
    there = _panels(point for point in points if point.rows or point.failures)
    measured = tuple(_measured(study, panel, some) for panel, some in there.items())
    further = (_candidates(plan, rows), _exponents(study, points), _contrasts(study, points))
    shown = tuple(table for table in further if table.lines)
    return Summary(study, scale, points, measured, shown, *plan.progress(rows))


def outcome_table(summary: Summary, name: str) -> Table:
    """The mean of any outcome that trials keep, of each cell whose trials keep it."""
    lines = []
    for point in summary.points:
        values = [row.outcome[name] for row in point.rows if name in row.outcome]
        if values:
            where = (point.cell.panel, point.cell.series, point.x)
            lines.append((*where, text(statistics.mean(values), ".4g"), str(len(values))))
    if not lines:
        kept = sorted(
            {key for point in summary.points for row in point.rows for key in row.outcome}
        )
        raise McoverError(f"no trial keeps {name!r}; write one of {', '.join(kept)}.")
    header = ("panel", "line", summary.study.x_label, f"{name}, mean [95 % interval]", "n")
    return Table.of(name, header, lines)


def _panels(points: Iterable[Point]) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {}
    for point in points:
        found.setdefault(point.cell.panel, []).append(point)
    return found


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


def _measured(study: Study, panel: str, points: Sequence[Point]) -> Table:
    """A line for each cell; of a sweep only what its figure shows."""
    brief = any(point.x for point in points)
    # What no cell has, since a later version began to keep it, has no column.
    known = {metric.label for point in points for metric in point.estimates}
    metrics: dict[str, Metric] = {}
    for point in points:
        for metric in KINDS[point.cell.kind].metrics:
            wanted = metric.label in known and (not brief or metric.how == "fraction")
            if wanted or metric == point.metric:
                metrics.setdefault(metric.label, metric)
    picked = any(point.cell.choices for point in points)
    stated = any(point.cell.published for point in points)
    broken = any(point.failures for point in points)
    lines = [
        (
            *(point.cell.series, point.x),
            (point.cell.chosen or NOTHING) if picked else None,
            str(point.cell.published or NOTHING) if stated else None,
            *(text(point.estimates.get(metric), metric.spec) for metric in metrics.values()),
            *(str(len(point.rows)), str(len(point.failures)) if broken else None),
        )
        for point in points
    ]
    first = ("line" if study.x_label else "method", study.x_label, "chosen", "paper")
    return Table.of(panel or study.title, (*first, *metrics, "n", "failed"), lines)


def _candidates(plan: Plan, rows: Rows) -> Table:
    """What was chosen among: held-out errors of all that were tried, chosen or not."""
    name = plan.choosing.outcome
    tried = {cell.label: plan.tried(cell, rows) for cell in plan.cells}
    judged = [row for of in tried.values() for some in of.values() for row in some]
    broken = any(name not in row.outcome for row in judged)
    lines = []
    for cell in plan.cells:
        resolved = plan.resolve(cell, rows) or cell
        for label, found in tried[cell.label].items():
            good = tuple(row.outcome[name] for row in found if name in row.outcome)
            error = text(_mean(good) if good else None, ".4f")
            failed = str(len(found) - len(good)) if broken else None
            mark = CHOSEN if label == resolved.chosen else ""
            if found:
                lines.append((cell.label, label, error, str(len(good)), failed, mark))
    header = ("cell", "candidate", "held-out error, mean [95 % interval]", "n", "failed", "chosen")
    return Table.of("Chosen on held-out data", header, lines)


def _contrasts(study: Study, points: Sequence[Point]) -> Table:
    """Paired differences with their tests, corrected by Holm's rule for all of the study."""
    found: list[tuple[str | None, str | None, str, Comparison]] = []
    panels = _panels(points)
    for panel, some in panels.items():
        there = {(point.cell.series, point.x): point.values for point in some}
        swept = dict.fromkeys(point.x for point in some)
        pairs = [(first, second) for first, *others in study.contrasts for second in others]
        for first, second, x in ((*pair, x) for pair in pairs for x in swept):
            ours, theirs = there.get((first, x), {}), there.get((second, x), {})
            both = sorted(set(ours) & set(theirs))
            if both:
                test = statistics.paired([ours[s] for s in both], [theirs[s] for s in both])
                where = panel if len(panels) > 1 else None
                found.append((where, x, f"{first} − {second}", test))
    corrected = statistics.holm([test.p for *_, test in found])
    lines = [
        (
            *(*what, text(test.difference, ".4f"), p_text(test.p), p_text(float(p))),
            str(test.difference.n),
        )
        for (*what, test), p in zip(found, corrected, strict=True)
    ]
    header = ("panel", study.x_label, "paired difference", "mean [95 % interval]")
    return Table.of("Paired comparisons", (*header, "p", "p, Holm", "n"), lines)


def _exponents(study: Study, points: Sequence[Point]) -> Table:
    """How costs grow beside the formulas: slopes of log cost against log size, one a seed."""
    lines = []
    for (panel, series), (formula, cost) in study.growth.items():
        line = [p for p in points if (p.cell.panel, p.cell.series) == (panel, series)]
        sizes = [point.cell.x for point in line if point.cell.x is not None]
        seeds = set.intersection(*(set(point.values) for point in line)) if line else set()
        if len(sizes) < 2 or not seeds:
            continue
        slopes = [_slope(sizes, [point.values[seed] for point in line]) for seed in sorted(seeds)]
        expected = f"{_slope(sizes, [cost(size) for size in sizes]):.2f}"
        measured = text(statistics.mean(slopes), ".2f")
        lines.append((panel, series, measured, formula, expected, str(len(slopes))))
    header = ("model", "grows with", "measured exponent [95 % interval]", "paper's formula")
    return Table("Growth", (*header, "its exponent here", "n"), tuple(lines))


def _slope(sizes: Sequence[float], costs: Sequence[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])
