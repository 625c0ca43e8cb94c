"""Annealing schedules: one temperature a sweep, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from mcover.errors import McoverError

Temperatures = NDArray[np.float64]


@dataclass(frozen=True)
class LinearSchedule:
    """T = start, start − step, … down to stop: the paper's is LinearSchedule(0.4, 0.01, 1e-4).

    >>> len(LinearSchedule(0.4, 0.01, 1e-4).temperatures())
    3901
    """

    start: float = 0.4
    stop: float = 0.01
    step: float = 1e-4
    sweeps: int = 1
    """Sweeps at each temperature."""

    def temperatures(self) -> Temperatures:
        """Temperature of every sweep."""
        _check_range(self, self.start, self.stop, self.sweeps)
        if not 0 < self.step < np.inf:
            raise McoverError(f"{self!r}: step must be positive, the way down is understood.")
        count = 1 + int((self.start - self.stop) / self.step + 1e-6)
        return np.repeat(self.start - self.step * np.arange(count), self.sweeps)


@dataclass(frozen=True)
class GeometricSchedule:
    """``count`` temperatures from start to stop, each the same factor below the last."""

    start: float = 0.4
    stop: float = 0.01
    count: int = 1000
    sweeps: int = 1
    """Sweeps at each temperature."""

    def temperatures(self) -> Temperatures:
        """Temperature of every sweep."""
        _check_range(self, self.start, self.stop, self.sweeps, self.count)
        return np.repeat(np.geomspace(self.start, self.stop, self.count), self.sweeps)


@dataclass(frozen=True)
class BetaSchedule:
    """``count`` temperatures from start to stop, evenly spaced in β = 1/T."""

    start: float = 0.4
    stop: float = 0.01
    count: int = 1000
    sweeps: int = 1
    """Sweeps at each temperature."""

    def temperatures(self) -> Temperatures:
        """Temperature of every sweep."""
        _check_range(self, self.start, self.stop, self.sweeps, self.count)
        betas = np.linspace(1 / self.start, 1 / self.stop, self.count)
        return np.repeat(1 / betas, self.sweeps)


@dataclass(frozen=True)
class CustomSchedule:
    """Any positive temperatures, one a sweep, in the order given."""

    values: tuple[float, ...]

    def temperatures(self) -> Temperatures:
        """Temperature of every sweep."""
        array = np.asarray(self.values, dtype=float)
        if array.ndim != 1 or not array.size or not np.all((array > 0) & np.isfinite(array)):
            raise McoverError(
                "a custom schedule needs a list of positive, finite temperatures; got "
                f"{array.size} of shape {array.shape}"
                + (f", the smallest {array.min():g}." if array.size else ".")
            )
        return array


Schedule: TypeAlias = LinearSchedule | GeometricSchedule | BetaSchedule | CustomSchedule


def _check_range(
    schedule: Schedule, start: float, stop: float, sweeps: int, count: int = 1
) -> None:
    if not 0 < stop <= start < np.inf:
        raise McoverError(f"{schedule!r}: temperatures need start ≥ stop > 0, both finite.")
    if sweeps < 1 or count < 1:
        raise McoverError(f"{schedule!r}: sweeps and count must be at least 1.")
