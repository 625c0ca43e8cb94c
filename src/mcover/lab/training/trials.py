"""Trials: a whole experiment but its seed as one frozen value, of a network or a committee machine.

Trials are paired: with the same seed, whatever the method, the images, the weights of the first
cover and the order of its batches are the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, get_args

import tyro

from mcover import checks
from mcover.errors import McoverError
from mcover.lab.data import Dataset, holdout, load, split_name, subset
from mcover.lab.training import options
from mcover.lab.training.options import SAM, SLOW, Lifted, Method, Sharpening, Training
from mcover.lifting import Directed, Messages

if TYPE_CHECKING:
    from mcover.lab.models import Architecture
    from mcover.lab.training.loop import History, Status

DataName = Annotated[str, tyro.conf.arg(metavar="{digits,mnist,fashion-mnist}[:CLASSES]")]
Pixels = Literal["normalized", "median"]
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

    data: DataName = "digits"
    """What to learn: digits (no download), mnist or fashion-mnist; or some classes of one, by
    number or name: digits:3,8 or fashion-mnist:dress,coat."""
    training: Training = _NETWORK
    """How to train."""
    method: Method = _DIRECTED
    """What moves the weights."""
    images: int | None = None
    """Training images, as many of each class; none is all."""
    subset_seed: int | None = None
    """Seed that draws these images; none is the seed of the trial."""
    validation: int | None = None
    """Hold out so many training images, and evaluate on them instead of the test images."""
    pixels: Pixels = "normalized"
    """Pixels of mean 0 and variance 1, or ±1 by the median of each image."""

    def __post_init__(self) -> None:
        split_name(self.data)
        checks.instance("training", self.training, Training, "Training(epochs=40)")
        options.check_method(self.method)
        checks.counts(self, "images", "validation", optional=True, most=options.MOST)
        if self.subset_seed is not None:
            checks.whole("subset_seed", self.subset_seed, 0)
        checks.choice("pixels", self.pixels, get_args(Pixels))

    @property
    def covers(self) -> int:
        """M, where 1 is a plain model."""
        return getattr(self.method, "covers", 1)

    def architecture(self, data: Dataset) -> Architecture:
        """The model that is trained, without its weights."""
        raise NotImplementedError

    def dataset(self) -> Dataset:
        """The data set before images are held out or left out."""
        return _loaded(self.data, self.pixels)

    def images_of(self, seed: int) -> Dataset:
        """The images of the trial with this seed."""
        found = self.dataset()
        drawn = seed if self.subset_seed is None else self.subset_seed
        if self.validation is not None:
            found = holdout(found, self.validation, drawn)
        return found if self.images is None else subset(found, self.images, drawn)

    def prepare(self) -> None:
        """Refuses at once what no seed could do without: torch, a package, the data."""
        require_torch("this trial trains a model")
        if isinstance(self.method, SAM):
            options.require("pytorch_optimizer", "SAM", "rivals")
        self.dataset()

    def train(self, seed: int, progress: Callable[[Status], None] | None = None) -> History:
        """The training with one seed; one that Ctrl-C ended is returned as far as it went."""
        from mcover.lab.training.running import train

        data = self.images_of(seed)
        kind = self.architecture(data)
        return train(kind, data, self.training, self.method, seed, progress)

    def run(self, seed: int) -> dict[str, float]:
        """Trains with one seed on one thread, and evaluates the collapse.

        Raises:
            KeyboardInterrupt: on Ctrl-C; a part of a trial is no outcome.
        """
        from mcover.lab.training.running import one_thread, outcome

        begin = time.process_time()
        with one_thread():
            found = outcome(self.train(seed), self.images_of(seed))
        return found | {"core_seconds": round(time.process_time() - begin, 3)}


@dataclass(frozen=True)
class NetworkTrial(_Trial):
    """A network on images."""

    kind: ClassVar[str] = "network"

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
        from mcover.lab.models import Conv, paper_mlp, small_mlp

        if self.model == "conv":
            height, width = data.train_images.shape[1:]
            return Conv((height, width), classes=data.classes, dropout=self.dropout)
        make = paper_mlp if self.model == "mlp" else small_mlp
        return make(data.inputs, data.classes, self.dropout)


@dataclass(frozen=True)
class CommitteeTrial(_Trial):
    """A committee machine on images of two classes, made ±1."""

    kind: ClassVar[str] = "committee"

    data: DataName = "digits:3,8"
    """Two classes, by number or name: digits:3,8 or fashion-mnist:dress,coat."""
    training: Training = _COMMITTEE
    """How to train: as the paper says; its lr is not given, ours was chosen on held-out images."""
    method: Method = _ALL_DESTINATIONS
    """What moves the weights."""
    subset_seed: int | None = 0
    """Seed that draws the images; none is the seed of the trial."""
    pixels: Pixels = "median"
    """Pixels of mean 0 and variance 1, or ±1 by the median of each image."""
    hidden: int = 9
    """Hidden units K; an odd number has no ties."""
    schedule: Sharpening = SLOW
    """How β and γ grow."""
    free_norms: bool = False
    """Let the norms of the rows go, instead of keeping them at √N."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.counts(self, "hidden", most=options.MOST)
        checks.instance("schedule", self.schedule, Sharpening, "Sharpening(beta=0.5)")
        checks.flags_of(self, "free_norms")
        if isinstance(getattr(self.method, "routing", None), Messages):
            raise McoverError("a committee machine routes weights; write routing=Directed(...).")

    def architecture(self, data: Dataset) -> Architecture:
        from mcover.lab.models import CommitteeModel

        return CommitteeModel(data.inputs, self.hidden, self.schedule, not self.free_norms)

    def dataset(self) -> Dataset:
        found = super().dataset()
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
        from mcover.lab.training.running import combined, one_thread, train

        begin, trial, data = time.process_time(), self.trial, self.trial.images_of(seed)
        one = partial(train, trial.architecture(data), data, trial.training, trial.method)
        seeds = range(seed, seed + _FAR * self.times, _FAR)
        with one_thread():
            found = combined(map(one, seeds), data, self.answer == "vote")
        return found | {"core_seconds": round(time.process_time() - begin, 3)}


def require_torch(why: str) -> None:
    """Says what to install where torch is missing."""
    options.require("torch", f"{why} and", "torch,data")


@lru_cache(maxsize=2)
def _loaded(name: str, pixels: Pixels) -> Dataset:
    """Loaded once for many trials."""
    median = pixels == "median"
    return load(name, normalize=not median, binarize="median" if median else None)
