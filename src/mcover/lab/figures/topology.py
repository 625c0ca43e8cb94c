"""What a topology does, as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mcover.lab.figures.style import COLOURS
from mcover.permutations import TABLE_COVERS, Routes, Sampler
from mcover.seeds import Seed, streams
from mcover.topology import Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SAMPLED_MARGINALS = 20_000


def topology_figure(topology: Topology, covers: int, seed: Seed = 0, routes: int = 3) -> Figure:
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
    _draw_routes(bipartite, sampler.sample(routes, for_routes))
    _draw_spectrum(spectrum, matrix)
    return figure


def _draw_routes(axes: Axes, routes: Routes) -> None:
    """Each route as lines from the cover that reads (left) to the cover that is read (right)."""
    covers = routes.shape[1]
    for draw, route in enumerate(routes):
        left, right = 1.5 * draw, 1.5 * draw + 1
        for reader, read in enumerate(route):
            colour = "0.75" if read == reader else COLOURS[draw % len(COLOURS)]
            axes.plot([left, right], [reader, read], color=colour, linewidth=1.3, zorder=1)
        for side in (left, right):
            axes.scatter([side] * covers, range(covers), s=18, color="0.2", zorder=2)
        axes.text((left + right) / 2, -0.9, f"route {draw + 1}", ha="center", va="bottom")
    axes.set(title="drawn routes: α reads ρ(α); grey reads itself", ylabel="cover", xticks=[])
    axes.set_ylim(covers - 0.5, -1.8)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _draw_spectrum(axes: Axes, matrix: NDArray[np.float64]) -> None:
    """Eigenvalues of Q in the unit disk, with the circle of the second largest."""
    values = np.linalg.eigvals(matrix)
    angle = np.linspace(0, 2 * np.pi, 400)
    axes.plot(np.cos(angle), np.sin(angle), color="0.6", linewidth=1)
    second = np.sort(np.abs(values))[-2] if len(values) > 1 else 0.0
    axes.plot(second * np.cos(angle), second * np.sin(angle), "--", color=COLOURS[1], linewidth=1)
    axes.scatter(values.real, values.imag, s=28, color=COLOURS[0], zorder=2)
    axes.set_title(f"spectrum of Q, gap 1 − |λ₂| = {1 - second:.4g}")
    axes.set(xlabel="Re λ", ylabel="Im λ", aspect="equal")
