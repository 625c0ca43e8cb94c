"""Studies of gradient training: committee machines, Figures 2(c) and 4; the paper's network on
MNIST, Figure 2(d); and networks on few images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mcover import Directed, GaussianRing, Identity, Messages, Uniform
from reproduction.rows import Trial
from reproduction.study import (
    COMMITTEE,
    MLP,
    Cell,
    Cells,
    Choosing,
    Scale,
    Study,
    at_scales,
    panel_cells,
)
from reproduction.training import (
    RSGD,
    SGD,
    SWA,
    CommitteeTrial,
    Elastic,
    Entropy,
    Lifted,
    Method,
    NetworkTrial,
    Training,
)
from reproduction.training.options import PLAIN, Topology

EPOCHS: dict[Scale, int] = {"smoke": 4, "quick": 4000, "paper": 20_000}
_SMALL: dict[Scale, Scale] = {"smoke": "smoke", "quick": "quick", "paper": "quick"}
CONTRASTS = (("rSGD M=4", "vanilla"), ("M-cover M=4", "vanilla", "rSGD M=4"))
"""Comparisons of the three methods of Table 1."""


def committee(
    scale: Scale, method: Method = PLAIN, lr: float = 10.0, **more: Any
) -> CommitteeTrial:
    """A machine of nine units, trained as in the paper except for our lr and schedule."""
    data, images = ("digits:3,8", 40) if scale == "smoke" else ("fashion-mnist:dress,coat", 500)
    base = CommitteeTrial(data, images=images, method=method, **more)
    epochs = EPOCHS[scale]
    training = replace(base.training, epochs=epochs, evaluate_every=epochs, lr=lr)
    return replace(base, training=training)


def routed(scale: Scale, covers: int = 4, topology: Topology = Uniform(), **more: Any) -> Lifted:  # noqa: B008
    """M-cover of a machine, with all destinations of the bank in each step."""
    bank = 10 if scale == "paper" else 4
    routing = Directed(bank, destinations=None, redraw_every=None)
    start = {"noise": 0.0, "start": "independent"} | more
    return Lifted(covers=covers, topology=topology, routing=routing, **start)  # type: ignore[arg-type]


def committee_methods(scale: Scale) -> dict[str, Method]:
    """The three methods of Table 1."""
    return {
        "vanilla": SGD(),
        "rSGD M=4": RSGD(covers=4, noise=0.0, start="independent"),
        "M-cover M=4": routed(scale),
    }


def _committee_errors(scale: Scale, trials: int) -> Cells:
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
        "784 inputs, 9 hidden units, 500 Fashion-MNIST images binarized at their medians, 2,000 "
        "test images; SGD, learning rate 10 (see committee-settings; rows have norm √N, so it is "
        "784 times the rate for rows of norm 1), batch 100, slow schedule (from memory of the "
        "cited works, unverified), until the training error is zero or 20,000 epochs are over. "
        "M-cover: uniform routes, bank S = 10. Replicas and covers start independently; the common "
        "start is one machine plus noise of 0.1. Scale quick: S = 4, 4,000 epochs."
    ),
    cells=at_scales(_committee_errors, smoke=(2,), quick=(3,), paper=(10,)),
    contrasts=(
        *CONTRASTS,
        ("M-cover M=4", "Elastic SGD M=4", "Entropy-SGD", "M-cover M=4, common start"),
    ),
    picture="outcomes",
)


def _settings(scale: Scale, rates: Sequence[float], trials: int) -> Cells:
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
        "As in committee-errors, but evaluated on 2,000 training images that no machine is trained "
        "on, never on test images. Chosen are the learning rate of the plain machine, which all "
        "methods then use, and how the covers start (S = 4, 4,000 epochs)."
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


def _rates(scale: Scale, rates: Sequence[float], trials: int) -> Cells:
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
        "As in committee-errors, with S = 4 and at most 4,000 epochs: does a gain of the "
        "replicated methods persist at other learning rates? Nothing is chosen by this study."
    ),
    cells=at_scales(
        _rates, smoke=((1.0, 3.0), 2), quick=((1.0, 10.0), 3), paper=((1.0, 3.0, 10.0, 30.0), 10)
    ),
    contrasts=CONTRASTS,
    x_label="learning rate",
    x_log=True,
)


def _topology(scale: Scale, sigmas: Sequence[float], covers: Sequence[int], trials: int) -> Cells:
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


PAPER_RING = GaussianRing(1.5, shift=2)
FIVE_COVERS = Lifted(covers=5, topology=PAPER_RING, routing=Messages())
"""The paper's lift of its network."""
_FIVE_APART = replace(FIVE_COVERS, topology=Identity())

