"""The cost table: how measured costs grow, beside the paper's formulas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from mcover.lab.studies.cells import Cell
from mcover.lab.studies.kinds import PlainTrial
from mcover.lab.studies.published import COMMITTEE, MLP, PERCEPTRON
from mcover.lab.studies.study import Growth, Study

_Sweep = tuple[str, str, str, Sequence[int]]

_PERCEPTRON = {"model": "perceptron", "n": 256, "patterns": 2048, "covers": 3, "bank": 10}
_COMMITTEE = {"model": "committee", "n": 64, "hidden": 9, "patterns": 2048, "covers": 3, "bank": 10}
_MLP: dict[str, Any] = {
    "model": "mlp",
    "sizes": [512, 512, 512, 10],
    "covers": 5,
    "blocks": 8,
    "batch": 256,
}
_BANK, _PATTERNS, _COVERS = "destinations S", "patterns P", "covers M"
_SITES, _HIDDEN = "weights N, exact lift", "hidden units K"
_BATCH, _BLOCKS, _WIDTH = "batch B", "blocks G", "width d"


def _mlp_cost(**changed: Any) -> float:
    """The paper's M B d d' + M² B d' G, summed over layers."""
    given = _MLP | changed
    covers, batch, blocks = given["covers"], given["batch"], given["blocks"]
    return float(
        sum(
            covers * batch * inputs * outputs + covers**2 * batch * outputs * blocks
            for inputs, outputs in pairwise(given["sizes"])
        )
    )


def _sizes(width: float) -> list[float]:
    return [width, width, width, 10]


_ANNEALING, _VOTING, _STEP = "O(PS)", "O(PSK)", "O(MBdd' + M²Bd'G)"
_GROWTH = {
    (PERCEPTRON, _PATTERNS): Growth(_ANNEALING, lambda x: x),
    (PERCEPTRON, _BANK): Growth(_ANNEALING, lambda x: x),
    (PERCEPTRON, _COVERS): Growth(_ANNEALING, lambda x: 1.0),
    (PERCEPTRON, _SITES): Growth("O(PN)", lambda x: x),
    (COMMITTEE, _PATTERNS): Growth(_VOTING, lambda x: x),
    (COMMITTEE, _BANK): Growth(_VOTING, lambda x: x),
    (COMMITTEE, _HIDDEN): Growth(_VOTING, lambda x: x),
    (MLP, _COVERS): Growth(_STEP, lambda x: _mlp_cost(covers=x)),
    (MLP, _BATCH): Growth(_STEP, lambda x: _mlp_cost(batch=x)),
    (MLP, _BLOCKS): Growth(_STEP, lambda x: _mlp_cost(blocks=x)),
    (MLP, _WIDTH): Growth(_STEP, lambda x: _mlp_cost(sizes=_sizes(x))),
}


def _cells(grid: Mapping[tuple[str, str], Sequence[int]], trials: int, **size: Any) -> Any:
    names = {_BANK: "bank", _PATTERNS: "patterns", _COVERS: "covers", _BATCH: "batch"}
    names |= {_BLOCKS: "blocks", _SITES: "n", _HIDDEN: "hidden"}
    cells = []
    for (panel, series), values in grid.items():
        for value in values:
            if panel == MLP:
                settings = {**_MLP, "steps": size["steps"]}
            else:
                base = _PERCEPTRON if panel == PERCEPTRON else _COMMITTEE
                settings = {**base, "sweeps": size["sweeps"]}
            if series == _WIDTH:
                settings["sizes"] = _sizes(value)
            else:
                settings[names[series]] = value
            if series == _SITES:
                settings["bank"] = None
            cells.append(Cell(PlainTrial("cost", settings), series, panel, x=value, trials=trials))
    return tuple(cells)


COSTS = Study(
    name="costs",
    title="What an update costs, and how that grows",
    source="the table of costs",
    about=(
        "Processor time of one proposal (perceptron, N = 256; committee machine of ±1 weights, "
        "K = 9 units of 64 inputs) and of one training step (MLP, three layers, batch 256), on one "
        "core. An exponent is the slope of log time against log size, "
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
