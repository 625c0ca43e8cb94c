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
    mixed = histories[0].cover_error.shape[1] > 1
    seeds = f", {len(histories)} seeds" if len(histories) > 1 else ""

    epochs = [one.epoch for one in histories]
    losses = [one.train_loss for one in histories]
    _draw(loss, epochs, losses, _COVERS, "")
    if plain:
        _draw(loss, [one.epoch for one in plain], [one.train_loss for one in plain], _PLAIN, "")
    loss.set(ylabel=f"training loss{' per cover' if mixed else ''}", yscale="log")

    covers = [column for one in histories for column in 100 * one.cover_error.T]
    collapsed = [100 * one.collapse_error for one in histories]
    if mixed:
        count = histories[0].cover_error.shape[1]
        each = [one for one in epochs for _ in range(count)]
        _draw(error, each, covers, _COVERS, f"mean of {count} covers{seeds}")
        _draw(error, epochs, collapsed, _COLLAPSE, f"their collapse{seeds}")
    elif any(np.any(a != b) for a, b in zip(covers, collapsed, strict=True)):
        _draw(error, epochs, covers, _COVERS, f"last weights{seeds}")
        _draw(error, epochs, collapsed, _COLLAPSE, f"average of weights{seeds}")
    else:
        _draw(error, epochs, collapsed, _COVERS, f"one model{seeds}")
    beside = [100 * one.collapse_error for one in plain]
    if plain:
        _draw(error, [one.epoch for one in plain], beside, _PLAIN, f"plain model{seeds}")
    error.set(ylabel="test error, %")
    error.set_ylim(0, _ceiling([*covers, *collapsed, *beside]))
    error.legend(frameon=False)
    for axes in (loss, error):
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.25)
    return figure


def _draw(
    axes: Axes,
    epochs: Sequence[NDArray[np.float64]],
    lines: Sequence[NDArray[np.float64]],
    colour: str,
    label: str,
) -> None:
    """Thin lines, and their mean as far as all were evaluated in the same epochs."""
    common = 0
    for column in zip(*epochs, strict=False):  # one that was stopped is shorter
        if len(set(column)) > 1:
            break
        common += 1
    if len(lines) > 1:
        for number, (at, line) in enumerate(zip(epochs[:60], lines[:60], strict=True)):
            named = label if not common and not number else None
            axes.plot(at, line, marker=_marker(at), color=colour, lw=0.7, alpha=0.35, label=named)
    if common:
        at, mean = epochs[0][:common], np.mean([line[:common] for line in lines], axis=0)
        axes.plot(at, mean, marker=_marker(at), color=colour, linewidth=2.2, label=label)


def _marker(epochs: NDArray[np.float64]) -> str | None:
    """One dot says that there was one evaluation, where a line would show nothing."""
    return "o" if len(epochs) == 1 else None


def _ceiling(lines: Sequence[NDArray[np.float64]]) -> float:
    """High enough for the later half of every line; the first epochs may leave the picture."""
    settled = max(float(np.max(line[len(line) // 4 :])) for line in lines)
    return 1.15 * settled if settled > 0 else 1.0
