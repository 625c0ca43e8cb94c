"""Nested outputs and inputs: tensors inside tuples, lists, mappings and dataclasses.

Containers are rebuilt as their own class, so that a named tuple stays one and a Hugging Face output
keeps its attributes. Everything else, including a tensor, is a value.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

from mcover.errors import McoverError


def tensors(tree: Any) -> list[Tensor]:
    """All tensors of a tree, in order.

    >>> [tuple(t.shape) for t in tensors({"a": torch.zeros(2), "b": [torch.zeros(3), "text"]})]
    [(2,), (3,)]
    """
    try:
        return list(_tensors(tree))
    except RecursionError:
        raise McoverError(
            "inputs, outputs and targets are containers of tensors; this one contains itself, or "
            "is nested too deeply. Write tuples, lists, dicts or dataclasses of tensors."
        ) from None


def _tensors(tree: Any) -> Iterator[Tensor]:
    if _is_container(tree):
        for part in _parts(tree).values():
            yield from _tensors(part)
    elif isinstance(tree, Tensor):
        yield tree


def check_covers_first(tree: Any, covers: int, what: str, otherwise: str) -> None:
    """Refuses a tree without tensors, or with a tensor that does not have the covers first."""
    given = tensors(tree)
    wrong = [t for t in given if t.ndim == 0 or len(t) != covers]
    if wrong or not given:
        seen = f"a tensor of shape {tuple(wrong[0].shape)}" if wrong else "no tensor"
        raise McoverError(
            f"{what} needs tensors with the {covers} covers first, and got {seen}; write "
            f"tensors of shape ({covers}, B, ...), or {otherwise} that all covers share."
        )


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """The tree in new containers, with ``function(tensor)`` in place of each tensor.

    A tensor that occurs twice is mapped once, because layers may test their inputs for identity.
    """
    made = {tensor: function(tensor) for tensor in dict.fromkeys(tensors(tree))}
    return merge(lambda one: made[one] if isinstance(one, Tensor) else one, tree)


def merge(join: Callable[..., Any], *trees: Any) -> Any:
    """Merges trees of one form into a tree of ``join(*values)``.

    >>> merge(lambda *values: sum(values), {"a": 1, "b": (2,)}, {"a": 10, "b": (20,)})
    {'a': 11, 'b': (22,)}
    """
    first = trees[0]
    if not _is_container(first):
        return join(*trees)
    parts = [_parts(tree) if type(tree) is type(first) else {} for tree in trees]
    for index, other in enumerate(parts):
        if other.keys() != parts[0].keys():
            raise McoverError(
                f"cover {index} returned {_form(trees[index])} where cover 0 returned "
                f"{_form(first)}; covers must return outputs of one form to be stacked."
            )
    return _rebuilt(first, {key: merge(join, *(part[key] for part in parts)) for key in parts[0]})


def stack(*trees: Any) -> Any:
    """Stacks the outputs of M covers into one tree with the covers first.

    Numbers that differ between covers become a tensor of shape (M,), other objects a list.

    >>> stack((torch.tensor(1.0), 7), (torch.tensor(2.0), 7))
    (tensor([1., 2.]), 7)
    """
    return merge(_stack_values, *trees)


def _stack_values(*values: Any) -> Any:
    first = values[0]
    if isinstance(first, Tensor):
        shapes = {tuple(value.shape) for value in values}
        if len(shapes) > 1:
            raise McoverError(
                f"covers returned tensors of shapes {sorted(shapes)}, which cannot be stacked; "
                "return tensors of one shape, e.g. by padding or with a mask."
            )
        return torch.stack(values)
    plain = isinstance(first, int | float | str | bytes)
    if all(value is first or (plain and value == first) for value in values):
        return first
    numbers = all(isinstance(value, int | float) for value in values)
    return torch.tensor(values) if numbers else list(values)


def _is_container(tree: Any) -> bool:
    if isinstance(tree, tuple | list | Mapping):
        return True
    return dataclasses.is_dataclass(tree) and not isinstance(tree, type)


def _parts(tree: Any) -> dict[Any, Any]:
    if isinstance(tree, Mapping):
        return dict(tree.items())
    if isinstance(tree, tuple | list):
        return dict(enumerate(tree))
    return {field.name: getattr(tree, field.name, None) for field in dataclasses.fields(tree)}


def _rebuilt(tree: Any, parts: dict[Any, Any]) -> Any:
    """A container of the same class with other parts."""
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*parts.values())
    if isinstance(tree, tuple | list):
        return type(tree)(parts.values())
    if isinstance(tree, Mapping) and not isinstance(tree, MutableMapping):
        return parts
    made = copy.copy(tree)  # keeps the class, whatever arguments its constructor takes
    for key, value in parts.items():
        if isinstance(tree, Mapping):
            made[key] = value
        else:
            object.__setattr__(made, key, value)  # fields of a frozen dataclass too
    return made


def _form(tree: Any) -> str:
    if not _is_container(tree):
        return f"a {type(tree).__name__}"
    return f"a {type(tree).__name__} with {list(_parts(tree))}"