_ON_MNIST: dict[Scale, NetworkTrial] = {
    "smoke": NetworkTrial("digits", Training(2, 50), images=200, model="small-mlp"),
    "quick": NetworkTrial("mnist", Training(10), images=6000),
    "paper": NetworkTrial("mnist", Training(40)),
}


def mlp(scale: Scale, **changes: Any) -> NetworkTrial:
    """The paper's network on MNIST, on few images of it, or a small one on digits."""
    return changed(_ON_MNIST[scale], **changes)


def changed(
    trial: NetworkTrial,
    times: float = 1,
    weight_noise: float = 0.0,
    drop_connect: float = 0.0,
    **more: Any,
) -> NetworkTrial:
    """A trial with a multiple of the epochs, or with noise; plain by default."""
    epochs = round(times * trial.training.epochs)
    how = {"epochs": epochs, "evaluate_every": epochs, "weight_noise": weight_noise}
    training = replace(trial.training, **how, drop_connect=drop_connect)  # type: ignore[arg-type]
    return replace(trial, training=training, **{"method": PLAIN} | more)


def _mlp_errors(scale: Scale, trials: int) -> Cells:
    lines = {
        "vanilla": mlp(scale),
        "M-cover M=5": mlp(scale, method=FIVE_COVERS),
        "five apart, averaged": mlp(scale, method=_FIVE_APART),
        "SWA, five times the epochs": mlp(scale, method=SWA(), times=5),
    }
    return panel_cells(lines, MLP, trials, scale == "paper")


MLP_ERRORS = Study(
    name="mlp-errors",
    title="Test error of the paper's network on MNIST",
    source="Figure 2(d)",
    about=(
        "784-512-512-10, SGD 0.05 with Nesterov momentum 0.9, batch 256, 40 epochs; M-cover is the "
        "message lift with σ = 1.5, shift = 2, 8 blocks, 10 draws, noise 10⁻². Scale quick: 6,000 "
        "images, 10 epochs."
    ),
    cells=at_scales(_mlp_errors, smoke=(2,), quick=(3,), paper=(5,)),
    contrasts=(("M-cover M=5", "vanilla", "five apart, averaged", "SWA, five times the epochs"),),
    picture="outcomes",
)


def directed(noise: float = 0.05, redraw_every: int | None = 10, **more: Any) -> Lifted:
    """The directed lift of a network; 10 steps are an epoch of 1,000 images."""
    names = ("bank", "destinations", "granularity")
    routing = {"bank": 8} | {name: more.pop(name) for name in names if name in more}
    return Lifted(noise=noise, routing=Directed(redraw_every=redraw_every, **routing), **more)


# The search of the directed lift: one change at a time from the first candidate.
_SEARCH = {
    "M=4 redrawn": directed(),
    "redrawn every 5 steps": directed(redraw_every=5, bank=5),
    "redrawn every step": directed(redraw_every=1, bank=1),
    "M=2": directed(covers=2),
    "M=8": directed(covers=8),
    "noise 0.04": directed(0.04),
    "noise 0.06": directed(0.06),
    "noise 0.08": directed(0.08),
    "ring σ=1.5 shift=2": directed(topology=PAPER_RING),
    "ring σ=1 shift=0": directed(topology=GaussianRing(1.0)),
    "by unit": directed(granularity="unit"),
    "by tensor": directed(granularity="tensor"),
    "two destinations a step": directed(destinations=2),
}

_DROPOUT, _LONG_DROPOUT = "dropout", "dropout, four times the epochs"
_BEST, _BOTH = "directed lift, best of search", "directed lift, redrawn, and dropout"

