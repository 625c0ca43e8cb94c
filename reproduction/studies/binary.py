"""A study of networks whose weights and hidden units are ±1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcover import Directed, Messages
from reproduction.study import Cell, Cells, Choosing, Scale, Study, at_scales
from reproduction.training import RSGD, SGD, BinaryTrial, Flips, Lifted, Training
from reproduction.training.options import BinaryMethod

_PLAIN, _BOP, _RSGD = "straight-through", "Bop", "rSGD"
_DIRECTED, _MESSAGES = "directed lift", "message lift"

# Method and learning rate by the label of the candidate.
_Candidates = Mapping[str, tuple[BinaryMethod, float]]


def _lifted(routing: Directed | Messages) -> _Candidates:
    def lifted(covers: int, noise: float) -> Lifted:
        return Lifted(covers, noise, routing=routing)

    return {
        "M=4, noise 0.02, lr 0.01": (lifted(4, 0.02), 0.01),
        "M=4, noise 0.005, lr 0.03": (lifted(4, 0.005), 0.03),
        "M=2, noise 0.02, lr 0.01": (lifted(2, 0.02), 0.01),
    }


_LINES: Mapping[str, _Candidates] = {
    _PLAIN: {f"lr {lr}": (SGD(), lr) for lr in (0.003, 0.01, 0.03)},
    _BOP: {
        f"adaptivity {share:g}, threshold {tau:g}": (Flips(share, tau), 0.01)
        for share, tau in ((1e-3, 1e-6), (1e-2, 1e-6), (1e-2, 1e-7))
    },
    _RSGD: {
        "M=4, lr 0.01": (RSGD(4, 0.02), 0.01),
        "M=4, lr 0.03": (RSGD(4, 0.02), 0.03),
        "M=2, lr 0.01": (RSGD(2, 0.02), 0.01),
    },
    _DIRECTED: _lifted(Directed(redraw_every=10)),
    _MESSAGES: _lifted(Messages()),
}


def _panel(
    trials: int, panel: str, epochs: int, batch: int, tried_on: Mapping[str, Any], **base: Any
) -> Cells:
    """All lines, each with as many gradients as the given epochs of one model."""

    def trial(method: BinaryMethod, lr: float) -> BinaryTrial:
        own = epochs // getattr(method, "covers", 1)
        how = {"lr": lr, "optimizer": "adam", "lr_schedule": "cosine", "evaluate_every": own}
        return BinaryTrial(training=Training(own, batch, **how), method=method, **base)  # type: ignore[arg-type]

    def cell(series: str, candidates: _Candidates) -> Cell:
        choices = {label: trial(*given) for label, given in candidates.items()}
        first = next(iter(choices.values()))
        return Cell(first, series, panel, trials=trials, choices=choices, tried_on=tried_on)

    return tuple(cell(*line) for line in _LINES.items())


def _binary_networks(scale: Scale, trials: int) -> Cells:
    if scale == "smoke":
        few = {"data": "digits", "images": 100, "hidden": 16}
        small = _panel(trials, "digits, MLP", 4, 45, {}, model="binary-mlp", **few)
        return small + _panel(trials, "digits, conv", 4, 45, {}, model="binary-conv", **few)
    found: Cells = ()
    for data, name, model, kind, epochs in (
        ("mnist", "MNIST", "binary-mlp", "MLP", 12),
        ("fashion-mnist", "Fashion-MNIST", "binary-mlp", "MLP", 12),
        ("mnist", "MNIST", "binary-conv", "conv", 8),
        ("fashion-mnist", "Fashion-MNIST", "binary-conv", "conv", 8),
    ):
        base: dict[str, Any] = {"data": data, "model": model}
        few_epochs = 240 if scale == "paper" else 60
        panel = f"{name}, {kind}, 1,000 images"
        found += _panel(trials, panel, few_epochs, 90, {}, images=1000, **base)
        if scale == "paper":
            panel = f"{name}, {kind}, all images"
            found += _panel(trials, panel, epochs, 256, {"images": 12_000}, **base)
    return found


BINARY_NETWORKS = Study(
    name="binary-networks",
    title="Test error of networks of ±1 weights and hidden units",
    source="beyond the paper",
    about=(
        "Weights, pixels and hidden units are ±1, trained by latent weights within ±1 that start "
        "uniform in ±0.05, or by Bop without latent weights, with a batch-norm after each layer. "
        "MLP: three hidden layers of 256. Conv: 16 and 32 channels, 3 x 3, stride 2, and a linear "
        "layer. Adam with a rate that falls along a cosine. All lines have the same number of "
        "gradients: on 1,000 images those of 240 epochs of one model, batch 90; on all images "
        "those of 12 (MLP) or 8 epochs (conv), batch 256. Replicas and covers start from one "
        "network plus noise; routes of the directed lift are redrawn every 10 steps. The error is "
        "that of the signs of the mean of latents. The errors of the majority of signs, and of the "
        "cover that is best on a tenth of the training images, are also given; no line is trained "
        "on these images. Norms are recomputed for all of them. Candidates are chosen by the error "
        "on 5,000 other training images with one separate seed; for all images, on 12,000 of them. "
        "Published networks of 1-bit weights and activations, trained for much longer, have MNIST "
        "errors of 0.022 with 3 x 256 units and 0.068 with 3 x 64 (Brevitas, SFC and TFC 1W1A). "
        "Scale quick: a quarter of the gradients, 1,000 images only."
    ),
    cells=at_scales(_binary_networks, smoke=(2,), quick=(2,), paper=(5,)),
    contrasts=(
        (_BOP, _PLAIN),
        (_RSGD, _PLAIN),
        (_DIRECTED, _PLAIN, _RSGD),
        (_MESSAGES, _PLAIN),
    ),
    picture="outcomes",
    choosing={
        "smoke": Choosing(extra={"validation": 300}, seeds=1),
        "quick": Choosing(seeds=1),
        "paper": Choosing(seeds=1),
    },
)
