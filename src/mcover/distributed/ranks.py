"""Processes that train one model: their start, comparison of models, and common errors.

A collective waits for all its ranks, so after an error on one rank the others would wait. So ranks
first exchange everything that may differ between them, and their errors, and all raise the same
error. If a rank has died, or is late by more than the timeout, the collective ends with an error on
the others.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

import mcover
from mcover import checks
from mcover.errors import McoverError
from mcover.nn.covered import Covered
from mcover.nn.layers import full_name
from mcover.nn.state import crc32
from mcover.plain import to_plain

DIMENSIONS = ("covers", "data")
_LONGEST = 1e6  # seconds, eleven days; longer timeouts overflow in torch

_NOT_STARTED = (
    "there are no ranks yet; call mcover.distributed.start() in processes that torchrun started."
)


def start(cover_ranks: int | None = None, *, timeout: float = 300.0) -> DeviceMesh:
    """The mesh covers × data of all processes that torchrun started.

    Ranks along "covers" hold the covers of one model and get the same batch; ranks along "data"
    hold the same covers and get different batches. Neighbouring ranks, which share a host, are
    along "covers", because meetings move more bytes than gradients.

    Args:
        cover_ranks: the number of ranks over which the covers of a model are spread; None is all
            ranks, and 1 keeps the covers together, for DDP or FSDP.
        timeout: seconds that a rank waits for the others before it gives up.
    """
    seconds = timedelta(seconds=checks.check_float("timeout", timeout, above=0, most=_LONGEST))
    if not dist.is_initialized():
        if "RANK" not in os.environ:
            raise McoverError(
                "this process has no rank: start it with torchrun, e.g. torchrun --standalone "
                "--nproc-per-node 4 train.py, or call init_process_group first."
            )
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        with failing_together("the start of the processes"):
            dist.init_process_group(timeout=seconds)
    world = dist.get_world_size()
    rows, problem = world, ""
    try:
        if cover_ranks is not None:
            rows = checks.check_int("cover_ranks", cover_ranks, 1, world)
    except McoverError as error:
        problem = str(error)
    agree({"cover_ranks": rows}, [None], problem)
    if world % rows:
        raise McoverError(
            f"cover_ranks is {rows}, but there are {world} ranks; write a divisor of {world}."
        )
    grid = torch.arange(world).view(-1, rows).T
    groups = {}
    with failing_together("the creation of process groups"):
        for name, lines in zip(DIMENSIONS, (grid.T, grid), strict=True):
            for ranks in lines.tolist():
                group = dist.new_group(ranks, timeout=seconds)  # called by all, in one order
                if dist.get_rank() in ranks:
                    groups[name] = group
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return DeviceMesh.from_group(
        [groups[name] for name in DIMENSIONS], device, mesh=grid, mesh_dim_names=DIMENSIONS
    )


def check(covered: Covered, mesh: DeviceMesh | None = None) -> None:
    """Refuses, on all ranks, a covered model that is not the same on all of them.

    DDP and FSDP copy weights from one rank to the others, but not the seed of the routes: with
    ``seed=None`` ranks would draw different routes. Call this after ``lift``.
    """
    checks.check_instance("covered", covered, Covered, "what mcover.lift returned")
    check_mesh(mesh)
    agree(facts(covered), groups_of(mesh))


def facts(covered: Covered) -> dict[str, Any]:
    """The facts that have to be the same on all ranks."""
    tensors = covered.state_dict()
    tensors.pop("_extra_state")
    settings = to_plain(covered.settings)
    return {
        "mcover.__version__": mcover.__version__,
        "the model's class": full_name(type(covered.net)),
        "the model's tensors": [
            (name, str(value.dtype), *value.shape) for name, value in tensors.items()
        ],
        **{name: json.dumps(value) for name, value in settings.items()},  # without defaults
        "lifted parameters": covered.lifted,
        "buffers of each cover": covered.state,
        "seed": (str(covered.seed.entropy), covered.seed.spawn_key),
        "steps": covered.steps,
        "redraws": covered.redraws,
        "weights": {name: crc32([value]) for name, value in tensors.items()},
    }


_REMEDIES = {
    "seed": "give lift the same seed on all ranks, an integer",
    "weights": "build the model from the same seed on all ranks, or load it on all of them",
    "mcover.__version__": "install the same version on all machines",
}


def agree(own: Mapping[str, Any], groups: Sequence[Any], problem: str = "") -> None:
    """Raises on all ranks if facts differ between two of them, or one of them has a problem.

    Facts are exchanged in one group after the other. With a group along each dimension of a mesh,
    they reach all its ranks.
    """
    if not dist.is_initialized():
        raise McoverError(problem or _NOT_STARTED)
    reports = [(dist.get_rank(), problem, dict(own))]
    for group in groups:
        everyone: list[Any] = [None] * dist.get_world_size(group)
        with failing_together("the comparison of models between ranks"):
            dist.all_gather_object(everyone, reports, group=group)
        reports = [one for part in everyone for one in part]
    reports.sort(key=lambda one: one[0])
    for rank, why, _ in reports:
        if why:
            raise McoverError(f"rank {rank}: {why}")
    (first, _, known), *others = reports
    for rank, _, theirs in others:
        for name in known | theirs:
            mine, other = known.get(name), theirs.get(name)
            if mine != other:
                seen = _difference(mine, other)
                raise McoverError(
                    f"ranks disagree on {name}: rank {first} has {seen[0]}, rank {rank} {seen[1]}; "
                    f"{_REMEDIES.get(name, 'write the same on all ranks')}."
                )


def check_mesh(mesh: Any) -> None:
    """Refuses anything but a mesh or None, and a process without a process group."""
    if mesh is not None:
        checks.check_instance("mesh", mesh, DeviceMesh, "mcover.distributed.start(...), or None")
    if not dist.is_initialized():
        raise McoverError(
            "there is no process group; call mcover.distributed.start() in a script that torchrun "
            "started."
        )


def groups_of(mesh: DeviceMesh | None) -> list[Any]:
    """A group along each dimension of a mesh; without a mesh, the group of all processes."""
    return [None] if mesh is None else [mesh.get_group(axis) for axis in range(mesh.ndim)]


def in_step(covered: Covered, given: Sequence[Tensor], same: bool, group: Any) -> None:
    """Refuses a forward in which ranks along "covers" are out of step.

    It costs one small collective per forward, and a checksum of the inputs if covers share them.
    """
    shapes = str([(tuple(x.shape), x.dtype) for x in given]).encode()
    own = {
        "training forwards so far": covered.steps,
        "redraws": covered.redraws,
        "train() or eval()": int(covered.training),
        "gradients on or off": int(torch.is_grad_enabled()),
        "shapes of the inputs": zlib.crc32(shapes),
        "inputs, which all covers share": zlib.crc32(bytes(8)) if not same else crc32(given),
    }
    device = next(iter(covered.stacks().values())).device
    mine = torch.tensor(list(own.values()), device=device)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    with failing_together("the check that ranks are in step"):
        dist.all_gather(everyone, mine, group=group)
    for other in everyone[1:]:
        for name, a, b in zip(own, everyone[0].tolist(), other.tolist(), strict=True):
            if a != b:
                raise McoverError(
                    f"ranks that hold covers of one model are out of step in: {name} ({a} and "
                    f"{b}). Call the model on all of them in the same order, with the batch of "
                    "their place along 'data'."
                )


@contextlib.contextmanager
def failing_together(what: str) -> Iterator[None]:
    """Replaces an error of a collective by one that names what the collective was for."""
    try:
        yield
    except McoverError:
        raise
    except RuntimeError as error:  # torch.distributed has no narrower class for all backends
        rank = dist.get_rank() if dist.is_initialized() else os.environ.get("RANK")
        raise McoverError(
            f"rank {rank} lost the others in {what}: one of them has died, or did not arrive "
            "within the timeout; the first error in their output says why. Start all ranks again, "
            f"from the last checkpoint. ({str(error).splitlines()[0]})"
        ) from error


def _difference(mine: Any, other: Any) -> list[str]:
    """The first difference of two facts, shortened for a message."""
    if isinstance(mine, Mapping) and isinstance(other, Mapping):
        mine, other = list(mine.items()), list(other.items())
    if isinstance(mine, list) and isinstance(other, list):
        pairs = [(a, b) for a, b in zip(mine, other, strict=False) if a != b]
        mine, other = pairs[0] if pairs else (f"{len(mine)} of them", f"{len(other)}")
    return [text if len(text) <= 100 else f"{text[:100]}…" for text in (str(mine), str(other))]
