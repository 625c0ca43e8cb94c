"""Figures of the studies in the form of the paper: one column wide, or as wide as a page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from mcover.errors import McoverError
from reproduction.family_figure import family_figure
from reproduction.summary import Point, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import ErrorbarContainer
    from matplotlib.figure import Figure

# Okabe and Ito's palette: distinct with any colour vision.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
FORMATS = ("png", "pdf", "svg")

COLUMN = 3.4
"""Width of a column of the paper, in inches."""
_HEIGHT, _LOW, _STRIP = 2.6, 2.0, 0.27
_PAGE = 7.0
_MARKERS = "osD^vPX*"
_LINES = ("-", "--", "-.", ":")
_APART = 2.5
"""Points between lines of a sweep, so that their intervals do not cover each other."""
_FAR = 0.6
"""Threshold for not starting the axis at zero: smallest value as a share of the largest."""
_CURVE: Any = {"markersize": 3.5, "linewidth": 1.1, "elinewidth": 0.9, "capsize": 1.5}
_GREY: Any = {"color": "0.6", "linewidth": 0.9, "markersize": 3, "zorder": 1.5}
_MEAN: Any = {"color": "0.1", "marker": "|", "markersize": 8, "capsize": 2, "linewidth": 1.1}
_PUBLISHED: Any = {"marker": "s", "markersize": 4, "markerfacecolor": "none", "linestyle": "none"}
_PUBLISHED |= {"elinewidth": 0.7, "capsize": 2, "zorder": 3}
_PAPER = "paper, Table 1"
_FONT: Any = {"font.size": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7}
_FONT |= {"legend.fontsize": 7, "axes.titlesize": 8, "figure.titlesize": 8, "pdf.fonttype": 42}


def study_figure(summary: Summary) -> Figure:
    """The figure of a study, with n in its title and published values marked."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    if summary.study.picture == "families":
        return family_figure(summary, COLOURS, _PAGE, _FONT)
    panels = summary.drawn
    gain = summary.study.picture == "gain"
    columns = min(len(panels), 3 if gain else 2)
    lines = -(-len(panels) // columns)
    height = max(_height(summary, points) for points in panels.values())
    n = counted([point for points in panels.values() for point in points])
    scale = "" if summary.scale == "paper" else f", scale {summary.scale}"
    with rc_context(_FONT):
        width = COLUMN if columns == 1 else _PAGE
        figure = Figure(figsize=(width, height * lines + 0.45), layout="constrained")
        times = summary.study.picture == "times"
        said = "TTS99, 95 % interval; arrows: none solved" if times else "mean, 95 % interval"
        title = f"{summary.study.title}\nn = {n} trials a point{scale}; {said}"
        figure.suptitle(title, wrap=True)
        share: Any = "row" if gain else False
        grid = figure.subplots(lines, columns, squeeze=False, sharey=share).ravel()
        used, unused = grid[: len(panels)], grid[len(panels) :]
        for axes, (name, points) in zip(used, panels.items(), strict=True):
            _draw(axes, summary, points)
            if gain:
                axes.label_outer()
            elif axes.get_legend_handles_labels()[0] and not (times and len(unused)):
                axes.legend(frameon=False, handlelength=2.2, labelspacing=0.3)
            axes.set_title(name)
        if times and len(unused):  # one legend for all, in an unused panel
            fullest = max(
                (axes.get_legend_handles_labels() for axes in used), key=lambda h: len(h[0])
            )
            unused[0].legend(
                *fullest, frameon=False, handlelength=2.2, labelspacing=0.3, loc="center"
            )
        for axes in unused:
            axes.set_axis_off()
        if times:
            low = min(axes.get_ylim()[0] for axes in used)
            high = max(axes.get_ylim()[1] for axes in used)
            for axes in used:
                axes.set_ylim(low, high)
        if summary.study.picture == "lines":
            top = max(axes.get_ylim()[1] for axes in used)
            for axes in used:
                axes.set_ylim(top=top)
        if gain:  # one legend of all panels
            named = {
                label: handle
                for axes in used
                for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
            }
            where: Any = {"loc": "outside lower center", "ncols": columns}
            figure.legend(named.values(), named, frameon=False, handlelength=2.6, **where)
    return figure


def counted(points: Sequence[Point]) -> str:
    """The number of trials of a point, or the range of numbers."""
    counts = sorted({len(point.rows) for point in points})
    return " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))


def _height(summary: Summary, points: Sequence[Point]) -> float:
    if summary.study.picture == "outcomes":
        return 0.7 + _STRIP * len(points)
    return _LOW if summary.study.picture == "gain" else _HEIGHT


def _draw(axes: Axes, summary: Summary, points: Sequence[Point]) -> None:
    if summary.study.picture == "outcomes":
        _draw_outcomes(axes, points)
    elif summary.study.picture == "gain":
        _draw_gains(axes, summary, points)
    else:
        _draw_lines(axes, summary, points)


def _draw_lines(axes: Axes, summary: Summary, points: Sequence[Point]) -> None:
    """Means with intervals against the swept variable; published values as hollow squares."""
    growth = summary.study.picture == "growth"
    # A line has the same colour in every panel, and is shifted slightly from the others.
    names = dict.fromkeys(point.cell.series for point in (points if growth else summary.points))
    styles = dict(zip(names, zip(cycle(COLOURS), cycle(_MARKERS), cycle(_LINES)), strict=False))
    there = list(dict.fromkeys(point.cell.series for point in points))
    for number, series in enumerate(there):
        colour, marker, line = styles[series]
        beside = 0.0 if growth else _APART * (number - (len(there) - 1) / 2)
        of = [point for point in points if point.cell.series == series]
        x, middle, low, high = _curve(of)
        solved = np.isfinite(middle)
        if not solved.all():  # nothing solved: an arrow up from the lower bound
            bounds: Any = {"yerr": 0.6 * low[~solved], "lolims": True, "fmt": "none"}
            _push(axes, axes.errorbar(x[~solved], low[~solved], color=colour, **bounds), beside)
            middle = np.where(solved, middle, np.nan)
        how: Any = {"color": colour, "marker": marker, "linestyle": line, "label": series}
        drawn = axes.errorbar(x, middle, yerr=[middle - low, high - middle], **_CURVE, **how)
        _push(axes, drawn, beside)
        for point in of:
            if known := point.cell.published:
                mark = _mark(axes, point.cell.x, known.value, colour, yerr=known.half_width)
                _push(axes, mark, beside + _APART * len(there))
    if any(one.cell.published for one in points):
        _mark(axes, np.nan, np.nan, "0.3", label=_PAPER, yerr=np.nan)
    _sweep(axes, summary, points, ticked=not growth)
    axes.set_ylabel(_axis(points))
    if summary.study.picture == "times":
        axes.set_yscale("log")
        axes.margins(x=0.1)  # lines are drawn beside each other
    elif growth:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        axes.set_ylim(low, high * (high / low) ** 0.45)  # space for the legend above the lines
    elif axes.dataLim.y0 < _FAR * axes.dataLim.y1:
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25, linewidth=0.5)


