"""Small models that together have every kind of layer, each with a batch."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from mcover import Directed, Messages


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(7, 6)
        self.middle = nn.Linear(6, 5, bias=False)
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.hidden(x.flatten(1)))
        return self.out(torch.tanh(self.middle(x)))


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2, bias=False)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.norm(self.first(x)))
        return self.out(torch.tanh(self.second(x)).mean((2, 3)).view(x.size(0), -1))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(3, 5, 1)
        self.block = nn.Conv1d(5, 5, 3, padding=1, dilation=1)
        self.norm = nn.GroupNorm(1, 5)
        self.out = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for _ in range(2):  # one module used twice
            x = x + torch.tanh(self.norm(self.block(x)))
        return self.out(x.mean(-1))


class Transformer(nn.Module):
    """Embedding tied to the output, position table as a bare parameter of the container."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.position = nn.Parameter(0.1 * torch.randn(5, 4))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.feed = nn.Linear(4, 5)
        self.back = nn.Linear(5, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.triu(torch.ones(5, 5, dtype=torch.bool), 1))

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.size(1)
        x = self.embed(ids) + self.position[:length]
        mask = self.mask[:length, :length]
        attended, _ = self.attention(x, x, x, attn_mask=mask, need_weights=False)
        x = self.norm(x + attended)
        return self.head(x + self.back(torch.tanh(self.feed(x))))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        states, (last, _) = self.lstm(x)
        return self.out(torch.tanh(states.mean(1) + last[0]))


class Bare(nn.Module):
    """Parameters that belong to no layer, used with code that reduces over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3))
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.inner = nn.Linear(4, 4)
        self.slope = nn.PReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.slope(self.inner(x))
        return self.scale * (x - x.mean(0)) @ self.weight


SHAPES = {
    Perceptron: (4, 7),
    Convolutional: (4, 2, 5, 5),
    Residual: (3, 3, 6),
    Recurrent: (3, 4, 3),
    Bare: (5, 4),
}
MODELS = [Perceptron, Convolutional, Residual, Transformer, Recurrent, Bare]


def tiny(kind: type[nn.Module], seed: int = 0) -> tuple[nn.Module, Tensor]:
    """A model in float64 and a batch, without touching the global generator."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = kind().double()
        if kind is Transformer:
            return model, torch.randint(0, 6, (3, 5))
        return model, torch.randn(*SHAPES[kind], dtype=torch.float64)


def routed(kind: str, **options: Any) -> Messages | Directed:
    """A routing by name, with the options that it supports."""
    cls = {"messages": Messages, "directed": Directed}[kind]
    own = {field.name for field in fields(cls)}
    return cls(**{name: value for name, value in options.items() if name in own})
