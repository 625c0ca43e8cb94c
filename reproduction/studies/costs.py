"""The cost table: the cost of one update on one CPU, its growth, and the paper's formulas."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from mcover import GaussianRing, MCover, Messages, anneal, teacher_student
from mcover.errors import McoverError
from reproduction.study import COMMITTEE, MLP, PERCEPTRON, Cell, Scale, Study, at_scales

_RING = GaussianRing(sigma=1.5, shift=2)
_REPEATS = 3  # the best of this many runs is used, since load only adds to the time


@dataclass(frozen=True)
class Proposal:
    """A proposal of the annealer, for a perceptron or a committee machine of ±1 weights."""

    kind: ClassVar[str] = "proposal"

    n: int
    patterns: int
    covers: int
    bank: int | None
    """None for the exact lift."""
    sweeps: int
    hidden: int = 1

    def seconds(self, seed: int) -> float:
        """The time of sweeps without setup: a longer run minus a short one."""
        alpha = self.patterns / (self.n * self.hidden)
        problem = teacher_student(self.n, alpha, seed=[seed, 0], hidden=self.hidden)
        method = MCover(self.covers, _RING, self.bank)

        def spent(sweeps: int) -> tuple[float, float]:
            result = anneal(
                problem,
                method,
                schedule=np.linspace(0.4, 0.01, sweeps),
                seed=[seed, 1],
                workers=1,
                record=2,
            )
            return float(result.seconds[0]), float(result.proposals[0])

        spent(1)  # compiles, or loads what was compiled
        short = min(spent(self.sweeps) for _ in range(_REPEATS))
        long = min(spent(4 * self.sweeps) for _ in range(_REPEATS))
        if long[0] <= short[0]:
            raise McoverError(f"{self.sweeps} sweeps are too few to be timed; write more.")
        return (long[0] - short[0]) / (long[1] - short[1])


@dataclass(frozen=True)
class Step:
    """A gradient step of the message lift of a network."""

    kind: ClassVar[str] = "step"

    sizes: tuple[int, ...]
    covers: int
    blocks: int
    batch: int
    steps: int

    def seconds(self, seed: int) -> float:
        """The fastest of some steps."""
        import torch
        from torch.nn import functional

        from mcover import cover_loss, lift
        from reproduction.models import Mlp, one_thread

        rng = np.random.default_rng([seed, 2])
        best = np.inf
        with one_thread():
            base = Mlp(self.sizes).build([seed, 0])
            model = lift(base, self.covers, _RING, Messages(self.blocks), seed=[seed, 1])
            images = torch.from_numpy(rng.standard_normal((self.batch, self.sizes[0]), np.float32))
            labels = torch.from_numpy(rng.integers(0, self.sizes[-1], self.batch))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
            for _ in range(self.steps):
                begin = time.process_time()
                loss = cover_loss(functional.cross_entropy, model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                best = min(best, time.process_time() - begin)
        return float(best)


@dataclass(frozen=True)
class CostTrial:
    """CPU time of one update, on one CPU."""

    kind: ClassVar[str] = "cost"
    # 1: the first revision. Times depend on the machine, so reruns are not compared.
    revision: ClassVar[int] = 1

    update: Proposal | Step

    def run(self, seed: int) -> dict[str, float]:
        """Microseconds of one update."""
        return {"microseconds": 1e6 * self.update.seconds(seed)}


_PERCEPTRON = Proposal(n=256, patterns=2048, covers=3, bank=10, sweeps=1)
_MLP = Step(sizes=(512, 512, 512, 10), covers=5, blocks=8, batch=256, steps=1)
_BASES: dict[str, Any] = {PERCEPTRON: _PERCEPTRON, MLP: _MLP}
_BASES[COMMITTEE] = replace(_PERCEPTRON, n=64, hidden=9)


@dataclass(frozen=True)
class _Sweep:
    """A field of an update to vary, the paper's formula, and the sizes of each scale."""

    field: str
    formula: str
    paper: tuple[int, ...]
    quick: tuple[int, ...] = ()
    smoke: tuple[int, ...] = ()


