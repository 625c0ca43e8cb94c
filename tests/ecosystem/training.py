"""Trainings for the tests of several ranks, and their comparison with one process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import mcover
from mcover.nn import Covered
from tiny_models import Convolutional, Perceptron, Transformer

RING = mcover.GaussianRing(1.5, shift=1)
STEPS = 3
KINDS: dict[str, type[nn.Module]] = {
    "mlp": Perceptron,
    "conv": Convolutional,
    "transformer": Transformer,
}


def lifted(kind: str, routing: Any, covers: int = 4, **options: Any) -> Covered:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = KINDS[kind]().double()
    return mcover.lift(model, covers, RING, routing, **{"seed": 3, "noise": "50%"} | options)


def batches(kind: str) -> list[tuple[Tensor, Tensor]]:
    """The same on all ranks, independent of their global generators."""
    generator = torch.Generator().manual_seed(5)
    given = {"generator": generator, "dtype": torch.float64}
    shape = {"mlp": (4, 7), "transformer": (4, 5)}.get(kind, (4, 2, 5, 5))
    made = []
    for _ in range(STEPS):
        if kind == "transformer":
            x = torch.randint(0, 6, shape, generator=generator)
            made.append((x, torch.randn(4, 5, 6, **given)))
        else:
            made.append((torch.randn(shape, **given), torch.randn(4, 3, **given)))
    return made


def train(
    model: Any,
    covered: Covered,
    kind: str,
    optimizer: torch.optim.Optimizer | None = None,
    place: int = 0,
    places: int = 1,
    clip: bool = True,
    by_cover: bool = False,
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Losses of each step, and the gradients of the first, on one of several parts of a batch."""
    optimizer = optimizer or sgd(model)
    losses, grads = [], {}
    for x, y in batches(kind):
        x, y = (t.chunk(places)[place] for t in (x, y))
        optimizer.zero_grad()
        if by_cover:
            loss = covered.loss(F.mse_loss, x, y, through=model)
        else:
            loss = mcover.cover_loss(F.mse_loss, model(x), y)
        loss.backward()
        if not grads:
            grads = {name: p.grad.clone() for name, p in covered.net.named_parameters()}
        if clip:
            covered.clip_grad_norm_(1.0)
        optimizer.step()
        losses.append(loss.detach())
    return losses, grads


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def alone(kind: str, routing: Any, covers: int = 4, clip: bool = True, **options: Any) -> Any:
    """One process with all covers and the whole batch."""
    covered = lifted(kind, routing, covers, **options)
    losses, grads = train(covered, covered, kind, clip=clip)
    return torch.stack(losses), grads, covered.state_dict()


def assert_same(seen: Any, expected: Any) -> None:
    """Losses, gradients and state are equal to float tolerance."""
    torch.testing.assert_close(seen[0], expected[0], msg=lambda text: f"losses: {text}")
    for what, ours, theirs in zip(("gradient", "state"), seen[1:3], expected[1:3], strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            place = f"{what} of {name}"
            torch.testing.assert_close(
                ours[name], value, msg=lambda text, place=place: f"{place}: {text}"
            )
