"""The course of annealing runs at recorded sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COURSE = ("energy", "acceptance", "overlap", "cover_overlap")
"""The arrays of a trajectory that have a row for each read."""


@dataclass(frozen=True, eq=False, repr=False)
class Trajectory:
    """The course of each read at recorded sweeps, (reads, points); NaN after the end of a read."""

    sweep: NDArray[np.int64]  # the recorded sweeps, (points,)
    temperature: NDArray[np.float64]  # their temperatures, (points,)
    energy: NDArray[np.float64]  # lifted energy per cover and pattern
    acceptance: NDArray[np.float64]  # accepted share of the proposals since the previous point
    overlap: NDArray[np.float64]  # teacher overlap R of the mean of the covers
    cover_overlap: NDArray[np.float64]  # mean overlap between pairs of covers

    def __repr__(self) -> str:
        reads, points = self.energy.shape
        ends = f"T = {self.temperature[0]:.4g} to {self.temperature[-1]:.4g}"
        return (
            f"<Trajectory: {points} points of {reads} reads, sweeps 0 to {self.sweep[-1]}, {ends}>"
        )

    def plot(self, title: str = "") -> Figure:
        """Energy, overlaps and acceptance of each read (thin) and their mean (thick).

        It returns a matplotlib figure, e.g. for ``.plot().savefig("run.png")``; matplotlib is in
        the extra ``plot``. Notebooks display the figure.
        """
        from mcover.figures import annealing_figure

        return annealing_figure({"": vars(self)}, title)


def select(course: Trajectory, reads: NDArray[Any]) -> Trajectory:
    """The trajectory of some reads."""
    return replace(course, **{name: getattr(course, name)[reads] for name in COURSE})


def joined(courses: Sequence[Trajectory]) -> Trajectory:
    """The trajectory of the reads of several runs with the same schedule."""
    rows = {name: np.concatenate([getattr(one, name) for one in courses]) for name in COURSE}
    return replace(courses[0], **rows)
