"""A covered model on disk: tensors in safetensors, everything else in a JSON file beside them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from torch import Tensor, nn

from mcover.nn.covers import Covers

FORMAT = 1


def save(covered: Covers, path: str | Path) -> tuple[Path, Path]:
    """Writes both files; see :meth:`Covered.save`."""
    from safetensors.torch import save_file

    tensors, tied = _once(covered.state_dict())
    plain = {
        "format": FORMAT,
        "model": class_name(covered.net),
        "settings": covered.settings.to_dict(),
        "lifted": list(covered.lifted),
        "state": list(covered.state_stacks()),
        "frozen": [n for n, value in covered.net.named_parameters() if not value.requires_grad],
        "seed": {"entropy": covered.seed.entropy, "spawn_key": list(covered.seed.spawn_key)},
        "tied": tied,
    }
    weights, config = paths(path)
    weights.parent.mkdir(parents=True, exist_ok=True)
    # Both are written whole beside what is there, and only then put in its place.
    beside = {file: file.with_name(f".{file.name}.{os.getpid()}") for file in (weights, config)}
    try:
        save_file(tensors, str(beside[weights]))
        beside[config].write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")
        for file, written in beside.items():
            written.replace(file)
    finally:
        for written in beside.values():
            written.unlink(missing_ok=True)
    return weights, config


def _once(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor under its first name, and the other names of those that are tied."""
    first: dict[tuple[int, tuple[int, ...]], str] = {}
    tensors, tied = {}, {}
    for name, value in state.items():
        key = value.data_ptr(), tuple(value.shape)
        if value.numel() and key in first:
            tied[name] = first[key]
        else:
            first[key] = name
            tensors[name] = value.detach().contiguous()
    return tensors, tied


def paths(path: str | Path) -> tuple[Path, Path]:
    path = Path(path)
    stem = path.with_suffix("") if path.suffix in (".safetensors", ".json") else path
    return stem.with_name(stem.name + ".safetensors"), stem.with_name(stem.name + ".json")


def class_name(model: nn.Module) -> str:
    return f"{type(model).__module__}.{type(model).__qualname__}"
