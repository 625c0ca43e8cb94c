"""Schedules: the temperature of every sweep, as frozen dataclasses.

An :class:`AutoSchedule` derives the temperatures from the data; `mcover.annealing.temperatures`
measures them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcover import checks
from mcover.errors import McoverError
from mcover.plain import Tagged

Temperatures: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class LinearSchedule(Tagged, kind="linear"):
    """T = start, start − step, … down to stop: the paper's is LinearSchedule(0.4, 0.01, 1e-4).

    >>> len(LinearSchedule(0.4, 0.01, 1e-4).temperatures())
    3901
    """

    start: float = 0.4
    stop: float = 0.01
    step: float = 1e-4
    sweeps: int = 1  # Sweeps at each temperature.

    def __post_init__(self) -> None:
        checks.check_float_fields(self, "start", "stop", "step", above=0)
        _check_schedule(self, (self.start - self.stop) / self.step)

    def temperatures(self) -> Temperatures:
        """Temperature of every sweep."""
        count = 1 + int((self.start - self.stop) / self.step + 1e-6)
        falling = self.start - self.step * np.arange(count)
        # The last step may end below stop by a rounding error; anything lower becomes stop.
        return np.repeat(np.where(falling < 0.999 * self.stop, self.stop, falling), self.sweeps)


@dataclass(frozen=True)
class GeometricSchedule(Tagged, kind="geometric"):
    """``count`` temperatures from start to stop, in geometric progression."""

    start: float = 0.4
    stop: float = 0.01
    count: int = 1000
    sweeps: int = 1  # Sweeps at each temperature.

    def __post_init__(self) -> None:
        checks.check_float_fields(self, "start", "stop", above=0)
        checks.check_count_fields(self, "count")
        _check_schedule(self, self.count)

    def temperatures(self) -> Temperatures:
        """Temperature of every sweep."""
        return np.repeat(np.geomspace(self.start, self.stop, self.count), self.sweeps)


@dataclass(frozen=True)
class BetaSchedule(GeometricSchedule, kind="beta"):
    """``count`` temperatures from start to stop, evenly spaced in β = 1/T."""

    def temperatures(self) -> Temperatures:
        """Temperature of every sweep."""
        betas = np.linspace(1 / self.start, 1 / self.stop, self.count)
        return np.repeat(1 / betas, self.sweeps)


@dataclass(frozen=True)
class CustomSchedule(Tagged, kind="custom"):
    """Any positive temperatures, one for each sweep, in the order given."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        given = checks.check_floats("values", self.values, ndim=1)
        if not np.all(given > 0):
            raise McoverError(
                f"a schedule needs positive temperatures, the smallest here is {given.min():g}; "
                "write e.g. [0.4, 0.2, 0.1]."
            )
        object.__setattr__(self, "values", tuple(given.tolist()))

    def temperatures(self) -> Temperatures:
        """Temperature of every sweep."""
        return np.array(self.values)


@dataclass(frozen=True)
class AutoSchedule(Tagged, kind="auto"):
    """``sweeps`` temperatures for the given data, linear from factor · T₀ down to 1/span of that.

    T₀ is the temperature at which one copy accepts 12 % of its proposals. The energy is a sum over
    patterns, so the useful range grows with their number and depends on their structure: T₀ is 0.4
    for random patterns at α = 1.5, 1.3 for pixels of images at α = 6, and 17 for a committee
    machine at α = 40. It is measured once for the problem, and does not depend on the seed of the
    run. A result holds the :class:`~mcover.LinearSchedule` that was used.
    """

    sweeps: int = 500
    factor: float | None = None
    """Start as a multiple of T₀; None is 1.4 for RSA, 0.7 for attracting covers, else 0.5."""
    span: float = 8.0  # The ratio of the first temperature to the last one.

    def __post_init__(self) -> None:
        checks.check_count_fields(self, "sweeps")
        checks.check_float_fields(self, "factor", above=0, optional=True)
        checks.check_float_fields(self, "span", least=1)
        _check_memory(self, self.sweeps)

    def temperatures(self) -> Temperatures:
        """Raises an error, because the temperatures depend on the problem."""
        raise McoverError(
            "the temperatures of an AutoSchedule come from a problem; anneal with it, and read "
            "result.options.schedule."
        )

    def from_temperature(self, hot: float, factor: float) -> LinearSchedule | CustomSchedule:
        """The schedule for T₀ = ``hot``; ``factor`` replaces a factor of None."""
        hot = checks.check_float("hot", hot, above=0)
        factor = checks.check_float("factor", factor, above=0)
        start = hot * (factor if self.factor is None else self.factor)
        if self.sweeps == 1:
            return CustomSchedule((start,))
        stop = start / self.span
        # A span of 1 means one temperature for all sweeps; a linear schedule has no step of zero.
        if self.span == 1:
            return LinearSchedule(start, start, start, self.sweeps)
        return LinearSchedule(start, stop, (start - stop) / (self.sweeps - 1))


Schedule: TypeAlias = (
    LinearSchedule | GeometricSchedule | BetaSchedule | CustomSchedule | AutoSchedule
)


def schedule_of(schedule: Schedule | ArrayLike | str | None, num_sweeps: int | None) -> Schedule:
    """The schedule from a schedule, plain numbers, "auto", or a number of sweeps."""
    if isinstance(schedule, str):
        checks.check_choice("schedule", schedule, ("auto",))
        schedule = None
    if num_sweeps is not None:
        if schedule is not None:
            raise McoverError("both schedule and num_sweeps were given; leave one of them out.")
        return AutoSchedule(checks.check_int("num_sweeps", num_sweeps, 1))
    if schedule is None:
        return AutoSchedule()
    if isinstance(schedule, Sequence | np.ndarray) and not isinstance(schedule, bytes):
        return CustomSchedule(schedule)  # type: ignore[arg-type]
    return schedule  # type: ignore[return-value]


def sweeps_of(schedule: Schedule) -> int:
    """The number of sweeps of a schedule."""
    if isinstance(schedule, AutoSchedule):
        return schedule.sweeps
    return len(schedule.temperatures())


def _check_schedule(schedule: LinearSchedule | GeometricSchedule, count: float) -> None:
    checks.check_count_fields(schedule, "sweeps")
    if schedule.stop > schedule.start:
        raise McoverError(
            f"stop is {schedule.stop:g}, above start, {schedule.start:g}; temperatures have to "
            "fall: write start ≥ stop."
        )
    _check_memory(schedule, (count + 1) * schedule.sweeps)


def _check_memory(schedule: Schedule, sweeps: float) -> None:
    # Per sweep a temperature, a coupling and temporary arrays.
    needed = min(32 * sweeps, 2.0**63)
    checks.check_memory(int(needed), f"{schedule!r}", "write fewer temperatures or sweeps")
