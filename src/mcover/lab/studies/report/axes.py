"""Axes of the page's figures: from values to places on paper, with ticks people can read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

FAR = 0.6  # least share of the largest value from which on a common zero hides what differs


@dataclass(frozen=True)
class Axis:
    """Values from ``low`` to ``high`` laid out from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """Where a value lies; values outside land on the border."""
        low, high, here = self.low, self.high, value
        if self.log:
            low, high, here = math.log(low), math.log(high), math.log(max(value, self.low))
        share = (here - low) / (high - low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)


def axis(
    values: Sequence[float],
    start: float,
    end: float,
    *,
    log: bool = False,
    from_zero: bool = False,
    ticks: Sequence[float] | None = None,
) -> Axis:
    """An axis that holds all values with a little room.

    ``from_zero`` begins at 0, unless all values lie so far above it that they would look the same.

    >>> axis([0.02, 0.21], 100, 0, from_zero=True).ticks
    (0.0, 0.05, 0.1, 0.15, 0.2)
    >>> axis([0.058, 0.062], 100, 0, from_zero=True).ticks
    (0.058, 0.059, 0.06, 0.061, 0.062)
    """
    low, high = min(values), max(values)
    from_zero = from_zero and low < FAR * high
    if log:
        room = 1.15 if high == low else (high / low) ** 0.05
        marks = tuple(ticks or _decades(low, high))
        return Axis(low / room, high * room, start, end, True, marks)
    if from_zero:
        low = min(low, 0.0)
    span = (high - low) or abs(high) or 1.0
    bottom = low if from_zero and low == 0 else low - 0.05 * span
    top = high + 0.05 * span
    return Axis(bottom, top, start, end, False, tuple(ticks or _steps(bottom, top)))


def _steps(low: float, high: float, count: int = 5) -> list[float]:
    """About ``count`` round values between two."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _decades(low: float, high: float) -> list[float]:
    """Powers of ten, with 2 and 5 between them where there are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    marks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    return [mark for mark in marks if low * 0.99 <= mark <= high * 1.01]
