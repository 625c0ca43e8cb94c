"""The course of a training, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mcover.figures.style import COLOURS
from mcover.history import History

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COVERS, _COLLAPSE = COLOURS[0], COLOURS[5]


def training_figure(histories: Sequence[History], title: str) -> Figure:
    """Loss, and test error of covers and collapse, against epochs.

    Every cover of every seed is a thin line, means are thick ones.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(10.5, 4.4), layout="constrained")
    figure.suptitle(title)
    loss, error = figure.subplots(1, 2)
    mixed = histories[0].cover_error.shape[1] > 1
    seeds = f", {len(histories)} seeds" if len(histories) > 1 else ""

    epochs = min((one.epoch for one in histories), key=len)  # an interrupted one is shorter
    losses = [one.train_loss for one in histories]
    _draw(loss, epochs, losses, _COVERS, "")
    loss.set(ylabel=f"training loss{' per cover' if mixed else ''}", yscale="log")

    covers = [column for one in histories for column in 100 * one.cover_error.T]
    collapsed = [100 * one.collapse_error for one in histories]
    if mixed:
        count = histories[0].cover_error.shape[1]
        _draw(error, epochs, covers, _COVERS, f"mean of {count} covers{seeds}")
        _draw(error, epochs, collapsed, _COLLAPSE, f"their collapse{seeds}")
    elif any(np.any(a != b) for a, b in zip(covers, collapsed, strict=True)):
        _draw(error, epochs, covers, _COVERS, f"last weights{seeds}")
        _draw(error, epochs, collapsed, _COLLAPSE, f"average of weights{seeds}")
    else:
        _draw(error, epochs, collapsed, _COVERS, f"one model{seeds}")
    error.set(ylabel="test error, %")
    error.set_ylim(0, _ceiling([*covers, *collapsed]))
    error.legend(frameon=False)
    for axes in (loss, error):
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.25)
    return figure


def _draw(
    axes: Axes,
    epochs: NDArray[np.float64],
    lines: Sequence[NDArray[np.float64]],
    colour: str,
    label: str,
) -> None:
    values = np.array([line[: len(epochs)] for line in lines])
    # One dot says that there was one evaluation, where a line would show nothing.
    marker = "o" if len(epochs) == 1 else None
    if len(values) > 1:
        for line in values[:60]:
            axes.plot(epochs, line, marker=marker, color=colour, linewidth=0.7, alpha=0.35)
    mean = values.mean(axis=0)
    axes.plot(epochs, mean, marker=marker, color=colour, linewidth=2.2, label=label)


def _ceiling(lines: Sequence[NDArray[np.float64]]) -> float:
    """High enough for the later half of every line; the first epochs may leave the picture."""
    settled = max(float(np.max(line[len(line) // 4 :])) for line in lines)
    return 1.15 * settled if settled > 0 else 1.0
