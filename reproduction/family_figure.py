"""The figure of a study over families of data: one strip per family, one marker per method."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from reproduction.summary import Point, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = "osD^vPX*<>"
_STRIP = 0.62
"""Height of a strip, in inches."""
_SPREAD = 0.76
"""Share of a strip that its markers fill."""


def family_figure(summary: Summary, colours: tuple[str, ...], width: float, font: Any) -> Figure:
    """Times to solution of the series that the study compares; arrows start at lower bounds."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    shown = list(dict.fromkeys(one for pair in summary.study.contrasts for one in pair))
    panels = summary.drawn
    styles = dict(zip(shown, zip(cycle(colours), cycle(_MARKERS), strict=False), strict=False))
    scale = "" if summary.scale == "paper" else f", scale {summary.scale}"
    counts = sorted({len(p.rows) for of in panels.values() for p in of if p.cell.series in shown})
    n = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    with rc_context(font):
        figure = Figure(figsize=(width, 1.6 + _STRIP * len(panels)), layout="constrained")
        figure.suptitle(
            f"{summary.study.title}\nn = {n} trials a point{scale}; TTS99, 95 % interval; "
            "arrows: none solved",
            wrap=True,
        )
        axes = figure.subplots()
        for at, points in enumerate(panels.values()):
            if at % 2:
                axes.axhspan(at - 0.5, at + 0.5, color="0.95", linewidth=0)
            _draw(axes, at, [one for one in points if one.cell.series in shown], styles)
        axes.set_xscale("log")
        axes.set_xlabel(panels[next(iter(panels))][0].axis)
        axes.set_yticks(range(len(panels)), list(panels))
        axes.set_ylim(len(panels) - 0.5, -0.5)
        axes.grid(axis="x", alpha=0.25, linewidth=0.5)
        named = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
        ordered = {series: named[series] for series in shown if series in named}
        where: Any = {"loc": "outside lower center", "ncols": 3, "frameon": False}
        figure.legend(list(ordered.values()), list(ordered), **where)
    return figure


def _draw(axes: Axes, at: int, points: list[Point], styles: dict[str, Any]) -> None:
    # A series has the same place in every strip.
    places = dict(zip(styles, np.linspace(-0.5, 0.5, len(styles)) * _SPREAD, strict=True))
    for point in points:
        series, value = point.cell.series, point.value
        if value is None:
            continue
        colour, marker = styles[series]
        y = at + places[series]
        how: Any = {"color": colour, "marker": marker, "markersize": 4, "linestyle": "none"}
        if np.isfinite(value.value):
            high = value.high if np.isfinite(value.high) else 10 * value.value
            span = [[value.value - value.low], [high - value.value]]
            axes.errorbar([value.value], [y], xerr=span, elinewidth=0.9, label=series, **how)
        else:
            bound: Any = {"xerr": [0.6 * value.low], "xlolims": True, "fmt": "none"}
            axes.errorbar([value.low], [y], color=colour, **bound)
            axes.plot([], [], label=series, **how)
