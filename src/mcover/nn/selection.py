"""Which parameters are lifted: by name, by glob or by predicate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from torch import nn

from mcover.errors import McoverError

Select: TypeAlias = str | Sequence[str] | Callable[[str, nn.Module], bool] | None


def selected_parameters(model: nn.Module, select: Select) -> list[str]:
    """Names of the parameters to lift; a module that is selected brings all it contains.

    Names and globs are matched with the names of modules and of parameters, a predicate is called
    with each module's name and the module. A parameter with several names (tied) is listed once,
    and is lifted when any of its names is selected.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> selected_parameters(model, "2")
    ['2.weight', '2.bias']
    >>> selected_parameters(model, ["*.bias"])
    ['0.bias', '2.bias']
    """
    if select is None:
        return [name for name, _ in model.named_parameters()]
    everywhere = list(model.named_parameters(remove_duplicate=False))
    if callable(select):
        inside = {name for name, module in model.named_modules() if select(name, module)}
        chosen = {id(value) for name, value in everywhere if inside & set(ancestors(name))}
        lost = [] if chosen else ["the predicate"]
    else:
        patterns = [select] if isinstance(select, str) else list(select)
        found = {
            pattern: {id(value) for name, value in everywhere if matches(name, [pattern])}
            for pattern in patterns
        }
        chosen = set().union(*found.values()) if found else set()
        lost = [repr(pattern) for pattern, ids in found.items() if not ids] or (
            [] if found else ["an empty list"]
        )
    if lost:
        raise McoverError(
            f"select: {', '.join(lost)} matches no parameters. Available: {_available(model)}."
        )
    return [name for name, value in model.named_parameters() if id(value) in chosen]


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern matches a tensor's name or that of a module around it."""
    candidates = [name, *ancestors(name)]
    return any(fnmatchcase(candidate, pattern) for pattern in patterns for candidate in candidates)


def ancestors(name: str) -> list[str]:
    """Names of the modules around a tensor, the root ("") last.

    >>> ancestors("layers.0.weight")
    ['layers.0', 'layers', '']
    """
    parts = name.split(".")[:-1]
    return [".".join(parts[:end]) for end in range(len(parts), -1, -1)]


def _available(model: nn.Module) -> str:
    names = [name for name, module in model.named_modules() if name and [*module.parameters()]]
    names += [name for name, _ in model.named_parameters(recurse=False)]
    return ", ".join(names[:40]) + (f" and {len(names) - 40} more" if len(names) > 40 else "")
