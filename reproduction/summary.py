"""Estimates and tables from the rows of a study."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from mcover import statistics
from mcover.errors import McoverError
from mcover.statistics import Comparison, Estimate
from reproduction.rows import KINDS, Kind, Metric, Row
from reproduction.study import Cell, Plan, Rows, Scale, Study

NOTHING = "–"
CHOSEN = "✓"
CANDIDATES = "Chosen on held-out data"
"""Title of the table of candidates."""
OUTDATED = "†"
"""Follows the n of a cell that has rows of an older revision of its trial."""
FOOTNOTE = (
    f"{OUTDATED} rows of an earlier revision of this trial: today's code draws other numbers from "
    "the same seeds."
)


@dataclass(frozen=True)
class Table:
    """Lines of text under a header, for the terminal and for Markdown."""

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

    def text(self) -> str:
        """The table as plain text for the terminal, in aligned columns."""
        lines = [self.header, *self.lines]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        rule = tuple("-" * width for width in widths)
        aligned = (
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in (self.header, rule, *self.lines)
        )
        return "\n".join((self.title, *aligned))


def text(value: Estimate | None, spec: str) -> str:
    """An estimate with its interval; thousands are written out, without powers of ten."""
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
    """Trials with an outcome, by seed."""
    failures: tuple[Row, ...]
    shows: Kind | None = None
    """The metrics of the study, which replace those of the kind."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return (self.shows or KINDS[self.cell.kind]).metrics

    @property
    def axis(self) -> str:
        """The first metric in words."""
        return (self.shows or KINDS[self.cell.kind]).axis

    @property
    def x(self) -> str | None:
        """The value of the swept variable, if there is one."""
        return None if self.cell.x is None else f"{self.cell.x:g}"

    @property
    def n(self) -> str:
        """The number of trials, marked if any is of an older revision of the trial."""
        return _marked(len(self.rows), self)

    @property
    def outdated(self) -> bool:
        """Whether any row is of an older revision of the trial."""
        current = getattr(self.cell.trial, "revision", 1)
        return any(getattr(row, "revision", 1) < current for row in self.rows)

    @property
    def metric(self) -> Metric:
        return self.metrics[0]

    @property
    def value(self) -> Estimate | None:
        """The estimate that figures show."""
        return self.estimates.get(self.metric)

    @cached_property
    def values(self) -> Mapping[int, float]:
        """The first metric's outcome of every trial, by seed."""
        outcome = self.metric.outcome
        return {row.seed: row.outcome[outcome] for row in self.rows}

    @cached_property
    def estimates(self) -> Mapping[Metric, Estimate]:
        """In the order of the metrics; empty without rows."""
        return {
            metric: _estimate(metric, self.rows)
            for metric in self.metrics
            if self.rows and all(metric.outcome in row.outcome for row in self.rows)
        }


@dataclass(frozen=True, eq=False)
class Gain:
    """The difference between the better of a cell's rivals and the cell."""

    cell: Cell
    over: str
    """The better rival, with the lower mean over the seeds that all rivals have."""
    test: Comparison
    """Paired by seed; a positive difference is a gain."""
    n: str
    """The number of pairs, with the same mark as that of a point."""


@dataclass(frozen=True, eq=False)
class Summary:
    """The results of a study at one scale, from the rows that exist."""

    study: Study
    scale: Scale
    points: tuple[Point, ...]
    measured: tuple[Table, ...]
    """A table for each panel with trials, with a line for each cell."""
    further: tuple[Table, ...]
    """Candidates, growth, comparisons and gains."""
    done: int
    total: int
    gains: tuple[Gain, ...] = ()
    """Gains of all cells except rivals, if the study measures gains."""

    @property
    def drawn(self) -> dict[str, list[Point]]:
        """Points with trials by panel, in the order of the study."""
        return _panels(point for point in self.points if point.rows)

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables that are not empty."""
        return self.measured + self.further


def summarize(study: Study, scale: Scale, plan: Plan, rows: Rows) -> Summary:
    """Summarizes a study; all rows of a cell count, also more than the plan has."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows.values(), key=lambda row: row.seed):
        found.setdefault((row.trial_id, row.status), []).append(row)

    # Rows that were used to choose a trial do not test it, or another cell with the same trial.
    used = plan.choosing.own_seeds if any(cell.choices for cell in plan.cells) else ()

    def point(cell: Cell) -> Point:
        done, failed = (
            tuple(row for row in found.get((cell.trial_id, how), ()) if row.seed not in used)
            for how in ("done", "failed")
        )
        return Point(cell, done, failed, study.shows)

    points = tuple(point(plan.resolve(cell, rows) or cell) for cell in plan.cells)
    there = _panels(point for point in points if point.rows or point.failures)
    measured = tuple(_measured(study, panel, some) for panel, some in there.items())
    gains = _gains(study, points)
    further = (
        _candidates(plan, rows),
        _exponents(study, points),
        _contrasts(study, points),
        _gain_table(study, gains),
    )
    shown = tuple(table for table in further if table.lines)
    found = Summary(study, scale, points, measured, shown, *plan.progress(rows), gains)
    return replace(found, further=found.further + tuple(t for t in study.more(found) if t.lines))


