"""Checks of the options of a parameter group."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.optim.optimizer import ParamsT

from mcover.errors import McoverError

Group = dict[str, Any]


def own_groups(params: ParamsT) -> ParamsT:
    """Parameter groups as copies: torch writes into those it is given, and two optimizers share."""
    if isinstance(params, Tensor) or not isinstance(params, Iterable):
        return params  # torch says what it takes
    return [dict(entry) if isinstance(entry, dict) else entry for entry in params]  # type: ignore[return-value]


def check_number(
    group: Group, name: str, *, positive: bool = False, infinite: bool = False, also: str = ""
) -> None:
    """Refuses what is not a number from 0 on.

    ``positive`` leaves out 0, ``infinite`` adds inf, ``also`` is what else could be written.
    """
    value = group[name]
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if good and value >= 0 and not (positive and value == 0) and (infinite or value < math.inf):
        return
    least = "a positive number" if positive else "a number, 0 or more"
    raise McoverError(f"{name} is {value!r}; write {least}{also}.")


def check_count(group: Group, name: str) -> None:
    """Refuses what is not a whole number of at least 1."""
    value = group[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise McoverError(f"{name} is {value!r}; write a whole number of at least 1.")


def check_share(group: Group, name: str) -> None:
    """Refuses what is not a number from 0 to below 1."""
    value = group[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise McoverError(f"{name} is {value!r}; write a number from 0 to below 1.")
