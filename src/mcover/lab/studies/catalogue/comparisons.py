"""Studies across models: Table 1, and M-cover against its rivals at equal budgets."""

from __future__ import annotations

from dataclasses import replace

from mcover import RSA, MCover, Vanilla
from mcover.lab.studies.catalogue.committees import committee, committee_methods
from mcover.lab.studies.catalogue.networks import FIVE_COVERS, directed, mlp
from mcover.lab.studies.catalogue.perceptrons import (
    PAPER,
    PAPER_SCHEDULE,
    SMOKE,
    SMOKE_SCHEDULE,
    TABLE_1_METHODS,
    TABLE_1_RING,
)
from mcover.lab.studies.cells import Cell, Trial, panel_cells
from mcover.lab.studies.published import COMMITTEE, MLP, PERCEPTRON
from mcover.lab.studies.published import TABLE_1 as PUBLISHED
from mcover.lab.studies.study import Scale, Study
from mcover.lab.training import EMA, RSGD, SAM, SWA, RepeatedTrial


def _table_1(scale: Scale, perceptrons: int, committees: int, mlps: int) -> tuple[Cell, ...]:
    smoke = scale == "smoke"
    annealed = SMOKE if smoke else PAPER
    weights = {series: replace(annealed, method=one) for series, one in TABLE_1_METHODS.items()}
    machines = {series: committee(scale, one) for series, one in committee_methods(scale).items()}
    nets = {"vanilla": mlp(scale), "M-cover M=5": mlp(scale, method=FIVE_COVERS)}
    beside = PUBLISHED if scale == "paper" else None
    return (
        *panel_cells(weights, PERCEPTRON, perceptrons, None if smoke else PUBLISHED),
        *panel_cells(machines, COMMITTEE, committees, beside),
        *panel_cells(nets, MLP, mlps, beside),
    )


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
        "smoke": _table_1("smoke", 2, 2, 2),
        "quick": _table_1("quick", 10, 3, 3),
        "paper": _table_1("paper", 100, 10, 5),
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


def _perceptrons(smoke: bool) -> dict[str, Trial]:
    """As many proposals each."""
    base, schedule = (SMOKE, SMOKE_SCHEDULE) if smoke else (PAPER, PAPER_SCHEDULE)
    plain, slower = replace(base, method=Vanilla()), replace(schedule, step=schedule.step / 3)
    return {
        "M-cover M=3": replace(base, method=MCover(3, TABLE_1_RING)),
        "M-cover M=3, S=2": replace(base, method=MCover(3, TABLE_1_RING, bank=2)),
        "RSA M=3": replace(base, method=RSA(3)),
        "best of 3 restarts": replace(plain, reads=3),
        "three times slower": replace(plain, schedule=slower),
    }


def _networks(scale: Scale) -> dict[str, Trial]:
    """As many gradients each: a step of SAM takes two of them, one of five covers takes five."""
    return {
        "M-cover M=5": mlp(scale, method=FIVE_COVERS),
        # 24 steps are an epoch of 6,000 images.
        "directed lift M=5, redrawn": mlp(scale, method=directed(covers=5, redraw_every=24)),
        "rSGD M=5": mlp(scale, method=RSGD(covers=5)),
        "SGD, 5 times the epochs": mlp(scale, times=5),
        "SWA, 5 times the epochs": mlp(scale, method=SWA(), times=5),
        "EMA, 5 times the epochs": mlp(scale, method=EMA(), times=5),
        "SAM, 2.5 times the epochs": mlp(scale, method=SAM(), times=2.5),
        "best of 5 restarts": RepeatedTrial(mlp(scale), 5, "best"),
        "ensemble of 5 (not one model)": RepeatedTrial(mlp(scale), 5, "vote"),
    }


def _budgets(scale: Scale, perceptrons: int, networks: int) -> tuple[Cell, ...]:
    smoke = scale == "smoke"
    rivals = _networks("smoke" if smoke else "quick")
    return (
        *panel_cells(_perceptrons(smoke), f"{PERCEPTRON}, equal proposals", perceptrons),
        *panel_cells(rivals, f"{MLP}, equal gradients", networks),
    )


_COVERED = ("M-cover M=5", "directed lift M=5, redrawn")
_RIVALS = [series for series in _networks("smoke") if series not in _COVERED]
EQUAL_BUDGET = Study(
    name="equal-budget",
    title="M-cover against its rivals at equal budgets",
    source="beyond the paper",
    about=(
        "Perceptron: N = 1000, α = 1.58, 11.7 million proposals each; the best restart is the one "
        "of least training energy, or loss. Networks: 784-512-512-10 on 6,000 MNIST images, as "
        "many minibatch gradients as five covers take in 10 epochs; the rivals have their usual "
        "strengths and were not tuned."
    ),
    cells={
        "smoke": _budgets("smoke", 2, 2),
        "quick": _budgets("quick", 5, 2),
        "paper": _budgets("paper", 100, 10),
    },
    contrasts=(
        *(("M-cover M=3", series) for series in list(_perceptrons(True))[1:]),
        *(("M-cover M=5", series) for series in (_COVERED[1], *_RIVALS)),
        *(("directed lift M=5, redrawn", series) for series in _RIVALS),
    ),
    picture="outcomes",
)
