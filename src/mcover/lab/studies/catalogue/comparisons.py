"""Studies across models: Table 1, and M-cover against its rivals at equal budgets."""

from __future__ import annotations

from dataclasses import replace

from mcover import RSA, MCover, Vanilla
from mcover.lab.studies.catalogue.committees import CONTRASTS, committee, committee_methods
from mcover.lab.studies.catalogue.networks import FIVE_COVERS, directed, mlp
from mcover.lab.studies.catalogue.perceptrons import (
    BASES,
    PAPER_SCHEDULE,
    SMOKE_SCHEDULE,
    TABLE_1_METHODS,
    TABLE_1_RING,
)
from mcover.lab.studies.rows import Trial
from mcover.lab.studies.study import (
    COMMITTEE,
    MLP,
    PERCEPTRON,
    Cell,
    Scale,
    Study,
    at_scales,
    panel_cells,
)
from mcover.lab.training import EMA, RSGD, SAM, SWA, RepeatedTrial


def _table_1(scale: Scale, perceptrons: int, committees: int, mlps: int) -> tuple[Cell, ...]:
    weights = {series: replace(BASES[scale], method=one) for series, one in TABLE_1_METHODS.items()}
    machines = {series: committee(scale, one) for series, one in committee_methods(scale).items()}
    nets = {"vanilla": mlp(scale), "M-cover M=5": mlp(scale, method=FIVE_COVERS)}
    return (
        *panel_cells(weights, PERCEPTRON, perceptrons, scale != "smoke"),
        *panel_cells(machines, COMMITTEE, committees, scale == "paper"),
        *panel_cells(nets, MLP, mlps, scale == "paper"),
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
    cells=at_scales(_table_1, smoke=(2, 2, 2), quick=(10, 3, 3), paper=(100, 10, 5)),
    contrasts=(
        ("RSA M=3", "vanilla"),
        ("M-cover M=3", "vanilla", "RSA M=3"),
        *CONTRASTS,
        ("M-cover M=5", "vanilla"),
    ),
    picture="outcomes",
)


def _perceptrons(scale: Scale) -> dict[str, Trial]:
    """As many proposals each."""
    base, schedule = BASES[scale], SMOKE_SCHEDULE if scale == "smoke" else PAPER_SCHEDULE
    plain, slower = replace(base, method=Vanilla()), replace(schedule, step=schedule.step / 3)
    return {
        "M-cover M=3": replace(base, method=MCover(3, TABLE_1_RING)),
        "M-cover M=3, S=2": replace(base, method=MCover(3, TABLE_1_RING, bank=2)),
        "RSA M=3": replace(base, method=RSA(3)),
        "best of 3 restarts": replace(plain, reads=3),
        "three times slower": replace(plain, schedule=slower),
    }


_COVERED = ("M-cover M=5", "directed lift M=5, redrawn")


def _networks(scale: Scale) -> dict[str, Trial]:
    """As many gradients each: a step of SAM takes two of them, one of five covers takes five."""
    return {
        _COVERED[0]: mlp(scale, method=FIVE_COVERS),
        # 24 steps are an epoch of 6,000 images.
        _COVERED[1]: mlp(scale, method=directed(covers=5, redraw_every=24)),
        "rSGD M=5": mlp(scale, method=RSGD(covers=5)),
        "SGD, 5 times the epochs": mlp(scale, times=5),
        "SWA, 5 times the epochs": mlp(scale, method=SWA(), times=5),
        "EMA, 5 times the epochs": mlp(scale, method=EMA(), times=5),
        "SAM, 2.5 times the epochs": mlp(scale, method=SAM(), times=2.5),
        "best of 5 restarts": RepeatedTrial(mlp(scale), 5, "best"),
        "ensemble of 5 (not one model)": RepeatedTrial(mlp(scale), 5, "vote"),
    }


def _budgets(scale: Scale, perceptrons: int, networks: int) -> tuple[Cell, ...]:
    rivals = _networks("smoke" if scale == "smoke" else "quick")
    return (
        *panel_cells(_perceptrons(scale), f"{PERCEPTRON}, equal proposals", perceptrons),
        *panel_cells(rivals, f"{MLP}, equal gradients", networks),
    )


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
    cells=at_scales(_budgets, smoke=(2, 2), quick=(5, 2), paper=(100, 10)),
    contrasts=(tuple(_perceptrons("smoke")), (*_COVERED, *_RIVALS), (_COVERED[1], *_RIVALS)),
    picture="outcomes",
)
