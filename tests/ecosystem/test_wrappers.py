"""Covered models inside DDP and FSDP: two ranks with half a batch each equal one process."""

from __future__ import annotations

import contextlib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from ranks import run
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.testing import assert_close
from training import KINDS, alone, assert_same, lifted, sgd, train

import mcover
from mcover import Directed, McoverError, Messages, distributed

ROUTINGS = {
    "messages": Messages(blocks=2, block_channels=1, redraw_every=1),
    "directed": Directed(bank=3, redraw_every=2),
    "by cover": Directed(bank=3, redraw_every=2),
}


# --- batch norm -----------------------------------------------------------------------------------


class _Mean(torch.autograd.Function):
    """The mean over ranks, and of gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _mean(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _mean(grad)


def _mean(x: Tensor) -> Tensor:
    total = x.clone()
    if dist.is_initialized():
        dist.all_reduce(total)
        total /= dist.get_world_size()
    return total


class SynchronisedNorm(nn.BatchNorm2d):
    """Statistics of the whole batch: torch's own SyncBatchNorm refuses tensors of the CPU."""

    def forward(self, x: Tensor) -> Tensor:
        mean = _Mean.apply(x.mean((0, 2, 3)))
        square = _Mean.apply((x * x).mean((0, 2, 3)))
        variance = square - mean * mean
        self.running_mean.lerp_(mean.detach(), self.momentum)
        self.running_var.lerp_(variance.detach(), self.momentum)
        scale = self.weight * (variance + self.eps).rsqrt()
        shift = self.bias - mean * scale
        return x * scale.view(-1, 1, 1) + shift.view(-1, 1, 1)


class HalvesNorm(nn.BatchNorm2d):
    """One process that does what two ranks do: each half has its own statistics, and those of the
    first are kept, as DDP broadcasts the buffers of rank 0.
    """

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2)
        y = F.batch_norm(second, None, None, self.weight, self.bias, True, eps=self.eps)
        return torch.cat([super().forward(first), y])


class Synchronised(KINDS["conv"]):
    def __init__(self) -> None:
        super().__init__()
        self.norm = SynchronisedNorm(4)


class Halves(KINDS["conv"]):
    def __init__(self) -> None:
        super().__init__()
        self.norm = HalvesNorm(4)


KINDS |= {"synchronised": Synchronised, "halves": Halves}
CASES = [
    (wrapper, kind, routing)
    for wrapper in ("ddp", "fsdp", "resharding")
    for kind in ("mlp", "transformer", "synchronised", *(["conv"] if wrapper == "ddp" else []))
    for routing in ROUTINGS
]


def wrapped(wrapper: str, kind: str, routing: str, covers: int = 4) -> tuple[Any, Any]:
    covered = lifted(kind, ROUTINGS[routing], covers)
    distributed.check(covered)
    if wrapper == "ddp":
        return DistributedDataParallel(covered), covered
    placement = distributed.beside_covers(dist.get_world_size())
    again = wrapper == "resharding"
    fully_shard(covered, shard_placement_fn=placement, reshard_after_forward=again)
    return covered, covered


def all_wrapped(cases: Any) -> list[Any]:
    results = []
    for case in cases:
        model, covered = wrapped(*case)
        place, places = dist.get_rank(), dist.get_world_size()
        given = {"place": place, "places": places, "by_cover": case[2] == "by cover"}
        losses, grads = train(model, covered, case[1], clip=False, **given)
        mean = torch.stack(losses)
        dist.all_reduce(mean)
        stacks = [p for n, p in covered.net.named_parameters() if n in covered.lifted]
        dims = [p.placements[0].dim for p in stacks if isinstance(p, DTensor)]
        state = {n: _whole(v) for n, v in covered.state_dict().items()}
        grads = {n: _whole(g) for n, g in grads.items()}
        results.append((mean / places, grads, state, dims, covered.redraws))
    return results


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


