"""The networks of the benchmarks, and their training steps: M plain models, and M covers."""

from __future__ import annotations

import gc
import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import mcover

Make = Callable[[], nn.Module]


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )


def conv() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 10),
    )  # fmt: skip


class Residual(nn.Module):
    """Two convolutions with batch norm, added to the input or to its projection."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Any) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(norm(outputs) for _ in range(2))
        self.around = nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.around = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.around(x))


def batch_norm(channels: int) -> nn.BatchNorm2d:
    """Without running statistics, which M networks in one batched pass cannot update."""
    return nn.BatchNorm2d(channels, track_running_stats=False)


def residual() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), batch_norm(16), nn.ReLU(),
        Residual(16, 16, 1, batch_norm), Residual(16, 32, 2, batch_norm),
        Residual(32, 64, 2, batch_norm),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def resnet18() -> nn.Sequential:
    """The usual form for 32 × 32 images: a first convolution of 3 × 3, and no pooling after it."""
    widths, blocks = (64, 64, 128, 256, 512), []
    for inputs, outputs in pairwise(widths):
        blocks += [Residual(inputs, outputs, outputs // inputs, nn.BatchNorm2d)]
        blocks += [Residual(outputs, outputs, 1, nn.BatchNorm2d)]
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


class Transformer(nn.Module):
    """Four blocks of width 128 on 64 tokens, and a classifier on the mean of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 128)
        block = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 4, enable_nested_tensor=False)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(x)).mean(1))


@dataclass(frozen=True)
class Network:
    """A network, the shape of its batches, and its name in the tables."""

    title: str
    make: Make
    shape: tuple[int, ...]

    def batch(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(self.shape, generator=generator)
        return x, torch.randint(0, 10, self.shape[:1], generator=generator)


NETWORKS = {
    "mlp": Network("MLP 784-512-512-10, batch 256", mlp, (256, 784)),
    "conv": Network("conv net 16-32 on 28 x 28, batch 64", conv, (64, 1, 28, 28)),
    "residual": Network("residual net 16-32-64 on 32 x 32, batch 64", residual, (64, 3, 32, 32)),
    "transformer": Network("transformer 4 x 128, batch 32 x 64", Transformer, (32, 64, 16)),
    "resnet18": Network("ResNet-18 on 32 x 32, batch 32", resnet18, (32, 3, 32, 32)),
    "resnet18-128": Network("ResNet-18 on 32 x 32, batch 128", resnet18, (128, 3, 32, 32)),
}


@dataclass
class Step:
    """A training step: gradients of a loss, and SGD with momentum."""

    loss: Callable[[], Tensor]
    parameters: list[Tensor]
    optimizer: Any = field(init=False)

    def __post_init__(self) -> None:
        self.optimizer = sgd(self.parameters)

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()


def sgd(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True)


def plain(network: Network) -> Step:
    net, (x, y) = network.make(), network.batch()
    return Step(lambda: F.cross_entropy(net(x), y), list(net.parameters()))


def joint(network: Network, covers: int, topology: Any, routing: Any) -> Step:
    """One forward and one backward pass of all covers."""
    x, y = network.batch()
    model = mcover.lift(network.make(), covers, topology, routing, seed=0)
    return Step(lambda: mcover.cover_loss(F.cross_entropy, model(x), y), list(model.parameters()))


def by_cover(network: Network, covers: int, topology: Any, routing: Any) -> Step:
    """Forward and backward pass cover by cover, for the directed lift only."""
    x, y = network.batch()
    model = mcover.lift(network.make(), covers, topology, routing, seed=0)
    return Step(lambda: model.loss(F.cross_entropy, x, y), list(model.parameters()))


def peak_mib(make: Callable[[], Step], threads: int, processes: int = 5) -> float | None:
    """The peak memory of a step beyond its weights, each time in a separate process.

    The system's count includes memory that the C library keeps, and workspace of kernels. Weights
    are allocated before; gradients, momenta and activations are counted. The memory that the C
    library keeps varies by a tenth between processes, so this is the median of several. None if the
    system does not report it (Linux does).
    """
    if not Path("/proc/self/clear_refs").exists():
        return None
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["networks"])  # one import for all
    with context.Pool(1, maxtasksperchild=1) as fresh:
        return statistics.median(fresh.apply(_peak, (make, threads)) for _ in range(processes))


def _peak(make: Callable[[], Step], threads: int) -> float:
    torch.set_num_threads(threads)
    _load_loops()
    step = make()
    gc.collect()
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    step()
    step()
    return (memory("VmHWM") - before) / 2**20


def _load_loops() -> None:
    """Runs once, because compiled loops allocate memory when they are first used."""
    x, y = torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)
    for routing in (mcover.Directed(), mcover.Messages()):
        model = mcover.lift(nn.Linear(3, 2), 4, mcover.Uniform(), routing, seed=0)
        mcover.cover_loss(F.cross_entropy, model(x), y).backward()


def memory(entry: str) -> int:
    """Bytes of this process in memory: "VmRSS" now, "VmHWM" at most since it was cleared."""
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in status if line.startswith(entry)).split()[1])


def about(threads: int) -> str:
    """The conditions of a measurement."""
    return f"torch {torch.__version__}, {threads} threads, load {os.getloadavg()[0]:.1f}"