def _sweep(axes: Axes, summary: Summary, points: Sequence[Point], ticked: bool = True) -> None:
    """The axis of the swept variable, with ticks at its values."""
    axes.set_xscale("log" if summary.study.x_log else "linear")
    ticks = sorted({point.cell.x for point in points if point.cell.x is not None})
    if ticked and len(ticks) <= 9:
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    axes.set_xlabel(summary.study.x_label)


def _draw_gains(axes: Axes, summary: Summary, points: Sequence[Point]) -> None:
    """Gains against the swept variable: tested ones with intervals, the others in grey."""
    axes.axhline(0, color="0.4", linewidth=0.8)
    places = {id(point.cell) for point in points}
    tested = summary.study.gains
    names = dict.fromkeys(one.cell.series for one in summary.gains)
    greys = [series for series in names if series not in tested]
    for series in (*greys, *tested):
        of = [g for g in summary.gains if id(g.cell) in places and g.cell.series == series]
        of.sort(key=lambda one: one.cell.x or 0)
        gains, x = [one.test.difference for one in of], np.array([one.cell.x for one in of])
        middle = np.array([one.value for one in gains])
        if series in greys:
            at = greys.index(series)
            style: Any = {"marker": "x+1"[at % 3], "linestyle": _LINES[1 + at % 3], **_GREY}
            axes.plot(x, middle, label=series, **style)
        else:
            at = tested.index(series)
            style = {"color": COLOURS[at], "marker": _MARKERS[at], "label": series, **_CURVE}
            ends = [[g.value - g.low for g in gains], [g.high - g.value for g in gains]]
            drawn = axes.errorbar(x, middle, yerr=ends, **style)
            _push(axes, drawn, _APART * (at - (len(tested) - 1) / 2))
    _sweep(axes, summary, points)
    axes.set_ylabel(f"gain in {_axis(points)}")
    axes.grid(alpha=0.25, linewidth=0.5)


