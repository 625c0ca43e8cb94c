"""The models of the paper and of the studies, and how one is kept on disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as packed
from torch import nn

from mcover import checks
from mcover.errors import McoverError
from mcover.files import write_atomic
from mcover.plain import from_plain, to_plain
from mcover.seeds import Seed, seed_sequence
from reproduction.committee import SLOW, CommitteeMachine, Sharpening

_UNREADABLE = (OSError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError)


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

    kind: ClassVar[str] = "mlp"

    sizes: tuple[int, ...]
    """Units of each layer, from the inputs to the classes."""
    dropout: float = 0.0
    """Share of hidden units that are dropped in training."""

    def __post_init__(self) -> None:
        sizes = checks.check_instance("sizes", self.sizes, (tuple, list), "(784, 512, 512, 10)")
        if len(sizes) < 2:
            raise McoverError(f"sizes is {sizes}; write inputs, hidden layers and classes.")
        object.__setattr__(self, "sizes", tuple(checks.check_int("a size", n, 1) for n in sizes))
        weights = sum(a * b for a, b in pairwise(self.sizes))
        checks.check_memory(8 * weights, f"a network of {self}", "take smaller layers")
        checks.check_float_fields(self, "dropout", least=0, below=1)

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

    kind: ClassVar[str] = "conv"

    size: tuple[int, int]
    """Height and width of the images."""
    channels: tuple[int, ...] = (16, 32)
    """Channels of each convolution."""
    classes: int = 10
    dropout: float = 0.0
    """Share of the numbers that are dropped before the last layer in training."""

    def __post_init__(self) -> None:
        for name, example in (("size", "(28, 28)"), ("channels", "(16, 32)")):
            given = checks.check_instance(name, getattr(self, name), (tuple, list), example)
            object.__setattr__(self, name, tuple(checks.check_int(name, n, 1) for n in given))
        checks.check_count_fields(self, "classes")
        if not self.channels or len(self.size) != 2 or min(self.size) < 2 ** len(self.channels):
            raise McoverError(
                f"channels are {self.channels} on images of {self.size}; write channels of each "
                "convolution, e.g. (16, 32), of which every one halves the image."
            )
        weights = 9 * sum(a * b for a, b in pairwise((1, *self.channels)))
        last = self.channels[-1] * self.size[0] * self.size[1] * self.classes
        checks.check_memory(8 * (weights + last), f"{self}", "take fewer channels")
        checks.check_float_fields(self, "dropout", least=0, below=1)

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
class Transformer:
    """A transformer that reads an image as a sequence of pairs of rows, normalized before layers.

    >>> print(Transformer((8, 8)))
    transformer of 4 tokens, width 32, 2 heads, 1 layer
    """

    kind: ClassVar[str] = "transformer"

    size: tuple[int, int]
    """Height and width of the images."""
    rows: int = 2
    """Rows that make a token."""
    width: int = 32
    """Numbers of a token inside; the feed-forward layers have twice as many units."""
    layers: int = 1
    heads: int = 2
    classes: int = 10
    dropout: float = 0.0
    """Share of attention weights, of hidden units and of what a part adds that are dropped in
    training."""

    def __post_init__(self) -> None:
        given = checks.check_instance("size", self.size, (tuple, list), "(28, 28)")
        object.__setattr__(self, "size", tuple(checks.check_int("size", n, 1) for n in given))
        checks.check_count_fields(self, "rows", "width", "layers", "heads", "classes")
        if len(self.size) != 2 or self.size[0] % self.rows:
            raise McoverError(
                f"size is {self.size} and rows is {self.rows}; write height and width, e.g. "
                "(28, 28), and rows that divide the height."
            )
        if self.width % self.heads:
            raise McoverError(
                f"width is {self.width} and heads is {self.heads}; write a width that the heads "
                "divide."
            )
        weights = self.width * (self.rows * self.size[1] + 8 * self.layers * self.width)
        checks.check_memory(8 * weights, f"{self}", "take a smaller width")
        checks.check_float_fields(self, "dropout", least=0, below=1)

    def __str__(self) -> str:
        return (
            f"transformer of {self.size[0] // self.rows} tokens, width {self.width}, "
            f"{self.heads} heads, {self.layers} layer{'s' * (self.layers > 1)}"
        )

    def build(self, seed: Seed) -> RowTransformer:
        """A new network whose weights are drawn by the seed alone."""
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
        """The answer to the mean over the tokens."""
        read: torch.Tensor = self.layers(self.embed(self.tokens(images).flatten(2)) + self.place)
        answer: torch.Tensor = self.answer(self.norm(read).mean(1))
        return answer


@dataclass(frozen=True)
class CommitteeModel:
    """A committee machine; images are flattened.

    >>> CommitteeModel(64, hidden=3).build(seed=0)
    CommitteeMachine(inputs=64, hidden=3, schedule=slow)
    """

    kind: ClassVar[str] = "committee"

    inputs: int
    hidden: int = 9
    schedule: Sharpening = SLOW
    """How β and γ grow."""

    def __str__(self) -> str:
        return f"committee {self.inputs}-{self.hidden}-1, {self.schedule}"

    def build(self, seed: Seed) -> CommitteeMachine:
        """A new machine whose weights are drawn by the seed alone."""
        return CommitteeMachine(self.inputs, self.hidden, schedule=self.schedule, seed=seed)


Architecture = Mlp | Conv | Transformer | CommitteeModel


def save(model: nn.Module, kind: Architecture, path: str | Path, **facts: Any) -> tuple[Path, Path]:
    """Writes PATH.safetensors, the weights, and PATH.json: what they are weights of, and facts.

    Each file is written whole or not at all.
    """
    weights, config = _paths(path)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    about: dict[str, Any] = {"model": to_plain(kind)}
    if isinstance(model, CommitteeMachine):
        about["sharpness"] = [model.beta, model.gamma]
    write_atomic(weights, packed(tensors))
    write_atomic(config, (json.dumps(about | facts, indent=1) + "\n").encode())
    return weights, config


def load(path: str | Path) -> nn.Module:
    """The model that :func:`save` wrote to PATH.safetensors and PATH.json, ready to use."""
    try:
        weights, config = _paths(path)
        given = json.loads(config.read_text())
        kind: Architecture = from_plain(Architecture, given["model"], "the model")
        model = kind.build(seed=0)
        model.load_state_dict(load_file(weights))
        if isinstance(model, CommitteeMachine):
            pair = (checks.check_float("sharpness", one, above=0) for one in given["sharpness"])
            model.beta, model.gamma = pair
    except _UNREADABLE as error:
        raise McoverError(
            f"cannot read a model from {path}.json and {path}.safetensors: {error}; give the path "
            "that 'mcover train' printed, without its ending."
        ) from error
    return model.eval()


def _paths(path: str | Path) -> tuple[Path, Path]:
    target = Path(path)
    return target.with_name(f"{target.name}.safetensors"), target.with_name(f"{target.name}.json")


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums in one order, so that outcomes do not depend on how many CPUs there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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
