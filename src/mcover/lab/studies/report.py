"""One HTML page that holds everything: what ran, tables, figures, versions, commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from mcover.checks import writable
from mcover.files import write_atomic
from mcover.lab.figures.studies import panel_figure
from mcover.lab.figures.style import inline_svg
from mcover.lab.studies.catalogue import STUDIES
from mcover.lab.studies.rows import Row, by_key, origin
from mcover.lab.studies.study import SCALES, Plan, Rows, Scale, Study
from mcover.lab.studies.summary import Point, Summary, summarize
from mcover.lab.studies.tables import NOTHING, Table, text

Progress = Callable[[float, str], None]
_ENOUGH = 0.5
_LONG = 12  # lines of a table beyond which it starts folded


def write_report(
    rows: Sequence[Row],
    path: str | Path,
    scale: Scale | None = None,
    progress: Progress | None = None,
) -> Path:
    """Writes the page; it needs no other file and asks for nothing from the network.

    Args:
        rows: all rows of a store.
        path: where to write.
        scale: show this scale only; otherwise each study at the largest scale that is half done,
            or failing that at the one that is furthest.
        progress: is told the share that is done, and the study it is at.
    """
    target = writable(path)
    have = by_key(rows)
    sections = []
    for number, study in enumerate(STUDIES.values()):
        if progress is not None:
            progress(number / len(STUDIES), f"report: {study.name}")
        plan_at = _furthest(study, have, scale)
        if plan_at is not None:
            summary = summarize(study, plan_at[0], plan_at[1], have)
            sections.append((summary, _figures(summary)))
    shown = {summary.study.name for summary, _ in sections}
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.from_string(_asset("page.html")).render(
        css=Markup(_asset("page.css")),
        js=Markup(_asset("page.js")),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=_versions(origin()),
        trials=len(rows),
        sections=sections,
        beside=_beside([summary for summary, _ in sections]),
        missing=[study for study in STUDIES.values() if study.name not in shown],
        origins=_origins(rows),
        long=_LONG,
    )
    return write_atomic(target, page.encode())


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


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
    for number, (panel, cells) in enumerate(summary.panels.items()):
        points = [point for point in cells if point.value is not None]
        if not points:
            continue
        counts = [len(point.rows) for point in points]
        few, many = min(counts), max(counts)
        title = panel or summary.study.title
        title = title[0].upper() + title[1:]
        name, tips = f"{summary.study.name}-{number}", [_tip(summary, one) for one in points]
        drawn = inline_svg(panel_figure(summary, points), name, title, tips)
        n = f"{few}" if few == many else f"{few} to {many}"
        found.append((title, n, Markup(drawn)))
    return found


def _tip(summary: Summary, point: Point) -> str:
    """What a point says: its line and place, value, interval and n."""
    swept = point.cell.x is not None and summary.study.x_label
    lines = [point.cell.series, f"{summary.study.x_label} {point.cell.x:g}" if swept else ""]
    if point.value is not None:
        lines.append(f"{text(point.value, point.metric.spec)}, n = {point.value.n}")
    if point.cell.published is not None:
        lines.append(f"paper {point.cell.published}")
    return "\n".join(line for line in lines if line)


def _beside(summaries: Sequence[Summary]) -> Table:
    """Our numbers beside the paper's, each value once."""
    lines: dict[tuple[str, str], tuple[str, ...]] = {}
    for summary in summaries:
        for point in summary.points:
            known, value = point.cell.published, point.value
            if known is None or value is None:
                continue
            inside = value.low <= known.value + known.half_width
            inside = inside and known.value - known.half_width <= value.high
            verdict = "overlap" if inside else "apart"
            model = {"perceptron": "perceptron"}.get(point.cell.kind, point.cell.panel)
            lines.setdefault(
                (model, point.cell.series),
                (
                    *(f"{model}: {point.cell.series}", str(known), known.where),
                    *(text(value, point.metric.spec), str(value.n), summary.study.name),
                    verdict if value.n > 1 else NOTHING,
                ),
            )
    header = ("method", "paper", "where", "ours [95 % interval]", "n", "study", "intervals")
    return Table("Ours and the paper's", header, tuple(lines.values()))


def _origins(rows: Sequence[Row]) -> Table:
    """What computed the rows, and when."""
    when: dict[str, list[str]] = {}
    for row in rows:
        when.setdefault(_versions(row.origin), []).append(row.finished[:10] or NOTHING)
    lines = tuple(
        (versions, min(days), max(days), f"{len(days):,}")
        for versions, days in sorted(when.items(), key=lambda one: -len(one[1]))
    )
    return Table("Versions", ("versions", "first", "last", "trials"), lines)


def _versions(facts: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())