# Differences from the plain network, by the label of the candidate; a line with one candidate needs
# no choice.
_Lines = Mapping[str, Mapping[str, Mapping[str, Any]]]
_LINES: _Lines = {
    "vanilla": {"": {}},
    "message lift M=5": {"": {"method": FIVE_COVERS}},
    "five apart, averaged": {"": {"method": _FIVE_APART}},
    "SWA, five times the epochs": {
        f"from {share}": {"method": SWA(share), "times": 5} for share in (0.25, 0.5, 0.75)
    },
    "directed lift, quenched": {
        f"noise {x}": {"method": directed(x, redraw_every=None)} for x in (0.03, 0.05, 0.07)
    },
    "directed lift, redrawn": {f"noise {x}": {"method": directed(x)} for x in (0.03, 0.05, 0.07)},
    _BEST: {label: {"method": method} for label, method in _SEARCH.items()},
    _DROPOUT: {f"{p}": {"dropout": p} for p in (0.2, 0.35, 0.5, 0.65)},
    _LONG_DROPOUT: {f"{p}": {"dropout": p, "times": 4} for p in (0.2, 0.35, 0.5, 0.65)},
    "weight noise": {f"{x}": {"weight_noise": x} for x in (0.02, 0.035, 0.05, 0.07)},
    _BOTH: {
        f"noise {x}, dropout {p}": {"method": directed(x), "dropout": p}
        for x in (0.03, 0.05)
        for p in (0.2, 0.35, 0.5)
    },
}
# The same for a convolutional network: the most interesting lines, with settings for this network.
# The stored rows have thin blocks.
_CONV_LINES: _Lines = {
    "vanilla": {"": {}},
    "message lift M=5": {"": {"method": replace(FIVE_COVERS, routing=Messages(block_channels=1))}},
    "directed lift, redrawn": {f"noise {x}": {"method": directed(x)} for x in (0.02, 0.03, 0.05)},
    _DROPOUT: {f"{p}": {"dropout": p} for p in (0.35, 0.5, 0.65, 0.8)},
    _LONG_DROPOUT: {f"{p}": {"dropout": p, "times": 4} for p in (0.5, 0.65, 0.8)},
    "weight noise": {f"{x}": {"weight_noise": x} for x in (0.01, 0.02, 0.035)},
    _BOTH: {
        f"noise 0.03, dropout {p}": {"method": directed(0.03), "dropout": p}
        for p in (0.35, 0.5, 0.65)
    },
}
_QUICK = ("vanilla", "message lift M=5", "directed lift, redrawn", _DROPOUT, "weight noise")
_SMOKE = ("vanilla", "message lift M=5", _DROPOUT)
SMOKE_CHOOSING = Choosing(extra={"validation": 300}, seeds=1)


def _low_data(scale: Scale, names: Sequence[str], trials: int, lines: _Lines, model: Any) -> Cells:
    base = NetworkTrial("mnist", Training(60, 100), images=1000, model=model)
    if scale == "smoke":
        base = NetworkTrial("digits", Training(2, 50), images=100, model=model)

    def cell(series: str) -> Cell:
        candidates = {label: changed(base, **how) for label, how in lines[series].items()}
        return chosen_cell(series, candidates, trials)

    return tuple(map(cell, names))


def chosen_cell(series: str, candidates: Mapping[str, Trial], trials: int) -> Cell:
    """A cell that selects the best of its candidates; a single candidate needs no choice."""
    choices = candidates if len(candidates) > 1 else {}
    return Cell(next(iter(candidates.values())), series, trials=trials, choices=choices)


LOW_DATA = Study(
    name="low-data",
    title="Test error of a network on 1,000 MNIST images",
    source="beyond the paper",
    about=(
        "784-256-256-10, batch 100, 60 epochs. Strengths are chosen on 5,000 images held out of "
        "the training set, with three separate seeds; then all lines use the same images, first "
        "weights and order of images."
    ),
    cells=at_scales(
        partial(_low_data, lines=_LINES, model="small-mlp"),
        smoke=(_SMOKE, 2),
        quick=(_QUICK, 3),
        paper=(tuple(_LINES), 10),
    ),
    contrasts=(
        *((series, "vanilla") for series in _LINES if series != "vanilla"),
        (_BEST, _DROPOUT, _LONG_DROPOUT, "weight noise"),
        (_BOTH, _DROPOUT, _LONG_DROPOUT),
        ("message lift M=5", "five apart, averaged"),
    ),
    picture="outcomes",
    choosing={"smoke": SMOKE_CHOOSING},
)

LOW_DATA_CONV = Study(
    name="low-data-conv",
    title="Test error of a conv net on 1,000 MNIST images",
    source="beyond the paper",
    about=(
        "Convolutions of 16 and 32 channels, 3 x 3, each with a pooling of 2 x 2, and a linear "
        "layer; batch 100, 60 epochs. Dropout acts before the linear layer. Strengths are chosen "
        "as in low-data."
    ),
    cells=at_scales(
        partial(_low_data, lines=_CONV_LINES, model="conv"),
        smoke=(_SMOKE, 2),
        quick=(_QUICK, 3),
        paper=(tuple(_CONV_LINES), 10),
    ),
    contrasts=(
        *((series, "vanilla") for series in _CONV_LINES if series != "vanilla"),
        ("directed lift, redrawn", _DROPOUT, "weight noise"),
        (_BOTH, _DROPOUT, _LONG_DROPOUT),
    ),
    picture="outcomes",
    choosing={"smoke": SMOKE_CHOOSING},
)
