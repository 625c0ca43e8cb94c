"""Covered models on disk: tensors in safetensors, the rest in a small JSON file beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from numpy.random import SeedSequence
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mcover.errors import McoverError
from mcover.nn.covered import Covered
from mcover.nn.lift import assemble
from mcover.nn.settings import Settings

TENSORS, CONFIG = "covered.safetensors", "covered.json"
FORMAT = 1


def save(covered: Covered, folder: str | Path) -> None:
    """Writes ``covered.safetensors`` and ``covered.json`` into a folder, made if it is not there.

    Nothing is pickled. The base model's code is not stored: :func:`load` is given a model.
    """
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
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    save_file(_tensors(covered), folder / TENSORS)


def load(folder: str | Path, model: nn.Module) -> Covered:
    """Reads what :func:`save` wrote, for a model of the same architecture (its weights are not
    used).
    """
    folder = Path(folder)
    missing = [name for name in (CONFIG, TENSORS) if not (folder / name).is_file()]
    if missing:
        raise McoverError(
            f"{folder} has no {' and no '.join(missing)}; give the folder of nn.save(covered, ...)."
        )
    config: dict[str, Any] = json.loads((folder / CONFIG).read_text())
    if config.get("format") != FORMAT:
        raise McoverError(
            f"{folder / CONFIG} has format {config.get('format')!r}, this version reads {FORMAT}."
        )
    settings = Settings.from_dict(config["settings"])
    seed = SeedSequence(config["entropy"], spawn_key=tuple(config["spawn_key"]))
    names = {name for name, _ in model.named_parameters()}
    lost = [name for name in config["lifted"] if name not in names]
    if lost:
        raise McoverError(
            f"the model has no parameter {lost[0]!r} (and {len(lost) - 1} more), which the saved "
            "covers have; give a model of the architecture that was lifted."
        )
    sources = [model] * settings.covers
    covered = assemble(model, sources, settings, config["lifted"], config["state"], seed, 0.0)
    stored = load_file(folder / TENSORS)
    own = _tensors(covered)
    for name in sorted(own.keys() | stored.keys()):
        seen, wanted = stored.get(name), own.get(name)
        if seen is None or wanted is None or seen.shape != wanted.shape:
            raise McoverError(
                f"{name!r} has shape {None if seen is None else tuple(seen.shape)} on disk and "
                f"{None if wanted is None else tuple(wanted.shape)} in the model given; give a "
                "model of the architecture that was lifted."
            )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(stored[name])
    covered.set_extra_state(torch.tensor([config["steps"], config["redraws"]]))
    return covered


def _tensors(covered: Covered) -> dict[str, Tensor]:
    """Each tensor of the state once, though it may have several names."""
    unique: dict[int, tuple[str, Tensor]] = {}
    for name, value in covered.state_dict(keep_vars=True).items():
        if not name.endswith("_extra_state"):
            unique.setdefault(id(value), (name, value.detach()))
    return dict(unique.values())
