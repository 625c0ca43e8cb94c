"""Models that do what people do: each is awkward in one way."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from entry import Refusal, add, square
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

CHECKPOINT = Refusal("checkpoint")


class Net(nn.Module):
    """What the others share: two layers."""

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


@awkward(refuses={"messages": Refusal("layer")})
class CountsCalls(Net):
    """Each instance takes another way than the others: covers cannot meet."""

    calls = 0

    def __init__(self):
        super().__init__()
        type(self).calls = 0
        self.c = nn.Linear(16, 3)

    def forward(self, x):
        CountsCalls.calls += 1
        h = self.a(x).relu()
        return self.b(h) if CountsCalls.calls % 2 else self.b(h) + 0 * self.c(h)


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
    """A linear layer with a backward of its own."""

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
    """A meeting inside would be differentiated by the user's own formula, which knows none."""

    def forward(self, x):
        return self.b(Product.apply(x, self.a.weight).relu())


@awkward()
class ProductByHand(Net):
    """Weights used without a layer."""

    def forward(self, x):
        h = torch.addmm(self.a.bias, x, self.a.weight.T).relu()
        return h @ self.b.weight.T + self.b.bias


@awkward(keeps=True)
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


@awkward(smooth=False)
class NoGradInside(Net):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(8, 8)

    def forward(self, x):
        with torch.no_grad():
            x = self.frozen(x)
            h = self.a(x).sign()
        return self.b(self.a(x) * h)


@awkward(tolerance=2e-2, smooth=False)
class AutocastInside(Net):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            h = self.a(x).relu()
        return self.b(h.float())


def double_input(module, args):
    return (args[0] * 2,)


def shift_output(module, args, output):
    return output + 1


@awkward()
class Hooked(Net):
    def __init__(self):
        super().__init__()
        self.a.register_forward_pre_hook(double_input)
        self.a.register_forward_hook(shift_output)
        self.register_forward_hook(shift_output)


@awkward(loss=lambda y: y.abs().square().mean(), smooth=False)
class ComplexWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 16, dtype=torch.complex64)
        self.b = nn.Linear(16, 3, dtype=torch.complex64)
        self.gain = nn.Parameter(torch.ones(3))

    def forward(self, x):
        h = self.a(x.to(torch.complex64))
        return torch.fft.fft(self.b(h * torch.sigmoid(h.abs()))) * self.gain


@awkward()
class MixedPrecisions(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16, dtype=torch.float64), nn.Linear(16, 3)

    def forward(self, x):
        h = self.a(x.to(self.a.weight.dtype)).relu()
        return self.b(h.to(self.b.weight.dtype))


@awkward()
class OddBuffers(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("order", torch.randperm(16))
        self.register_buffer("mask", torch.rand(16) > 0.3)

    def forward(self, x):
        return self.b(self.a(x)[:, self.order].masked_fill(~self.mask, 0.0))


def gate(x: Tensor) -> Tensor:
    if x.mean() > 0:
        return x * torch.sigmoid(x)
    return x.tanh()


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecated, and still in use
    scripted_gate = torch.jit.script(gate)


@awkward()
class ScriptedFunction(Net):
    def forward(self, x):
        return self.b(scripted_gate(self.a(x)))


@awkward(smooth=False)
class WeightStandardised(nn.Module):
    """A subclass with a forward of its own, as many libraries write it."""

    class Conv(nn.Conv2d):
        def forward(self, x):
            w = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
            w = w / (w.std((1, 2, 3), keepdim=True) + 1e-5)
            return F.conv2d(x, w, self.bias, self.stride, self.padding)

    def __init__(self):
        super().__init__()
        self.conv, self.head = self.Conv(1, 8, 3, padding=1), nn.Linear(64, 3)

    def forward(self, x):
        return self.head(self.conv(x.view(-1, 1, 2, 4)).relu().flatten(1))


class Scale(nn.Linear):
    """A linear layer that scales its output."""

    def forward(self, x):
        return super().forward(x) * 0.5


@awkward()
class Subclassed(Net):
    def __init__(self):
        super().__init__()
        self.a = Scale(8, 16)


@awkward()
class AddsParametersOnce(Net):
    """Lazy layers, initialised before the lift."""

    def __init__(self):
        super().__init__()
        self.a = nn.LazyLinear(16)
        self(torch.randn(2, 8))


@awkward(mixes="little", refuses={"messages": Refusal("mix")})
class OnlyParameters(nn.Module):
    """Nothing that mixes: a message lift would be M independent copies."""

    def __init__(self):
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))

    def forward(self, x):
        return (x * self.gain + self.shift).cumsum(1)


@awkward(mixes="little")
class MostlyParameters(nn.Module):
    """One small layer that mixes, and a large table that does not."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(64, 8) / 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        picked = self.table[(x[:, 0] > 0).long() + torch.arange(len(x))]
        return self.head(x + picked)


@awkward()
class FreezesPart(Net):
    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.frozen_gain = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x):
        return super().forward(self.frozen(x)) * self.frozen_gain
