"""The models of the paper and of the studies, and how one is kept on disk."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from mcover.errors import McoverError
from mcover.lab.committee.machine import CommitteeMachine
from mcover.seeds import Seed, seed_sequence


@dataclass(frozen=True)
class Mlp:
    """A perceptron with ReLU layers; images are flattened.

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
    """Share of hidden units that are dropped in training."""

    def __post_init__(self) -> None:
        if len(self.sizes) < 2 or any(size < 1 for size in self.sizes):
            raise McoverError(
                f"Mlp sizes are {self.sizes}; write inputs, hidden layers and classes, e.g. "
                "(784, 512, 512, 10)."
            )
        _check_dropout(self.dropout)

    def __str__(self) -> str:
        return "-".join(map(str, self.sizes))

    def build(self, seed: Seed) -> nn.Sequential:
        """A new network whose weights are drawn by the seed alone."""
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
    """Convolutions of 3 × 3 with ReLU, each followed by a pooling of 2 × 2, and a linear layer.

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
    """Share of the numbers that are dropped before the last layer in training."""

    def __post_init__(self) -> None:
        least = 2 ** len(self.channels)
        if not self.channels or min(self.channels) < 1 or min(self.size) < least:
            raise McoverError(
                f"Conv channels are {self.channels} on images of {self.size}; write channels of "
                "each convolution, e.g. (16, 32), of which every one halves the image."
            )
        _check_dropout(self.dropout)

    def __str__(self) -> str:
        return f"convolutions {'-'.join(map(str, self.channels))}-{self.classes}"

    def build(self, seed: Seed) -> nn.Sequential:
        """A new network whose weights are drawn by the seed alone."""
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
class Committee:
    """A committee machine; images are flattened.

    >>> Committee(64, hidden=3).build(seed=0)
    CommitteeMachine(inputs=64, hidden=3, schedule=slow)
    """

    inputs: int
    hidden: int = 9
    schedule: str = "slow"
    """How β and γ grow: see :func:`mcover.lab.committee.schedules.sharpening`."""
    normalize: bool = True
    """Whether the rows are kept at norm √N."""

    def __str__(self) -> str:
        return f"committee {self.inputs}-{self.hidden}-1, {self.schedule}"

    def build(self, seed: Seed) -> CommitteeMachine:
        """A new machine whose weights are drawn by the seed alone."""
        return CommitteeMachine(
            self.inputs, self.hidden, schedule=self.schedule, normalize=self.normalize, seed=seed
        )


def _check_dropout(share: float) -> None:
    if not 0 <= share < 1:
        raise McoverError(f"dropout is {share}; write a share from 0 to below 1.")


Kind: TypeAlias = Mlp | Conv | Committee
KINDS: dict[str, type[Kind]] = {"mlp": Mlp, "conv": Conv, "committee": Committee}


def paper_mlp(inputs: int = 784, classes: int = 10, dropout: float = 0.0) -> Mlp:
    """The paper's network for MNIST: 784-512-512-10."""
    return Mlp((inputs, 512, 512, classes), dropout)


def small_mlp(inputs: int = 784, classes: int = 10, dropout: float = 0.0) -> Mlp:
    """A smaller one, for a thousand images: 784-256-256-10."""
    return Mlp((inputs, 256, 256, classes), dropout)


def save(model: nn.Module, kind: Kind, path: str | Path, **facts: Any) -> tuple[Path, Path]:
    """Writes PATH.safetensors, the weights, and PATH.json: what they are weights of, and facts."""
    from safetensors.torch import save_file

    target = Path(path)
    weights = target.with_name(target.name + ".safetensors")
    config = target.with_name(target.name + ".json")
    target.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, weights)
    name = next(name for name, one in KINDS.items() if isinstance(kind, one))
    described = {"kind": name} | asdict(kind)
    if isinstance(model, CommitteeMachine):
        described |= {"sharpness": [model.beta, model.gamma]}
    config.write_text(json.dumps({"model": described} | facts, indent=1) + "\n")
    return weights, config


def load(path: str | Path) -> nn.Module:
    """The model that :func:`save` wrote to PATH.safetensors and PATH.json, ready to use."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    target = Path(path)
    try:
        given: Mapping[str, Any] = json.loads(target.with_name(target.name + ".json").read_text())
        described = dict(given["model"])
        sharpness = described.pop("sharpness", None)
        kind = KINDS[described.pop("kind", "mlp")]
        plain: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in described.items()
        }
        model = kind(**plain).build(seed=0)
        model.load_state_dict(load_file(target.with_name(target.name + ".safetensors")))
        if isinstance(model, CommitteeMachine) and sharpness is not None:
            model.beta, model.gamma = map(float, sharpness)
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise McoverError(
            f"cannot read a model from {target}.json and {target}.safetensors: {error}; give the "
            "path that 'mcover train' printed, without its ending."
        ) from error
    return model.eval()


@contextmanager
def seeded(seed: Seed, device: torch.device | None = None) -> Iterator[None]:
    """Inside, torch's own generator follows the seed; outside, it is as it was.

    For what takes no generator: the initialisation of layers, and dropout.
    """
    where = [device] if device is not None and device.type == "cuda" else []
    number = int(seed_sequence(seed).generate_state(1)[0])
    with torch.random.fork_rng(devices=where):
        torch.default_generator.manual_seed(number)
        for one in where:
            with torch.cuda.device(one):
                torch.cuda.manual_seed(number)
        yield
