"""The study of smooth networks on few images, with strengths chosen on held-out ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mcover.lab.studies.catalogue.parts import Options, directed, messages, trained
from mcover.lab.studies.cells import Cell, Choice
from mcover.lab.studies.kinds import PlainTrial
from mcover.lab.studies.study import Choosing, Study
from mcover.topology import GaussianRing, Identity

_NOISES = (0.03, 0.05, 0.07)
_DROPOUTS = (0.2, 0.35, 0.5, 0.65)
_EACH_EPOCH: Options = {"redraw_every": 10}  # steps in an epoch of 1,000 images
_FIRST_TRY = directed(**_EACH_EPOCH)

# What the search of the directed lift goes through: one change at a time from the first try.
_SEARCH = {
    "M=4 redrawn": _FIRST_TRY,
    "redrawn every 5 steps": directed(redraw_every=5, bank=5),
    "redrawn every step": directed(redraw_every=1, bank=1),
    "M=2": directed(covers=2, **_EACH_EPOCH),
    "M=8": directed(covers=8, **_EACH_EPOCH),
    "noise 0.04": directed(0.04, **_EACH_EPOCH),
    "noise 0.06": directed(0.06, **_EACH_EPOCH),
    "noise 0.08": directed(0.08, **_EACH_EPOCH),
    "ring σ=1.5 shift=2": directed(topology=GaussianRing(1.5, 2), **_EACH_EPOCH),
    "ring σ=1 shift=0": directed(topology=GaussianRing(1.0), **_EACH_EPOCH),
    "by unit": directed(granularity="unit", **_EACH_EPOCH),
    "by tensor": directed(granularity="tensor", **_EACH_EPOCH),
    "two destinations a step": directed(destinations=2, **_EACH_EPOCH),
}

_DROPOUT, _LONG_DROPOUT = "dropout", "dropout, four times the epochs"
_BEST, _BOTH = "directed lift, best of search", "directed lift, redrawn, and dropout"

# Options by the label of the candidate; a line with one candidate has nothing to choose.
_LINES: dict[str, dict[str, Options]] = {
    "vanilla": {"": {}},
    "message lift M=5": {"": messages(5)},
    "five apart, averaged": {"": messages(5, Identity())},
    "SWA, five times the epochs": {
        f"from {share}": {"times": 5, "method": "swa", "average_from": share}
        for share in (0.25, 0.5, 0.75)
    },
    "directed lift, quenched": {f"noise {x}": directed(x, redraw_every=0) for x in _NOISES},
    "directed lift, redrawn": {f"noise {x}": directed(x, **_EACH_EPOCH) for x in _NOISES},
    _BEST: _SEARCH,
    _DROPOUT: {f"{p}": {"dropout": p} for p in _DROPOUTS},
    _LONG_DROPOUT: {f"{p}": {"dropout": p, "times": 4} for p in _DROPOUTS},
    "weight noise": {f"{x}": {"weight_noise": x} for x in (0.02, 0.035, 0.05, 0.07)},
    _BOTH: {
        f"noise {x}, dropout {p}": directed(x, **_EACH_EPOCH) | {"dropout": p}
        for x in (0.03, 0.05)
        for p in (0.2, 0.35, 0.5)
    },
}
# The same of a convolutional network: the lines that stood out, and what it takes of them.
_CONV_LINES: dict[str, dict[str, Options]] = {
    "vanilla": {"": {}},
    "message lift M=5": {"": messages(5)},
    "directed lift, redrawn": {
        f"noise {x}": directed(x, **_EACH_EPOCH) for x in (0.02, 0.03, 0.05)
    },
    _DROPOUT: {f"{p}": {"dropout": p} for p in (0.35, 0.5, 0.65, 0.8)},
    _LONG_DROPOUT: {f"{p}": {"dropout": p, "times": 4} for p in (0.5, 0.65, 0.8)},
    "weight noise": {f"{x}": {"weight_noise": x} for x in (0.01, 0.02, 0.035)},
    _BOTH: {
        f"noise 0.03, dropout {p}": directed(0.03, **_EACH_EPOCH) | {"dropout": p}
        for p in (0.35, 0.5, 0.65)
    },
}
_QUICK = ("vanilla", "message lift M=5", "directed lift, redrawn", _DROPOUT, "weight noise")
_SMOKE = ("vanilla", "message lift M=5", _DROPOUT)


def _few_images(smoke: bool, model: str, times: int = 1, **options: Any) -> Options:
    size: Options = {"data": "mnist", "images": 1000, "model": model, "batch": 100}
    if smoke:
        size |= {"data": "digits", "images": 100, "batch": 50}
    return trained(**size, epochs=times * (2 if smoke else 60), **options)


def _low_data(
    names: Iterable[str], trials: int, model: str = "small-mlp", smoke: bool = False
) -> tuple[Cell, ...]:
    lines = _CONV_LINES if model == "conv" else _LINES
    cells = []
    for series in names:
        choices = tuple(
            Choice(label, PlainTrial("network", _few_images(smoke, model, **options)))
            for label, options in lines[series].items()
        )
        cells.append(
            Cell(
                choices[0].trial,
                series,
                trials=trials,
                choices=choices if len(choices) > 1 else (),
            )
        )
    return tuple(cells)


LOW_DATA = Study(
    name="low-data",
    title="Test error of a network on 1,000 MNIST images",
    source="beyond the paper",
    about=(
        "784-256-256-10, batch 100, 60 epochs. Strengths are chosen on 5,000 images held out of "
        "the training set, with three seeds of their own; then all lines meet the same images, "
        "first weights and order of images."
    ),
    cells={
        "smoke": _low_data(_SMOKE, 2, smoke=True),
        "quick": _low_data(_QUICK, 3),
        "paper": _low_data(_LINES, 10),
    },
    contrasts=(
        *((series, "vanilla") for series in _LINES if series != "vanilla"),
        (_BEST, _DROPOUT),
        (_BEST, _LONG_DROPOUT),
        (_BEST, "weight noise"),
        (_BOTH, _DROPOUT),
        (_BOTH, _LONG_DROPOUT),
        ("message lift M=5", "five apart, averaged"),
    ),
    picture="outcomes",
    choosing={"smoke": Choosing(extra={"validation": 300}, seeds=1)},
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
    cells={
        "smoke": _low_data(_SMOKE, 2, "conv", smoke=True),
        "quick": _low_data(_QUICK, 3, "conv"),
        "paper": _low_data(_CONV_LINES, 10, "conv"),
    },
    contrasts=(
        *((series, "vanilla") for series in _CONV_LINES if series != "vanilla"),
        ("directed lift, redrawn", _DROPOUT),
        ("directed lift, redrawn", "weight noise"),
        (_BOTH, _DROPOUT),
        (_BOTH, _LONG_DROPOUT),
    ),
    picture="outcomes",
    choosing={"smoke": Choosing(extra={"validation": 300}, seeds=1)},
)
