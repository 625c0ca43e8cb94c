"""The cost table: what one update costs on one CPU, how that grows, and the paper's formulas."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from mcover import GaussianRing, MCover, Messages, anneal, checks, teacher_student
from mcover.errors import McoverError
from mcover.lab.studies.cells import Cell
from mcover.lab.studies.published import COMMITTEE, MLP, PERCEPTRON
from mcover.lab.studies.study import Growth, Study
from mcover.lab.training.trials import require_torch

_RING = GaussianRing(sigma=1.5, shift=2)
_REPEATS = 3  # the best of so many runs: a busy machine only ever adds to the time


@dataclass(frozen=True)
class Proposal:
    """A proposal of the annealer, for a perceptron or a committee machine of ±1 weights."""

    kind: ClassVar[str] = "proposal"

    n: int
    patterns: int
    covers: int
    bank: int | None
    """None is the exact lift."""
    sweeps: int
    hidden: int = 1

    def __post_init__(self) -> None:
        checks.counts(self, "n", "patterns", "covers", "sweeps", "hidden")
        checks.counts(self, "bank", optional=True)

    def seconds(self, seed: int) -> float:
        """What sweeps add: a short run is taken off a longer one, and with it the setup."""
        alpha = self.patterns / (self.n * self.hidden)
        problem = teacher_student(self.n, alpha, seed=[seed, 0], hidden=self.hidden)
        method = MCover(self.covers, _RING, self.bank)

        def spent(sweeps: int) -> tuple[float, float]:
            result = anneal(problem, method, num_sweeps=sweeps, seed=[seed, 1], workers=1, record=2)
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

    def __post_init__(self) -> None:
        checks.counts(self, "covers", "blocks", "batch", "steps")

    def seconds(self, seed: int) -> float:
        """The fastest of some steps."""
        import torch
        from torch.nn import functional

        from mcover import cover_loss, lift
        from mcover.lab.models import Mlp
        from mcover.lab.training.running import one_thread

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

    update: Proposal | Step

    def __post_init__(self) -> None:
        checks.instance("update", self.update, (Proposal, Step), "a Proposal(...) or a Step(...)")

    def prepare(self) -> None:
        """Refuses at once where torch is missing."""
        if isinstance(self.update, Step):
            require_torch("this study trains networks")

    def run(self, seed: int) -> dict[str, float]:
        """Microseconds of one update."""
        return {"microseconds": 1e6 * self.update.seconds(seed)}


_PERCEPTRON = Proposal(n=256, patterns=2048, covers=3, bank=10, sweeps=1)
_COMMITTEE = replace(_PERCEPTRON, n=64, hidden=9)
_MLP = Step(sizes=(512, 512, 512, 10), covers=5, blocks=8, batch=256, steps=1)
_BASES: dict[str, Any] = {PERCEPTRON: _PERCEPTRON, COMMITTEE: _COMMITTEE, MLP: _MLP}
_BANK, _PATTERNS, _COVERS = "destinations S", "patterns P", "covers M"
_SITES, _HIDDEN = "weights N, exact lift", "hidden units K"
_BATCH, _BLOCKS, _WIDTH = "batch B", "blocks G", "width d"


# What a sweep of each series changes.
_FIELDS = {_BANK: "bank", _PATTERNS: "patterns", _COVERS: "covers", _BATCH: "batch"}
_FIELDS |= {_BLOCKS: "blocks", _SITES: "n", _HIDDEN: "hidden"}


def _mlp_cost(**changes: Any) -> float:
    """The paper's M B d d' + M² B d' G, summed over layers."""
    one = replace(_MLP, **changes)
    return float(
        sum(
            one.covers * one.batch * inputs * outputs
            + one.covers**2 * one.batch * outputs * one.blocks
            for inputs, outputs in pairwise(one.sizes)
        )
    )


def _sizes(width: int) -> tuple[int, ...]:
    return (width, width, width, 10)


