"""Outputs as trees: tuples, dictionaries, dataclasses and the outputs of transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def children(tree: Any) -> dict[Any, Any] | None:
    """What a node holds by name, or None of a leaf. Objects of unknown classes are leaves."""
    if isinstance(tree, Mapping):  # ModelOutput is one too
        return dict(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return dict(zip(tree._fields, tree, strict=True))
    if isinstance(tree, tuple | list):
        return dict(enumerate(tree))
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return {item.name: getattr(tree, item.name) for item in dataclasses.fields(tree)}
    return None


def mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """The same tree with every leaf changed."""
    inside = children(tree)
    if inside is None:
        return change(tree)
    new = {name: mapped(change, value) for name, value in inside.items()}
    if dataclasses.is_dataclass(tree):  # outputs of transformers hold only what is not None
        return type(tree)(**{item.name: new.get(item.name) for item in dataclasses.fields(tree)})
    if isinstance(tree, Mapping):
        return type(tree)(new)
    return type(tree)(*new.values()) if hasattr(tree, "_fields") else type(tree)(new.values())


def cover_of(tree: Any, index: int) -> Any:
    """The output of one cover: every tensor has the covers first."""
    return mapped(lambda leaf: leaf[index] if isinstance(leaf, Tensor) else leaf, tree)


def tensors(tree: Any) -> list[Tensor]:
    """All tensors of a tree."""
    found: list[Tensor] = []
    mapped(lambda leaf: found.append(leaf) if isinstance(leaf, Tensor) else None, tree)
    return found


def same(seen: Any, wanted: Any, tolerance: float, where: str = "output") -> None:
    """Asserts equal trees; floats up to a tolerance relative to the largest entry of a tensor."""
    inside = children(wanted)
    if inside is not None:
        assert type(seen) is type(wanted), f"{where}: {type(seen)} instead of {type(wanted)}"
        found = children(seen)
        assert found is not None
        assert found.keys() == inside.keys(), f"{where}: {list(found)}, wanted {list(inside)}"
        for name, value in inside.items():
            same(found[name], value, tolerance, f"{where}.{name}")
    elif isinstance(wanted, Tensor):
        assert isinstance(seen, Tensor), f"{where}: {type(seen)} instead of a tensor"
        assert seen.shape == wanted.shape, f"{where}: {seen.shape}, wanted {wanted.shape}"
        assert seen.dtype == wanted.dtype, f"{where}: {seen.dtype}, wanted {wanted.dtype}"
        close(seen, wanted, tolerance, where)
    elif isinstance(wanted, bool | int | float | str) or wanted is None:
        plain = seen.item() if isinstance(seen, Tensor) else seen
        assert plain == wanted, f"{where}: {plain!r}, wanted {wanted!r}"


def close(seen: Tensor, wanted: Tensor, tolerance: float, where: str, scale: float = 0.0) -> None:
    """Asserts equal tensors, up to a tolerance relative to ``scale`` or their largest entry."""
    seen, wanted = seen.detach(), wanted.detach()
    if not (wanted.is_floating_point() or wanted.is_complex()):
        assert torch.equal(seen, wanted), f"{where}: differs"
        return
    finite = torch.isfinite(wanted)
    assert torch.equal(torch.isfinite(seen), finite), f"{where}: other entries are not finite"
    wanted, seen = wanted[finite], seen[finite]
    if not wanted.numel():
        return
    size = max(float(wanted.abs().max()), scale, 1e-6)
    error = float((seen - wanted).abs().max()) / size
    assert error <= tolerance, f"{where}: relative error {error:.1e}"
