"""A training step of the message lift against M plain steps and M independent networks.

(a) is M times the step of the plain ``nn.Sequential``. (b) is M independent networks in one
module: ``baddbmm`` for the MLP, ``torch.func`` (vmap) for the conv net. All are timed in turn,
round by round, and the best round counts, so that a busy machine does not favour one of them.
Memory is the peak of one step beyond the model and its optimizer, of tensors alone.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from mcover import GaussianRing, cover_loss, lift
from timing import rows

Step = Callable[[], None]


def mlp() -> tuple[nn.Module, Tensor]:
    sizes = (784, 512, 512, 10)
    layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]), torch.randn(
        256, 784
    )


def conv() -> tuple[nn.Module, Tensor]:
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 49, 10),
    )  # fmt: skip
    return net, torch.randn(64, 1, 28, 28)


class Independent(nn.Module):
    """M networks of linear layers and ReLUs as batched products."""

    def __init__(self, base: nn.Sequential, covers: int) -> None:
        super().__init__()
        linear = [layer for layer in base if isinstance(layer, nn.Linear)]
        self.weights = nn.ParameterList(torch.stack([m.weight.T] * covers) for m in linear)
        self.biases = nn.ParameterList(torch.stack([m.bias[None]] * covers) for m in linear)

    def forward(self, x: Tensor) -> Tensor:
        h = x.expand(len(self.weights[0]), *x.shape)
        for k, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = torch.baddbmm(bias, h.relu() if k else h, weight)
        return h


class Mapped(nn.Module):
    """M networks of any kind through ``torch.func``."""

    def __init__(self, base: nn.Module, covers: int) -> None:
        super().__init__()
        stacked, _ = stack_module_state([copy.deepcopy(base) for _ in range(covers)])
        self.names = list(stacked)
        self.stacks = nn.ParameterList(stacked.values())
        self.base = [base]

    def forward(self, x: Tensor) -> Tensor:
        stacks = dict(zip(self.names, self.stacks, strict=True))
        return torch.vmap(lambda own: functional_call(self.base[0], own, x))(stacks)


def step(model: nn.Module, loss: Callable[[Tensor], Tensor], x: Tensor) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)

    def one() -> None:
        optimizer.zero_grad()
        loss(model(x)).backward()
        optimizer.step()

    return one


class Peak(TorchDispatchMode):
    """The largest number of bytes held by tensors made since it was entered."""

    def __init__(self) -> None:
        super().__init__()
        self.alive, self.peak = WeakTensorKeyDictionary(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor):
                self.alive[tensor] = tensor.untyped_storage()
        held = {s.data_ptr(): s.nbytes() for s in self.alive.values()}
        self.peak = max(self.peak, sum(held.values()))
        return result


def peak_bytes(one: Step) -> int:
    one()
    with Peak() as watch:
        one()
    return watch.peak


def best(steps: dict[str, Step], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Shortest time of each step, in turn."""
    least = dict.fromkeys(steps, float("inf"))
    for turn in range(rounds + 1):
        for name, one in steps.items():
            start = clock()
            one()
            if turn:
                least[name] = min(least[name], clock() - start)
    return least


def measure(title: str, make: Callable[[], tuple[nn.Module, Tensor]], options: argparse.Namespace):
    base, x = make()
    y = torch.randint(0, 10, (len(x),))
    ours, blocks = {}, options.blocks
    lines = []
    for covers in options.covers:
        rival = (
            Independent(base, covers) if isinstance(base[0], nn.Linear) else Mapped(base, covers)
        )
        together = lambda out, y=y: cover_loss(F.cross_entropy, out, y)  # noqa: E731
        steps = {"plain": step(copy.deepcopy(base), lambda out, y=y: F.cross_entropy(out, y), x)}
        steps["independent"] = step(rival, together, x)
        for g in blocks:
            covered = lift(base, covers, GaussianRing(1.5, shift=2.0), blocks=g, seed=0)
            steps[f"G={g}"] = step(covered, together, x)
        clock = time.process_time if options.cpu_time else time.perf_counter
        seconds = best(steps, options.rounds, clock)
        memory = {name: peak_bytes(one) for name, one in steps.items()}
        for g in blocks:
            name = f"G={g}"
            ours[covers, g] = seconds[name]
            lines.append([
                str(covers), str(g), f"{1e3 * seconds[name]:.1f}",
                f"{1e3 * covers * seconds['plain']:.1f}", f"{1e3 * seconds['independent']:.1f}",
                f"{seconds[name] / covers / seconds['plain']:.2f}",
                f"{seconds[name] / seconds['independent']:.2f}",
                f"{memory[name] / memory['independent']:.2f}",
            ])  # fmt: skip
    header = ["M", "G", "ours ms", "(a) ms", "(b) ms", "ours/(a)", "ours/(b)", "memory/(b)"]
    rows(title, header, lines)
    grown = [m for m in options.covers if m > 1]
    if len(grown) > 1:
        for g in blocks:
            times = [ours[m, g] for m in grown]
            slope = np.polyfit(np.log(grown), np.log(times), 1)[0]
            print(f"G={g}: time grows as M^{slope:.2f} over M = {grown}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--covers", type=int, nargs="+", default=[1, 5, 10, 15])
    parser.add_argument("--blocks", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="processor time, on busy machines")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    clock = "processor" if options.cpu_time else "wall"
    about = f"{options.threads} threads, best of {options.rounds} rounds, {clock} time"
    measure(f"MLP 784-512-512-10, batch 256, {about}", mlp, options)
    measure(f"conv net 16-32, batch 64, {about}", conv, options)


if __name__ == "__main__":
    main()