def outcome_table(summary: Summary, name: str) -> Table:
    """The mean of any stored outcome, for each cell whose trials store it."""
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


def _marked(n: int, *points: Point) -> str:
    return f"{n}{OUTDATED if any(point.outdated for point in points) else ''}"


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
    """Cached, because studies share cells."""
    return statistics.mean(values)


def _measured(study: Study, panel: str, points: Sequence[Point]) -> Table:
    """A line for each cell; for a sweep, only the metrics that its figure shows."""
    brief = study.shows is None and any(point.x for point in points)
    # Metrics that no cell has, because a later version added them, get no column.
    known = {metric.label for point in points for metric in point.estimates}
    metrics: dict[str, Metric] = {}
    for point in points:
        for metric in point.metrics:
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
            *(point.n, str(len(point.failures)) if broken else None),
        )
        for point in points
    ]
    first = ("line" if study.x_label else "method", study.x_label, "chosen", "paper")
    return Table.of(panel or study.title, (*first, *metrics, "n", "failed"), lines)


def _candidates(plan: Plan, rows: Rows) -> Table:
    """The results of all candidates, chosen or not."""
    name, how = plan.choosing.outcome, plan.choosing.how
    metric = Metric(name, "held-out error, mean")
    if how == "tts":
        metric = Metric(name, f"TTS99 in {name.replace('_', ' ')}", "tts", ".3g")
    tried = {cell.label: plan.tried(cell, rows) for cell in plan.cells}
    judged = [row for of in tried.values() for some in of.values() for row in some]
    broken = any(name not in row.outcome for row in judged)
    lines = []
    for cell in plan.cells:
        resolved = plan.resolve(cell, rows) or cell
        for label, found in tried[cell.label].items():
            good = [row for row in found if name in row.outcome]
            judged_by = text(_estimate(metric, good) if good else None, metric.spec)
            failed = str(len(found) - len(good)) if broken else None
            mark = CHOSEN if label == resolved.chosen else ""
            if found:
                n = _marked(len(good), Point(cell, tuple(good), ()))
                lines.append((cell.label, label, judged_by, n, failed, mark))
    header = ("cell", "candidate", f"{metric.label} [95 % interval]", "n", "failed", "chosen")
    return Table.of(CANDIDATES, header, lines)


def _contrasts(study: Study, points: Sequence[Point]) -> Table:
    """Paired differences, or ratios of times to solution, corrected by Holm's rule."""
    metric = study.shows.metrics[0] if study.shows else None
    times = metric is not None and metric.how == "tts"
    found: list[tuple[str | None, str | None, str, Comparison]] = []
    counts = []
    panels = _panels(points)
    for panel, some in panels.items():
        there = {(point.cell.series, point.x): point for point in some if point.rows}
        swept = dict.fromkeys(point.x for point in some)
        pairs = [(first, second) for first, *others in study.contrasts for second in others]
        for first, second, x in ((*pair, x) for pair in pairs for x in swept):
            sides = [there[one, x] for one in (first, second) if (one, x) in there]
            if len(sides) == 2 and (both := sorted(set(sides[0].values) & set(sides[1].values))):
                test = (_paired_times if times else _paired)(sides[0], sides[1], both)
                where = panel if len(panels) > 1 else None
                found.append((where, x, f"{first} {'/' if times else '−'} {second}", test))
                counts.append(_marked(test.difference.n, *sides))
    corrected = statistics.holm([test.p for *_, test in found])
    spec = ".3g" if times else ".4f"
    lines = [
        (
            *(*what, text(test.difference, spec), p_text(test.p), p_text(float(p))),
            n,
        )
        for (*what, test), p, n in zip(found, corrected, counts, strict=True)
    ]
    named = ("paired difference", "mean [95 % interval]")
    if times and metric:
        named = ("ratio of TTS99", f"of {metric.label.removeprefix('TTS99, ')} [95 % interval]")
    header = ("panel", study.x_label, *named)
    return Table.of("Paired comparisons", (*header, "p", "p, Holm", "n"), lines)


