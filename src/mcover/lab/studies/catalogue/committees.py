"""Studies of the committee machine on Fashion-MNIST: Figures 2(c) and 4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mcover.lab.studies.catalogue.parts import Options
from mcover.lab.studies.cells import Cell
from mcover.lab.studies.kinds import PlainTrial
from mcover.lab.studies.published import COMMITTEE, TABLE_1
from mcover.lab.studies.study import Scale, Study

_DATA: dict[Scale, Options] = {
    "smoke": {"data": "digits:3,8", "images": 40},
    "quick": {"data": "fashion-mnist:dress,coat", "images": 500},
    "paper": {"data": "fashion-mnist:dress,coat", "images": 500},
}
_EPOCHS: dict[Scale, int] = {"smoke": 4, "quick": 4000, "paper": 20_000}


def committee(scale: Scale, method: str = "sgd", **more: Any) -> Options:
    """Settings of a machine of nine units, trained as in the paper; ``more`` is of its covers.

    Learning rate and schedules are ours, see :mod:`mcover.lab.committee.schedules`.
    """
    epochs = _EPOCHS[scale]
    training = {"epochs": epochs, "batch": 100, "lr": 10.0, "momentum": 0, "method": method}
    stop = {"evaluate_every": epochs, "stop_loss": 1e-7, "stop_error": 0}
    own = {"model": "committee", "subset_seed": 0, "hidden": 9, "schedule": "slow"}
    return {**_DATA[scale], **own, "training": training | stop, **more}


def routed_committee(scale: Scale, covers: int, sigma: float | None = None) -> Options:
    """M-cover of a machine: uniform routes, or a ring of this width."""
    ring: Options = {"topology": "uniform"}
    if sigma is not None:
        ring = {"topology": "ring", "sigma": sigma, "shift": 2}
    return committee(scale, "mcover", covers=covers, bank=10 if scale == "paper" else 4, **ring)


def committee_lines(scale: Scale) -> dict[str, Options]:
    """The three methods of Table 1."""
    return {
        "vanilla": committee(scale),
        "rSGD M=4": committee(scale, "rsgd", covers=4),
        "M-cover M=4": routed_committee(scale, 4),
    }


_COMMON: Options = {"start": "common", "noise": 0.1}


def _errors(scale: Scale, trials: int) -> tuple[Cell, ...]:
    more = {
        "Elastic SGD M=4": committee(scale, "elastic", covers=4),
        "Entropy-SGD": committee(scale, "entropy"),
        "M-cover M=4, common start": routed_committee(scale, 4) | _COMMON,
    }
    return tuple(
        Cell(
            PlainTrial("committee", settings),
            series,
            COMMITTEE,
            trials=trials,
            published=TABLE_1.get((COMMITTEE, series)) if scale == "paper" else None,
        )
        for series, settings in (committee_lines(scale) | more).items()
    )


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
    held_out = {"validation": 100 if scale == "smoke" else 2000}
    cells = []
    for rate in rates:
        plain = committee(scale) | held_out
        plain["training"] |= {"lr": rate}
        cells.append(
            Cell(PlainTrial("committee", plain), "vanilla", "learning rate", x=rate, trials=trials)
        )
    starts = {
        "M-cover M=4, independent": {},
        "M-cover M=4, common, noise 0.1": _COMMON,
        "M-cover M=4, common, noise 0.5": _COMMON | {"noise": 0.5},
    }
    for series, start in starts.items():
        covered = routed_committee("quick" if scale == "paper" else scale, 4)
        settings = covered | held_out | start
        cells.append(Cell(PlainTrial("committee", settings), series, "start", trials=trials))
    return tuple(cells)


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
    cells = []
    for rate in rates:
        for series, settings in committee_lines("quick" if scale == "paper" else scale).items():
            changed = {**settings, "training": settings["training"] | {"lr": rate}}
            cells.append(
                Cell(PlainTrial("committee", changed), series, COMMITTEE, x=rate, trials=trials)
            )
    return tuple(cells)


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
            PlainTrial(
                "committee", committee(scale) if m == 1 else routed_committee(scale, m, sigma)
            ),
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
