"""One HTML page that holds everything: what ran, tables, figures, versions, commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from mcover.checks import check_writable
from mcover.files import write_atomic
from mcover.lab.figures.studies import counted, panel_figure
from mcover.lab.figures.style import inline_svg
from mcover.lab.studies.catalogue import STUDIES
from mcover.lab.studies.rows import Row, by_key, origin
from mcover.lab.studies.study import PERCEPTRON, SCALES, Plan, Rows, Scale, Study
from mcover.lab.studies.summary import NOTHING, Point, Summary, Table, summarize, text

Progress = Callable[[float, str], None]
_ENOUGH = 0.5
_ENDINGS = ("html", "css", "js")
_LONG = 12  # lines of a table beyond which it starts folded


def write_report(
    rows: Sequence[Row],
    path: str | Path,
    scale: Scale | None = None,
    progress: Progress = lambda share, text: None,
) -> Path:
    """Writes the page of all rows of a store; it needs no other file and nothing of the network.

    Each study is shown at the scale that is asked for, or at the largest one that is half done, or
    failing that at the one that is furthest.
    """
    target = check_writable(path)
    have = by_key(rows)
    sections, missing = [], []
    for number, study in enumerate(STUDIES.values()):
        progress(number / len(STUDIES), f"report: {study.name}")
        if (furthest := _furthest(study, have, scale)) is None:
            missing.append(study)
        else:
            summary = summarize(study, *furthest, have)
            sections.append((summary, _figures(summary)))
    assets = files(__package__).joinpath("assets")
    html, css, js = (assets.joinpath(f"page.{end}").read_text("utf-8") for end in _ENDINGS)
    how: Any = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    page = (
        Environment(autoescape=True, **how)
        .from_string(html)
        .render(
            css=Markup(css),
            js=Markup(js),
            made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            version=_versions(origin()),
            trials=len(rows),
            sections=sections,
            beside=_beside([summary for summary, _ in sections]),
            missing=missing,
            origins=_origins(rows),
            long=_LONG,
        )
    )
    return write_atomic(target, page.encode())


def _furthest(study: Study, have: Rows, scale: Scale | None) -> tuple[Scale, Plan] | None:
    """The largest scale that is half done, or else the one that is furthest."""
    found: list[tuple[float, Scale, Plan]] = []
    for one in reversed(SCALES) if scale is None else (scale,):
        plan = study.plan(one)
        done, total = plan.progress(have)
        if done:
            found.append((min(done / total, _ENOUGH), one, plan))
    best = max(found, key=lambda one: one[0], default=None)  # of equals the first, the larger scale
    return best and best[1:]


def _figures(summary: Summary) -> list[tuple[str, str, Markup]]:
    """Title, n and drawing of each panel that has anything to draw."""
    found = []
    for number, (panel, points) in enumerate(summary.drawn.items()):
        title = panel or summary.study.title
        title = title[0].upper() + title[1:]
        name, tips = f"{summary.study.name}-{number}", [_tip(summary, one) for one in points]
        drawn = inline_svg(panel_figure(summary, points), name, title, tips)
        found.append((title, counted(points), Markup(drawn)))
    return found


def _tip(summary: Summary, point: Point) -> str:
    """What a point says: its line and place, value, interval and n."""
    lines = [point.cell.series]
    if point.x is not None and summary.study.x_label:
        lines.append(f"{summary.study.x_label} {point.x}")
    lines.append(f"{text(point.value, point.metric.spec)}, n = {len(point.rows)}")
    for gain in (one for one in summary.gains if one.cell is point.cell):
        lines.append(f"gain {text(gain.test.difference, point.metric.spec)} over {gain.over}")
    if point.cell.published is not None:
        lines.append(f"paper {point.cell.published}")
    return "\n".join(lines)


def _beside(summaries: Sequence[Summary]) -> Table:
    """Our numbers beside the paper's, each value once."""
    lines: dict[str, tuple[str, ...]] = {}
    for summary, point in ((one, point) for one in summaries for point in one.points):
        known, value = point.cell.published, point.value
        if known is None or value is None:
            continue
        apart = max(value.low - known.value, known.value - value.high) > known.half_width
        verdict = NOTHING if value.n == 1 else "apart" if apart else "overlap"
        # Panels of perceptrons are named by what is swept.
        model = PERCEPTRON if point.cell.kind == "perceptron" else point.cell.panel
        name = f"{model}: {point.cell.series}"
        ours = (text(value, point.metric.spec), str(value.n))
        lines.setdefault(name, (name, str(known), *ours, summary.study.name, verdict))
    header = ("method", "paper, Table 1", "ours [95 % interval]", "n", "study", "intervals")
    return Table("Ours and the paper's", header, tuple(lines.values()))


def _origins(rows: Sequence[Row]) -> Table:
    """What computed the rows, and when."""
    when: dict[str, list[str]] = {}
    for row in rows:
        when.setdefault(_versions(row.origin), []).append(row.finished[:10] or NOTHING)
    often = sorted(when.items(), key=lambda one: -len(one[1]))
    lines = tuple((name, min(days), max(days), f"{len(days):,}") for name, days in often)
    return Table("Versions", ("versions", "first", "last", "trials"), lines)


def _versions(facts: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())
