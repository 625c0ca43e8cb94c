"""What a search found, as a picture: the response to each option, and which of them matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mcover.lab.figures.style import COLOURS
from mcover.lab.tune.search import Candidate
from mcover.lab.tune.spaces import Dimension, Range

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FULL, _PRUNED, _DEFAULTS, _WINNER = COLOURS[0], "0.65", COLOURS[1], COLOURS[5]
_WORDS = {"sigma": "ring width σ", "shift": "shift μ", "covers": "covers M", "bank": "bank S"}
_WORDS |= {"blocks": "blocks G", "redraw": "redrawn every …"}
_COLUMNS = 3


def tune_figure(
    candidates: Sequence[Candidate],
    space: Mapping[str, Dimension],
    importances: Mapping[str, float],
    label: str,
    title: str,
    marked: tuple[Candidate, Candidate],
) -> Figure:
    """A panel for each option, candidate by candidate, the importances and the course.

    Args:
        candidates: what was tried, in order; those that were refused are left out.
        space: what was searched.
        importances: of each option, summing to 1; empty where there are too few candidates.
        label: what is minimised.
        title: of the picture.
        marked: the defaults and the winner.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    shown = [one for one in candidates if one.value is not None]
    rows = -(-(len(space) + 2) // _COLUMNS)
    figure = Figure(figsize=(3.7 * _COLUMNS, 2.9 * rows), layout="constrained")
    figure.suptitle(title)
    panels = list(figure.subplots(rows, _COLUMNS, squeeze=False).ravel())
    course, bars, *rest = panels
    values = [one.value if one.complete else np.inf for one in shown]
    best = np.minimum.accumulate(np.array(values, float))
    course.step([one.number for one in shown], best, where="post", color=_FULL, linewidth=1)
    _draw(course, shown, [one.number for one in shown], marked)
    course.set(xlabel="candidate", ylabel=label, title="the search")
    names = sorted(importances, key=lambda name: importances[name])
    bars.barh([_words(n) for n in names], [importances[n] for n in names], color=_FULL)
    bars.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    bars.set(title="importance for the best quarter")
    if not importances:
        bars.text(0.5, 0.5, "too few candidates", ha="center", transform=bars.transAxes)
        bars.set(xticks=[], yticks=[])
    for axes, (name, room) in zip(rest, space.items(), strict=False):
        some = [one for one in shown if name in one.params]
        _draw(axes, some, _places(some, name, room, axes), marked)
        axes.set(xlabel=_words(name), ylabel=label)
    for axes in rest[len(space) :]:
        axes.set_visible(False)
    _same_scale([course, *rest[: len(space)]], shown)
    handles, labels = course.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return figure


def _draw(
    axes: Axes, some: Sequence[Candidate], places: Sequence[float], marked: tuple[Any, Any]
) -> None:
    """Candidates as points, the defaults and the winner among them marked."""
    x, y = np.array(places, float), np.array([one.value for one in some], float)
    complete = np.array([one.complete for one in some], bool)
    axes.scatter(x[~complete], y[~complete], s=14, color=_PRUNED, label="pruned, value so far")
    axes.scatter(x[complete], y[complete], s=18, color=_FULL, label="met all seeds")
    for one, colour, shape, name in (
        (marked[0], _DEFAULTS, "s", "defaults"),
        (marked[1], _WINNER, "*", "winner"),
    ):
        here = np.array([other.number == one.number for other in some], bool)
        size = 130 if shape == "*" else 60
        how: Any = {"marker": shape, "s": size, "color": colour, "edgecolors": "0.2"}
        axes.scatter(x[here], y[here], **how, linewidths=0.7, zorder=3, label=name)


def _places(some: Sequence[Candidate], name: str, room: Dimension, axes: Axes) -> Sequence[float]:
    """Where candidates lie on the axis of an option; equal choices side by side."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    values = [one.params[name] for one in some]
    if isinstance(room, Range):
        if room.log:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            margin = (room.high / room.low) ** 0.04
            axes.set_xlim(room.low / margin, room.high * margin)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            margin = 0.04 * (room.high - room.low)
            axes.set_xlim(room.low - margin, room.high + margin)
        return values
    axes.set_xticks(range(len(room)), room)
    axes.set_xlim(-0.5, len(room) - 0.5)
    return [
        room.index(value) + (one.number % 7 - 3) / 15
        for value, one in zip(values, some, strict=True)
    ]


def _same_scale(panels: Sequence[Axes], shown: Sequence[Candidate]) -> None:
    """One scale of values for all panels, a logarithmic one where they span decades.

    On a linear one, values far above the others are left out, and counted in the first title.
    """
    values = np.array([one.value for one in shown], float)
    low, high = values.min(), values.max()
    log = low > 0 and high / low > 20
    if not log:
        first, third = np.quantile(values, [0.25, 0.75])
        high = min(high, third + 3 * ((third - first) or high))
        if beyond := int((values > high).sum()):
            panels[0].set_title(f"the search; {beyond} above the frame")
    margin = (high / low) ** 0.06 if log else 0.06 * ((high - low) or 1.0)
    for axes in panels:
        axes.set_yscale("log" if log else "linear")
        axes.set_ylim(*((low / margin, high * margin) if log else (low - margin, high + margin)))


def _words(name: str) -> str:
    return _WORDS.get(name, name)
