"""Models whose outputs or control flow are awkward: trees, None, masks, early ends."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import torch
from awkward import Net, awkward
from entry import Refusal
from torch import Tensor, nn


@awkward(loss=lambda out: out["y"].square().mean())
class ReturnsDict(Net):
    def forward(self, x):
        h = self.a(x).relu()
        return {"y": self.b(h), "hidden": h, "size": len(x), "trained": self.training}


class Both(NamedTuple):
    y: Tensor
    hidden: Tensor


@awkward(loss=lambda out: out.y.square().mean())
class ReturnsNamedTuple(Net):
    def forward(self, x):
        h = self.a(x).relu()
        return Both(self.b(h), h)


@dataclass
class Result:
    y: Tensor
    hidden: Tensor | None = None
    steps: int = 0
    done: bool = True


@awkward(loss=lambda out: out.y.square().mean())
class ReturnsDataclass(Net):
    def forward(self, x):
        h = self.a(x).relu()
        return Result(self.b(h), h, steps=3)


@awkward(loss=lambda out: out[0][0].square().mean() + out[1]["deep"][1].mean())
class ReturnsNested(Net):
    def forward(self, x):
        h = self.a(x)
        y = self.b(h)
        extra = OrderedDict(deep=[y.argmax(-1), y.square().sum(), (h > 0)], flag=True, name="net")
        return (y, h), extra, 7


@awkward(loss=lambda out: out[0].square().mean())
class ReturnsNone(Net):
    def forward(self, x, mask=None):
        return super().forward(x), mask, {"aux": None}


@awkward(loss=lambda out: out[1])
class ReturnsScalar(Net):
    def forward(self, x):
        y = super().forward(x)
        return y.argmax(-1), y.square().mean(), y.argmax(-1) == 0


@awkward(loss=lambda out: sum(out))
class ReturnsViews(Net):
    """A view among the outputs."""

    def forward(self, x):
        y = super().forward(x)
        return y.square().mean(), y.square().mean(), y[0, 0]


@awkward()
class BooleanMask(Net):
    def forward(self, x):
        keep = x[:, 0] > -10
        keep[1] = False
        h = self.a(x[keep]).relu()
        y = torch.zeros(len(x), 16, dtype=h.dtype)
        y[keep] = h
        return self.b(y)


@awkward()
class MaskOfActivations(Net):
    """How many rows are left depends on the activations of the first layer."""

    def forward(self, x):
        h = self.a(x)
        h = torch.cat([h, h + 10])
        kept = h[h.sum(1) > 50]
        return self.b(kept.relu())


@awkward()
class Nonzero(Net):
    def forward(self, x):
        rows = (x.abs().sum(1) > 0).nonzero().squeeze(1)
        return self.b(self.a(x).index_select(0, rows).relu()) + rows.unique().numel()


@awkward()
class LoopsOverBatch(Net):
    def forward(self, x):
        return torch.stack([self.b(self.a(row).relu()) for row in x])


@awkward()
class Recursive(Net):
    def forward(self, x, depth: int = 2):
        if depth:
            return self.forward(x + self.a(x)[:, :8].tanh(), depth - 1)
        return super().forward(x)


@awkward(refuses={"messages": Refusal("computes gradients in its forward")})
class ContextOfGradients(Net):
    """Takes a gradient inside the forward pass, as physics-informed networks do."""

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().clone().requires_grad_()
            energy = super().forward(x).tanh().sum()
            (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return force


@awkward()
class CatchesErrors(Net):
    def forward(self, x):
        try:
            h = self.a(x[:, :5])  # the wrong width: the usual way in comes second
        except RuntimeError:
            h = self.a(x)
        return self.b(h.relu())


@awkward()
class Generator(Net):
    """Layers called from a generator."""

    def layers(self, x):
        for layer in (self.a, self.b):
            x = layer(x)
            yield x.tanh()

    def forward(self, x):
        *_, last = self.layers(x)
        return last


@awkward()
class SetsAttributes(Net):
    """Writes plain attributes and sets a submodule's mode."""

    def forward(self, x):
        self.width = x.shape[1]
        self.b.train(self.training)
        self.__dict__["note"] = str(x.shape)
        return super().forward(x)


@awkward()
class Sparse(nn.Module):
    """A sparse adjacency matrix among the buffers."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 3)
        self.register_buffer("adjacency", torch.eye(3).roll(1, 0).to_sparse(), persistent=False)

    def forward(self, x):
        return self.b(torch.sparse.mm(self.adjacency.to(x.dtype), self.a(x)).relu())


SCRIPTED = Refusal("script", sure=False)


@awkward(mixes="unknown", refuses={"messages": SCRIPTED, "directed": SCRIPTED})
class ScriptedSubmodule(nn.Module):
    """A compiled submodule runs without Python: its layers can be routed, but not meet."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 3)
        self.gate = torch.jit.script(nn.Sequential(nn.Linear(16, 16), nn.Sigmoid()))

    def forward(self, x):
        h = self.a(x)
        return self.b(h * self.gate(h))
