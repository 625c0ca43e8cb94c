"""Checks of the fields of frozen dataclasses, for authors of trials and studies.

Each check stores the value in its plain Python type. The text of a trial identifies its rows, so 1
and 1.0 in a float field must give the same trial.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

from mcover import McoverError


def check_counts(of: Any, *names: str, optional: bool = False, least: int = 1) -> None:
    """Checks that fields are integers of at least ``least``, or None if optional."""
    for name in names:
        value = getattr(of, name)
        if optional and value is None:
            continue
        is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        if not is_integer or value < least:
            raise McoverError(f"{name} is {value!r}; write an integer of at least {least}.")
        object.__setattr__(of, name, int(value))


def check_numbers(
    of: Any,
    *names: str,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    optional: bool = False,
) -> None:
    """Checks that fields are numbers within the limits, or None if optional."""
    for name in names:
        value = getattr(of, name)
        if optional and value is None:
            continue
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not is_number or not (least <= value <= most and above < value < below):
            limits = {"at least": least, "at most": most, "above": above, "below": below}
            named = [f"{word} {one:g}" for word, one in limits.items() if math.isfinite(one)]
            raise McoverError(
                f"{name} is {value!r}; write a number{' ' * bool(named)}{' and '.join(named)}."
            )
        object.__setattr__(of, name, float(value))


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise McoverError(f"{name} is {value!r}; write one of {', '.join(map(repr, choices))}.")


def check_type(name: str, value: Any, kinds: Any, example: str) -> None:
    """Raises an error for a value of another class; ``example`` is a valid value."""
    if not isinstance(value, kinds):
        raise McoverError(f"{name} is {value!r}; write {example}.")
