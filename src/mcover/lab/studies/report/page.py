"""The page: every study that has rows, what the paper says beside it, and how it was made."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from mcover.lab.studies.catalogue import STUDIES
from mcover.lab.studies.plan import Plan, Rows, by_key
from mcover.lab.studies.report.svg import legend, panel_svg
from mcover.lab.studies.rows import Row, origin
from mcover.lab.studies.study import SCALES, Scale, Study
from mcover.lab.studies.summary import Summary, summarize
from mcover.lab.studies.tables import NOTHING, Table, cell_tables, further_tables, text

_ENOUGH = 0.5
_LONG = 12  # lines of a table beyond which it starts folded


def write_report(rows: Sequence[Row], path: str | Path, scale: Scale | None = None) -> Path:
    """Writes the page; it needs no other file and asks for nothing from the network.

    Args:
        rows: all rows of a store.
        path: where to write.
        scale: show this scale only; otherwise each study at the largest scale that is half done,
            or failing that at the one that is furthest.
    """
    have = by_key(rows)
    summaries = [
        found for study in STUDIES.values() if (found := _summary(study, have, scale)) is not None
    ]
    template = Template(_asset("page.html"))
    page = template.substitute(
        css=_asset("page.css"),
        js=_asset("page.js"),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=escape(_versions(origin())),
        trials=f"{len(rows):,}",
        navigation=_navigation(summaries),
        beside=_beside(summaries),
        studies="".join(map(_section, summaries)),
        missing=_missing(summaries),
        origins=_origins(rows),
    )
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    draft.write_text(page, encoding="utf-8")
    draft.replace(target)
    return target


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _summary(study: Study, have: Rows, scale: Scale | None) -> Summary | None:
    """A study at the largest scale that is half done, or else at the one that is furthest."""
    found: list[tuple[bool, float, Scale, Plan]] = []
    for one in reversed(SCALES) if scale is None else (scale,):
        plan = Plan(study.at(one), study.choice(one))
        share = 1 - len(plan.missing(have)) / plan.total(have)
        if any(job.key in have for job in plan.jobs(have)):
            found.append((share < _ENOUGH, 0.0 if share >= _ENOUGH else -share, one, plan))
    if not found:
        return None
    *_, best, plan = min(found, key=lambda one: one[:2])  # of equals the first, the larger scale
    return summarize(study, best, plan, have)


def _navigation(summaries: Sequence[Summary]) -> str:
    return "".join(
        f'<li><a href="#{escape(one.study.name)}">{escape(one.study.name)}</a> '
        f"<small>{escape(one.study.source)}</small></li>"
        for one in summaries
    )


def _beside(summaries: Sequence[Summary]) -> str:
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
                    *(model, point.cell.series, str(known), known.where),
                    *(text(value, point.metric.spec), str(value.n), summary.study.name),
                    verdict if value.n > 1 else NOTHING,
                ),
            )
    if not lines:
        return "<p>No trial of what the paper states in numbers has run at its scale yet.</p>"
    header = ("model", "method", "paper", "where", "ours [95 % interval]", "n", "study")
    return _table(Table("", (*header, "intervals"), tuple(lines.values())), "Ours and the paper's")


def _section(summary: Summary) -> str:
    study = summary.study
    failed = f", {summary.failed} failed" if summary.failed else ""
    command = f"mcover study run {study.name} --scale {summary.scale}"
    figures = "".join(_figure(summary, panel) for panel in summary.panels)
    measured = "".join(_table(table, table.title) for table in cell_tables(summary))
    further = "".join(
        f"<h3>{escape(table.title)}</h3>{_table(table, table.title)}"
        for table in further_tables(summary)
    )
    name = escape(study.name)
    return (
        f'<section id="{name}" aria-labelledby="{name}-title">'
        f'<h2 id="{name}-title">{escape(study.title)}</h2>'
        f'<p class="facts"><strong>{escape(study.source)}</strong>, study <code>{name}</code>, '
        f"scale {summary.scale}: {summary.done:,} of {summary.total:,} trials{failed}</p>"
        f"<p>{escape(study.about)}</p>"
        f'<div class="figures">{figures}</div>'
        f"<h3>Measured</h3>{measured}{further}"
        f'<p class="command">Made by <code>{escape(command)}</code></p></section>'
    )


def _figure(summary: Summary, panel: str) -> str:
    points = [point for point in summary.panels[panel] if point.value is not None]
    if not points:
        return ""
    counts = {len(point.rows) for point in points}
    n = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    title = panel or summary.study.title
    title = title[0].upper() + title[1:]
    return (
        f"<figure>{panel_svg(summary, points, title)}{legend(summary, points)}"
        f"<figcaption>{escape(title)}. Mean and 95 % interval, n = {n} a point."
        "</figcaption></figure>"
    )


def _table(table: Table, name: str) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.header)
    body = "".join(
        "<tr>"
        + f'<th scope="row">{escape(line[0])}</th>'
        + "".join(f"<td>{_cell(cell)}</td>" for cell in line[1:])
        + "</tr>"
        for line in table.lines
    )
    whole = (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(name)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
    lines = "1 line" if len(table.lines) == 1 else f"{len(table.lines)} lines"
    caption = f"{escape(name)} ({lines})"
    folded = len(table.lines) > _LONG
    return f"<details{'' if folded else ' open'}><summary>{caption}</summary>{whole}</details>"


def _cell(words: str) -> str:
    """A value with its interval below it, which keeps tables narrow."""
    value, bracket, interval = words.partition(" [")
    return escape(value) + (f"<small> [{escape(interval)}</small>" if bracket else "")


def _missing(summaries: Sequence[Summary]) -> str:
    shown = {summary.study.name for summary in summaries}
    left = [study for study in STUDIES.values() if study.name not in shown]
    if not left:
        return ""
    items = "".join(
        f"<li>{escape(study.title)} ({escape(study.source)}): "
        f"<code>mcover study run {escape(study.name)}</code></li>"
        for study in left
    )
    return f"<h2>Not run yet</h2><ul>{items}</ul>"


def _origins(rows: Sequence[Row]) -> str:
    """What computed the rows, and when."""
    counts = Counter(_versions(row.origin) for row in rows)
    when: dict[str, list[str]] = {}
    for row in rows:
        when.setdefault(_versions(row.origin), []).append(row.finished[:10] or NOTHING)
    lines = tuple(
        (versions, min(when[versions]), max(when[versions]), f"{count:,}")
        for versions, count in counts.most_common()
    )
    return _table(Table("", ("versions", "first", "last", "trials"), lines), "Versions")


def _versions(facts: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())