@cache
def results() -> list[Any]:
    return run(2, all_wrapped, CASES)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_two_ranks_with_half_the_batch_are_one_with_the_whole(case):
    """Ranks have different global seeds, and draw the same new routes."""
    wrapper, kind, routing = case
    expected = alone({"conv": "halves"}.get(kind, kind), ROUTINGS[routing], clip=False)
    for rank, of_rank in enumerate(results()):
        result = of_rank[CASES.index(case)]
        if kind == "conv" and rank:  # running statistics: what rank 0 has is kept
            result = (*result[:2], {n: v for n, v in result[2].items() if "running" not in n})
            expected = (*expected[:2], {n: v for n, v in expected[2].items() if "running" not in n})
        assert_same(result, expected)
    if wrapper != "ddp":
        dims, redraws = result[3:]
        assert redraws > 0
        assert sum(dim > 0 for dim in dims) > len(dims) / 2  # not the covers, wherever even


# --- checkpoints ----------------------------------------------------------------------------------


def save_from_two(folder: str) -> Any:
    for wrapper in ("ddp", "fsdp"):
        for routing in ROUTINGS:
            model, covered = wrapped(wrapper, "synchronised", routing)
            optimizer, place = sgd(model), dist.get_rank()
            train(model, covered, "synchronised", optimizer, place, 2, clip=False)
            distributed.save(model, Path(folder, wrapper, routing), optimizer)


def load_by(folder: str) -> Any:
    """Another number of ranks loads the state, continues training and returns its state."""
    seen = {}
    places, place = dist.get_world_size(), dist.get_rank()
    for wrapper, other in (("ddp", "fsdp"), ("fsdp", "ddp")):
        for routing in ROUTINGS:
            model, covered = wrapped(other, "synchronised", routing)
            optimizer = sgd(model)
            distributed.load(model, Path(folder, wrapper, routing), optimizer)
            train(model, covered, "synchronised", optimizer, place, places, clip=False)
            state = covered.state_dict()
            seen[wrapper, routing] = {name: _whole(value) for name, value in state.items()}
    return seen


def test_checkpoints_are_loaded_by_other_ranks_and_by_one_process(tmp_path):
    run(2, save_from_two, str(tmp_path))
    answers = run(4, load_by, str(tmp_path))
    for routing, how in ROUTINGS.items():
        reference = lifted("synchronised", how)
        optimizer = sgd(reference)
        train(reference, reference, "synchronised", optimizer, clip=False)
        for wrapper in ("ddp", "fsdp"):
            covered = lifted("synchronised", how, seed=9)
            distributed.load(covered, tmp_path / wrapper / routing)
            torch.testing.assert_close(covered.state_dict(), reference.state_dict())
            torch.testing.assert_close(
                covered.collapse().state_dict(), reference.collapse().state_dict()
            )
        train(reference, reference, "synchronised", optimizer, clip=False)
        for answer in answers:
            for wrapper in ("ddp", "fsdp"):
                torch.testing.assert_close(answer[wrapper, routing], reference.state_dict())


def test_what_is_no_checkpoint_is_named(tmp_path):
    with pytest.raises(McoverError, match="holds no checkpoint"):
        distributed.load(lifted("mlp", "messages"), tmp_path)


def check_seeds() -> Any:
    distributed.check(lifted("mlp", "messages", seed=None))


def test_ranks_that_drew_their_own_seeds_are_told():
    for error in run(2, check_seeds):
        assert isinstance(error, McoverError)
        assert "give lift the same seed" in str(error)


def accumulated_without_synchronisation() -> Any:
    """Gradients of two batches: the first of each rank alone, the second reduced with it."""
    seen = []
    for by_cover in (False, True):
        model, covered = wrapped("ddp", "mlp", "directed")
        for number in range(2):
            x, y = (
                torch.ones(4, 7).double() * (number + dist.get_rank()),
                torch.zeros(4, 3).double(),
            )
            with model.no_sync() if number == 0 else contextlib.nullcontext():
                if by_cover:
                    loss = covered.loss(F.mse_loss, x, y, through=model)
                else:
                    loss = mcover.cover_loss(F.mse_loss, model(x), y)
                loss.backward()
            seen.append([p.grad.clone() for p in covered.parameters()])
    return seen


def test_ddp_synchronises_the_loss_cover_by_cover_when_it_is_asked_to():
    first, second = run(2, accumulated_without_synchronisation)
    for rank in (first, second):
        assert_close(rank[2:], rank[:2])
    assert not torch.equal(first[2][0], second[2][0])
    assert_close(first[3], second[3])
