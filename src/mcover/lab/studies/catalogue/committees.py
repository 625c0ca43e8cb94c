"""Studies of the committee machine on Fashion-MNIST: Figures 2(c) and 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mcover.lab.studies.cells import Cell, panel_cells
from mcover.lab.studies.published import COMMITTEE, TABLE_1
from mcover.lab.studies.study import Scale, Study
from mcover.lab.training import RSGD, SGD, CommitteeTrial, Elastic, Entropy, Lifted, Method
from mcover.lab.training.options import PLAIN
from mcover.lifting import Directed
from mcover.topology import GaussianRing, Topology, Uniform

_UNIFORM = Uniform()
_EPOCHS: dict[Scale, int] = {"smoke": 4, "quick": 4000, "paper": 20_000}


def committee(
    scale: Scale, method: Method = PLAIN, lr: float = 10.0, **more: Any
) -> CommitteeTrial:
    """A machine of nine units, trained as in the paper; lr and schedule are ours."""
    if scale == "smoke":
        base = CommitteeTrial("digits:3,8", images=40, **more)
    else:
        base = CommitteeTrial("fashion-mnist:dress,coat", images=500, **more)
    epochs = _EPOCHS[scale]
    training = replace(base.training, epochs=epochs, evaluate_every=epochs, lr=lr)
    return replace(base, method=method, training=training)


def routed(scale: Scale, covers: int = 4, topology: Topology = _UNIFORM, **more: Any) -> Lifted:
    """M-cover of a machine, all destinations of the bank in each step."""
    routing = Directed(bank=10 if scale == "paper" else 4, destinations=None)
    start = {"noise": 0.0, "start": "independent"} | more
    return Lifted(covers=covers, topology=topology, routing=routing, **start)  # type: ignore[arg-type]


def committee_methods(scale: Scale) -> dict[str, Method]:
    """The three methods of Table 1."""
    return {
        "vanilla": SGD(),
        "rSGD M=4": RSGD(covers=4, noise=0.0, start="independent"),
        "M-cover M=4": routed(scale),
    }


def _errors(scale: Scale, trials: int) -> tuple[Cell, ...]:
    methods = committee_methods(scale) | {
        "Elastic SGD M=4": Elastic(covers=4, noise=0.0, start="independent"),
        "Entropy-SGD": Entropy(),
        "M-cover M=4, common start": routed(scale, start="common", noise=0.1),
    }
    lines = {series: committee(scale, method) for series, method in methods.items()}
    return panel_cells(lines, COMMITTEE, trials, TABLE_1 if scale == "paper" else None)


COMMITTEE_ERRORS = Study(
    name="committee-errors",
    title="Test error of committee machines on dress against coat",
    source="Figure 2(c)",
    about=(
        "784 inputs, 9 hidden units, 500 Fashion-MNIST images made ±1 by their medians, 2,000 test "
        "images; SGD, learning rate 10 (see committee-settings), batch 100, slow schedule (from "
        "memory of the cited works, unverified), until no training error is left or 20,000 epochs. "
        "M-cover: uniform routes, bank S = 10. Replicas and covers start independent; the common "
        "start is one machine plus noise of 0.1. Scale quick: S = 4, 4,000 epochs."
    ),
    cells={
        "smoke": _errors("smoke", 2),
        "quick": _errors("quick", 3),
        "paper": _errors("paper", 10),
    },
    contrasts=(
        ("rSGD M=4", "vanilla"),
        ("M-cover M=4", "vanilla"),
        ("M-cover M=4", "rSGD M=4"),
        ("M-cover M=4", "Elastic SGD M=4"),
        ("M-cover M=4", "Entropy-SGD"),
        ("M-cover M=4", "M-cover M=4, common start"),
    ),
    picture="outcomes",
)


def _settings(scale: Scale, rates: Sequence[float], trials: int) -> tuple[Cell, ...]:
    held_out = 100 if scale == "smoke" else 2000
    cells = [
        Cell(
            committee(scale, lr=rate, validation=held_out),
            "vanilla",
            "learning rate",
            x=rate,
            trials=trials,
        )
        for rate in rates
    ]
    small: Scale = "quick" if scale == "paper" else scale
    starts = {
        "M-cover M=4, independent": routed(small),
        "M-cover M=4, common, noise 0.1": routed(small, start="common", noise=0.1),
        "M-cover M=4, common, noise 0.5": routed(small, start="common", noise=0.5),
    }
    lines = {
        series: committee(small, method, validation=held_out) for series, method in starts.items()
    }
    return (*cells, *panel_cells(lines, "start", trials))


COMMITTEE_SETTINGS = Study(
    name="committee-settings",
    title="What committee machines are trained with, chosen on held-out images",
    source="beyond the paper",
    about=(
        "As in committee-errors, but judged on 2,000 training images that no machine saw, never on "
        "test images: the learning rate of the plain machine, which all methods then use, and how "
        "the covers start (S = 4, 4,000 epochs)."
    ),
    cells={
        "smoke": _settings("smoke", (1.0, 3.0), 2),
        "quick": _settings("quick", (0.3, 1.0, 3.0), 3),
        "paper": _settings("paper", (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0), 5),
    },
    contrasts=(
        ("M-cover M=4, common, noise 0.1", "M-cover M=4, independent"),
        ("M-cover M=4, common, noise 0.5", "M-cover M=4, independent"),
    ),
    picture="outcomes",
    x_label="learning rate",
    x_log=True,
)


def _rates(scale: Scale, rates: Sequence[float], trials: int) -> tuple[Cell, ...]:
    small: Scale = "quick" if scale == "paper" else scale
    return tuple(
        Cell(committee(small, method, lr=rate), series, COMMITTEE, x=rate, trials=trials)
        for rate in rates
        for series, method in committee_methods(small).items()
    )


COMMITTEE_RATES = Study(
    name="committee-rates",
    title="Test error of committee machines against the learning rate",
    source="beyond the paper",
    about=(
        "As in committee-errors, with S = 4 and at most 4,000 epochs: whether a gain of the "
        "replicated methods survives another learning rate. Nothing is chosen by this study."
    ),
    cells={
        "smoke": _rates("smoke", (1.0, 3.0), 2),
        "quick": _rates("quick", (1.0, 10.0), 3),
        "paper": _rates("paper", (1.0, 3.0, 10.0, 30.0), 10),
    },
    contrasts=(
        ("rSGD M=4", "vanilla"),
        ("M-cover M=4", "vanilla"),
        ("M-cover M=4", "rSGD M=4"),
    ),
    x_label="learning rate",
    x_log=True,
)


def _topology(
    scale: Scale, sigmas: Sequence[float], covers: Sequence[int], trials: int
) -> tuple[Cell, ...]:
    return tuple(
        Cell(
            committee(scale, SGD() if m == 1 else routed(scale, m, GaussianRing(sigma, shift=2))),
            f"M={m}",
            COMMITTEE,
            x=sigma,
            trials=trials,
        )
        for m in covers
        for sigma in sigmas
    )


COMMITTEE_TOPOLOGY = Study(
    name="committee-topology",
    title="Test error of committee machines against the width of the ring",
    source="Figure 4",
    about=(
        "As in committee-errors, with a ring of shift 2. The paper gives neither its grid of σ nor "
        "the shift. M = 1 is the plain machine, the same at every σ."
    ),
    cells={
        "smoke": _topology("smoke", (0.5, 2.0), (1, 2), 2),
        "quick": _topology("quick", (0.5, 1.0, 2.0, 4.0, 8.0), (1, 2, 4, 8), 3),
        "paper": _topology("paper", (0.5, 1.0, 2.0, 4.0, 8.0), (1, 2, 4, 8), 5),
    },
    contrasts=(("M=2", "M=1"), ("M=4", "M=1"), ("M=8", "M=1")),
    x_label="ring width σ",
    x_log=True,
)
