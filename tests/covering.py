"""Shared by tests of covered models: routings, small models, inputs, and comparisons."""

import collections
import io
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import reference
from mcover import GaussianRing
from tiny_models import MODELS

torch.set_num_threads(1)

RING = GaussianRing(1.5, shift=2)
ROUTINGS = ["messages", "directed"]
both = pytest.mark.parametrize("routing", ROUTINGS)
reentrant_or_not = pytest.mark.parametrize("reentrant", [False, True])
every_model = pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)


def doubles(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mlp(*more):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), *more, nn.Tanh(), nn.Linear(8, 3)).double()


class Parting(nn.Module):
    """Its second layer depends on a value, so that covers may call different ones."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        h = self.a(x)
        return self.b(h) if float(h.detach().sum()) > 0 else self.c(h)


def squares(output, target=0.5):
    return ((output - target) ** 2).mean()


def train(loss, parameters, steps, make=lambda given: torch.optim.SGD(given, 0.1, momentum=0.9)):
    """The losses of some steps of an optimizer."""
    optimizer, losses = make(parameters), []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


class Checkpointed(nn.Module):
    """Recomputes its middle part in the backward pass, by one of torch's two implementations."""

    def __init__(self, reentrant=None):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.drop, self.reentrant = nn.Dropout(0.0), reentrant

    def inner(self, h):
        return self.drop(torch.tanh(self.b(torch.tanh(h))))

    def forward(self, x):
        h = self.a(x)
        if self.reentrant is None:
            return self.c(self.inner(h))
        return self.c(checkpoint(self.inner, h, use_reentrant=self.reentrant))


def pickled(value):
    return pickle.loads(pickle.dumps(value))


def saved(value, weights_only=True):
    """A value read back from a file, which holds tensors and plain values only, or anything."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


# --- ±1 weights -----------------------------------------------------------------------------------

# The functions whose derivatives stand for that of the sign.
SOFT = {
    "identity": lambda x: x,
    "clip": lambda x: x.clamp(-1, 1),
    "polynomial": lambda x: torch.where(x.abs() < 1, 2 * x - x * x.abs(), torch.sign(x)),
    "tanh": torch.tanh,
    "swish": lambda x: 2 * torch.sigmoid(5 * x) * (1 + 5 * x * torch.sigmoid(-5 * x)) - 1,
}
KINDS_OF_WEIGHTS = [
    {"scale": scale, "ternary": ternary} for scale in (None, "channel") for ternary in (False, True)
]


def signs(x):
    return torch.where(x < 0, -1.0, 1.0).to(x.dtype)


def base_name(name):
    """Of a parametrized weight, its name in the base."""
    return name.replace("parametrizations.", "").replace(".original", "")


# --- comparisons ----------------------------------------------------------------------------------


def assert_equal(got, want):
    """Two dictionaries of the same tensors, bit by bit."""
    assert list(got) == list(want)
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=0, atol=0, msg=name)


def assert_same_gradients(a, b, **tolerance):
    for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            torch.testing.assert_close(
                p.grad, q.grad, msg=lambda m, n=name: f"{n}: {m}", **tolerance
            )


def assert_oracle(covered, outputs, oracle):
    """Outputs of covers, and gradients of one random functional of them, against slow loops.

    The oracle receives copies of the stacks by name.
    """
    own = {name: s.detach().clone().requires_grad_() for name, s in covered.stacks().items()}
    wanted = oracle(own)
    torch.testing.assert_close(outputs, wanted, rtol=1e-9, atol=1e-11)
    probe = doubles(*outputs.shape)
    got = torch.autograd.grad((outputs * probe).sum(), list(covered.stacks().values()))
    want = torch.autograd.grad((wanted * probe).sum(), list(own.values()))
    for name, a, b in zip(own, got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")
    assert any(bool(a.any()) for a in got)


def mixers_of(covered):
    """All mixers by their names in the reference; the identity if nothing mixes."""
    eye = torch.eye(covered.covers, dtype=torch.float64)[None, None]
    named = collections.defaultdict(lambda: eye)
    for place, part, _, mixer in covered._mixing():
        layer = place.removesuffix(f" ({part})")
        named[f"{layer}.mixer_{part}" if part else f"{layer}.mixer"] = mixer
    return named


def sources(stacks, granularity):
    """The number of sources, and a function from an entry of a stack to its source."""
    axes = {"weight": None, "unit": 1, "tensor": 0}[granularity]
    number = {}
    for name, stack in stacks.items():
        for index in np.ndindex(*stack.shape[1:]):
            number.setdefault((name, index[:axes]), len(number))
    return len(number), lambda name, index: number[name, index[:axes]]


def directed_oracle(covered, model, x, weights):
    """Outputs of the directed lift along its routes, for all destinations of its first forward."""
    _, source = sources(weights, covered.settings.routing.granularity)
    routes = [covered.routes[s] for s in range(covered.passes)]
    return torch.cat([reference.directed_lift(model, x, weights, own, source) for own in routes], 1)
