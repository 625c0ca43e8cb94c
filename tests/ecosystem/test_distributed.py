"""Covers on several ranks are the covers of one process: losses, gradients and weights."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from ranks import run
from tiny_models import Convolutional, Perceptron, Transformer, tiny
from torch.nn.parallel import DistributedDataParallel

import mcover
from mcover import distributed
from mcover.nn import Covered

KINDS = {"mlp": Perceptron, "conv": Convolutional, "transformer": Transformer}
RING = mcover.GaussianRing(1.5, shift=1)
STEPS = 3


def lifted(kind: str, routing: object, covers: int = 4, **options: object) -> Covered:
    model, _ = tiny(KINDS[kind])
    return mcover.lift(model, covers, RING, routing, seed=3, noise=0.2, **options)


def batches(kind: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    made = []
    for _ in range(STEPS):
        if kind == "transformer":
            x = torch.randint(0, 6, (4, 5), generator=generator)
            y = torch.randn(4, 5, 6, generator=generator, dtype=torch.float64)
        else:
            shape = (4, 7) if kind == "mlp" else (4, 2, 5, 5)
            x = torch.randn(shape, generator=generator, dtype=torch.float64)
            y = torch.randn(4, 3, generator=generator, dtype=torch.float64)
        made.append((x, y))
    return made


def train(model, part, kind, place=0, places=1, total=lambda loss: loss.detach()):
    """Losses, the gradients of the first step, and the model as it is in the end."""
    optimizer = torch.optim.SGD(part.parameters(), lr=0.05, momentum=0.9)
    losses, grads = [], {}
    for x, y in batches(kind):
        x, y = (t.chunk(places)[place] for t in (x, y))
        optimizer.zero_grad()
        loss = mcover.cover_loss(F.mse_loss, model(x), y)
        loss.backward()
        grads = grads or {n: p.grad.clone() for n, p in part.net.named_parameters()}
        part.clip_grad_norm_(1.0)
        optimizer.step()
        losses.append(total(loss))
    return torch.stack(losses), grads


def alone(kind, routing, covers=4, **options):
    covered = lifted(kind, routing, covers, **options)
    losses, grads = train(covered, covered, kind)
    return losses, grads, covered.state_dict()


def spread_out(kind, routing, covers, cover_ranks, layout="auto", options=None):
    mesh = distributed.start(cover_ranks, timeout=60)
    part = distributed.spread(lifted(kind, routing, covers, **options or {}), mesh, layout=layout)
    places, place = mesh.size(1), mesh.get_local_rank("data")
    model = part
    if places > 1:
        model = DistributedDataParallel(part, process_group=mesh.get_group("data"))
    losses, own = train(model, part, kind, place, places, part.total)
    split = {id(stack) for stack in part._split()}
    grads = {}
    for name, value in part.net.named_parameters():
        grads[name] = own[name]
        if id(value) in split:
            grads[name] = torch.stack(part.across.all_gather(own[name].unbind()))
    return losses, grads, part.gather().state_dict(), part.layout


def same(seen, expected):
    torch.testing.assert_close(seen[0], expected[0])
    assert seen[1].keys() == expected[1].keys()
    for name in expected[1]:
        torch.testing.assert_close(seen[1][name], expected[1][name], msg=lambda m, n=name: f"{n}: {m}")
    assert seen[2].keys() == expected[2].keys()
    for name in expected[2]:
        torch.testing.assert_close(seen[2][name], expected[2][name], msg=lambda m, n=name: f"{n}: {m}")


ROUTINGS = {
    "messages": mcover.Messages(blocks=2, block_channels=1),
    "redrawn": mcover.Messages(blocks=3, block_channels=1, redraw_every=1),
    "exact": mcover.Messages(mixer="exact"),
    "streams": mcover.Messages(blocks=2, block_channels=1, streams=2),
    "directed": mcover.Directed(bank=3, destinations=2, redraw_every=2),
    "units": mcover.Directed(granularity="unit"),
}


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_train_as_one(kind, routing):
    expected = alone(kind, ROUTINGS[routing])
    for seen in run(2, spread_out, kind, ROUTINGS[routing], 4, 2):
        same(seen, expected)