def _push(axes: Axes, drawn: ErrorbarContainer, points: float) -> None:
    """Shifts artists to the right, in points of print, independent of the scale of the axis."""
    from matplotlib.transforms import ScaledTranslation

    shift = axes.transData + ScaledTranslation(points / 72, 0, axes.figure.dpi_scale_trans)
    for artist in drawn.get_children():
        artist.set_transform(shift)


def _axis(points: Sequence[Point]) -> str:
    return points[0].axis.replace("ε_g", r"$\epsilon_g$")


def _curve(points: Sequence[Point]) -> Any:
    """Places, means, lower and upper ends, in the order of the axis."""
    known = [(point.cell.x, point.value) for point in points if point.value is not None]
    return np.array(sorted((x, one.value, one.low, one.high) for x, one in known)).T


def _draw_outcomes(axes: Axes, points: Sequence[Point]) -> None:
    """A strip per method: a dot per trial, the mean with its interval, and the paper's value."""
    for at, (colour, point) in enumerate(zip(cycle(COLOURS), points, strict=False)):
        values = np.array(list(point.values.values()))
        # Multiples of the golden ratio fill the strip evenly, without a random number.
        spread = 0.55 * (np.arange(len(values)) * 0.618034 % 1 - 0.5)
        axes.scatter(values, at + spread, s=5, color=colour, alpha=0.5, linewidth=0)
        value: Any = point.value
        span = [[value.value - value.low], [value.high - value.value]]
        axes.errorbar([value.value], [at], xerr=span, **_MEAN)
        if point.cell.published is not None:
            known = point.cell.published
            label = None if _PAPER in axes.get_legend_handles_labels()[1] else _PAPER
            _mark(axes, known.value, at + 0.38, "0.1", label=label, xerr=known.half_width)
    axes.set_yticks(range(len(points)), [fill(point.cell.line, 24) for point in points])
    axes.locator_params(axis="x", nbins=5)
    axes.set_ylim(len(points) - 0.4, -0.6)
    axes.set_xlabel(_axis(points))
    axes.grid(axis="x", alpha=0.25, linewidth=0.5)


def _mark(axes: Axes, x: Any, y: float, colour: str, **more: Any) -> ErrorbarContainer:
    """A published value with its half-width, along x or y."""
    return axes.errorbar([x], [y], color=colour, **_PUBLISHED, **more)


def save(figure: Figure, path: str | Path) -> Path:
    """Writes a figure in the format of the suffix, and creates its folder if needed."""
    target = Path(path)
    suffix = target.suffix.lstrip(".").lower()
    if suffix not in FORMATS:
        raise McoverError(f"cannot write {target}; end the name in .png, .pdf or .svg.")
    # Without the date, the same rows give the same file.
    metadata: Any = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(suffix)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, format=suffix, dpi=150, metadata=metadata)
    return target
