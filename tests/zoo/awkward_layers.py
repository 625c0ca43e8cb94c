"""Awkward layers and contexts: modes, hooks, precisions, subclasses, parameters without a layer."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F  # noqa: N812
from awkward import Net, awkward
from entry import Refusal
from torch import Tensor, nn


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
    """A subclass with its own forward, as in many libraries."""

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
