"""Table 1: three models, each plain, replicated and covered."""

from __future__ import annotations

from typing import Any

from mcover.lab.studies.catalogue.committees import committee_lines
from mcover.lab.studies.catalogue.networks import mlp
from mcover.lab.studies.catalogue.parts import (
    PAPER_ALPHA,
    SMOKE_ALPHA,
    TABLE_1_RING,
    messages,
    perceptron,
    routed,
    rsa,
    vanilla,
)
from mcover.lab.studies.cells import Cell
from mcover.lab.studies.kinds import PlainTrial
from mcover.lab.studies.published import COMMITTEE, MLP, PERCEPTRON
from mcover.lab.studies.published import TABLE_1 as PAPER
from mcover.lab.studies.study import Scale, Study


def _cells(scale: Scale, perceptrons: int, committees: int, mlps: int) -> tuple[Cell, ...]:
    smoke = scale == "smoke"
    annealed = {"vanilla": vanilla(), "RSA M=3": rsa(3), "M-cover M=3": routed(3, TABLE_1_RING)}
    trained: dict[str, dict[str, Any]] = {"vanilla": {}, "M-cover M=5": messages(5)}
    cells = [
        Cell(
            PlainTrial(
                "perceptron",
                perceptron(options, smoke=smoke, alpha=SMOKE_ALPHA if smoke else PAPER_ALPHA),
            ),
            series,
            PERCEPTRON,
            trials=perceptrons,
            published=None if smoke else PAPER[PERCEPTRON, series],
        )
        for series, options in annealed.items()
    ]
    cells += [
        Cell(
            PlainTrial("committee", settings),
            series,
            COMMITTEE,
            trials=committees,
            published=PAPER[COMMITTEE, series] if scale == "paper" else None,
        )
        for series, settings in committee_lines(scale).items()
    ]
    cells += [
        Cell(
            PlainTrial("network", mlp(scale, **options)),
            series,
            MLP,
            trials=mlps,
            published=PAPER[MLP, series] if scale == "paper" else None,
        )
        for series, options in trained.items()
    ]
    return tuple(cells)


TABLE_1 = Study(
    name="table-1",
    title="Generalization error across models and methods",
    source="Table 1",
    about=(
        "Perceptron: N = 1000, α = 1.58, RSA with γ = 1, M-cover with σ = 3, shift = 2, S = 10. "
        "Committee machine: dress against coat, as in committee-errors. MLP: MNIST, as in "
        "mlp-errors. Scale quick: committees with S = 4 for 4,000 epochs, MLPs on 6,000 images for "
        "10 epochs."
    ),
    cells={
        "smoke": _cells("smoke", 2, 2, 2),
        "quick": _cells("quick", 10, 3, 3),
        "paper": _cells("paper", 100, 10, 5),
    },
    contrasts=(
        ("RSA M=3", "vanilla"),
        ("M-cover M=3", "vanilla"),
        ("M-cover M=3", "RSA M=3"),
        ("rSGD M=4", "vanilla"),
        ("M-cover M=4", "vanilla"),
        ("M-cover M=4", "rSGD M=4"),
        ("M-cover M=5", "vanilla"),
    ),
    picture="outcomes",
)
