"""A covered model on disk: tensors in safetensors, everything else in a JSON file beside them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from mcover.errors import McoverError
from mcover.nn.covered import Covered
from mcover.nn.layers import full_name
from mcover.nn.settings import Settings
from mcover.nn.stacking import Refusal, check_sources, stacked_copy
from mcover.seeds import seed_sequence

FORMAT = 2


def save(covered: Covered, path: str | Path) -> tuple[Path, Path]:
    """Writes both files; see :meth:`Covered.save`."""
    from safetensors.torch import save_file

    tensors, tied = _once(covered.state_dict())
    plain = {
        "format": FORMAT,
        "model": full_name(type(covered.net)),
        "settings": covered.settings.to_dict(),
        "lifted": list(covered.lifted),
        "state": list(covered.state),
        "frozen": [n for n, value in covered.net.named_parameters() if not value.requires_grad],
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


def load(path: str | Path, model: nn.Module) -> Covered:
    """A covered model as :meth:`Covered.save` wrote it: covers, routes, counters and settings.

    Args:
        path: as given to ``save``, with or without an ending.
        model: a model of the base's architecture; its own weights do not matter, and it is left as
            it is. Files hold no code, so the architecture has to come from you.
    """
    weights, config = paths(path)
    for file in (weights, config):
        if not file.is_file():
            raise McoverError(f"{file} does not exist; covered.save({str(path)!r}) writes it.")
    plain = _read(config)
    check_sources(model, [])
    settings = Settings.from_dict(plain["settings"])
    tensors = _tensors(weights, plain["tied"])
    expected = {name for name, _ in model.named_parameters()} | _buffer_names(model).keys()
    lost = sorted({*plain["lifted"], *plain["state"]} - expected)
    if lost:
        raise McoverError(
            f"{config} was saved from a {plain['model']} with the tensors {lost[:5]}, which this "
            f"{full_name(type(model))} does not have; give a model of the same architecture."
        )
    there = _buffer_names(model)
    state = [name for name in plain["state"] if there[name] is not None]
    net = stacked_copy(model, [model] * settings.covers, plain["lifted"], state)
    for name in set(plain["state"]) - set(state):  # the model gave it a value when it ran
        prefix, _, key = name.rpartition(".")
        net.get_submodule(prefix)._buffers[key] = tensors[f"net.{name}"].clone()
    for name, value in net.named_parameters():
        value.requires_grad_(name not in plain["frozen"])
    Refusal.put(net, plain["lifted"])
    seed = seed_sequence(0)  # the file has the model's own
    covered = Covered(net, settings, tuple(plain["lifted"]), tuple(plain["state"]), seed)
    own = covered.state_dict()
    for name in sorted((own.keys() & tensors.keys()) - {"_extra_state"}):
        want, got = (_describe(table[name]) for table in (own, tensors))
        if want != got:
            raise McoverError(
                f"{weights} does not fit at {name!r}: the model has {want}, the file {got}; give a "
                "model of the same architecture and dtype."
            )
    try:
        covered.load_state_dict(tensors)
    except RuntimeError as error:  # missing or unexpected names
        raise McoverError(
            f"{weights} does not fit: {error}. Give a model of the same architecture and dtype."
        ) from error
    return covered


def _tensors(weights: Path, tied: dict[str, str]) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    tensors = load_file(str(weights))
    return tensors | {name: tensors[first] for name, first in tied.items()}


def _buffer_names(model: nn.Module) -> dict[str, Tensor | None]:
    """All buffers by name, also those that have no value yet."""
    return {
        f"{prefix}.{key}".lstrip("."): value
        for prefix, module in model.named_modules()
        for key, value in module._buffers.items()
    }


def _describe(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {tensor.dtype}"


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
