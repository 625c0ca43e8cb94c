"""Trials: a whole experiment but its seed as one frozen value, of a network or a committee machine.

Trials are paired: with the same seed, whatever the method, the images, the weights of the first
cover and the order of its batches are the same.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

import numpy as np
import tyro

import mcover
from mcover import checks
from mcover.errors import McoverError, McoverWarning
from mcover.lifting import Directed, Messages
from reproduction.data import Dataset, holdout, load, mislabel, pooled, split_name, subset
from reproduction.training import options
from reproduction.training.options import (
    SAM,
    SGD,
    SLOW,
    BinaryMethod,
    Lifted,
    Method,
    Sharpening,
    Training,
)

if TYPE_CHECKING:
    from torch import nn

    from reproduction.binary_models import BinaryArchitecture
    from reproduction.models import Architecture
    from reproduction.training.loop import History, Status

DataName = Annotated[str, tyro.conf.arg(metavar="{digits,mnist,fashion-mnist}[:CLASSES]")]
Model = Literal["mlp", "small-mlp", "tiny-mlp", "conv", "small-conv", "transformer"]
_HIDDEN = {"mlp": 512, "small-mlp": 256, "tiny-mlp": 128}
_CHANNELS = {"conv": (16, 32), "small-conv": (8, 16)}
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
    label_noise: float = 0.0
    """Share of the training labels that name another class, any with the same chance. Labels of
    held-out images are as noisy, those of test images are right."""

    def __post_init__(self) -> None:
        split_name(self.data)
        checks.check_instance("training", self.training, Training, "Training(epochs=40)")
        options.check_method(self.method, self.methods)
        options.check_optimizer(self.training, self.method)
        checks.check_count_fields(self, "images", "validation", optional=True, most=options.MOST)
        checks.check_float_fields(self, "label_noise", least=0, below=1)
        if self.subset_seed is not None:
            checks.check_int("subset_seed", self.subset_seed, 0)

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
        found = found if self.images is None else subset(found, self.images, drawn)
        if not self.label_noise:
            return found
        return mislabel(found, self.label_noise, drawn, both=self.validation is not None)

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
        from reproduction.training.loop import fit

        data = data or self.images_of(seed)
        model, how = model or self.build(data, seed), self._moved_by
        return fit(model, data, self.training, how, seed=[seed, 2], progress=progress, **log)

    def run(self, seed: int) -> dict[str, float]:
        """Trains with one seed on one thread, and evaluates the collapse.

        Raises:
            KeyboardInterrupt: on Ctrl-C; a part of a trial is no outcome.
        """
        from reproduction.models import one_thread

        begin, data = time.process_time(), self.images_of(seed)
        with one_thread():
            found = outcome(self.train(seed, data=data), data)
        return found | {"core_seconds": round(time.process_time() - begin, 3)}


def outcome(history: History, data: Dataset) -> dict[str, float]:
    """The last evaluation in plain numbers, and the collapse on the training images."""
    from reproduction.training.objectives import objective_of

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
    if history.distance is not None:
        found["distance"] = float(history.distance[-1])
    return found


@dataclass(frozen=True)
class NetworkTrial(_Trial):
    """A network on images."""

    kind: ClassVar[str] = "network"

    method: Method = _DIRECTED
    """What moves the weights."""
    model: Model = "mlp"
    """Hidden layers of 512-512 units, the paper's, of 256-256 or of 128-128; convolutions of 16
    and 32 or of 8 and 16 channels; or a transformer of width 32 that reads the rows of an image.
    For conv, a noise of 0.02 did better than the default 0.05 on held-out images."""
    dropout: float = 0.0
    """Share of hidden units that are dropped in training; of convolutions only before the last
    layer."""
    pool: int = 1
    """Make each image smaller: a pixel is the mean of a square of so many by so many."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_choice("model", self.model, get_args(Model))
        checks.check_float_fields(self, "dropout", least=0, below=1)
        checks.check_count_fields(self, "pool")

    def dataset(self) -> Dataset:
        return _loaded(self.data, pool=self.pool)

    def architecture(self, data: Dataset) -> Architecture:
        from reproduction.models import Conv, Mlp, Transformer

        height, width = data.train_images.shape[1:]
        if self.model in _CHANNELS:
            return Conv((height, width), _CHANNELS[self.model], data.classes, self.dropout)
        if self.model == "transformer":
            return Transformer((height, width), classes=data.classes, dropout=self.dropout)
        hidden = _HIDDEN[self.model]
        return Mlp((data.inputs, hidden, hidden, data.classes), self.dropout)


