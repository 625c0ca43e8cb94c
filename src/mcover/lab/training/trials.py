"""Trials: a whole experiment but its seed as one frozen value, of a network or a committee machine.

Trials are paired: with the same seed, whatever the method, the images, the weights of the first
cover and the order of its batches are the same.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

import numpy as np
import tyro

import mcover
from mcover import checks
from mcover.errors import McoverError, McoverWarning
from mcover.lab.data import Dataset, holdout, load, split_name, subset
from mcover.lab.training import options
from mcover.lab.training.options import (
    SAM,
    SGD,
    SLOW,
    BinaryMethod,
    Lifted,
    Method,
    Sharpening,
    Training,
)
from mcover.lifting import Directed, Messages

if TYPE_CHECKING:
    from torch import nn

    from mcover.lab.binary_models import BinaryArchitecture
    from mcover.lab.models import Architecture
    from mcover.lab.training.loop import History, Status

DataName = Annotated[str, tyro.conf.arg(metavar="{digits,mnist,fashion-mnist}[:CLASSES]")]
Model = Literal["mlp", "small-mlp", "conv"]
_FAR = 100_000  # between the seeds of repeated trainings: no trial has such a seed

_NETWORK = Training()
_COMMITTEE = Training(
    20_000, batch=100, lr=10.0, momentum=0.0, evaluate_every=50, stop_loss=1e-7, stop_error=0.0
)
_DIRECTED = Lifted(noise=0.05, redraw_each_epoch=True)
_ALL_DESTINATIONS = Lifted(
    noise=0.0, start="independent", routing=Directed(bank=10, destinations=None)
)

# Threads that spin while they wait are slow on a machine that others use too.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is first imported


@dataclass(frozen=True)
class _Trial:
    """What trials of all models have."""

    kind: ClassVar[str]
    methods: ClassVar[tuple[type[BinaryMethod], ...]] = options.METHODS

    data: DataName = "digits"
    """What to learn: digits (no download), mnist or fashion-mnist; or some classes of one, by
    number or name: digits:3,8 or fashion-mnist:dress,coat."""
    training: Training = _NETWORK
    """How to train."""
    method: BinaryMethod = _DIRECTED
    """What moves the weights."""
    images: int | None = None
    """Training images, as many of each class; none is all."""
    subset_seed: int | None = None
    """Seed that draws these images; none is the seed of the trial."""
    validation: int | None = None
    """Hold out so many training images, and evaluate on them instead of the test images."""

    def __post_init__(self) -> None:
        split_name(self.data)
        checks.instance("training", self.training, Training, "Training(epochs=40)")
        options.check_method(self.method, self.methods)
        options.check_optimizer(self.training, self.method)
        checks.counts(self, "images", "validation", optional=True, most=options.MOST)
        if self.subset_seed is not None:
            checks.whole("subset_seed", self.subset_seed, 0)

    @property
    def covers(self) -> int:
        """M, where 1 is a plain model."""
        return getattr(self.method, "covers", 1)

    def architecture(self, data: Dataset) -> Architecture | BinaryArchitecture:
        """The model that is trained, without its weights."""
        raise NotImplementedError

    def dataset(self) -> Dataset:
        """The data set before images are held out or left out, its pixels normalized."""
        return _loaded(self.data)

    def images_of(self, seed: int) -> Dataset:
        """The images of the trial with this seed."""
        found = self.dataset()
        drawn = seed if self.subset_seed is None else self.subset_seed
        if self.validation is not None:
            found = holdout(found, self.validation, drawn)
        return found if self.images is None else subset(found, self.images, drawn)

    def prepare(self) -> None:
        """Refuses at once what no seed could do without: torch, a package, the data."""
        options.require("torch", "this trial trains a model and", "torch,data")
        if isinstance(self.method, SAM):
            options.require("pytorch_optimizer", "SAM", "rivals")
        self.dataset()

    def build(self, data: Dataset, seed: int) -> nn.Module:
        """The model with fresh weights, covered where the method acts on covers.

        Weights and lift have the seeds (seed, 0) and (seed, 1).
        """
        kind, method = self.architecture(data), self._moved_by
        base = kind.build([seed, 0])
        if not isinstance(method, options.ON_COVERS):
            return base
        covers: int | list[nn.Module] = method.covers
        if method.start == "independent":
            covers = [base, *(kind.build([seed, 0, other]) for other in range(1, method.covers))]
        how: tuple[Any, ...] = (mcover.Identity(),)  # replicas have no routes
        if isinstance(method, Lifted):
            how = method.topology, method.routing
        with warnings.catch_warnings():
            # The paper's noise, and ours for few images, are as meant: training starts here.
            warnings.filterwarnings("ignore", "noise=", McoverWarning)
            return mcover.lift(base, covers, *how, noise=method.noise, seed=[seed, 1])

    @property
    def _moved_by(self) -> BinaryMethod:
        """The method that acts: one routed cover is the model itself, and trains by SGD."""
        return SGD() if isinstance(self.method, Lifted) and self.covers == 1 else self.method

    def train(
        self,
        seed: int,
        progress: Callable[[Status], None] | None = None,
        data: Dataset | None = None,
        model: nn.Module | None = None,
        **log: Any,
    ) -> History:
        """The training with one seed; one that Ctrl-C ended is returned as far as it went.

        Batches have the seed (seed, 2). Images and model are those of the seed, unless others are
        given; the model is trained in place.
        ``log`` and ``tensorboard`` are those of :func:`fit`.
        """
        from mcover.lab.training.loop import fit

        data = data or self.images_of(seed)
        model, how = model or self.build(data, seed), self._moved_by
        return fit(model, data, self.training, how, seed=[seed, 2], progress=progress, **log)

    def run(self, seed: int) -> dict[str, float]:
        """Trains with one seed on one thread, and evaluates the collapse.

        Raises:
            KeyboardInterrupt: on Ctrl-C; a part of a trial is no outcome.
        """
        from mcover.lab.models import one_thread

        begin, data = time.process_time(), self.images_of(seed)
        with one_thread():
            found = outcome(self.train(seed, data=data), data)
        return found | {"core_seconds": round(time.process_time() - begin, 3)}


def outcome(history: History, data: Dataset) -> dict[str, float]:
    """The last evaluation in plain numbers, and the collapse on the training images."""
    from mcover.lab.training.objectives import objective_of

    if history.interrupted:
        raise KeyboardInterrupt
    objective = objective_of(history.model)
    images, labels = objective.tensors(data.train_images, data.train_labels)
    loss, wrong = objective.judge(history.model, images, labels, "collapse")
    found = {
        "error": float(history.collapse_error[-1]),
        "cover_error": float(history.cover_error[-1].mean()),
        "train_error": float(wrong[0]),
        "loss": float(loss[0]),
        "epochs": float(history.epoch[-1]),
        "gradients": float(history.gradients[-1]),
    }
    if history.routed_error is not None:
        found["routed_error"] = float(history.routed_error[-1].mean())
    return found


@dataclass(frozen=True)
class NetworkTrial(_Trial):
    """A network on images."""

    kind: ClassVar[str] = "network"

    method: Method = _DIRECTED
    """What moves the weights."""
    model: Model = "mlp"
    """Hidden layers of 512-512 units, the paper's; of 256-256; or convolutions of 16 and 32
    channels. For conv, a noise of 0.02 did better than the default 0.05 on held-out images."""
    dropout: float = 0.0
    """Share of hidden units that are dropped in training; of convolutions only before the last
    layer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.choice("model", self.model, get_args(Model))
        checks.numbers_of(self, "dropout", least=0, below=1)

    def architecture(self, data: Dataset) -> Architecture:
        from mcover.lab.models import Conv, Mlp

        if self.model == "conv":
            height, width = data.train_images.shape[1:]
            return Conv((height, width), classes=data.classes, dropout=self.dropout)
        hidden = 512 if self.model == "mlp" else 256
        return Mlp((data.inputs, hidden, hidden, data.classes), self.dropout)


