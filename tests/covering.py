"""What tests of covered models share: a topology, both routings, and small models and inputs."""

import pytest
import torch
from torch import nn

from mcover import GaussianRing

torch.set_num_threads(1)

RING = GaussianRing(1.0, shift=1)
ROUTINGS = ["messages", "directed"]
both = pytest.mark.parametrize("routing", ROUTINGS)


def doubles(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mlp(*more):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), *more, nn.Tanh(), nn.Linear(8, 3)).double()


def assert_same_gradients(a, b):
    for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=lambda m, n=name: f"{n}: {m}")


class Parting(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        h = self.a(x)
        return self.b(h) if float(h.detach().sum()) > 0 else self.c(h)
