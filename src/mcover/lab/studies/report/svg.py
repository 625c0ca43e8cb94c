"""Figures of the page: inline SVG whose points say their value, interval and n."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import cast

from mcover.lab.studies.kinds import find_kind
from mcover.lab.studies.report.axes import Axis, axis
from mcover.lab.studies.summary import Point, Summary
from mcover.lab.studies.tables import text
from mcover.statistics import Estimate

_WIDTH, _HEIGHT = 440, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 10, 44
_STRIP, _LETTER = 34, 7.2  # height of a strip, width of a letter
_STYLES, _APART = 6, 3.0  # marks and colours; how far lines stand beside each other
_SHAPES = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "M-3.6-3.6h7.2v7.2h-7.2z",
    "M0-5l5 5l-5 5l-5-5z",
    "M0-4.8l4.8 8.4h-9.6z",
    "M0 4.8l4.8-8.4h-9.6z",
    "M-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
)


def panel_svg(summary: Summary, points: Sequence[Point], title: str) -> str:
    """One panel of a study."""
    shown = [point for point in points if point.value is not None]
    draw = _outcomes if summary.study.picture == "outcomes" else _lines
    height, body = draw(summary, shown)
    return (
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {height}" role="group" '
        f'aria-label="{escape(title)}">{body}</svg>'
    )


def legend(summary: Summary, points: Sequence[Point]) -> str:
    """Names of the lines of a panel, each with its mark; strips carry their names themselves."""
    entries = []
    named = {} if summary.study.picture == "outcomes" else _styles(summary, points)
    for series, style in named.items():
        mark = f'<path class="s{style} line" d="M-14 0h28"/>'
        mark += f'<path class="s{style}" d="{_SHAPES[style]}"/>'
        entries.append(
            f'<li><svg viewBox="-15 -7 30 14" width="30" height="14" aria-hidden="true">{mark}'
            f"</svg>{escape(series)}</li>"
        )
    if any(point.cell.published for point in points):
        entries.append(
            '<li><svg viewBox="-15 -7 30 14" width="30" height="14" aria-hidden="true">'
            '<path class="paper" d="M0-7v14M-4-4h8v8h-8z"/></svg>the paper</li>'
        )
    return f'<ul class="legend">{"".join(entries)}</ul>' if entries else ""


def _lines(summary: Summary, points: Sequence[Point]) -> tuple[int, str]:
    """Means with intervals against what is swept."""
    growth = summary.study.picture == "growth"
    places = sorted({float(point.cell.x or 0.0) for point in points})
    few = places if summary.study.x_log and not growth else None
    x = axis(places, _LEFT, _WIDTH - _RIGHT, log=summary.study.x_log, ticks=few)
    y = axis(_heights(points), _HEIGHT - _BOTTOM, _TOP, log=growth, from_zero=not growth)
    parts = [_frame(x, y, summary.study.x_label, find_kind(points[0].cell.kind).axis)]
    styles = _styles(summary, points)
    for number, (series, style) in enumerate(styles.items()):
        line = sorted(
            (point for point in points if point.cell.series == series),
            key=lambda point: point.cell.x or 0.0,
        )
        # Lines stand a little beside each other, so that their intervals can be told apart.
        beside = 0.0 if growth else _APART * (number - (len(styles) - 1) / 2)
        spots = [(x.at(point.cell.x or 0.0) + beside, point) for point in line]
        route = "L".join(f"{at:.1f} {y.at(_value(point).value):.1f}" for at, point in spots)
        parts.append(f'<path class="s{style} line" d="M{route}"/>')
        for at, point in spots:
            known, value = point.cell.published, _value(point)
            if known is not None:
                low, high = known.value - known.half_width, known.value + known.half_width
                aside, middle = at + 3 * _APART, y.at(known.value) - 4
                shape = f"M{aside:.1f} {y.at(low):.1f}V{y.at(high):.1f}"
                shape += f"M{aside - 4:.1f} {middle:.1f}"
                parts.append(f'<path class="paper" d="{shape}h8v8h-8z"/>')
            here = y.at(value.value)
            bar = f"M0 {y.at(value.low) - here:.1f}V{y.at(value.high) - here:.1f}"
            place = f"{summary.study.x_label} {point.cell.x:g}"
            parts.append(_mark(at, here, bar, point, style, place))
    return _HEIGHT, "".join(parts)


def _outcomes(summary: Summary, points: Sequence[Point]) -> tuple[int, str]:
    """A strip for each method: every trial a dot, the mean a mark with its interval."""
    longest = max(len(point.cell.line) for point in points)
    left = min(_LETTER * longest + 16, _WIDTH // 2)
    bottom = _TOP + _STRIP * len(points)
    height = bottom + _BOTTOM
    x = axis(_heights(points, trials=True), left, _WIDTH - _RIGHT)
    parts = [f'<path class="axis" d="M{left:.0f} {_TOP}V{bottom}H{_WIDTH - _RIGHT}"/>']
    parts += _ticks_below(x, bottom, _TOP)
    label = escape(find_kind(points[0].cell.kind).axis)
    parts.append(_label((left + _WIDTH - _RIGHT) / 2, height - 6, label))
    for number, point in enumerate(points):
        style, at = number % _STYLES, _TOP + _STRIP * (number + 0.5)
        # Multiples of the golden ratio fill the strip evenly, without a random number.
        dots = "".join(
            f"M{x.at(value):.1f} {at + 0.6 * _STRIP * (trial * 0.618034 % 1 - 0.5):.1f}h0"
            for trial, value in enumerate(point.values.values())
        )
        parts.append(f'<path class="s{style} dots" d="{dots}"/>')
        name = point.cell.line
        fit = f' textLength="{left - 12:.0f}"' if _LETTER * len(name) > left - 12 else ""
        parts.append(
            f'<text class="name" x="{left - 8:.0f}" y="{at + 4:.1f}"{fit} '
            f'lengthAdjust="spacingAndGlyphs">{escape(name)}</text>'
        )
        known, value = point.cell.published, _value(point)
        if known is not None:
            low, high = x.at(known.value - known.half_width), x.at(known.value + known.half_width)
            middle, line = x.at(known.value), at + 0.36 * _STRIP
            shape = f"M{low:.1f} {line:.1f}H{high:.1f}M{middle - 3.5:.1f} {line - 3.5:.1f}h7v7h-7z"
            parts.append(f'<path class="paper" d="{shape}"/>')
        here = x.at(value.value)
        bar = f"M{x.at(value.low) - here:.1f} 0H{x.at(value.high) - here:.1f}"
        parts.append(_mark(here, at, bar, point, style, ""))
    return height, "".join(parts)


def _frame(x: Axis, y: Axis, x_label: str, y_label: str) -> str:
    bottom = _HEIGHT - _BOTTOM
    parts = [f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{_WIDTH - _RIGHT}"/>']
    for tick in y.ticks:
        at = y.at(tick)
        parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text class="tick y" x="{_LEFT - 6}" y="{at + 4:.1f}">{tick:g}</text>')
    parts += _ticks_below(x, bottom, bottom)
    parts.append(_label((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, escape(x_label)))
    turned = f"translate(14 {(_TOP + bottom) / 2:.0f}) rotate(-90)"
    parts.append(f'<text class="label" transform="{turned}">{escape(y_label)}</text>')
    return "".join(parts)


def _ticks_below(x: Axis, bottom: float, top: float) -> list[str]:
    parts = []
    for tick in x.ticks:
        at = x.at(tick)
        parts.append(f'<path class="grid" d="M{at:.1f} {top}V{bottom}"/>')
        parts.append(f'<path class="axis" d="M{at:.1f} {bottom}v4"/>')
        parts.append(f'<text class="tick" x="{at:.1f}" y="{bottom + 17}">{tick:g}</text>')
    return parts


def _label(x: float, y: float, words: str) -> str:
    return f'<text class="label" x="{x:.0f}" y="{y:.0f}">{words}</text>'


def _mark(x: float, y: float, bar: str, point: Point, style: int, place: str) -> str:
    """A mean with its interval, which the pointer and the keyboard can reach."""
    value = _value(point)
    tip = [point.cell.series, place, f"{text(value, point.metric.spec)}, n = {value.n}"]
    if point.cell.published is not None:
        tip.append(f"paper {point.cell.published}")
    said = escape("\n".join(line for line in tip if line))
    return (
        f'<g class="point s{style}" tabindex="0" role="img" aria-label="{said}" data-tip="{said}" '
        f'transform="translate({x:.1f} {y:.1f})"><path class="bar" d="{bar}"/>'
        f'<path class="halo" d="{_SHAPES[0]}"/><path d="{_SHAPES[style]}"/></g>'
    )


def _heights(points: Sequence[Point], trials: bool = False) -> list[float]:
    found = [bound for point in points for bound in (_value(point).low, _value(point).high)]
    for point in points:
        if point.cell.published is not None:
            known = point.cell.published
            found += [known.value - known.half_width, known.value + known.half_width]
        if trials:
            found += point.values.values()
    return found


def _value(point: Point) -> Estimate:
    return cast(Estimate, point.value)  # points without one are left out before


def _styles(summary: Summary, points: Sequence[Point]) -> dict[str, int]:
    """The style of each line of a panel: the same in every panel, unless panels share no axis."""
    growth = summary.study.picture == "growth"
    every = dict.fromkeys(point.cell.series for point in (points if growth else summary.points))
    number = {series: index % _STYLES for index, series in enumerate(every)}
    here = dict.fromkeys(point.cell.series for point in points)
    return {series: number[series] for series in here}
