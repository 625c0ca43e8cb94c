"""The directed lift of M = 4 covers against M plain networks: a full step, and what routes cost.

(a) is M steps of the plain network in a row; (b) is M independent networks, one after another in
the forward pass, with one backward pass and one optimizer. A step is forward, cross entropy summed
over covers, backward and SGD with momentum. Drawing routes is measured in a process of its own:
seconds of ``lift`` and of ``redraw``, the most memory either takes beyond what was there before,
and what the lifted model keeps beyond its M copies of the parameters, all as the system counts it.

    python bench/directed.py [--threads 2] [--seconds 10] [--only mlp|conv|resnet18]
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import mcover
from lift import Make, Step, conv, keep_freed_memory, mlp, plain
from timing import best_in_turns, rows

COVERS = 4


class Block(nn.Module):
    """Two convolutions with batch norm, added to the input or to its projection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(2))
        self.around = nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.around = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.around(x))


def resnet18() -> nn.Sequential:
    """As usual for images of 32 × 32: a first convolution of 3 × 3, and no pooling after it."""
    widths, blocks = (64, 64, 128, 256, 512), []
    for inputs, outputs in pairwise(widths):
        blocks += [Block(inputs, outputs, outputs // inputs), Block(outputs, outputs, 1)]
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


NETWORKS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "mlp": (mlp, (256, 784)),
    "conv": (conv, (64, 1, 28, 28)),
    "resnet18": (resnet18, (32, 3, 32, 32)),
}


def lifted(model: nn.Module) -> nn.Module:
    return mcover.lift(model, covers=COVERS, topology=mcover.Uniform(), routing="directed", seed=0)


def directed(make: Make, x: Tensor, y: Tensor) -> Step:
    model = lifted(make())
    return Step(
        lambda: mcover.cover_loss(F.cross_entropy, model(x), y), list(model.parameters()), []
    )


def independent(make: Make, x: Tensor, y: Tensor) -> Step:
    """M networks one after another, and one backward pass through all of them."""
    nets = nn.ModuleList(make() for _ in range(COVERS))

    def loss() -> Tensor:
        return torch.stack([F.cross_entropy(net(x), y) for net in nets]).sum()

    return Step(loss, list(nets.parameters()), [])


def step_line(name: str, seconds: float) -> list[str]:
    make, shape = NETWORKS[name]
    x, y = torch.randn(shape), torch.randint(0, 10, shape[:1])
    one = plain(make, x, y)
    steps: dict[object, Callable[[], object]] = {
        "plain": lambda: [one() for _ in range(COVERS)],
        "independent": independent(make, x, y),
        "directed": directed(make, x, y),
    }
    best = best_in_turns(steps, seconds)
    return [
        name, str(shape[0]), *(f"{1e3 * best[key]:.1f}" for key in steps),
        f"{best['directed'] / best['plain']:.2f}", f"{best['directed'] / best['independent']:.2f}",
    ]  # fmt: skip


def memory(entry: str) -> int:
    """Bytes of this process in memory: "VmRSS" now, "VmHWM" at most since :func:`peak_of` began."""
    status = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in status if line.startswith(entry)).split()[1])


def peak_of(work: Callable[[], object]) -> tuple[object, float, int]:
    """What ``work`` returns, its seconds, and the bytes it took at its peak."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak counts from here
    before, start = memory("VmRSS"), time.perf_counter()
    result = work()
    return result, time.perf_counter() - start, memory("VmHWM") - before


def draw_line(name: str) -> list[str]:
    """Runs in a fresh process: memory that was freed before would hide what is taken now."""
    lifted(nn.Linear(2, 2)).redraw()  # loops are compiled, or read from the cache
    model = NETWORKS[name][0]()
    weights = sum(p.numel() for p in model.parameters())
    gc.collect()
    before = memory("VmRSS")
    covered, lift_seconds, lift_peak = peak_of(lambda: lifted(model))
    gc.collect()
    kept = memory("VmRSS") - before - 4 * weights * COVERS
    _, redraw_seconds, redraw_peak = peak_of(covered.redraw)
    mib = 2**20
    return [
        name, f"{weights / 1e6:.2f}", f"{lift_seconds:.3f}", f"{lift_peak / mib:.0f}",
        f"{redraw_seconds:.3f}", f"{redraw_peak / mib:.0f}", f"{kept / mib:.0f}",
        f"{kept / weights:.1f}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each network")
    parser.add_argument("--only", choices=list(NETWORKS))
    given = parser.parse_args()
    names = [given.only] if given.only else list(NETWORKS)
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {given.threads} threads, load {os.getloadavg()[0]:.1f}")
    if Path("/proc/self/clear_refs").exists():
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as fresh:
            lines = [fresh.apply(draw_line, (name,)) for name in names]
        header = ["network", "million weights", "lift s", "peak MiB", "redraw s", "peak MiB"]
        rows("drawing routes", [*header, "kept MiB", "kept bytes a weight"], lines)
    keep_freed_memory()
    header = ["network", "batch", "(a) ms", "(b) ms", "directed ms", "time/(a)", "time/(b)"]
    title = f"a training step, M = {COVERS}"
    rows(title, header, [step_line(name, given.seconds) for name in names])


if __name__ == "__main__":
    main()
