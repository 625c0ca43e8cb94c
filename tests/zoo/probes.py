"""How the zoo lifts, runs, trains and differentiates a model."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from entry import Entry, call
from torch import Tensor, nn
from trees import cover_of

import mcover

COVERS = 3
NOISE = 1e-2


def lift(model: nn.Module, routing: str, noise: float = NOISE) -> Any:
    """Three covers of a model, as everywhere in the zoo."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a lift that mixes little says so
        return mcover.lift(
            model, covers=COVERS, topology=mcover.GaussianRing(1.0, shift=1), routing=routing,
            noise=noise, seed=0,
        )  # fmt: skip


def run(model: nn.Module, batch: Any, training: bool, seed: int = 1) -> Any:
    """One forward pass in training or evaluation mode, with the global stream at ``seed``."""
    torch.manual_seed(seed)
    return call(model.train(training), batch)


def total(entry: Entry, outputs: Any) -> Tensor:
    """The sum over covers of the loss."""
    losses = [entry.loss(cover_of(outputs, index)) for index in range(COVERS)]
    return sum(losses[1:], start=losses[0])


def check_steps(
    model: nn.Module, batch: Any, loss: Callable[[Any], Tensor], steps: int = 3
) -> None:
    """A few steps of AdamW: finite losses and gradients, and both loss and weights change."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    before = {name: p.detach().clone() for name, p in trained.items()}
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-3, weight_decay=0.0)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        value = loss(run(model, batch, True, seed=step))
        assert torch.isfinite(value), f"loss {value}"
        value.backward()
        for name, p in trained.items():
            assert p.grad is None or torch.isfinite(p.grad).all(), f"gradient of {name}"
        optimizer.step()
        losses.append(float(value.detach()))
    assert len(set(losses)) > 1, f"the loss stays at {losses[0]}"
    moved = [name for name, p in trained.items() if matters(p.grad)]
    assert moved, "no gradients"
    still = [name for name in moved if torch.equal(trained[name], before[name])]
    assert not still, f"do not move: {still[:3]}"


def check_slope(
    loss: Callable[[], Tensor], parameters: dict[str, Tensor], fixed: dict[str, int]
) -> None:
    """The derivative along one direction against difference quotients, in float64.

    The direction is random plus the gradient, both of length one in each parameter. Models may
    have kinks nearby or compute their loss in float32, so one agreeing step size is enough.

    Args:
        loss: what is differentiated.
        parameters: by name, or their stacks.
        fixed: rows that have no gradient by design: those of padding in embeddings.
    """
    torch.manual_seed(1)
    loss().backward()
    generator = torch.Generator().manual_seed(0)
    direction, slope = {}, 0.0
    for name, p in parameters.items():
        v = torch.randn(p.shape, generator=generator, dtype=p.dtype)
        v /= v.norm()
        if p.grad is not None:
            v += p.grad / p.grad.norm().clamp(min=1e-12)
        if name in fixed:
            v[..., fixed[name], :] = 0
        direction[name] = v
        slope += 0.0 if p.grad is None else float((p.grad * v).sum())
    quotients = []
    for size in (1e-3, 1e-4, 1e-5, 1e-6):
        values = []
        for step in (size, -size):
            with torch.no_grad():
                for name, v in direction.items():
                    parameters[name].add_(v, alpha=step)
                torch.manual_seed(1)
                values.append(float(loss().double()))
                for name, v in direction.items():
                    parameters[name].sub_(v, alpha=step)
        quotients.append((values[0] - values[1]) / (2 * size))
        if abs(slope - quotients[-1]) <= 5e-3 * abs(slope):
            return
    raise AssertionError(f"slope {slope:.6g}, quotients {quotients}")


def padding_rows(model: nn.Module) -> dict[str, int]:
    """By the name of an embedding's weight, the row that stands for padding."""
    found = {id(m.weight): m.padding_idx for m in model.modules()
             if isinstance(m, nn.Embedding) and m.padding_idx is not None}  # fmt: skip
    every = model.named_parameters(remove_duplicate=False)
    return {name: found[id(p)] for name, p in every if id(p) in found}


def matters(gradient: Tensor | None) -> bool:
    """Whether there is a gradient above rounding noise."""
    return gradient is not None and float(gradient.abs().max()) > 1e-6


def mixed_share(covered: Any) -> float:
    """Lifted parameters that mix or are routed, of all that are lifted, as ``report`` says."""
    rows = covered.report().rows
    lifted = sum(row.parameters for row in rows if row.treatment in ("mixed", "routed", "copied"))
    return sum(row.parameters for row in rows if row.treatment in ("mixed", "routed")) / max(
        lifted, 1
    )
