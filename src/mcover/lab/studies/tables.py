"""A summary as tables of text, for the terminal, the report and Markdown alike."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mcover.errors import McoverError
from mcover.lab.studies.kinds import Metric, find_kind
from mcover.lab.studies.summary import Point, Summary
from mcover.statistics import Estimate, mean

NOTHING = "–"
CHOSEN = "✓"


@dataclass(frozen=True)
class Table:
    """Lines of text under a header."""

    title: str
    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


def tables(summary: Summary) -> list[Table]:
    """Every table of a study that has anything in it."""
    return [*cell_tables(summary), *further_tables(summary)]


def further_tables(summary: Summary) -> list[Table]:
    """How the cells came about and what they say together, where there is any of it."""
    found = (candidate_table(summary), exponent_table(summary), contrast_table(summary))
    return [table for table in found if table.lines]


def cell_tables(summary: Summary) -> list[Table]:
    """What was measured: a table for each panel and a line for each cell that has trials."""
    found = []
    for panel, cells in summary.panels.items():
        points = [point for point in cells if point.rows or point.failures]
        if not points:
            continue
        swept = any(point.cell.x is not None for point in points)
        metrics = _metrics(points, brief=swept)
        picked = any(point.cell.choices for point in points)
        stated = any(point.cell.published for point in points)
        header = ["method" if not summary.study.x_label else "line"]
        header += [summary.study.x_label] if swept else []
        header += ["chosen"] if picked else []
        header += ["paper"] if stated else []
        broken = any(point.failed for point in points)
        header += [metric.label for metric in metrics] + ["n"] + ["failed"] * broken
        lines = []
        for point in points:
            line = [point.cell.series]
            line += [f"{point.cell.x:g}" if point.cell.x is not None else ""] if swept else []
            line += [point.cell.chosen or NOTHING] if picked else []
            line += [str(point.cell.published or NOTHING)] if stated else []
            line += [text(point.estimates.get(metric), metric.spec) for metric in metrics]
            lines.append((*line, str(len(point.rows)), *([str(point.failed)] * broken)))
        found.append(Table(panel or summary.study.title, tuple(header), tuple(lines)))
    return found


def outcome_table(summary: Summary, name: str) -> Table:
    """The mean of any outcome that trials keep, of each cell whose trials keep it."""
    swept = any(point.cell.x is not None for point in summary.points)
    lines = []
    for point in summary.points:
        values = [row.outcome[name] for row in point.rows if row.outcome.get(name) is not None]
        if values:
            line = [point.cell.panel, point.cell.series]
            line += [f"{point.cell.x:g}" if point.cell.x is not None else ""] if swept else []
            lines.append((*line, text(mean(values), ".4g"), str(len(values))))
    if not lines:
        kept = sorted(
            {key for point in summary.points for row in point.rows for key in row.outcome}
        )
        raise McoverError(f"no trial keeps {name!r}; write one of {', '.join(kept)}.")
    header = ["panel", "line", *([summary.study.x_label] if swept else [])]
    return Table(name, (*header, f"{name}, mean [95 % interval]", "n"), tuple(lines))


def candidate_table(summary: Summary) -> Table:
    """What was chosen among: held-out errors of all candidates that were tried."""
    broken = any(one.failed for one in summary.candidates)
    header = ["cell", "candidate", "held-out error, mean [95 % interval]", "n"]
    header += ["failed"] * broken + ["chosen"]
    lines = []
    for one in summary.candidates:
        line = [one.cell, one.label, text(one.error, ".4f")]
        line += [str(0 if one.error is None else one.error.n)]
        lines.append((*line, *([str(one.failed)] * broken), CHOSEN if one.chosen else ""))
    return Table("Chosen on held-out data", tuple(header), tuple(lines))


def contrast_table(summary: Summary) -> Table:
    """Paired differences with their tests."""
    swept = any(contrast.x is not None for contrast in summary.contrasts)
    many = len(summary.panels) > 1
    lines = []
    for one in summary.contrasts:
        line = [one.panel] if many else []
        line += [f"{one.x:g}" if one.x is not None else ""] if swept else []
        line += [f"{one.first} − {one.second}", text(one.difference, ".4f")]
        lines.append((*line, p_text(one.p), p_text(one.corrected), str(one.difference.n)))
    header = ["panel"] if many else []
    header += [summary.study.x_label] if swept else []
    header += ["paired difference", "mean [95 % interval]", "p", "p, Holm", "n"]
    return Table("Paired comparisons", tuple(header), tuple(lines))


def exponent_table(summary: Summary) -> Table:
    """Growth of costs beside the formulas."""
    header = ("model", "grows with", "measured exponent [95 % interval]")
    lines = tuple(
        (
            *(one.panel, one.series, text(one.measured, ".2f")),
            *(one.formula, f"{one.expected:.2f}", str(one.measured.n)),
        )
        for one in summary.exponents
    )
    return Table("Growth", (*header, "paper's formula", "its exponent here", "n"), lines)


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


def markdown(table: Table) -> str:
    """A table for a Markdown page."""
    rule = ["---"] * len(table.header)
    lines = [table.header, rule, *table.lines]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def _metrics(points: Sequence[Point], brief: bool) -> list[Metric]:
    """Metrics of all kinds in a panel, in their order; for a sweep only what its figure shows."""
    found: dict[str, Metric] = {}
    for point in points:
        for number, metric in enumerate(find_kind(point.cell.kind).metrics):
            if not brief or number == 0 or metric.how == "fraction":
                found.setdefault(metric.label, metric)
    return list(found.values())
