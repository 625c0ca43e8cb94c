"""A covered model from disk, for a model of the same architecture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from numpy.random import SeedSequence
from torch import Tensor, nn

from mcover.errors import McoverError
from mcover.nn.covered import Covered
from mcover.nn.lift import cover
from mcover.nn.saving import FORMAT, class_name, paths
from mcover.nn.settings import Settings
from mcover.nn.stacking import check_sources, stacked_copy


def load(path: str | Path, model: nn.Module) -> Covered:
    """A covered model as :meth:`Covered.save` wrote it: covers, routes, counters and settings.

    Args:
        path: as given to ``save``, with or without an ending.
        model: a model of the base's architecture; its own weights do not matter, and it is left as
            it is. Files hold no code, so the architecture has to come from you.
    """
    from safetensors.torch import load_file

    weights, config = paths(path)
    for file in (weights, config):
        if not file.is_file():
            raise McoverError(f"{file} does not exist; covered.save({str(path)!r}) writes it.")
    plain = _read(config)
    check_sources(model, [])
    settings = Settings.from_dict(plain["settings"])
    expected = {name for name, _ in [*model.named_parameters(), *model.named_buffers()]}
    lost = sorted({*plain["lifted"], *plain["state"]} - expected)
    if lost:
        raise McoverError(
            f"{config} was saved from a {plain['model']} with the tensors {lost[:5]}, which this "
            f"{class_name(model)} does not have; give a model of the same architecture."
        )
    sources = [model] * settings.covers
    net = stacked_copy(model, sources, plain["lifted"], plain["state"])
    for name, value in net.named_parameters():
        value.requires_grad_(name not in plain["frozen"])
    seed = SeedSequence(plain["seed"]["entropy"], spawn_key=tuple(plain["seed"]["spawn_key"]))
    covered = cover(net, settings, plain["lifted"], plain["state"], seed)
    tensors = load_file(str(weights))
    tensors |= {name: tensors[first] for name, first in plain["tied"].items()}
    _check(covered, tensors, weights)
    covered.load_state_dict(tensors)
    return covered


def _check(covered: Covered, tensors: dict[str, Tensor], weights: Path) -> None:
    """Refuses tensors that do not fit, rather than to convert or to skip them."""
    own = covered.state_dict()
    for name in sorted(own.keys() | tensors.keys()):
        want, got = (_describe(table.get(name)) for table in (own, tensors))
        if want != got:
            raise McoverError(
                f"{weights} does not fit at {name!r}: the model has {want}, the file {got}; give a "
                "model of the same architecture and dtype."
            )


def _describe(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else f"{tuple(tensor.shape)} of {tensor.dtype}"


def _read(config: Path) -> dict[str, Any]:
    try:
        plain = json.loads(config.read_text(encoding="utf-8"))
        version = plain["format"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise McoverError(f"{config} is not what covered.save() writes: {error!r}.") from error
    if version != FORMAT:
        raise McoverError(
            f"{config} has format {version!r}, this version of mcover reads {FORMAT}; "
            "update mcover."
        )
    return plain