_ANNEALING, _VOTING, _STEP = "O(PS)", "O(PSK)", "O(MBdd' + M²Bd'G)"
_GROWTH = {
    (PERCEPTRON, _PATTERNS): Growth(_ANNEALING, lambda x: x),
    (PERCEPTRON, _BANK): Growth(_ANNEALING, lambda x: x),
    (PERCEPTRON, _COVERS): Growth(_ANNEALING, lambda x: 1.0),
    (PERCEPTRON, _SITES): Growth("O(PN)", lambda x: x),
    (COMMITTEE, _PATTERNS): Growth(_VOTING, lambda x: x),
    (COMMITTEE, _BANK): Growth(_VOTING, lambda x: x),
    (COMMITTEE, _HIDDEN): Growth(_VOTING, lambda x: x),
    (MLP, _COVERS): Growth(_STEP, lambda x: _mlp_cost(covers=int(x))),
    (MLP, _BATCH): Growth(_STEP, lambda x: _mlp_cost(batch=int(x))),
    (MLP, _BLOCKS): Growth(_STEP, lambda x: _mlp_cost(blocks=int(x))),
    (MLP, _WIDTH): Growth(_STEP, lambda x: _mlp_cost(sizes=_sizes(int(x)))),
}


def _cells(
    grid: Mapping[tuple[str, str], Sequence[int]], trials: int, sweeps: int, steps: int
) -> tuple[Cell, ...]:
    cells = []
    for (panel, series), values in grid.items():
        length = {"steps": steps} if panel == MLP else {"sweeps": sweeps}
        for value in values:
            changes: dict[str, Any] = {"sizes": _sizes(value)}
            if series != _WIDTH:
                changes = {_FIELDS[series]: value}
            if series == _SITES:
                changes["bank"] = None
            update = replace(_BASES[panel], **length, **changes)
            cells.append(Cell(CostTrial(update), series, panel, x=value, trials=trials))
    return tuple(cells)


COSTS = Study(
    name="costs",
    title="What an update costs, and how that grows",
    source="the table of costs",
    about=(
        "CPU time of one proposal (perceptron, N = 256; committee machine of ±1 weights, "
        "K = 9 units of 64 inputs) and of one training step (MLP, three layers, batch 256), on one "
        "CPU. An exponent is the slope of log time against log size, "
        "one for each seed; the formula's is the slope of the formula over the same sizes. 64 "
        "patterns fit in a word, so small P cost little more than smaller ones."
    ),
    cells={
        "smoke": _cells(
            {
                (PERCEPTRON, _BANK): (2, 8),
                (COMMITTEE, _HIDDEN): (3, 9),
                (MLP, _COVERS): (2, 4),
            },
            2,
            sweeps=80,
            steps=2,
        ),
        "quick": _cells(
            {
                (PERCEPTRON, _PATTERNS): (1024, 4096, 16384),
                (PERCEPTRON, _BANK): (2, 8, 32),
                (PERCEPTRON, _COVERS): (2, 6, 18),
                (PERCEPTRON, _SITES): (32, 64, 128),
                (COMMITTEE, _BANK): (2, 8, 32),
                (COMMITTEE, _HIDDEN): (3, 9, 27),
                (MLP, _COVERS): (2, 5, 10),
                (MLP, _BLOCKS): (2, 8, 32),
            },
            3,
            sweeps=50,
            steps=8,
        ),
        "paper": _cells(
            {
                (PERCEPTRON, _PATTERNS): (512, 1024, 2048, 4096, 8192, 16384),
                (PERCEPTRON, _BANK): (2, 4, 8, 16, 32),
                (PERCEPTRON, _COVERS): (2, 4, 8, 16, 24),
                (PERCEPTRON, _SITES): (32, 64, 128, 256),
                (COMMITTEE, _PATTERNS): (512, 1024, 2048, 4096, 8192),
                (COMMITTEE, _BANK): (2, 4, 8, 16, 32),
                (COMMITTEE, _HIDDEN): (3, 5, 9, 17, 33),
                (MLP, _COVERS): (2, 5, 10, 15),
                (MLP, _BATCH): (64, 128, 256, 512),
                (MLP, _BLOCKS): (1, 4, 16, 64),
                (MLP, _WIDTH): (128, 256, 512, 1024),
            },
            5,
            sweeps=100,
            steps=12,
        ),
    },
    picture="growth",
    x_label="size",
    x_log=True,
    growth=_GROWTH,
)
