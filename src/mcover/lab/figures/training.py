"""The course of a training, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mcover.lab.figures.style import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mcover.lab.training.loop import History

Floats = NDArray[np.float64]

_COVERS, _COLLAPSE, _PLAIN = COLOURS[0], COLOURS[5], "#555555"


def training_figure(
    histories: Sequence[History], title: str, plain: Sequence[History] = ()
) -> Figure:
    """Loss, and test error of covers, collapse and plain models, against epochs.

    Every cover of every seed is a thin line, means are thick ones.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(10.5, 4.4), layout="constrained")
    figure.suptitle(title)
    loss, error = figure.subplots(1, 2)
    count = histories[0].cover_error.shape[1]
    for of, colour in ((histories, _COVERS), (plain, _PLAIN)):
        _draw(loss, of, [one.train_loss for one in of], colour, "")
    loss.set(ylabel=f"training loss{' per cover' if count > 1 else ''}", yscale="log")

    covers = [100 * one.cover_error for one in histories]
    collapsed = [100 * one.collapse_error for one in histories]
    beside = [100 * one.collapse_error for one in plain]
    seeds = f", {len(histories)} seeds" if len(histories) > 1 else ""
    names = (f"mean of {count} covers", "their collapse")
    if count == 1:
        names = ("last weights", "average of weights")
    if all(np.array_equal(a, b[:, None]) for a, b in zip(covers, collapsed, strict=True)):
        _draw(error, histories, collapsed, _COVERS, f"one model{seeds}")
    else:
        _draw(error, histories, covers, _COVERS, f"{names[0]}{seeds}")
        _draw(error, histories, collapsed, _COLLAPSE, f"{names[1]}{seeds}")
    _draw(error, plain, beside, _PLAIN, f"plain model{seeds}")
    # High enough for the later half of every line; the first epochs may leave the picture.
    settled = max(float(np.max(line[len(line) // 4 :])) for line in (*covers, *collapsed, *beside))
    error.set(ylabel="test error, %", ylim=(0, 1.15 * settled if settled > 0 else 1.0))
    error.legend(frameon=False)
    for axes in (loss, error):
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.25)
    return figure


def _draw(
    axes: Axes, histories: Sequence[History], values: Sequence[Floats], colour: str, label: str
) -> None:
    """Thin lines, and their mean as far as all were evaluated in the same epochs.

    Shape: values, one for each history: (evaluations,) or (evaluations, covers).
    """
    each = zip(histories, values, strict=True)
    pairs = [(one.epoch, line) for one, given in each for line in np.atleast_2d(given.T)]
    # One that was stopped is shorter.
    same = [len(set(column)) == 1 for column in zip(*(at for at, _ in pairs), strict=False)]
    common = [*same, False].index(False)
    if len(pairs) > 1:
        for number, (at, line) in enumerate(pairs[:60]):
            named = label if not common and not number else None
            axes.plot(at, line, marker=_marker(at), color=colour, lw=0.7, alpha=0.35, label=named)
    if common:
        at, mean = pairs[0][0][:common], np.mean([line[:common] for _, line in pairs], axis=0)
        axes.plot(at, mean, marker=_marker(at), color=colour, linewidth=2.2, label=label)


def _marker(epochs: Floats) -> str | None:
    """One dot says that there was one evaluation, where a line would show nothing."""
    return "o" if len(epochs) == 1 else None
