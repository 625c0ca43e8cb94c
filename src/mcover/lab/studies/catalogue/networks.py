"""The study of smooth networks on MNIST: Figure 2(d)."""

from __future__ import annotations

from typing import Any

from mcover.lab.studies.catalogue.parts import Options, messages, trained
from mcover.lab.studies.cells import Cell
from mcover.lab.studies.kinds import PlainTrial
from mcover.lab.studies.published import MLP, TABLE_1
from mcover.lab.studies.study import Scale, Study
from mcover.topology import Identity

_SIZES: dict[Scale, Options] = {
    "smoke": {"data": "digits", "images": 200, "model": "small-mlp", "batch": 50},
    "quick": {"data": "mnist", "images": 6000, "model": "mlp", "batch": 256},
    "paper": {"data": "mnist", "images": None, "model": "mlp", "batch": 256},
}
_EPOCHS: dict[Scale, int] = {"smoke": 2, "quick": 10, "paper": 40}


def mlp(scale: Scale, times: float = 1, **more: Any) -> Options:
    """The paper's network on MNIST, on few images of it, or a small one on digits.

    Args:
        scale: which of them.
        times: so many times the epochs.
        **more: a lift, dropout, or what differs in training.
    """
    return trained(**_SIZES[scale], epochs=round(times * _EPOCHS[scale]), **more)


def _errors(scale: Scale, trials: int) -> tuple[Cell, ...]:
    lines: dict[str, Options] = {
        "vanilla": {},
        "M-cover M=5": messages(5),
        "five apart, averaged": messages(5, Identity()),
        "SWA, five times the epochs": {"times": 5, "method": "swa", "average_from": 0.75},
    }
    return tuple(
        Cell(
            PlainTrial("network", mlp(scale, **options)),
            series,
            MLP,
            trials=trials,
            published=TABLE_1.get((MLP, series)) if scale == "paper" else None,
        )
        for series, options in lines.items()
    )


MLP_ERRORS = Study(
    name="mlp-errors",
    title="Test error of the paper's network on MNIST",
    source="Figure 2(d)",
    about=(
        "784-512-512-10, SGD 0.05 with Nesterov momentum 0.9, batch 256, 40 epochs; M-cover is the "
        "message lift with σ = 1.5, shift = 2, 8 blocks, 10 draws, noise 10⁻². Scale quick: 6,000 "
        "images, 10 epochs."
    ),
    cells={
        "smoke": _errors("smoke", 2),
        "quick": _errors("quick", 3),
        "paper": _errors("paper", 5),
    },
    contrasts=(
        ("M-cover M=5", "vanilla"),
        ("M-cover M=5", "five apart, averaged"),
        ("M-cover M=5", "SWA, five times the epochs"),
    ),
    picture="outcomes",
)
