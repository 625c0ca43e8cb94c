"""Covered models to disk: tensors in safetensors, the rest in a small JSON file beside them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from torch import Tensor

from mcover.nn.covers import Covers

TENSORS, CONFIG = "covered.safetensors", "covered.json"
FORMAT = 1


def save(covered: Covers, folder: str | Path) -> None:
    """Writes ``covered.safetensors`` and ``covered.json`` into a folder, made if it is not there.

    Nothing is pickled. The base model's code is not stored: :func:`load` is given a model.
    """
    from safetensors.torch import save_file  # an extra: imported where it is used

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    seed = covered.seed
    config = {
        "format": FORMAT,
        "settings": covered.settings.to_dict(),
        "lifted": list(covered.lifted),
        "state": list(covered.state_stacks()),
        "entropy": seed.entropy,
        "spawn_key": list(seed.spawn_key),
        "steps": covered.steps,
        "redraws": covered.redraws,
    }
    # Both are written whole beside what is there, and only then put in its place.
    beside = {name: folder / f".{name}.{os.getpid()}" for name in (CONFIG, TENSORS)}
    try:
        beside[CONFIG].write_text(json.dumps(config, indent=2) + "\n")
        save_file(tensors(covered), beside[TENSORS])
        for name, path in beside.items():
            path.replace(folder / name)
    finally:
        for path in beside.values():
            path.unlink(missing_ok=True)


def tensors(covered: Covers) -> dict[str, Tensor]:
    """Each tensor of the state once, though it may have several names."""
    unique: dict[int, tuple[str, Tensor]] = {}
    for name, value in covered.state_dict(keep_vars=True).items():
        if not name.endswith("_extra_state"):
            unique.setdefault(id(value), (name, value.detach()))
    return dict(unique.values())
