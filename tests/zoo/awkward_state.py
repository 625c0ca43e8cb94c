"""Models that keep state or share tensors in awkward ways."""

from __future__ import annotations

import torch
from awkward import Net, awkward
from torch import nn


@awkward(keeps=True, mixes="unknown")  # one layer waits for the second call
class KeepsHidden(Net):
    def __init__(self):
        super().__init__()
        self.step = nn.Linear(16, 16)
        self.hidden = None

    def forward(self, x):
        h = self.a(x)
        if self.hidden is not None:
            h = h + self.step(self.hidden)
        self.hidden = h.tanh().detach()
        return self.b(self.hidden + h)


@awkward(keeps=True)
class KeepsGraph(Net):
    """Keeps its last activation with the graph behind it, as for an auxiliary loss."""

    def forward(self, x):
        self.last = self.a(x).relu()
        return self.b(self.last)


@awkward()
class AssignsBuffer(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("ema", torch.zeros(16))

    def forward(self, x):
        h = self.a(x)
        if self.training:
            self.ema = 0.9 * self.ema + 0.1 * h.detach().mean(0)
        return self.b((h - self.ema).relu())


@awkward()
class WritesBuffer(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("ema", torch.zeros(16))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("seen", torch.zeros(3, dtype=torch.bool), persistent=True)
        self.register_buffer("scratch", torch.ones(16), persistent=False)

    def forward(self, x):
        h = self.a(x) * self.scratch
        if self.training:
            self.ema.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
            self.count += 1
            self.seen[int(self.count) % 3] = True
        return self.b((h - self.ema).relu())


@awkward(keeps=True)
class AppendsToList(Net):
    def __init__(self):
        super().__init__()
        self.log, self.table = [], {"calls": 0}

    def forward(self, x):
        h = self.a(x).relu()
        self.log.append(float(h.detach().mean()))
        self.table["calls"] += 1
        assert len(self.log) == self.table["calls"]
        return self.b(h) / len(self.log)


@awkward()
class StoresOwnMethod(Net):
    def __init__(self):
        super().__init__()
        self.activation = self._activate
        self.scale = nn.Parameter(torch.ones(16))

    def _activate(self, h):
        return h.relu() * self.scale

    def forward(self, x):
        return self.b(self.activation(self.a(x)))


@awkward()
class HoldsParametersInList(Net):
    def __init__(self):
        super().__init__()
        self.weights = [self.a.weight, self.b.weight]

    def forward(self, x):
        h = self.a(x).relu()
        return self.b(h) + 0.1 * self.weights[0].sum() + 0.1 * self.weights[1].square().sum()


@awkward()
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(8, 8), nn.Linear(8, 8, bias=False)
        self.body = nn.Linear(8, 8)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.body(self.embed((x > 0).long().sum(1))).tanh())


@awkward()
class SharedUnderTwoNames(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.again = self.first
        self.blocks = nn.ModuleList([self.first, nn.Linear(8, 8)])

    def forward(self, x):
        for block in (self.first, *self.blocks, self.again):
            x = block(x).tanh()
        return x


@awkward()
class HiddenReference(nn.Module):
    """A submodule that is also known to another one, without being registered there."""

    def __init__(self):
        super().__init__()
        self.body = Net()
        self.tail = Tail(self.body.a)

    def forward(self, x):
        return self.tail(self.body(x), x)


class Tail(nn.Module):
    def __init__(self, other):
        super().__init__()
        self.others = [other]
        self.mix = nn.Linear(3, 16)

    def forward(self, y, x):
        return self.mix(y) + self.others[0](x)


@awkward()
class AsksForDevice(Net):
    def forward(self, x):
        like = next(self.parameters())
        assert len(list(self.parameters())) == 4
        assert like.shape == (16, 8)
        return super().forward(x.to(like.device, like.dtype))