@dataclass(frozen=True)
class CoverTrial(NetworkTrial):
    """The same training, of which single covers count and not the collapse: routes alone."""

    kind: ClassVar[str] = "cover"

    def run(self, seed: int) -> dict[str, float]:
        """Like :meth:`NetworkTrial.run`, but the error is the mean error of the covers."""
        found = super().run(seed)
        return found | {"error": found["cover_error"], "collapse_error": found["error"]}


@dataclass(frozen=True)
class DistilledTrial(NetworkTrial):
    """An ensemble distilled into one network: the members train, then a student of their answers.

    Members and student train for all epochs each, by the same method. The student has the first
    weights and the order of images of a network trial with the same seed.
    """

    kind: ClassVar[str] = "distilled"

    method: Method = options.PLAIN
    """What moves the weights of members and student."""
    members: int = 4
    """Networks of the ensemble, each with weights and batches of its own."""
    temperature: float = 2.0
    """What logits are divided by in the student's loss."""
    weight: float = 0.9
    """Share of the members' answers in that loss; the rest is the labels'."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_count_fields(self, "members", most=1000)
        checks.check_float_fields(self, "temperature", above=0)
        checks.check_float_fields(self, "weight", least=0, most=1)
        if isinstance(self.method, options.ON_COVERS):
            raise McoverError("members and student are plain networks; write method=SGD().")

    def train(
        self,
        seed: int,
        progress: Callable[[Status], None] | None = None,
        data: Dataset | None = None,
        model: nn.Module | None = None,
        **log: Any,
    ) -> History:
        """The student's training; gradients are those of the members too."""
        from reproduction.training.loop import fit
        from reproduction.training.objectives import DistillingObjective

        data = data or self.images_of(seed)
        teachers = []
        for number in range(1, self.members + 1):
            teachers.append(super().train(seed + _FAR * number, progress, data))
            if teachers[-1].interrupted:
                return teachers[-1]
        student = model or self.build(data, seed)
        models = [teacher.model for teacher in teachers]
        objective = DistillingObjective(student, models, self.temperature, self.weight)
        given = {"progress": progress, "objective": objective} | log
        history = fit(student, data, self.training, self.method, seed=[seed, 2], **given)
        spent = sum(int(teacher.gradients[-1]) for teacher in teachers)
        return replace(history, gradients=history.gradients + spent)


@dataclass(frozen=True)
class CommitteeTrial(_Trial):
    """A committee machine on images of two classes, each made ±1 by its median."""

    kind: ClassVar[str] = "committee"

    data: DataName = "digits:3,8"
    """Two classes, by number or name: digits:3,8 or fashion-mnist:dress,coat."""
    training: Training = _COMMITTEE
    """How to train: as the paper says; its lr is not given, ours was chosen on held-out images. The
    unit of lr is that of rows of norm √N, so it is N times the lr of rows of norm 1 that move
    alike: 10 here is 10/784 = 0.0128 there."""
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
        checks.check_count_fields(self, "hidden", most=options.MOST)
        checks.check_instance("schedule", self.schedule, Sharpening, "Sharpening(beta=0.5)")
        if isinstance(getattr(self.method, "routing", None), Messages):
            raise McoverError("a committee machine routes weights; write routing=Directed(...).")

    def architecture(self, data: Dataset) -> Architecture:
        from reproduction.models import CommitteeModel

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
        checks.check_instance("trial", self.trial, NetworkTrial, "a NetworkTrial()")
        checks.check_count_fields(self, "times", most=options.MOST)
        checks.check_choice("answer", self.answer, ("best", "vote"))

    def prepare(self) -> None:
        self.trial.prepare()

    def run(self, seed: int) -> dict[str, float]:
        """Like :meth:`NetworkTrial.run`; the first model is that of the trial itself."""
        import torch

        from reproduction.models import one_thread

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
def _loaded(name: str, median: bool = False, pool: int = 1) -> Dataset:
    """Loaded once for many trials."""
    found = load(name, normalize=not median, binarize="median" if median else None)
    return found if pool == 1 else pooled(found, pool)
