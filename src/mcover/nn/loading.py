"""Covered models from disk: what ``save`` wrote, for a model of the same architecture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from numpy.random import SeedSequence
from torch import nn

from mcover.errors import McoverError
from mcover.nn.covered import Covered
from mcover.nn.lift import assemble
from mcover.nn.saving import CONFIG, FORMAT, TENSORS, tensors
from mcover.nn.settings import Settings


def load(folder: str | Path, model: nn.Module) -> Covered:
    """Reads what :func:`save` wrote, for a model of the same architecture (its weights are not
    used).
    """
    from safetensors.torch import load_file  # an extra: imported where it is used

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
    own = tensors(covered)
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
