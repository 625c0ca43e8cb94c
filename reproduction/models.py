"""The models of the paper and of the studies: frozen values that build torch modules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch
from numpy.random import SeedSequence
from torch import nn

from mcover import McoverError
from reproduction.checks import check_counts, check_numbers
from reproduction.committee import SLOW, CommitteeMachine, Sharpening

Seed = int | Sequence[int] | SeedSequence


@dataclass(frozen=True)
class Mlp:
    """A multilayer perceptron with ReLU; images are flattened.

    >>> Mlp((64, 32, 10)).build(seed=0)
    Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
      (1): Linear(in_features=64, out_features=32, bias=True)
      (2): ReLU()
      (3): Linear(in_features=32, out_features=10, bias=True)
    )
    """

    sizes: tuple[int, ...]
    """Units of each layer, from the inputs to the classes."""
    dropout: float = 0.0
    """Dropout rate of hidden units."""

    def __post_init__(self) -> None:
        check_sizes(
            "sizes", self.sizes, 2, "inputs, hidden layers and classes, e.g. (784, 512, 10)"
        )
        check_numbers(self, "dropout", least=0, below=1)

    def build(self, seed: Seed) -> nn.Sequential:
        """A new network with weights drawn from the seed."""
        layers: list[nn.Module] = [nn.Flatten()]
        with seeded(seed):
            for inputs, outputs in pairwise(self.sizes):
                if len(layers) > 1:
                    layers.append(nn.ReLU())
                    if self.dropout:
                        layers.append(nn.Dropout(self.dropout))
                layers.append(nn.Linear(inputs, outputs))
        return nn.Sequential(*layers)


@dataclass(frozen=True)
class Conv:
    """3 × 3 convolutions with ReLU, each followed by 2 × 2 max pooling, then a linear layer.

    >>> Conv((8, 8), channels=(4,)).build(seed=0)
    Sequential(
      (0): Unflatten(dim=1, unflattened_size=(1, 8))
      (1): Conv2d(1, 4, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))
      (2): ReLU()
      (3): MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)
      (4): Flatten(start_dim=1, end_dim=-1)
      (5): Linear(in_features=64, out_features=10, bias=True)
    )
    """

    size: tuple[int, int]
    """Height and width of the images."""
    channels: tuple[int, ...] = (16, 32)
    """Channels of each convolution."""
    classes: int = 10
    dropout: float = 0.0
    """Share of the activations that are dropped before the last layer in training."""

    def __post_init__(self) -> None:
        check_sizes("channels", self.channels, 1, "the channels of each convolution")
        check_numbers(self, "dropout", least=0, below=1)
        if min(self.size) < 2 ** len(self.channels):
            raise McoverError(
                f"images of {self.size} are too small for {len(self.channels)} convolutions, each "
                "of which halves the image; write fewer channels."
            )

    def build(self, seed: Seed) -> nn.Sequential:
        """A new network with weights drawn from the seed."""
        height, width = self.size
        layers: list[nn.Module] = [nn.Unflatten(1, (1, height))]
        with seeded(seed):
            for inputs, outputs in pairwise((1, *self.channels)):
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
                height, width = height // 2, width // 2
            layers.append(nn.Flatten())
            if self.dropout:
                layers.append(nn.Dropout(self.dropout))
            layers.append(nn.Linear(self.channels[-1] * height * width, self.classes))
        return nn.Sequential(*layers)


@dataclass(frozen=True)
class Transformer:
    """A pre-norm transformer encoder that reads an image as a sequence of pairs of rows."""

    size: tuple[int, int]
    """Height and width of the images."""
    rows: int = 2
    """Image rows per token."""
    width: int = 32
    """Embedding width; the feed-forward layers have twice as many units."""
    layers: int = 1
    heads: int = 2
    classes: int = 10
    dropout: float = 0.0
    """Share of attention weights, hidden units and residual branches dropped in training."""

    def __post_init__(self) -> None:
        check_counts(self, "rows", "width", "layers", "heads", "classes")
        check_numbers(self, "dropout", least=0, below=1)
        if self.size[0] % self.rows:
            raise McoverError(f"rows is {self.rows}; write a divisor of the height {self.size[0]}.")
        if self.width % self.heads:
            raise McoverError(f"heads is {self.heads}; write a divisor of the width {self.width}.")

    def build(self, seed: Seed) -> RowTransformer:
        """A new network with weights drawn from the seed."""
        with seeded(seed):
            return RowTransformer(self)


class RowTransformer(nn.Module):
    """The module of :class:`Transformer`: images (B, height, width) to logits (B, classes)."""

    def __init__(self, kind: Transformer) -> None:
        super().__init__()
        height, width = kind.size
        self.tokens = nn.Unflatten(1, (height // kind.rows, kind.rows))
        self.embed = nn.Linear(kind.rows * width, kind.width)
        self.place = nn.Parameter(0.02 * torch.randn(height // kind.rows, kind.width))
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(
                    kind.width,
                    kind.heads,
                    2 * kind.width,
                    kind.dropout,
                    activation="gelu",
                    batch_first=True,
                    norm_first=True,
                )
                for _ in range(kind.layers)
            )
        )
        self.norm = nn.LayerNorm(kind.width)
        self.answer = nn.Linear(kind.width, kind.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The linear readout of the mean over the tokens."""
        read: torch.Tensor = self.layers(self.embed(self.tokens(images).flatten(2)) + self.place)
        answer: torch.Tensor = self.answer(self.norm(read).mean(1))
        return answer


@dataclass(frozen=True)
class CommitteeModel:
    """A committee machine; images are flattened."""

    inputs: int
    hidden: int = 9
    schedule: Sharpening = SLOW
    """How β and γ grow."""

    def build(self, seed: Seed) -> CommitteeMachine:
        """A new machine with weights drawn from the seed."""
        return CommitteeMachine(self.inputs, self.hidden, schedule=self.schedule, seed=seed)


Architecture = Mlp | Conv | Transformer | CommitteeModel


def check_sizes(name: str, sizes: Sequence[int], least: int, what: str) -> None:
    """A tuple of at least ``least`` positive integers."""
    if len(sizes) < least or min(sizes) < 1:
        raise McoverError(f"{name} is {sizes}; write {what}.")


@contextmanager
def one_thread() -> Iterator[None]:
    """Limits torch to one thread, so that the order of sums is the same on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def seeded(seed: Seed, device: torch.device | None = None) -> Iterator[None]:
    """Seeds torch's global generator inside the block and restores its state afterwards.

    It is for functions without a generator argument: the initialisation of layers, and dropout.
    """
    cuda = [device] if device is not None and device.type == "cuda" else []
    sequence = seed if isinstance(seed, SeedSequence) else SeedSequence(seed)
    number = int(sequence.generate_state(1)[0])
    with torch.random.fork_rng(devices=cuda):
        torch.default_generator.manual_seed(number)
        for one in cuda:
            with torch.cuda.device(one):
                torch.cuda.manual_seed(number)
        yield
