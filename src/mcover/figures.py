"""Pictures of topologies and of annealing and training runs; they need the extra ``plot``.

They are drawn from arrays that the caller computes. This module does not import topologies,
permutations or annealing, so these may import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mcover import checks
from mcover.errors import McoverError
from mcover.extras import require
from mcover.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

# Okabe and Ito's palette: distinct with any colour vision.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
FORMATS = ("png", "pdf", "svg")

_PANELS = {
    "energy": "energy per cover and pattern",
    "overlap": "teacher overlap R",
    "cover_overlap": "overlap between covers",
    "acceptance": "accepted share of proposals",
}


def new_figure(width: float, height: float, title: str) -> Figure:
    """An empty figure, sizes in inches; without matplotlib, an error that names the extra."""
    with require("a picture", "plot", "matplotlib"):
        from matplotlib.figure import Figure

    class Picture(Figure):  # notebooks show it, although it is not made by pyplot
        def _repr_png_(self) -> bytes:
            written = BytesIO()
            self.savefig(written, format="png")
            return written.getvalue()

    figure = Picture(figsize=(width, height), layout="constrained")
    if checks.check_instance("title", title, str, "a text"):
        figure.suptitle(title)
    return figure


def save(figure: Figure, path: str | Path) -> Path:
    """Writes a figure in the format of the file's ending; creates missing folders."""
    target = Path(path)
    ending = target.suffix.lstrip(".").lower()
    if ending not in FORMATS:
        raise McoverError(f"cannot write {target}; end the name in .png, .pdf or .svg.")
    # Without dates, so that equal figures give equal files.
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(ending)
    return write_atomic(target, partial(figure.savefig, format=ending, dpi=150, metadata=metadata))


def topology_figure(
    title: str, matrix: Floats, marginals: Floats, source: str, routes: NDArray[np.integer[Any]]
) -> Figure:
    """Q and the marginals of its law as heat maps, drawn routes, and the spectrum of Q.

    Args:
        title: of the figure.
        matrix: the balanced kernel Q, (M, M).
        marginals: probabilities that α reads β, (M, M).
        source: how the marginals were computed, e.g. "exact".
        routes: a few permutations, (routes, M).
    """
    figure = new_figure(11, 9, title)
    (kernel, law), (bipartite, spectrum) = figure.subplots(2, 2)
    top = float(max(matrix.max(), marginals.max()))
    for axes, values, title in (
        (kernel, matrix, "kernel Q, balanced"),
        (law, marginals, f"marginals of the law ({source})"),
    ):
        image = axes.imshow(values, vmin=0, vmax=top, cmap="viridis")
        axes.set(title=title, xlabel="cover that is read, β", ylabel="cover that reads, α")
        figure.colorbar(image, ax=axes, shrink=0.85)
    _draw_routes(bipartite, routes)
    _draw_spectrum(spectrum, matrix)
    return figure


def _draw_routes(axes: Axes, routes: NDArray[np.integer[Any]]) -> None:
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
    axes.set_yticks(range(0, covers, -(-covers // 16)))
    axes.set_ylim(covers - 0.5, -1.8)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _draw_spectrum(axes: Axes, matrix: Floats) -> None:
    """Eigenvalues of Q in the unit disk, and a circle at the second largest modulus."""
    values = np.linalg.eigvals(matrix)
    circle = np.exp(1j * np.linspace(0, 2 * np.pi, 400))
    axes.plot(circle.real, circle.imag, color="0.6", linewidth=1)
    second = np.sort(np.abs(values))[-2] if len(values) > 1 else 0.0
    axes.plot(second * circle.real, second * circle.imag, "--", color=COLOURS[1], linewidth=1)
    axes.scatter(values.real, values.imag, s=28, color=COLOURS[0], zorder=2)
    axes.set_title(f"spectrum of Q, gap 1 − |λ₂| = {1 - second:.4g}")
    axes.set(xlabel="Re λ", ylabel="Im λ", aspect="equal")


def annealing_figure(
    courses: Mapping[str, Mapping[str, NDArray[Any]]],
    title: str,
    outcomes: Mapping[str, Floats] | None = None,
) -> Figure:
    """The trajectories of several methods, and their outcomes if given.

    Each read is a thin line and the mean a thick one, plotted against temperature, or against
    sweeps if the temperature does not fall.

    Args:
        courses: by method, the arrays of a :class:`mcover.annealing.Trajectory` by name: sweep and
            temperature (points,), the others (reads, points).
        title: of the figure.
        outcomes: by method, the generalization error of each trial.
    """
    known = {n: any(np.isfinite(c[n]).any() for c in courses.values()) for n in _PANELS}
    shown = [name for name in _PANELS if known[name]]
    count = len(shown) + (outcomes is not None)
    figure = new_figure(4.4 * ((count + 1) // 2), 7.2, title)
    panels = figure.subplots(2, (count + 1) // 2, squeeze=False).ravel()
    falling = all(c["temperature"][0] > c["temperature"][-1] for c in courses.values())
    for axes, name in zip(panels, shown, strict=False):
        for colour, (method, course) in zip(cycle(COLOURS), courses.items(), strict=False):
            values = course[name]
            reached = np.isfinite(values).any(axis=0)
            if reached.any():
                at = course["temperature" if falling else "sweep"][reached]
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
    """Each trial as a dot and the mean as a bar; dots are shifted sideways so as not to overlap."""
    for at, (colour, values) in enumerate(zip(cycle(COLOURS), outcomes.values(), strict=False)):
        # Multiples of the golden ratio fill an interval evenly, without random numbers.
        sideways = 0.5 * (np.arange(len(values)) * 0.618034 % 1 - 0.5)
        axes.scatter(at + sideways, values, s=22, color=colour, alpha=0.6, linewidth=0)
        if len(values) > 1:
            axes.plot([at - 0.3, at + 0.3], [values.mean()] * 2, color=colour, linewidth=2.5)
    axes.set_xticks(range(len(outcomes)), [f"{k}\n(n = {len(v)})" for k, v in outcomes.items()])
    axes.set(ylabel="generalization error of the collapse", xlim=(-0.7, len(outcomes) - 0.3))
    axes.set_ylim(bottom=-0.01)
    axes.grid(axis="y", alpha=0.25)


def training_figure(errors: Mapping[str, Floats], title: str, share: bool = False) -> Figure:
    """Test errors of several networks against epochs: seeds as thin lines, means as thick ones.

    Args:
        errors: in percent, by name, each of shape (seeds, epochs).
        title: of the figure.
        share: whether the axis is the share of the run, for runs of unequal length.
    """
    figure = new_figure(7.5, 4.8, title)
    axes = figure.subplots()
    for colour, (name, values) in zip(cycle(COLOURS), errors.items(), strict=False):
        epochs = np.arange(1, values.shape[1] + 1)
        at = epochs / len(epochs) if share else epochs
        marker = "o" if len(epochs) == 1 else None  # a single point draws no line
        for seed in values:
            axes.plot(at, seed, color=colour, linewidth=0.7, alpha=0.35)
        axes.plot(
            at,
            values.mean(axis=0),
            color=colour,
            linewidth=2.2,
            marker=marker,
            label=f"{name} ({len(epochs)} epochs)",
        )
    axes.set(xlabel="share of the training" if share else "epoch", ylabel="test error, %")
    # The limit ignores the first quarter of the epochs, whose errors are much larger.
    settled = max(float(np.max(values[:, values.shape[1] // 4 :])) for values in errors.values())
    axes.set_ylim(0, 1.15 * settled if settled > 0 else 1.0)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    return figure
