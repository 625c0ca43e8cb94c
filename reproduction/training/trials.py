"""Trials of networks and committees: a frozen value holds an experiment except its seed.

Trials are paired: for equal seeds, all methods have the same images, the same weights of the first
cover and the same order of its batches.
"""

from __future__ import annotations

import os
import time
import warnings
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

import mcover
from mcover import Directed, McoverError, Messages
from mcover.errors import McoverWarning
from reproduction.checks import check_choice, check_counts, check_numbers, check_type
from reproduction.data import Dataset, holdout, load, mislabel, pooled, split_name, subset
from reproduction.training import options
from reproduction.training.options import (
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
    from reproduction.training.loop import History

Model = Literal["mlp", "small-mlp", "tiny-mlp", "conv", "small-conv", "transformer"]
_HIDDEN = {"mlp": 512, "small-mlp": 256, "tiny-mlp": 128}
_CHANNELS = {"conv": (16, 32), "small-conv": (8, 16)}
_FAR = 100_000  # step between the seeds of repeated trainings, larger than the seed of any trial

_NETWORK = Training()
_COMMITTEE = Training(
    20_000, batch=100, lr=10.0, momentum=0.0, evaluate_every=50, stop_loss=1e-7, stop_error=0.0
)
_DIRECTED = Lifted(noise=0.05, redraw_each_epoch=True)
_ALL_DESTINATIONS = Lifted(
    noise=0.0,
    start="independent",
    routing=Directed(bank=10, destinations=None, redraw_every=None),
)

# OpenMP threads that spin while they wait slow down other processes of the machine. The variable
# is read when torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@dataclass(frozen=True)
class ModelTrial:
    """Fields and steps of all trials that train a model on images."""

    kind: ClassVar[str]
    revision: ClassVar[int]
    """Revision of the code that computes the outcomes; add 1 if a change alters them."""
    methods: ClassVar[object] = Method

    data: str = "digits"
    """Data set: digits (no download), mnist or fashion-mnist; or some of its classes, by number or
    name: digits:3,8 or fashion-mnist:dress,coat."""
    training: Training = _NETWORK
    """How to train."""
    method: BinaryMethod = _DIRECTED
    """How weights are updated."""
    images: int | None = None
    """Number of training images, balanced over classes; None for all."""
    subset_seed: int | None = None
    """Seed that draws these images; None for the seed of the trial."""
    validation: int | None = None
    """Number of training images to hold out and evaluate on, instead of the test images."""
    label_noise: float = 0.0
    """Share of the training labels that are replaced by random other classes. Labels of held-out
    images have the same noise; test labels have none."""

    def __post_init__(self) -> None:
        split_name(self.data)
        check_type("training", self.training, Training, "Training(epochs=40)")
        options.check_method(self.training, self.method, self.methods)
        check_counts(self, "images", "validation", optional=True)
        check_counts(self, "subset_seed", optional=True, least=0)
        check_numbers(self, "label_noise", least=0, below=1)

    @property
    def covers(self) -> int:
        """M; 1 for a plain model."""
        return getattr(self.method, "covers", 1)

    def architecture(self, data: Dataset) -> Architecture | BinaryArchitecture:
        """The model to train, before its weights are drawn."""
        raise NotImplementedError

    def dataset(self) -> Dataset:
        """The normalized data set, before images are held out or left out."""
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
        """Loads the data once before any seed runs, so that missing data raise an error early."""
        self.dataset()

    def build(self, data: Dataset, seed: int) -> nn.Module:
        """A new model, covered if the method needs covers.

        Weights and lift use the seeds (seed, 0) and (seed, 1).
        """
        kind, method = self.architecture(data), self._effective_method
        base = kind.build([seed, 0])
        if not isinstance(method, options.ON_COVERS):
            return base
        covers: int | list[nn.Module] = method.covers
        if method.start == "independent":
            covers = [base, *(kind.build([seed, 0, other]) for other in range(1, method.covers))]
        how: tuple[Any, ...] = (mcover.Identity(), "messages")  # replicas have no routes
        if isinstance(method, Lifted):
            how = method.topology, method.routing
        with warnings.catch_warnings():
            # lift warns about noise far from its default, which these trials use intentionally.
            warnings.filterwarnings("ignore", "noise=", McoverWarning)
            return mcover.lift(base, covers, *how, noise=method.noise, seed=[seed, 1])

    @property
    def _effective_method(self) -> BinaryMethod:
        """SGD instead of a lift with one cover, which is the model itself."""
        return SGD() if isinstance(self.method, Lifted) and self.covers == 1 else self.method

    def train(
        self, seed: int, data: Dataset | None = None, model: nn.Module | None = None
    ) -> History:
        """The training with one seed; batches use the seed (seed, 2).

        Unless given, images and model are those of the seed; the model is trained in place.
        """
        from reproduction.training.loop import fit

        data = data or self.images_of(seed)
        model = model or self.build(data, seed)
        return fit(model, data, self.training, self._effective_method, seed=[seed, 2])

    def run(self, seed: int) -> dict[str, float]:
        """Trains with one seed on one thread, and evaluates the collapse."""
        from reproduction.models import one_thread

        begin, data = time.process_time(), self.images_of(seed)
        with one_thread():
            found = outcome(self.train(seed, data), data)
        return found | {"core_seconds": round(time.process_time() - begin, 3)}


def outcome(history: History, data: Dataset) -> dict[str, float]:
    """The last evaluation in plain numbers, and the collapse on the training images."""
    from reproduction.training.objectives import objective_of

    objective = objective_of(history.model)
    images, labels = objective.tensors(data.train_images, data.train_labels)
    loss, wrong = objective.evaluate(history.model, images, labels, "collapse")
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
class NetworkTrial(ModelTrial):
    """A network on images."""

    kind: ClassVar[str] = "network"
    # 2: reruns of older rows of lifts and replicas differ, some only in the last digits.
    revision: ClassVar[int] = 2

    method: Method = _DIRECTED
    """How weights are updated."""
    model: Model = "mlp"
    """MLP with two hidden layers of 512 (the paper's), 256 or 128 units; convolutions with 16 and
    32 or 8 and 16 channels; or a transformer of width 32 that reads the rows of an image. For conv,
    a noise of 0.02 was better than the default 0.05 on held-out images."""
    dropout: float = 0.0
    """Share of hidden units dropped in training; in convolutional networks only before the last
    layer."""
    pool: int = 1
    """First average each image over squares of this side."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("model", self.model, get_args(Model))
        check_numbers(self, "dropout", least=0, below=1)
        check_counts(self, "pool")

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
    """The same training, evaluated on single covers instead of the collapse."""

    kind: ClassVar[str] = "cover"
    # 2: like NetworkTrial.
    revision: ClassVar[int] = 2

    def run(self, seed: int) -> dict[str, float]:
        """Like :meth:`NetworkTrial.run`, but the error is the mean error of the covers."""
        found = super().run(seed)
        return found | {"error": found["cover_error"], "collapse_error": found["error"]}


@dataclass(frozen=True)
class DistilledTrial(NetworkTrial):
    """An ensemble distilled into one network: first members train, then a student of their logits.

    Members and student each train for all epochs, with the same method. The student has the
    initial weights and the order of images of a network trial with the same seed.
    """

    kind: ClassVar[str] = "distilled"
    # 2: like NetworkTrial.
    revision: ClassVar[int] = 2

    method: Method = options.PLAIN
    """How weights of members and student are updated."""
    members: int = 4
    """Number of networks in the ensemble, each with its own weights and batches."""
    temperature: float = 2.0
    """Divisor of the logits in the student's loss."""
    weight: float = 0.9
    """Weight of the members' predictions in that loss; the labels have the rest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "members")
        check_numbers(self, "temperature", above=0)
        check_numbers(self, "weight", least=0, most=1)
        if isinstance(self.method, options.ON_COVERS):
            raise McoverError("members and student are plain networks; write method=SGD().")

    def train(
        self, seed: int, data: Dataset | None = None, model: nn.Module | None = None
    ) -> History:
        """The student's training; gradients include those of the members."""
        from reproduction.training.loop import fit
        from reproduction.training.objectives import DistillingObjective

        data = data or self.images_of(seed)
        seeds = [seed + _FAR * number for number in range(1, self.members + 1)]
        teachers = [super(DistilledTrial, self).train(one, data) for one in seeds]
        student = model or self.build(data, seed)
        models = [teacher.model for teacher in teachers]
        objective = DistillingObjective(student, models, self.temperature, self.weight)
        how = self.training, self.method
        history = fit(student, data, *how, seed=[seed, 2], objective=objective)
        spent = sum(int(teacher.gradients[-1]) for teacher in teachers)
        return replace(history, gradients=history.gradients + spent)


@dataclass(frozen=True)
class CommitteeTrial(ModelTrial):
    """A committee machine on images of two classes, each image binarized by its median."""

    kind: ClassVar[str] = "committee"
    # 2: reruns of older rows of lifts differ, those of SGD and rSGD are equal.
    revision: ClassVar[int] = 2

    data: str = "digits:3,8"
    """Two classes, by number or name: digits:3,8 or fashion-mnist:dress,coat."""
    training: Training = _COMMITTEE
    """How to train: as in the paper, except lr, which it does not state; we chose lr on held-out
    images. Rows have norm √N, so lr corresponds to lr/N for rows of norm 1, e.g. 10 to 10/784 =
    0.0128."""
    method: Method = _ALL_DESTINATIONS
    """How weights are updated."""
    subset_seed: int | None = 0
    """Seed that draws the images; None is the seed of the trial."""
    hidden: int = 9
    """Hidden units K; an odd number has no ties."""
    schedule: Sharpening = SLOW
    """How β and γ grow."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "hidden")
        check_type("schedule", self.schedule, Sharpening, "Sharpening(beta=0.5)")
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
    """One trial trained several times on the same images, each with its own weights and batches.

    The outcome is the model of least training loss, or the vote of all, which is not one model.
    """

    kind: ClassVar[str] = "repeated"
    # 2: like NetworkTrial.
    revision: ClassVar[int] = 2

    trial: NetworkTrial
    times: int = 5
    answer: Literal["best", "vote"] = "best"

    def __post_init__(self) -> None:
        check_type("trial", self.trial, NetworkTrial, "a NetworkTrial()")
        check_counts(self, "times")
        check_choice("answer", self.answer, ("best", "vote"))

    def prepare(self) -> None:
        self.trial.prepare()

    def run(self, seed: int) -> dict[str, float]:
        """Like :meth:`NetworkTrial.run`; the first model is that of the trial itself."""
        import torch

        from reproduction.models import one_thread

        begin, data = time.process_time(), self.trial.images_of(seed)
        with one_thread():
            histories = [self.trial.train(seed + _FAR * n, data) for n in range(self.times)]
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


@lru_cache(maxsize=2)  # consecutive trials usually share a data set
def _loaded(name: str, median: bool = False, pool: int = 1) -> Dataset:
    found = load(name, normalize=not median, binarize="median" if median else None)
    return found if pool == 1 else pooled(found, pool)
