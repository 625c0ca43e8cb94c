"""What annealing found: weights, their collapse, energies and trajectories, reads first."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mcover import checks
from mcover.annealing.options import AnnealOptions
from mcover.annealing.problems import Signs, read_arrays
from mcover.errors import McoverError
from mcover.files import write_atomic
from mcover.plain import from_plain, to_plain

_FORMAT = "mcover.AnnealResult/2"


@dataclass(frozen=True, eq=False)
class Trajectory:
    """The course of each read at recorded sweeps, (reads, points); NaN where it did not get to."""

    sweep: NDArray[np.int64]  # which sweeps, (points,)
    temperature: NDArray[np.float64]  # their temperatures, (points,)
    energy: NDArray[np.float64]  # lifted energy per cover and pattern
    acceptance: NDArray[np.float64]  # accepted share of the proposals since the point before
    overlap: NDArray[np.float64]  # teacher overlap R of the mean of the covers
    cover_overlap: NDArray[np.float64]  # mean overlap between pairs of covers


@dataclass(frozen=True, eq=False)
class AnnealResult:
    """Everything a run of :func:`mcover.anneal` returns; arrays have one entry for each read.

    Where N is even there may be training errors without linear energy: a margin of zero costs none.
    What is compared with the teacher is the mean of the covers, as in the paper, and NaN without
    one.
    """

    weights: Signs  # final ±1 weights of all covers, (reads, M, sites)
    energy: NDArray[np.float64]  # final lifted energy, summed over covers
    collapsed_energy: NDArray[np.float64]  # of the student collapsed to ±1 weights
    training_errors: NDArray[np.int64]  # patterns that it gets wrong
    overlap: NDArray[np.float64]  # R with the teacher
    generalization_error: NDArray[np.float64]  # ε_g
    proposals: NDArray[np.int64]  # single-weight proposals made
    seconds: NDArray[np.float64]  # CPU time of the read's thread
    sweeps: NDArray[np.int64]  # fewer than planned where a read was solved or interrupted
    finished: NDArray[np.bool_]  # whether the read came to its end
    trajectory: Trajectory
    options: AnnealOptions
    interrupted: bool  # whether the run was cut short; reads that never began are left out

    @cached_property
    def collapsed(self) -> NDArray[np.float64]:
        """The mean of the covers, the paper's collapsed student, shape (reads, sites)."""
        return collapse_mean(self.weights)

    @cached_property
    def collapsed_sign(self) -> Signs:
        """The majority of the covers as ±1 weights, shape (reads, sites); ties go to cover 0."""
        return collapse_sign(self.weights)

    @property
    def solved(self) -> NDArray[np.bool_]:
        """Whether the collapsed ±1 student has zero energy, in the energy annealed, (reads,).

        With the linear energy and an even number of inputs, patterns may be undecided all the same:
        ``training_errors`` counts them.
        """
        return self.collapsed_energy == 0

    def save(self, path: str | Path) -> Path:
        """Writes one .npz file, without pickle; a file that was there is replaced at the end."""
        target = checks.check_path("path", path)
        if target.suffix != ".npz":
            raise McoverError(f"cannot save to {target}; end the name in .npz.")
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        arrays |= {f"trajectory.{n}": getattr(self.trajectory, n) for n in _TRAJECTORY}
        about = {"format": _FORMAT, "interrupted": self.interrupted}
        text = np.array(json.dumps(about | {"options": to_plain(self.options)}))
        return write_atomic(target, lambda file: np.savez_compressed(file, about=text, **arrays))

    @classmethod
    def load(cls, path: str | Path) -> AnnealResult:
        """Reads back what :meth:`save` wrote; anything else is refused."""
        arrays = read_arrays(path)
        try:
            about = json.loads(str(arrays["about"]))
            if about["format"] != _FORMAT:
                raise McoverError(f"it holds {about['format']}, not {_FORMAT}")
            course = Trajectory(**{name: arrays[f"trajectory.{name}"] for name in _TRAJECTORY})
            return cls(
                **{name: arrays[name] for name in _ARRAYS},
                trajectory=course,
                options=from_plain(AnnealOptions, about["options"], "options"),
                interrupted=bool(about["interrupted"]),
            )
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise McoverError(f"{path} is not a result that mcover saved: {error}.") from error


_TRAJECTORY = [field.name for field in fields(Trajectory)]
_ABOUT = ("trajectory", "options", "interrupted")
_ARRAYS = [field.name for field in fields(AnnealResult) if field.name not in _ABOUT]


def collapse_mean(weights: Signs) -> NDArray[np.float64]:
    """Mean over covers, shape (..., M, sites) → (..., sites)."""
    return np.asarray(weights.mean(axis=-2, dtype=np.float64))


def collapse_sign(weights: Signs) -> Signs:
    """Majority over covers, shape (..., M, sites) → (..., sites); ties go to cover 0."""
    total = weights.sum(axis=-2, dtype=np.int64)
    return np.where(total == 0, weights[..., 0, :], np.sign(total)).astype(np.int8)