@dataclass(frozen=True)
class CommitteeTrial(_Trial):
    """A committee machine on images of two classes, each made ±1 by its median."""

    kind: ClassVar[str] = "committee"

    data: DataName = "digits:3,8"
    """Two classes, by number or name: digits:3,8 or fashion-mnist:dress,coat."""
    training: Training = _COMMITTEE
    """How to train: as the paper says; its lr is not given, ours was chosen on held-out images."""
    method: Method = _ALL_DESTINATIONS
    """What moves the weights."""
    subset_seed: int | None = 0
    """Seed that draws the images; none is the seed of the trial."""
    hidden: int = 9
    """Hidden units K; an odd number has no ties."""
    schedule: Sharpening = SLOW
    """How β and γ grow."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.counts(self, "hidden", most=options.MOST)
        checks.instance("schedule", self.schedule, Sharpening, "Sharpening(beta=0.5)")
        if isinstance(getattr(self.method, "routing", None), Messages):
            raise McoverError("a committee machine routes weights; write routing=Directed(...).")

    def architecture(self, data: Dataset) -> Architecture:
        from mcover.lab.models import CommitteeModel

        return CommitteeModel(data.inputs, self.hidden, self.schedule)

    def dataset(self) -> Dataset:
        found = _loaded(self.data, median=True)
        if found.classes != 2:
            raise McoverError(
                f"a committee machine separates two classes, {found.name} has {found.classes}; "
                f"name two: {found.name.partition(':')[0]}:3,8."
            )
        return found


@dataclass(frozen=True)
class RepeatedTrial:
    """One trial trained several times on the same images, with weights and batches of its own.

    Either the model of least training loss counts, or all of them vote, which is no longer one
    model.
    """

    kind: ClassVar[str] = "repeated"

    trial: NetworkTrial
    times: int = 5
    answer: Literal["best", "vote"] = "best"

    def __post_init__(self) -> None:
        checks.instance("trial", self.trial, NetworkTrial, "a NetworkTrial()")
        checks.counts(self, "times", most=options.MOST)
        checks.choice("answer", self.answer, ("best", "vote"))

    def prepare(self) -> None:
        self.trial.prepare()

    def run(self, seed: int) -> dict[str, float]:
        """Like :meth:`NetworkTrial.run`; the first model is that of the trial itself."""
        import torch

        from mcover.lab.models import one_thread

        begin, data = time.process_time(), self.trial.images_of(seed)
        with one_thread():
            histories = []
            for number in range(self.times):
                histories.append(self.trial.train(seed + _FAR * number, data=data))
                if histories[-1].interrupted:
                    raise KeyboardInterrupt
            errors = [float(history.collapse_error[-1]) for history in histories]
            error = errors[int(np.argmin([history.train_loss[-1] for history in histories]))]
            if self.answer == "vote":
                images, labels = map(torch.from_numpy, (data.test_images, data.test_labels))
                with torch.no_grad():
                    answers = [one.model.eval()(images).softmax(dim=-1) for one in histories]
                guess = torch.stack(answers).mean(dim=0).argmax(dim=-1)
                error = float((guess != labels).double().mean())
        return {
            "error": error,
            "cover_error": float(np.mean(errors)),
            "epochs": float(histories[0].epoch[-1]),
            "gradients": float(sum(history.gradients[-1] for history in histories)),
            "core_seconds": round(time.process_time() - begin, 3),
        }


@lru_cache(maxsize=2)
def _loaded(name: str, median: bool = False) -> Dataset:
    """Loaded once for many trials."""
    return load(name, normalize=not median, binarize="median" if median else None)