_STEP = "O(MBdd' + M²Bd'G)"
_SWEEPS = {
    (PERCEPTRON, "patterns P"): _Sweep(
        "patterns", "O(PS)", (512, 1024, 2048, 4096, 8192, 16384), (1024, 4096, 16384)
    ),
    (PERCEPTRON, "destinations S"): _Sweep("bank", "O(PS)", (2, 4, 8, 16, 32), (2, 8, 32), (2, 8)),
    (PERCEPTRON, "covers M"): _Sweep("covers", "O(PS)", (2, 4, 8, 16, 24), (2, 6, 18)),
    (PERCEPTRON, "weights N, exact lift"): _Sweep("n", "O(PN)", (32, 64, 128, 256), (32, 64, 128)),
    (COMMITTEE, "patterns P"): _Sweep("patterns", "O(PSK)", (512, 1024, 2048, 4096, 8192)),
    (COMMITTEE, "destinations S"): _Sweep("bank", "O(PSK)", (2, 4, 8, 16, 32), (2, 8, 32)),
    (COMMITTEE, "hidden units K"): _Sweep(
        "hidden", "O(PSK)", (3, 5, 9, 17, 33), (3, 9, 27), (3, 9)
    ),
    (MLP, "covers M"): _Sweep("covers", _STEP, (2, 5, 10, 15), (2, 5, 10), (2, 4)),
    (MLP, "batch B"): _Sweep("batch", _STEP, (64, 128, 256, 512)),
    (MLP, "blocks G"): _Sweep("blocks", _STEP, (1, 4, 16, 64), (2, 8, 32)),
    (MLP, "width d"): _Sweep("sizes", _STEP, (128, 256, 512, 1024)),
}


def _changes(field: str, size: int) -> dict[str, Any]:
    if field == "sizes":
        return {field: (size, size, size, 10)}
    return {field: size, "bank": None} if field == "n" else {field: size}


def _cost(panel: str, field: str, size: float) -> float:
    """The paper's formulas; that of the MLP, M B d d' + M² B d' G, is summed over layers."""
    if panel != MLP:
        return 1.0 if field == "covers" else size
    one = replace(_MLP, **_changes(field, int(size)))
    samples = one.covers * one.batch
    layers = pairwise(one.sizes)
    return float(sum(samples * out * (inputs + one.covers * one.blocks) for inputs, out in layers))


def _cells(scale: Scale, trials: int, sweeps: int, steps: int) -> tuple[Cell, ...]:
    def cell(panel: str, series: str, field: str, size: int) -> Cell:
        length = {"steps": steps} if panel == MLP else {"sweeps": sweeps}
        trial = CostTrial(replace(_BASES[panel], **length, **_changes(field, size)))
        return Cell(trial, series, panel, x=size, trials=trials)

    return tuple(
        cell(*line, sweep.field, size)
        for line, sweep in _SWEEPS.items()
        for size in getattr(sweep, scale)
    )


COSTS = Study(
    name="costs",
    title="What an update costs, and how that grows",
    source="the table of costs",
    about=(
        "Time of one proposal (perceptron, N = 256; committee machine of ±1 weights, K = 9 units "
        "of 64 inputs) and of one training step (MLP, three layers, batch 256), on one CPU. "
        "Exponents are slopes of log time against log size, one for each seed, with the slope of "
        "the formula over the same sizes. 64 patterns share a word, so growth with P is slow at "
        "first."
    ),
    cells=at_scales(_cells, smoke=(2, 80, 2), quick=(3, 50, 8), paper=(5, 100, 12)),
    picture="growth",
    x_label="size",
    x_log=True,
    growth={
        (panel, series): (sweep.formula, partial(_cost, panel, sweep.field))
        for (panel, series), sweep in _SWEEPS.items()
    },
)
