"""Networks whose weights, inputs and hidden units are ±1, with batch norms between the layers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from torch import nn

from mcover.nn import binary
from reproduction.checks import check_numbers
from reproduction.models import Seed, check_sizes, seeded


@dataclass(frozen=True)
class BinaryMlp:
    """A multilayer perceptron with ±1 weights and hidden units; pixels become ±1 by their sign.

    >>> net = BinaryMlp((64, 32, 10)).build(seed=0)
    >>> [type(layer).__name__ for layer in net[:4]]
    ['Flatten', 'Sign', 'ParametrizedLinear', 'BatchNorm1d']
    >>> sorted(set(net[2].weight.flatten().tolist()))
    [-1.0, 1.0]
    """

    sizes: tuple[int, ...]
    """Units of each layer, from the inputs to the classes."""
    latents: float = 0.05
    """Latent weights are drawn uniformly from ± this."""

    def __post_init__(self) -> None:
        check_sizes(
            "sizes", self.sizes, 2, "inputs, hidden layers and classes, e.g. (784, 256, 10)"
        )
        check_numbers(self, "latents", above=0, most=1)

    def build(self, seed: Seed) -> nn.Sequential:
        """A new network with weights drawn from the seed."""
        layers: list[nn.Module] = [nn.Flatten()]
        with seeded(seed):
            for inputs, outputs in pairwise(self.sizes):
                linear = nn.Linear(inputs, outputs, bias=False)
                layers += [binary.Sign(), linear, nn.BatchNorm1d(outputs)]
            return _binarized(layers, self.latents)


@dataclass(frozen=True)
class BinaryConv:
    """3 × 3 convolutions of stride 2 and a linear layer, with ±1 weights and hidden units.

    Pixels become ±1 by their sign; the border is padded with zeros.
    """

    size: tuple[int, int]
    """Height and width of the images."""
    channels: tuple[int, ...] = (16, 32)
    """Channels of each convolution."""
    classes: int = 10
    latents: float = 0.05
    """Latent weights are drawn uniformly from ± this."""

    def __post_init__(self) -> None:
        check_sizes("channels", self.channels, 1, "the channels of each convolution")
        check_numbers(self, "latents", above=0, most=1)

    def build(self, seed: Seed) -> nn.Sequential:
        """A new network with weights drawn from the seed."""
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
            return _binarized(layers, self.latents)


BinaryArchitecture = BinaryMlp | BinaryConv


def _binarized(layers: list[nn.Module], bound: float) -> nn.Sequential:
    """The layers with binary weights whose latents are uniform in ± bound."""
    net = binary.binarize(nn.Sequential(*layers))
    with torch.no_grad():
        for latent in binary.latents(net).values():
            latent.uniform_(-bound, bound)
    return cast(nn.Sequential, net)