def _paired(first: Point, second: Point, seeds: Sequence[int]) -> Comparison:
    ours, theirs = ([one.values[seed] for seed in seeds] for one in (first, second))
    return statistics.paired(ours, theirs)


def _paired_times(first: Point, second: Point, seeds: Sequence[int]) -> Comparison:
    """Compares times to solution by the first metric."""
    sides = []
    for point in (first, second):
        solved = {row.seed: row.outcome["solved"] > 0 for row in point.rows}
        sides.append(([solved[seed] for seed in seeds], [point.values[seed] for seed in seeds]))
    return statistics.paired_time_to_solution(*sides)


def _gains(study: Study, points: Sequence[Point]) -> tuple[Gain, ...]:
    """Compares each cell with the better of its rivals, on the seeds that both have."""
    places: dict[tuple[str, float | None], dict[str, Point]] = {}
    for point in points if study.rivals else ():
        places.setdefault((point.cell.panel, point.cell.x), {})[point.cell.series] = point
    found = []
    for there in places.values():
        rivals = {name: there[name].values for name in study.rivals if name in there}
        seeds = set.intersection(*map(set, rivals.values())) if rivals else set()
        if len(rivals) < len(study.rivals) or not seeds:
            continue
        means = {name: np.mean([of[seed] for seed in seeds]) for name, of in rivals.items()}
        over = min(means, key=lambda name: means[name])
        for point in (point for name, point in there.items() if name not in rivals):
            ours, theirs = point.values, rivals[over]
            both = sorted(set(ours) & set(theirs))
            if both:
                test = statistics.paired([theirs[s] for s in both], [ours[s] for s in both])
                n = _marked(len(both), point, there[over])
                found.append(Gain(point.cell, over, test, n))
    return tuple(found)


def _gain_table(study: Study, gains: Sequence[Gain]) -> Table:
    """The tested gains, corrected by Holm's rule over all of them."""
    tested = [one for one in gains if one.cell.series in study.gains]
    corrected = statistics.holm([one.test.p for one in tested])
    lines = [
        (
            *(one.cell.panel, None if one.cell.x is None else f"{one.cell.x:g}"),
            *(one.cell.series, one.over, text(one.test.difference, ".4f")),
            *(p_text(one.test.p), p_text(float(p)), one.n),
        )
        for one, p in zip(tested, corrected, strict=True)
    ]
    header = ("panel", study.x_label, "line", "over", "gain, mean [95 % interval]", "p", "p, Holm")
    return Table.of(gain_title(study), (*header, "n"), lines)


def gain_title(study: Study) -> str:
    """The title of the table of gains, which names the rivals."""
    return f"Gain over the better of {' and '.join(study.rivals)}"


def _exponents(study: Study, points: Sequence[Point]) -> Table:
    """Growth of costs: slopes of log cost against log size for each seed, and of the formulas."""
    lines = []
    for (panel, series), (formula, cost) in study.growth.items():
        line = [p for p in points if (p.cell.panel, p.cell.series) == (panel, series)]
        sizes = [point.cell.x for point in line if point.cell.x is not None]
        seeds = set.intersection(*(set(point.values) for point in line)) if line else set()
        if len(sizes) < 2 or not seeds:
            continue
        costs = [[point.values[seed] for seed in sorted(seeds)] for point in line]
        slopes = np.polyfit(np.log(sizes), np.log(costs), 1)[0]
        expected = f"{np.polyfit(np.log(sizes), np.log([*map(cost, sizes)]), 1)[0]:.2f}"
        measured = text(statistics.mean(slopes), ".2f")
        lines.append((panel, series, measured, formula, expected, str(len(slopes))))
    header = ("model", "grows with", "measured exponent [95 % interval]", "paper's formula")
    return Table("Growth", (*header, "its exponent here", "n"), tuple(lines))
