"""The committee machine: epochs per second, and M-cover against machines trained in sequence.

An epoch is that of the studies: 500 patterns of 784 inputs, K = 9, batches of 100, a step of SGD,
rows scaled back, and the collapse evaluated at the end. Ratios are to vanilla machines, timed in
alternation in the same run. Below 1, M-cover is faster than M·S vanilla machines in sequence, which
need the same number of gradients.

    PYTHONPATH=. python bench/committee.py [--seconds 6] [--threads 1]
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from collections.abc import Callable

import numpy as np
import torch

import mcover
from reproduction.committee import CommitteeMachine
from reproduction.data import Dataset
from reproduction.training import RSGD, SGD, Lifted, Method, Training
from reproduction.training.loop import Loop
from reproduction.training.objectives import CommitteeObjective
from timing import best_in_turns, rows

PATTERNS, INPUTS, HIDDEN, BATCH = 500, 784, 9, 100


def patterns() -> Dataset:
    rng = np.random.default_rng(0)
    images = rng.choice([-1.0, 1.0], size=(PATTERNS, 28, 28)).astype(np.float32)
    labels = rng.integers(0, 2, PATTERNS)
    return Dataset("random", images, labels, images[:10], labels[:10], 2)


class Epoch:
    """A function that runs one more epoch of a training at each call."""

    def __init__(self, covers: int = 1, bank: int = 0, fused: bool = True) -> None:
        model: torch.nn.Module = CommitteeMachine(INPUTS, HIDDEN, seed=0)
        method: Method = SGD()
        if bank:
            method = Lifted(covers=covers)
            routing = mcover.Directed(bank, destinations=None, redraw_every=None)
            model = mcover.lift(model, covers, mcover.Uniform(), routing, seed=0)
        elif covers > 1:
            method = RSGD(covers=covers)
            model = mcover.lift(model, covers, mcover.Identity(), "messages", seed=0)
        training = Training(10**6, BATCH, 1.0, 0.0, stop_loss=0.0)
        self.loop = Loop(model, patterns(), training, method, 0)
        if not fused:
            self.loop.objective = CommitteeObjective(model, fused=False)

    def __call__(self) -> None:
        for _ in range(PATTERNS // BATCH):
            self.loop.step()
        self.loop.should_stop()


def slope(sizes: list[int], times: list[float]) -> float:
    return statistics.linear_regression(
        [math.log(size) for size in sizes], [math.log(one) for one in times]
    ).slope


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=6.0, help="for each table")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(f"torch {torch.__version__}, {given.threads} threads, load {os.getloadavg()[0]:.1f}")

    works: dict[object, Callable[[], None]] = {
        "vanilla": Epoch(),
        "rSGD M=4": Epoch(4),
        "M-cover M=4 S=10": Epoch(4, 10),
        "the same, general lift": Epoch(4, 10, fused=False),
    }
    times = best_in_turns(works, given.seconds)
    machines = {"vanilla": 1, "rSGD M=4": 4}
    lines = [
        [
            str(name), f"{1 / one:.1f}", f"{20_000 * one:.0f}",
            f"{one / times['vanilla'] / machines.get(str(name), 40):.2f}",
        ]
        for name, one in times.items()
    ]  # fmt: skip
    rows(
        f"P = {PATTERNS}, N = {INPUTS}, K = {HIDDEN}, batch {BATCH}",
        ["method", "epochs/s", "s for 20,000", "time/(machines x vanilla)"],
        lines,
    )
    fused, general = times["M-cover M=4 S=10"], times["the same, general lift"]
    print(f"the fused path is {general / fused:.1f} times as fast as the general lift")

    covers, banks = [2, 4, 8], [2, 5, 10, 20]
    sizes = [(m, 10) for m in covers] + [(4, s) for s in banks if s != 10]
    works = {size: Epoch(*size) for size in sizes} | {"vanilla": Epoch()}
    times = best_in_turns(works, given.seconds)
    rows(
        "growth of M-cover",
        ["M", "S", "ms an epoch", "time/(M·S vanilla)"],
        [
            [str(m), str(s), f"{1e3 * times[m, s]:.2f}",
             f"{times[m, s] / times['vanilla'] / (m * s):.2f}"]
            for m, s in sorted(sizes)
        ],
    )  # fmt: skip
    print(f"time grows as M^{slope(covers, [times[m, 10] for m in covers]):.2f} at S = 10")
    print(f"time grows as S^{slope(banks, [times[4, s] for s in banks]):.2f} at M = 4")


if __name__ == "__main__":
    main()
