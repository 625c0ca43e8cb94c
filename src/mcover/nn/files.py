"""Covered models as safetensors files, with everything except tensors in the header.

Nothing in a file is executed, and all of it is checked before use.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors import torch as safetensors
from torch import Tensor

from mcover import checks
from mcover.errors import McoverError
from mcover.files import write_atomic
from mcover.lifting import Settings
from mcover.nn.layers import full_name
from mcover.nn.state import CoverState, crc32
from mcover.plain import from_plain, to_plain

FORMAT = 4
# Keys in the file's header.
_HEADER, _CHECKSUM = "mcover", "crc32"


@dataclass(frozen=True)
class Config:
    """The content of the header, as JSON; tensors and buffers are named as in the base model."""

    format: int
    model: str  # the full name of the base's class
    settings: Settings
    lifted: tuple[str, ...]
    state: tuple[str, ...]  # buffers of which each cover has its own
    frozen: tuple[str, ...]
    tied: tuple[tuple[str, str], ...]  # another name of a tensor, and its name in the file


def save(covered: CoverState, path: str | Path, *, frozen_too: bool = True) -> Path:
    """Writes a .safetensors file, which :func:`mcover.nn.load` reads.

    With ``frozen_too=False`` frozen parameters are left out, e.g. those of a large model with small
    adapters; ``load`` then takes them from its argument ``model``.
    """
    left_out = set() if checks.check_bool("frozen_too", frozen_too) else frozen_names(covered)
    state = covered.state_dict()
    tensors, tied = _once({name: state[name] for name in state if name not in left_out})
    config = Config(
        FORMAT,
        full_name(type(covered.net)),
        covered.settings,
        covered.lifted,
        covered.state,
        tuple(name for name, p in covered.net.named_parameters() if not p.requires_grad),
        tuple(tied.items()),
    )
    text = json.dumps(to_plain(config))
    header = {_HEADER: text, _CHECKSUM: checksum(text, tensors)}
    return write_atomic(_path(path), safetensors.save(tensors, header))


def frozen_names(covered: CoverState) -> set[str]:
    """Names, in the covered model, of frozen parameters, which covers share."""
    named = covered.named_parameters(remove_duplicate=False)
    stacks = set(covered.stacks().values())
    return {name for name, p in named if not p.requires_grad and p not in stacks}


def read(path: str | Path) -> tuple[Path, Config, dict[str, Tensor]]:
    """Reads a file of :func:`save`: its path, its header, and tensors under all their names."""
    file = _path(path)
    try:
        if not file.is_file():
            raise FileNotFoundError("it does not exist, or is not a file")
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise McoverError(f"{file} cannot be read as safetensors: {error}.") from error
    unlike = f"{file} is not what covered.save() writes"
    try:
        plain = json.loads(metadata[_HEADER])
        version = plain["format"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise McoverError(f"{unlike}: no settings in its header ({error!r}).") from error
    if version != FORMAT:
        raise McoverError(f"{file} has format {version!r}; this version of mcover reads {FORMAT}.")
    if metadata.get(_CHECKSUM) != checksum(metadata[_HEADER], tensors):
        raise McoverError(
            f"{file} is damaged: its checksum is not that of its content; take another copy of it."
        )
    try:
        config: Config = from_plain(Config, plain, "its header")
        tensors |= {name: tensors[first] for name, first in config.tied}
        _check_covers(config, tensors)
    except (McoverError, KeyError, RecursionError) as error:
        raise McoverError(f"{unlike}: {error}") from error
    return file, config, tensors


def _check_covers(config: Config, tensors: Mapping[str, Tensor]) -> None:
    """Refuses a header that does not match the tensors, before anything is copied per cover."""
    if not config.lifted:
        raise McoverError("it names no lifted parameters.")
    covers = config.settings.covers
    config.settings.topology.matrix(covers)  # refuses an impossible number
    for name in config.lifted:
        stack = tensors.get(f"net.{name}")
        if stack is not None and stack.shape[:1] != (covers,):
            raise McoverError(
                f"its header says {covers} covers, and {name!r} has the shape {tuple(stack.shape)}."
            )


def checksum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """CRC-32 of the header's text and of the names, dtypes, shapes and bytes of tensors."""
    total = zlib.crc32(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        total = zlib.crc32(f"{name} {value.dtype} {tuple(value.shape)}".encode(), total)
        total = crc32([value], total)
    return f"{total:08x}"


def _path(path: str | Path) -> Path:
    path = checks.check_path("path", path)
    if not path.name:
        raise McoverError(f"path is {str(path)!r}; write the path of a file.")
    return path if path.suffix == ".safetensors" else path.with_name(path.name + ".safetensors")


def _once(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor under its first name, and the other names of tied tensors."""
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
