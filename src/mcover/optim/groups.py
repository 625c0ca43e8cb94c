"""Checks of parameter groups and closures, for all optimizers."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from mcover import checks
from mcover.errors import McoverError

Group = dict[str, Any]


def check_number(group: Group, name: str, also: str = "", **limits: float) -> None:
    """Refuses an option outside its limits, by default below 0; ``also`` names special values."""
    value = group[name]
    is_tensor = isinstance(value, Tensor) and value.ndim == 0  # torch takes them for lr
    plain = value.item() if is_tensor else value
    try:
        plain = checks.check_float(name, plain, **(limits or {"least": 0}), infinite=bool(also))
    except McoverError as error:
        raise McoverError(f"{str(error).rstrip('.')}{also}.") from None
    group[name] = value if is_tensor else plain


def own_groups(params: ParamsT) -> ParamsT:
    """Copies of parameter groups, because torch writes to them."""
    problem = f"params is a {type(params).__name__}"
    entries: list[Any] = []
    if isinstance(params, Iterable) and not isinstance(params, Tensor | str | bytes | dict):
        with suppress(Exception):  # a user's iterable may raise anything
            entries = list(params)
            problem = f"params holds {checks.shown(entries[0])}" if entries else "params is empty"
    if not entries or not all(isinstance(one, Tensor | dict | tuple) for one in entries):
        raise McoverError(
            f"{problem}; write model.parameters(), covered.stacks().values() or a list of "
            "parameter groups."
        )
    return [dict(entry) if isinstance(entry, dict) else entry for entry in entries]


def check_group(group: Any) -> None:
    """Refuses anything but a parameter group."""
    if not isinstance(group, dict):
        raise McoverError(f"param_group is {checks.shown(group)}; write {{'params': [...]}}.")


def add_group(add: Callable[[Group], None], group: Any) -> None:
    """Adds a parameter group by torch's own method; its exceptions become McoverError."""
    check_group(group)
    try:
        add(group)
    except McoverError:
        raise
    except (TypeError, ValueError, KeyError, RuntimeError) as error:
        raise McoverError(
            f"this parameter group is refused: {error!s}. Write {{'params': [...]}} with tensors "
            "that no other group holds."
        ) from error


@contextmanager
def added_group(add: Callable[[Group], None], groups: list[Group], group: Any) -> Iterator[Group]:
    """Adds a parameter group, and removes it again if the block refuses it."""
    add_group(add, group)
    try:
        yield groups[-1]
    except McoverError:
        groups.pop()
        raise


def evaluated(closure: Any) -> Any:
    """Calls a closure with gradients enabled; None without a closure."""
    if closure is None:
        return None
    checks.check_callable("closure", closure, "a function that computes the loss and its gradients")
    with torch.enable_grad():
        return closure()
