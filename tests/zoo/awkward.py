"""Models with unusual but realistic code; each is awkward in one way."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from entry import Refusal, add, square
from torch import nn
from torch.utils.checkpoint import checkpoint

CHECKPOINT = Refusal("checkpoint")


class Net(nn.Module):
    """Two layers, shared by the other models."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.b(self.a(x).relu())


def awkward(loss=square, **options):
    """Registers a class under its own name, on a batch of three vectors."""

    def register(kind):
        batch = options.pop("batch", lambda: (torch.randn(3, 8),))
        add("awkward", _dashed(kind.__name__), loss, **options)(lambda: (kind(), batch()))
        return kind

    return register


def _dashed(name: str) -> str:
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in name).lstrip("-")


@awkward()
class BranchesOnValues(Net):
    def forward(self, x):
        h = self.a(x)
        h = h.relu() if h.mean() > 0 else h.tanh()
        while h.norm() > 5:
            h = h * 0.9
        return self.b(h)


@awkward()
class BranchesBetweenLayers(Net):
    """Which layer comes next depends on a value; equal covers agree, and so do near ones."""

    def __init__(self):
        super().__init__()
        self.c = nn.Linear(16, 3)

    def forward(self, x):
        h = self.a(x).relu()
        return self.b(h) if h.sum() > 0 else self.c(h)


@awkward(refuses={"messages": Refusal("different branches")})
class CountsCalls(Net):
    """Each instance takes a different branch, so covers cannot meet."""

    calls = 0

    def __init__(self):
        super().__init__()
        type(self).calls = 0
        self.c = nn.Linear(16, 3)

    def forward(self, x):
        CountsCalls.calls += 1
        odd = CountsCalls.calls % 2
        h = self.a(x).relu()
        return self.b(h) if odd else self.b(h) + 0 * self.c(h)


@awkward(smooth=False)
class UsesItem(Net):
    def forward(self, x):
        h = self.a(x)
        return self.b(h * (1 / (1 + h.abs().max().item()))) * float(x.shape[0])


@awkward(smooth=False)
class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.act, self.drop = nn.ReLU(inplace=True), nn.Dropout(0.0, inplace=True)

    def forward(self, x):
        h = self.drop(self.act(self.a(x)))
        y = self.b(h)
        y += h
        y.mul_(0.5).add_(1)
        F.leaky_relu_(y)
        z = self.c(y)
        z[:, 0] = 0
        z[:, 1] -= z[:, 2].detach()
        return z


@awkward()
class InPlaceConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.act = nn.BatchNorm2d(8), nn.ReLU(inplace=True)

    def forward(self, x):
        h = self.act(self.a(x.view(-1, 1, 2, 4)))
        y = self.norm(self.b(h))
        y += h
        return self.act(y)


@awkward()
class WritesInput(Net):
    def forward(self, x):
        x.clamp_(-1, 1)
        return super().forward(x)


@awkward(refuses={"messages": CHECKPOINT})
class Checkpointed(Net):
    def forward(self, x):
        return self.b(checkpoint(lambda h: self.a(h).relu(), x, use_reentrant=False))


@awkward(refuses={"messages": CHECKPOINT})
class CheckpointedReentrant(Net):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)

    def forward(self, x):
        return self.b(checkpoint(lambda h: self.a(h).relu(), self.first(x), use_reentrant=True))


@awkward()
class CheckpointedBetween(Net):
    """Checkpoints around code without layers, which needs no meeting."""

    def forward(self, x):
        return self.b(checkpoint(torch.tanh, self.a(x), use_reentrant=False))


class Clip(torch.autograd.Function):
    """Old style: forward takes the context."""

    @staticmethod
    def forward(ctx, x, limit):
        ctx.save_for_backward(x)
        ctx.limit = limit
        return x.clamp(-limit, limit)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= ctx.limit), None


@awkward()
class OldFunction(Net):
    def forward(self, x):
        return self.b(Clip.apply(self.a(x), 0.7))


class Product(torch.autograd.Function):
    """A linear layer with a custom backward."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.T @ x


@awkward(mixes="unknown", refuses={"messages": Refusal("autograd.Function|Product", sure=False)})
class OldFunctionOfWeight(Net):
    """A meeting inside would be differentiated by the user's formula, which ignores meetings."""

    def forward(self, x):
        return self.b(Product.apply(x, self.a.weight).relu())


@awkward(refuses={"messages": Refusal("no covers met")})
class ProductByHand(Net):
    """Weights used without a layer."""

    def forward(self, x):
        h = torch.addmm(self.a.bias, x, self.a.weight.T).relu()
        return h @ self.b.weight.T + self.b.bias


@awkward()
class TrainsDifferently(Net):
    def forward(self, x):
        y = super().forward(x)
        return y if self.training else y.softmax(-1)


@awkward(batch=lambda: {"x": torch.randn(3, 8), "scale": 2.0, "shift": torch.ones(3)})
class TakesKeywords(Net):
    def forward(self, *args: Any, **kwargs: Any):
        return super().forward(*args, kwargs.pop("x")) * kwargs["scale"] + kwargs["shift"]


@awkward(batch=lambda: ([torch.randn(3, 8), {"more": torch.randn(3, 8)}], "sum"))
class TakesNested(Net):
    def forward(self, inputs, how):
        first, rest = inputs
        x = first + rest["more"] if how == "sum" else first
        return super().forward(x)
