"""What a topology does, and the course of annealings and trainings, as pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from reproduction.style import COLOURS

from mcover.annealing import Trajectory
from mcover.permutations import TABLE_COVERS, Routes, Sampler
from mcover.seeds import Seed, streams
from mcover.topology import Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from reproduction.training.loop import History

Floats = NDArray[np.float64]

_SAMPLED_MARGINALS = 20_000
_PANELS = {
    "energy": "energy per cover and pattern",
    "overlap": "teacher overlap R",
    "cover_overlap": "overlap between covers",
    "acceptance": "accepted share of proposals",
}
_COVERS, _COLLAPSE, _PLAIN = COLOURS[0], COLOURS[5], "#555555"


def topology_figure(topology: Topology, covers: int, seed: Seed = 0) -> Figure:
    """Q and the marginals of its law as heat maps, a few drawn routes, and the spectrum."""
    from matplotlib.figure import Figure

    matrix = topology.matrix(covers)
    sampler = Sampler(matrix)
    for_marginals, for_routes = streams(seed, 2)
    if covers <= TABLE_COVERS:
        marginals, source = sampler.marginals, "exact"
    else:
        drawn = sampler.sample(_SAMPLED_MARGINALS, for_marginals)
        marginals = np.stack([np.mean(drawn == beta, axis=0) for beta in range(covers)], axis=1)
        source = f"{_SAMPLED_MARGINALS:,} routes"

    figure = Figure(figsize=(11, 9), layout="constrained")
    figure.suptitle(f"{topology!r}, {covers} covers")
    (kernel, law), (bipartite, spectrum) = figure.subplots(2, 2)
    top = float(max(matrix.max(), marginals.max()))
    for axes, values, title in (
        (kernel, matrix, "kernel Q, balanced"),
        (law, marginals, f"marginals of the law ({source})"),
    ):
        image = axes.imshow(values, vmin=0, vmax=top, cmap="viridis")
        axes.set(title=title, xlabel="cover that is read, β", ylabel="cover that reads, α")
        figure.colorbar(image, ax=axes, shrink=0.85)
    _draw_routes(bipartite, sampler.sample(3, for_routes))
    _draw_spectrum(spectrum, matrix)
    return figure


def _draw_routes(axes: Axes, routes: Routes) -> None:
    """Each route as lines from the cover that reads (left) to the cover that is read (right)."""
    covers = routes.shape[1]
    for draw, route in enumerate(routes):
        left, right = 1.5 * draw, 1.5 * draw + 1
        for reader, read in enumerate(route):
            colour = "0.75" if read == reader else COLOURS[draw]
            axes.plot([left, right], [reader, read], color=colour, linewidth=1.3, zorder=1)
        for side in (left, right):
            axes.scatter([side] * covers, range(covers), s=18, color="0.2", zorder=2)
        axes.text((left + right) / 2, -0.9, f"route {draw + 1}", ha="center", va="bottom")
    axes.set(title="drawn routes: α reads ρ(α); grey reads itself", ylabel="cover", xticks=[])
    axes.set_ylim(covers - 0.5, -1.8)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _draw_spectrum(axes: Axes, matrix: Floats) -> None:
    """Eigenvalues of Q in the unit disk, with the circle of the second largest."""
    values = np.linalg.eigvals(matrix)
    circle = np.exp(1j * np.linspace(0, 2 * np.pi, 400))
    axes.plot(circle.real, circle.imag, color="0.6", linewidth=1)
    second = np.sort(np.abs(values))[-2] if len(values) > 1 else 0.0
    axes.plot(second * circle.real, second * circle.imag, "--", color=COLOURS[1], linewidth=1)
    axes.scatter(values.real, values.imag, s=28, color=COLOURS[0], zorder=2)
    axes.set_title(f"spectrum of Q, gap 1 − |λ₂| = {1 - second:.4g}")
    axes.set(xlabel="Re λ", ylabel="Im λ", aspect="equal")


def annealing_figure(
    courses: Mapping[str, Trajectory], title: str, outcomes: Mapping[str, Floats] | None = None
) -> Figure:
    """Methods in the same panels, against temperature; if given, the outcome ε_g of every trial.

    Every read is a thin line, their mean a thick one. Where the temperature does not fall, the
    panels are against sweeps.
    """
    from matplotlib.figure import Figure

    known = {n: any(np.isfinite(getattr(c, n)).any() for c in courses.values()) for n in _PANELS}
    shown = [name for name in _PANELS if known[name]]
    count = len(shown) + (outcomes is not None)
    figure = Figure(figsize=(4.4 * ((count + 1) // 2), 7.2), layout="constrained")
    figure.suptitle(title)
    panels = figure.subplots(2, (count + 1) // 2, squeeze=False).ravel()
    falling = all(course.temperature[0] > course.temperature[-1] for course in courses.values())
    for axes, name in zip(panels, shown, strict=False):
        for colour, (method, course) in zip(COLOURS, courses.items(), strict=False):
            values = getattr(course, name)
            reached = np.isfinite(values).any(axis=0)
            if reached.any():
                at = (course.temperature if falling else course.sweep)[reached]
                lines = values[:, reached]
                for read in lines[:40]:
                    axes.plot(at, read, color=colour, linewidth=0.7, alpha=0.3)
                mean = np.nanmean(lines, axis=0)
                axes.plot(at, mean, color=colour, linewidth=2.2, label=method)
        axes.set(xlabel="temperature T" if falling else "sweep", ylabel=_PANELS[name])
        if falling:
            axes.invert_xaxis()
        axes.grid(alpha=0.25)
    if len(courses) > 1:
        panels[0].legend(frameon=False)
    if outcomes is not None:
        _draw_outcomes(panels[len(shown)], outcomes)
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure


def _draw_outcomes(axes: Axes, outcomes: Mapping[str, Floats]) -> None:
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
        _draw_course(loss, of, [one.train_loss for one in of], colour, "")
    loss.set(ylabel=f"training loss{' per cover' if count > 1 else ''}", yscale="log")

    covers = [100 * one.cover_error for one in histories]
    collapsed = [100 * one.collapse_error for one in histories]
    beside = [100 * one.collapse_error for one in plain]
    seeds = f", {len(histories)} seeds" if len(histories) > 1 else ""
    names = (f"mean of {count} covers", "their collapse")
    if count == 1:
        names = ("last weights", "average of weights")
    if all(np.array_equal(a, b[:, None]) for a, b in zip(covers, collapsed, strict=True)):
        _draw_course(error, histories, collapsed, _COVERS, f"one model{seeds}")
    else:
        _draw_course(error, histories, covers, _COVERS, f"{names[0]}{seeds}")
        _draw_course(error, histories, collapsed, _COLLAPSE, f"{names[1]}{seeds}")
    _draw_course(error, plain, beside, _PLAIN, f"plain model{seeds}")
    # High enough for the later half of every line; the first epochs may leave the picture.
    settled = max(float(np.max(line[len(line) // 4 :])) for line in (*covers, *collapsed, *beside))
    error.set(ylabel="test error, %", ylim=(0, 1.15 * settled if settled > 0 else 1.0))
    error.legend(frameon=False)
    for axes in (loss, error):
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.25)
    return figure


def _draw_course(
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

    def plot(at: Floats, line: Floats, **how: Any) -> None:
        marker = "o" if len(at) == 1 else None  # where a line would show nothing
        axes.plot(at, line, marker=marker, color=colour, **how)

    if len(pairs) > 1:
        for number, (at, line) in enumerate(pairs[:60]):
            plot(at, line, lw=0.7, alpha=0.35, label=None if common or number else label)
    if common:
        mean = np.mean([line[:common] for _, line in pairs], axis=0)
        plot(pairs[0][0][:common], mean, linewidth=2.2, label=label)
