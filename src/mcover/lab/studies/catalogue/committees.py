"""Studies of the committee machine on Fashion-MNIST: Figures 2(c) and 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mcover.lab.studies.study import COMMITTEE, Cell, Scale, Study, at_scales, panel_cells
from mcover.lab.training import RSGD, SGD, CommitteeTrial, Elastic, Entropy, Lifted, Method
from mcover.lab.training.options import PLAIN
from mcover.lifting import Directed
from mcover.topology import GaussianRing, Topology, Uniform

_EPOCHS: dict[Scale, int] = {"smoke": 4, "quick": 4000, "paper": 20_000}
_SMALL: dict[Scale, Scale] = {"smoke": "smoke", "quick": "quick", "paper": "quick"}
CONTRASTS = (("rSGD M=4", "vanilla"), ("M-cover M=4", "vanilla", "rSGD M=4"))
"""Comparisons of the three methods of Table 1."""


def committee(
    scale: Scale, method: Method = PLAIN, lr: float = 10.0, **more: Any
) -> CommitteeTrial:
    """A machine of nine units, trained as in the paper; lr and schedule are ours."""
    data, images = ("digits:3,8", 40) if scale == "smoke" else ("fashion-mnist:dress,coat", 500)
    base = CommitteeTrial(data, images=images, method=method, **more)
    epochs = _EPOCHS[scale]
    training = replace(base.training, epochs=epochs, evaluate_every=epochs, lr=lr)
    return replace(base, training=training)


def routed(scale: Scale, covers: int = 4, topology: Topology = Uniform(), **more: Any) -> Lifted:  # noqa: B008
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
    return panel_cells(lines, COMMITTEE, trials, scale == "paper")


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
    cells=at_scales(_errors, smoke=(2,), quick=(3,), paper=(10,)),
    contrasts=(
        *CONTRASTS,
        ("M-cover M=4", "Elastic SGD M=4", "Entropy-SGD", "M-cover M=4, common start"),
    ),
    picture="outcomes",
)


def _settings(scale: Scale, rates: Sequence[float], trials: int) -> tuple[Cell, ...]:
    def held_out(at: Scale, **how: Any) -> CommitteeTrial:
        return committee(at, validation=100 if scale == "smoke" else 2000, **how)

    swept = [
        Cell(held_out(scale, lr=rate), "vanilla", "learning rate", x=rate, trials=trials)
        for rate in rates
    ]
    small = _SMALL[scale]
    starts = {
        "M-cover M=4, independent": routed(small),
        "M-cover M=4, common, noise 0.1": routed(small, start="common", noise=0.1),
        "M-cover M=4, common, noise 0.5": routed(small, start="common", noise=0.5),
    }
    lines = {series: held_out(small, method=method) for series, method in starts.items()}
    return (*swept, *panel_cells(lines, "start", trials))


COMMITTEE_SETTINGS = Study(
    name="committee-settings",
    title="What committee machines are trained with, chosen on held-out images",
    source="beyond the paper",
    about=(
        "As in committee-errors, but judged on 2,000 training images that no machine saw, never on "
        "test images: the learning rate of the plain machine, which all methods then use, and how "
        "the covers start (S = 4, 4,000 epochs)."
    ),
    cells=at_scales(
        _settings,
        smoke=((1.0, 3.0), 2),
        quick=((0.3, 1.0, 3.0), 3),
        paper=((0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0), 5),
    ),
    contrasts=(
        ("M-cover M=4, common, noise 0.1", "M-cover M=4, independent"),
        ("M-cover M=4, common, noise 0.5", "M-cover M=4, independent"),
    ),
    picture="outcomes",
    x_label="learning rate",
    x_log=True,
)


def _rates(scale: Scale, rates: Sequence[float], trials: int) -> tuple[Cell, ...]:
    small = _SMALL[scale]
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
    cells=at_scales(
        _rates, smoke=((1.0, 3.0), 2), quick=((1.0, 10.0), 3), paper=((1.0, 3.0, 10.0, 30.0), 10)
    ),
    contrasts=CONTRASTS,
    x_label="learning rate",
    x_log=True,
)


def _topology(
    scale: Scale, sigmas: Sequence[float], covers: Sequence[int], trials: int
) -> tuple[Cell, ...]:
    def cell(m: int, sigma: float) -> Cell:
        method = SGD() if m == 1 else routed(scale, m, GaussianRing(sigma, shift=2))
        return Cell(committee(scale, method), f"M={m}", COMMITTEE, x=sigma, trials=trials)

    return tuple(cell(m, sigma) for m in covers for sigma in sigmas)


COMMITTEE_TOPOLOGY = Study(
    name="committee-topology",
    title="Test error of committee machines against the width of the ring",
    source="Figure 4",
    about=(
        "As in committee-errors, with a ring of shift 2. The paper gives neither its grid of σ nor "
        "the shift. M = 1 is the plain machine, the same at every σ."
    ),
    cells=at_scales(
        _topology,
        smoke=((0.5, 2.0), (1, 2), 2),
        quick=((0.5, 1.0, 2.0, 4.0, 8.0), (1, 2, 4, 8), 3),
        paper=((0.5, 1.0, 2.0, 4.0, 8.0), (1, 2, 4, 8), 5),
    ),
    contrasts=(("M=2", "M=1"), ("M=4", "M=1"), ("M=8", "M=1")),
    x_label="ring width σ",
    x_log=True,
)
