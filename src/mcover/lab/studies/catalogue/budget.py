"""M-cover against its rivals at equal budgets of proposals or gradients."""

from __future__ import annotations

from typing import Any

from mcover.lab.studies.catalogue.networks import mlp
from mcover.lab.studies.catalogue.parts import (
    SMOKE_ALPHA,
    TABLE_1_RING,
    Options,
    directed,
    messages,
    perceptron,
    routed,
    rsa,
    vanilla,
)
from mcover.lab.studies.cells import Cell
from mcover.lab.studies.kinds import PlainTrial
from mcover.lab.studies.published import MLP, PERCEPTRON
from mcover.lab.studies.study import Scale, Study

_PERCEPTRONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "M-cover M=3": (routed(3, TABLE_1_RING), {}),
    "M-cover M=3, S=2": (routed(3, TABLE_1_RING, bank=2), {}),
    "RSA M=3": (rsa(3), {}),
    "best of 3 restarts": (vanilla(), {"reads": 3}),
    "three times slower": (vanilla(), {"slower": 3}),
}
_LONG = {"times": 5}
# A step of SAM takes two gradients, one of five covers takes five.
_NETWORKS: dict[str, dict[str, Any]] = {
    "M-cover M=5": messages(5),
    "directed lift M=5, redrawn": directed(covers=5, redraw_every=24),  # steps in an epoch
    "rSGD M=5": {"method": "rsgd", "covers": 5},
    "SGD, 5 times the epochs": _LONG,
    "SWA, 5 times the epochs": _LONG | {"method": "swa", "average_from": 0.75},
    "EMA, 5 times the epochs": _LONG | {"method": "ema", "decay": 0.999},
    "SAM, 2.5 times the epochs": {"times": 2.5, "method": "sam", "rho": 0.05},
    "best of 5 restarts": {"restarts": 5},
    "ensemble of 5 (not one model)": {"ensemble": 5},
}
_RIVALS = [series for series, options in _NETWORKS.items() if options.get("method") != "mcover"]


def _cells(scale: Scale, perceptrons: int, networks: int) -> tuple[Cell, ...]:
    smoke = scale == "smoke"
    more: Options = {"smoke": True, "alpha": SMOKE_ALPHA} if smoke else {}
    cells = [
        Cell(
            PlainTrial("perceptron", perceptron(options, **more, **how)),
            series,
            f"{PERCEPTRON}, equal proposals",
            trials=perceptrons,
        )
        for series, (options, how) in _PERCEPTRONS.items()
    ]
    cells += [
        Cell(
            PlainTrial("network", mlp("smoke" if smoke else "quick", **options)),
            series,
            f"{MLP}, equal gradients",
            trials=networks,
        )
        for series, options in _NETWORKS.items()
    ]
    return tuple(cells)


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
        "smoke": _cells("smoke", 2, 2),
        "quick": _cells("quick", 5, 2),
        "paper": _cells("paper", 100, 10),
    },
    contrasts=(
        *(("M-cover M=3", series) for series in _PERCEPTRONS if series != "M-cover M=3"),
        *(("M-cover M=5", series) for series in _NETWORKS if series != "M-cover M=5"),
        *(("directed lift M=5, redrawn", series) for series in _RIVALS),
    ),
    picture="outcomes",
)
