"""Networks whose weights, inputs and hidden units are ±1, with batch-norms between them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, cast

import torch
from torch import nn

from mcover import checks
from mcover.errors import McoverError
from mcover.nn import binary
from mcover.seeds import Seed
from reproduction.models import seeded


@dataclass(frozen=True)
class BinaryMlp:
    """A multilayer perceptron of ±1 weights and hidden units; pixels are ±1 by their sign.

    >>> net = BinaryMlp((64, 32, 10)).build(seed=0)
    >>> [type(layer).__name__ for layer in net[:4]]
    ['Flatten', 'Sign', 'ParametrizedLinear', 'BatchNorm1d']
    >>> sorted(set(net[2].weight.flatten().tolist()))
    [-1.0, 1.0]
    """

    kind: ClassVar[str] = "binary-mlp"

    sizes: tuple[int, ...]
    """Units of each layer, from the inputs to the classes."""
    latents: float = 0.05
    """Latent weights are drawn uniformly from ± this."""

    def __post_init__(self) -> None:
        sizes = checks.check_instance(
            "sizes", self.sizes, (tuple, list), "(784, 256, 256, 256, 10)"
        )
        if len(sizes) < 2:
            raise McoverError(f"sizes is {sizes}; write inputs, hidden layers and classes.")
        object.__setattr__(self, "sizes", tuple(checks.check_int("a size", n, 1) for n in sizes))
        weights = sum(a * b for a, b in pairwise(self.sizes))
        checks.check_memory(8 * weights, f"a network of {self}", "take smaller layers")
        checks.check_float_fields(self, "latents", above=0, most=1)

    def __str__(self) -> str:
        return f"binary {'-'.join(map(str, self.sizes))}"

    def build(self, seed: Seed) -> nn.Sequential:
        """A new network whose weights are drawn by the seed alone."""
        layers: list[nn.Module] = [nn.Flatten()]
        with seeded(seed):
            for inputs, outputs in pairwise(self.sizes):
                linear = nn.Linear(inputs, outputs, bias=False)
                layers += [binary.Sign(), linear, nn.BatchNorm1d(outputs)]
            return _binary(layers, self.latents)


@dataclass(frozen=True)
class BinaryConv:
    """Convolutions of 3 × 3 and stride 2 and a linear layer, of ±1 weights and hidden units.

    Pixels are ±1 by their sign; the border is padded with zeros.

    >>> print(BinaryConv((28, 28)))
    binary convolutions 16-32-10
    """

    kind: ClassVar[str] = "binary-conv"

    size: tuple[int, int]
    """Height and width of the images."""
    channels: tuple[int, ...] = (16, 32)
    """Channels of each convolution."""
    classes: int = 10
    latents: float = 0.05
    """Latent weights are drawn uniformly from ± this."""

    def __post_init__(self) -> None:
        for name, example in (("size", "(28, 28)"), ("channels", "(16, 32)")):
            given = checks.check_instance(name, getattr(self, name), (tuple, list), example)
            object.__setattr__(self, name, tuple(checks.check_int(name, n, 1) for n in given))
        checks.check_count_fields(self, "classes")
        if not self.channels or len(self.size) != 2:
            raise McoverError(
                f"channels are {self.channels} on images of {self.size}; write channels of each "
                "convolution, e.g. (16, 32), and height and width."
            )
        weights = 9 * sum(a * b for a, b in pairwise((1, *self.channels)))
        last = self.channels[-1] * self.size[0] * self.size[1] * self.classes
        checks.check_memory(8 * (weights + last), f"{self}", "take fewer channels")
        checks.check_float_fields(self, "latents", above=0, most=1)

    def __str__(self) -> str:
        return f"binary convolutions {'-'.join(map(str, self.channels))}-{self.classes}"

    def build(self, seed: Seed) -> nn.Sequential:
        """A new network whose weights are drawn by the seed alone."""
        height, width = self.size
        layers: list[nn.Module] = [nn.Unflatten(1, (1, height))]
        with seeded(seed):
            for inputs, outputs in pairwise((1, *self.channels)):
                conv = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
                layers += [binary.Sign(), conv, nn.BatchNorm2d(outputs)]
                height, width = -(-height // 2), -(-width // 2)
            inputs = self.channels[-1] * height * width
            last = nn.Linear(inputs, self.classes, bias=False)
            layers += [binary.Sign(), nn.Flatten(), last, nn.BatchNorm1d(self.classes)]
            return _binary(layers, self.latents)


BinaryArchitecture = BinaryMlp | BinaryConv


def _binary(layers: list[nn.Module], bound: float) -> nn.Sequential:
    """The layers with binary weights, their latents uniform within ± bound."""
    net = binary.binarize(nn.Sequential(*layers))
    with torch.no_grad():
        for latent in binary.latents(net).values():
            latent.uniform_(-bound, bound)
    return cast(nn.Sequential, net)
