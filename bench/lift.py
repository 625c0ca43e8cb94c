"""A full training step of M covers against M plain networks: time, memory, growth with M.

(a) is M steps of the plain ``nn.Sequential`` in a row, as if M networks were trained one after
another; (b) is M independent networks in one batched pass through ``torch.func``. A step is
forward, loss, backward and SGD with momentum. Ratios below 1 mean that covers are faster. Memory is
weights, momenta and mixers plus what a step adds to them at its peak, in bytes that torch
allocated. Freed memory is kept by the process: whether it goes back to the system, and must be
asked for again in every step, would otherwise depend on the order of allocations.

    python bench/lift.py [--threads 2] [--seconds 6] [--only mlp|conv|residual]
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler announces itself in every step

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

import mcover
from timing import best_in_turns, rows

RING = mcover.GaussianRing(sigma=1.5, shift=2)
COVERS = (1, 5, 10)
BLOCKS = (1, 8)  # at most: blocks of convolutions have eight channels or more
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
    """Two convolutions with batch norm, added to the input."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        stride = outputs // inputs
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(norm(outputs) for _ in range(2))
        self.around = nn.Identity()
        if stride > 1:
            self.around = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.around(x))


def norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, track_running_stats=False)  # (b) can keep no statistics


def residual() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), norm(16), nn.ReLU(),
        Residual(16, 16), Residual(16, 32), Residual(32, 64),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def sgd(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True)


@dataclass
class Step:
    """One training step, and what is held between steps."""

    loss: Callable[[], Tensor]
    parameters: list[Tensor]
    constants: list[Tensor]

    def __post_init__(self) -> None:
        self.optimizer = sgd(self.parameters)

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()

    def held(self) -> int:
        """Bytes of weights, momenta and mixers."""
        return 2 * sum(p.nbytes for p in self.parameters) + sum(c.nbytes for c in self.constants)


def plain(make: Make, x: Tensor, y: Tensor) -> Step:
    net = make()
    return Step(lambda: F.cross_entropy(net(x), y), list(net.parameters()), [])


def independent(make: Make, covers: int, x: Tensor, y: Tensor) -> Step:
    """M networks as one: parameters stacked, ``vmap`` over them."""
    parameters, _ = stack_module_state([make() for _ in range(covers)])
    skeleton = make().to("meta")

    def one(own: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(functional_call(skeleton, own, (x,)), y)

    return Step(lambda: torch.vmap(one)(parameters).sum(), list(parameters.values()), [])


def covered(make: Make, covers: int, blocks: int, x: Tensor, y: Tensor) -> Step:
    model = mcover.lift(make(), covers, RING, mcover.Messages(blocks=blocks), seed=0)

    def loss() -> Tensor:
        return mcover.cover_loss(F.cross_entropy, model(x), y)

    return Step(loss, list(model.parameters()), list(model.buffers()))


def peak_bytes(step: Step) -> int:
    """Most bytes in use by torch at any moment of a step, from the allocator's own record."""
    step.optimizer.zero_grad()  # so that gradients are allocated, and counted, within the step
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    level = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            level += event.nbytes()
            peak = max(peak, level)
    return step.held() + peak


def measure(title: str, make: Make, x: Tensor, y: Tensor, seconds: float) -> None:
    """Prints the table of one network and the exponents of its growth with M."""
    lines, growth = [], {blocks: [] for blocks in BLOCKS}
    counts = list(COVERS)
    for covers in counts:
        steps: dict[object, Step] = {"independent": independent(make, covers, x, y)}
        steps |= {blocks: covered(make, covers, blocks, x, y) for blocks in BLOCKS}
        one = plain(make, x, y)
        in_a_row = {"plain": lambda step=one, times=covers: [step() for _ in range(times)]}
        best = best_in_turns(in_a_row | steps, seconds, repeats=3)
        memory = peak_bytes(steps["independent"])
        for blocks in BLOCKS:
            growth[blocks].append(best[blocks])
            lines.append([
                str(covers), str(blocks), f"{1e3 * best[blocks]:.1f}",
                f"{best[blocks] / best['plain']:.2f}",
                f"{best[blocks] / best['independent']:.2f}",
                f"{peak_bytes(steps[blocks]) / memory:.2f}",
            ])  # fmt: skip
    rows(title, ["M", "G", "ms", "time/(a)", "time/(b)", "memory/(b)"], lines)
    for blocks, times in growth.items():
        # From M = 5 on: a single cover does not mix at all.
        slope = statistics.linear_regression(
            [math.log(covers) for covers in counts[1:]], [math.log(t) for t in times[1:]]
        ).slope
        print(f"G = {blocks}: time grows as M^{slope:.2f} from M = {counts[1]} to {counts[-1]}")


def keep_freed_memory() -> None:
    """Where the C library is GNU's: no return of memory to the system, and none from outside."""
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        trim_threshold, mmap_max = -1, -4
        tune(trim_threshold, 2**31 - 1)
        tune(mmap_max, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6.0, help="for each number of covers")
    parser.add_argument("--only", choices=["mlp", "conv", "residual"])
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {given.threads} threads, load {os.getloadavg()[0]:.1f}")
    y = torch.randint(0, 10, (256,))
    keep_freed_memory()
    if given.only in (None, "mlp"):
        title = "MLP 784-512-512-10, batch 256"
        measure(title, mlp, torch.randn(256, 784), y, given.seconds)
    if given.only in (None, "conv"):
        title = "conv net 16-32 channels on 28 x 28, batch 64"
        measure(title, conv, torch.randn(64, 1, 28, 28), y[:64], given.seconds)
    if given.only in (None, "residual"):
        title = "residual net 16-32-64 channels with batch norm on 32 x 32, batch 64"
        measure(title, residual, torch.randn(64, 3, 32, 32), y[:64], given.seconds)


if __name__ == "__main__":
    main()
