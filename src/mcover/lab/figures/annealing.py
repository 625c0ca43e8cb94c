"""The course and the outcome of annealing, as pictures."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mcover.annealing import AnnealResult, Trajectory
from mcover.lab.figures.style import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANELS = {
    "energy": "energy per cover and pattern",
    "overlap": "teacher overlap R",
    "cover_overlap": "overlap between covers",
    "acceptance": "accepted share of proposals",
}


def annealing_figure(result: AnnealResult, title: str) -> Figure:
    """One run: every read as a thin line and their mean as a thick one, against temperature."""
    return comparison_figure({"": result.trajectory}, title)


def comparison_figure(
    courses: Mapping[str, Trajectory],
    title: str,
    outcomes: Mapping[str, NDArray[np.float64]] | None = None,
) -> Figure:
    """Several methods in the same panels and, if given, the outcome ε_g of every trial."""
    from matplotlib.figure import Figure

    known = {n: any(np.isfinite(getattr(c, n)).any() for c in courses.values()) for n in _PANELS}
    shown = [name for name in _PANELS if known[name]]
    count = len(shown) + (outcomes is not None)
    figure = Figure(figsize=(4.4 * ((count + 1) // 2), 7.2), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(2, (count + 1) // 2, squeeze=False).ravel()
    for axes, name in zip(panels, shown, strict=False):
        for colour, (method, course) in zip(COLOURS, courses.items(), strict=False):
            _draw_course(axes, course, name, colour, method)
        axes.set(xlabel="temperature T", ylabel=_PANELS[name])
        axes.invert_xaxis()
        axes.grid(alpha=0.25)
    if len(courses) > 1:
        panels[0].legend(frameon=False)
    if outcomes is not None:
        _draw_outcomes(panels[len(shown)], outcomes)
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure


def _draw_course(axes: Axes, course: Trajectory, name: str, colour: str, label: str) -> None:
    values = getattr(course, name)
    reached = np.isfinite(values).any(axis=0)
    if not reached.any():
        return
    temperature, values = course.temperature[reached], values[:, reached]
    for read in values[:40]:
        axes.plot(temperature, read, color=colour, linewidth=0.7, alpha=0.3)
    axes.plot(temperature, np.nanmean(values, axis=0), color=colour, linewidth=2.2, label=label)


def _draw_outcomes(axes: Axes, outcomes: Mapping[str, NDArray[np.float64]]) -> None:
    """Every trial a dot, spread sideways so that none hides another; the mean a bar."""
    for at, (colour, values) in enumerate(zip(cycle(COLOURS), outcomes.values(), strict=False)):
        # Multiples of the golden ratio fill the strip evenly, without a random number.
        spread = 0.5 * (np.arange(len(values)) * 0.618034 % 1 - 0.5)
        axes.scatter(at + spread, values, s=16, color=colour, alpha=0.6, linewidth=0)
        axes.plot([at - 0.3, at + 0.3], [values.mean()] * 2, color=colour, linewidth=2.5)
    axes.set_xticks(range(len(outcomes)), [f"{k}\n(n = {len(v)})" for k, v in outcomes.items()])
    axes.set(ylabel="generalization error of the collapse")
    axes.set_ylim(bottom=-0.01)
    axes.grid(axis="y", alpha=0.25)
