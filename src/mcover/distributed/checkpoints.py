"""Checkpoints that any number of ranks can load, through ``torch.distributed.checkpoint``.

A checkpoint does not depend on the wrapper of the covered model when it was saved (none, DDP, FSDP,
spread): tensors have the names and shapes of the plain covered model, and each rank writes its
parts. So it can be loaded with any wrapper and any number of ranks.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as read
from torch.distributed.checkpoint.state_dict_saver import save as write
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from mcover import checks
from mcover.distributed.spread import Spread
from mcover.errors import McoverError
from mcover.nn.covered import Covered


def save(model: nn.Module, folder: str | Path, optimizer: Optimizer | None = None) -> None:
    """Writes a checkpoint; called by all ranks, with a folder that all of them can access.

    Args:
        model: a covered model, plain, inside DDP or FSDP, or spread.
        folder: the folder in which each rank writes a file.
        optimizer: an optimizer whose state is written too.
    """
    folder = _checked(model, folder, optimizer)
    if folder.exists() and not folder.is_dir():
        raise McoverError(f"{folder} is a file; write the path of a folder.")
    with _single_process() as is_single, _explained("written", folder):
        write(_state(model, optimizer), checkpoint_id=folder, no_dist=is_single)


def load(model: nn.Module, folder: str | Path, optimizer: Optimizer | None = None) -> None:
    """Reads a checkpoint into a model lifted with the same settings; called by all its ranks.

    The number of ranks and the wrapper of the model may differ from those at saving: e.g. one
    process can load the checkpoint into a plain covered model and collapse it.
    """
    folder = _checked(model, folder, optimizer)
    if not Path(folder, ".metadata").is_file():
        raise McoverError(f"{folder} holds no checkpoint; write the folder given to save.")
    with _single_process() as is_single, _explained("read", folder):
        state = _state(model, optimizer)
        read(state, checkpoint_id=folder, no_dist=is_single)
        plain = _unwrapped(model)
        if isinstance(plain, Spread):  # its tensors were read through DTensors that are views
            plain.set_extra_state(state["model"]["_extra_state"])
        else:
            set_model_state_dict(model, state["model"])
        if optimizer is not None:
            own = state["optimizer"]
            if isinstance(plain, Spread):
                own = _mapped(own, lambda _, value: _local(value))
            set_optimizer_state_dict(model, optimizer, own)


def beside_covers(ranks: int) -> Callable[[nn.Parameter], Shard | None]:
    """Makes FSDP shard another axis than the covers.

    Write ``fully_shard(covered, shard_placement_fn=beside_covers(ranks))``. FSDP shards dimension
    0, the covers, so with more ranks than covers some ranks would hold nothing. With this function
    it shards the longest other dimension that is divisible by the number of ranks, as FSDP
    requires, or dimension 0 if there is none.

    >>> import torch
    >>> shapes = (3, 8, 16), (3, 5)
    >>> [beside_covers(4)(nn.Parameter(torch.zeros(shape))) for shape in shapes]
    [Shard(dim=2), None]
    """
    ranks = checks.check_int("ranks", ranks, 1)

    def placement(parameter: nn.Parameter) -> Shard | None:
        fitting = [k for k in range(1, parameter.ndim) if parameter.shape[k] % ranks == 0]
        return Shard(max(fitting, key=lambda k: parameter.shape[k])) if fitting else None

    return placement


def _checked(model: Any, folder: Any, optimizer: Any) -> Path:
    """The folder as a path; refuses other objects as model or optimizer."""
    wanted = "what mcover.lift or mcover.distributed.spread returned, perhaps inside DDP or FSDP"
    checks.check_instance("model", model, nn.Module, wanted)
    if not any(isinstance(module, Covered) for module in model.modules()):
        raise McoverError(f"model is a {type(model).__name__} without covers; write {wanted}.")
    if optimizer is not None:
        checks.check_instance("optimizer", optimizer, Optimizer, "a torch.optim.Optimizer")
    return checks.check_path("folder", folder)


@contextlib.contextmanager
def _single_process() -> Iterator[bool]:
    """Whether this is a single process; silences torch's warning about that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield not dist.is_initialized()


# Errors of torch for lost ranks, full disks, damaged files, or names that do not match.
_FAILURES = (
    CheckpointException, RuntimeError, OSError, EOFError, LookupError, TypeError, ValueError,
    AssertionError, AttributeError,
)  # fmt: skip


@contextlib.contextmanager
def _explained(done: str, folder: Path) -> Iterator[None]:
    """Turns torch's exceptions into a McoverError that names the cause and the rank."""
    try:
        yield
    except McoverError:
        raise
    except _FAILURES as error:
        why = f"{type(error).__name__}: {next(iter(str(error).splitlines()), 'no message')}"
        if isinstance(error, CheckpointException):
            rank, (cause, _) = next(iter(error.failures.items()))
            if isinstance(cause, McoverError):
                raise cause from error
            why = f"rank {rank}: {type(cause).__name__}: {cause}"
        raise McoverError(
            f"the checkpoint in {folder} could not be {done}: {why}. All ranks have to call this "
            "with the same folder, which needs write access and space. A checkpoint can be read "
            "into a model lifted with the same settings, and into an optimizer of its parameters."
        ) from error


def _unwrapped(model: nn.Module) -> nn.Module:
    inside: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
    return inside


def _state(model: nn.Module, optimizer: Optimizer | None) -> dict[str, Any]:
    plain = _unwrapped(model)
    part = plain if isinstance(plain, Spread) else None
    state: dict[str, Any] = {
        "model": get_model_state_dict(model) if part is None else part.sharded_state_dict()
    }
    if optimizer is not None:
        own = get_optimizer_state_dict(model, optimizer)
        state["optimizer"] = own if part is None else _mapped(own, part.sharded)
    return state


def _mapped(state: Any, function: Callable[[str, Tensor], Tensor]) -> dict[str, Any]:
    """The state of an optimizer with ``function(parameter's name, tensor)`` for each tensor."""
    tensors = {
        name: {k: function(name, v) if isinstance(v, Tensor) else v for k, v in values.items()}
        for name, values in state["state"].items()
    }
    return {**state, "state": tensors}


def _local(value: Tensor) -> Tensor:
    return value.to_local() if isinstance(value, DTensor) else value
