"""An ordinary training loop, for plain modules and covered ones, for every method alike."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
import torch
from numpy.random import SeedSequence
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from mcover import checks
from mcover.errors import McoverError
from mcover.lab.data import Dataset
from mcover.lab.models import seeded
from mcover.lab.training.methods import Mover
from mcover.lab.training.objectives import objective_of
from mcover.lab.training.options import PLAIN, Method, Training, check_method
from mcover.seeds import Seed, seed_sequence

Stopped = Literal["epochs", "loss", "errors", "interrupt"]
Floats = NDArray[np.float64]

_PAPER = Training()
_SHOW_SECONDS = 0.1
_WHOLE_BYTES = 1 << 25  # up to here all images of a pass are put in order at once: faster


@dataclass(frozen=True)
class Status:
    """What a live line may show."""

    share: float
    epoch: int
    loss: float
    """Of the last gradient step, per cover."""
    collapse_error: float
    """When last evaluated; nan before."""


@dataclass(frozen=True, eq=False)
class History:
    """The course of a training; errors are shares of wrong labels of the test images.

    Shape:
        epoch, train_loss, collapse_error, seconds, gradients: (evaluations,); cover_error and
        routed_error: (evaluations, covers), where a plain module has one cover.
    """

    epoch: Floats
    """Epochs done at each evaluation; a fraction where training was interrupted."""
    train_loss: Floats
    """Mean loss per cover over the gradient steps since the previous evaluation."""
    cover_error: Floats
    """Of each cover by itself, as a model of the base class."""
    routed_error: Floats | None
    """Of the virtual models along the routes; None where the model is not covered, and for
    committee machines, whose hard output is defined for single machines only."""
    collapse_error: Floats
    """Of the collapse, of an average of weights, or of the plain module."""
    seconds: Floats
    """Spent in gradient steps and stopping rules, not in evaluations."""
    gradients: NDArray[np.int64]
    """Minibatch gradients of one model so far: a step of M covers takes M of them, times the
    destinations or streams of a forward; SAM takes twice as many."""
    stopped: Stopped
    """What ended it: the last epoch, the loss or the errors of the stopping rule, or Ctrl-C."""
    model: nn.Module = field(repr=False)
    """The collapse, the average of weights, or the plain module."""

    @property
    def interrupted(self) -> bool:
        return self.stopped == "interrupt"


def fit(
    model: nn.Module,
    data: Dataset,
    training: Training = _PAPER,
    method: Method = PLAIN,
    *,
    seed: Seed = 0,
    progress: Callable[[Status], None] | None = None,
) -> History:
    """Trains a module in place, as any training loop does, and follows it on the test images.

    A covered module is trained with :func:`mcover.cover_loss`; any other with the cross-entropy. A
    committee machine, or covers of one, bring their own loss and fast gradients. Ctrl-C ends the
    training and returns what was reached.

    Args:
        model: takes images (B, height, width), returns logits (B, classes) or (covers, B, classes).
        data: what to train and to evaluate on.
        training: epochs, batches, learning rate and stopping rule.
        method: what moves the weights. RSGD and Elastic, and Lifted, act on a covered model, along
            the routes it was lifted with; SGD() trains either.
        seed: orders the images, and draws dropout and noise.
        progress: called now and then.
    """
    checks.instance("model", model, nn.Module, "a torch.nn.Module")
    checks.instance("data", data, Dataset, "a data set, e.g. mcover.lab.data.load('digits')")
    checks.instance("training", training, Training, "Training(epochs=40)")
    loop = _Loop(model, data, training, check_method(method), seed, progress)
    with seeded(loop.torch_seed, loop.device):
        try:
            loop.run()
        except KeyboardInterrupt:
            loop.stopped = "interrupt"
            if loop.steps_since:
                loop.evaluate()
    return loop.history()


class _Loop:
    """The state of a training between its gradient steps."""

    def __init__(
        self,
        model: nn.Module,
        data: Dataset,
        training: Training,
        method: Method,
        seed: Seed,
        progress: Callable[[Status], None] | None,
    ) -> None:
        self.parameters = [one for one in model.parameters() if one.requires_grad]
        if not self.parameters:
            raise McoverError("the model has no parameters to train; set requires_grad on some.")
        if not len(data.train_labels) or not len(data.test_labels):
            raise McoverError(f"{data.name} has no training or no test images; give some of each.")
        self.model, self.training, self.progress = model, training, progress
        self.objective = objective_of(model)
        self.device = self.parameters[0].device
        self.images, self.labels = self.objective.tensors(data.train_images, data.train_labels)
        self.test = self.objective.tensors(data.test_images, data.test_labels)
        self.torch_seed, order, noise, walk = seed_sequence(seed).spawn(4)
        self.noise = _generator(noise, self.device)
        self.total = training.epochs * -(-len(self.labels) // training.batch)
        self.mover = Mover(model, training, method, self.total, walk)
        each = self.objective.covers if self.mover.each else None
        self.batches = Batches(self.images, self.labels, training.batch, order, each)
        self.stopped: Stopped = "epochs"
        self.epochs = self.gradients = self.steps_since = 0
        self.loss = torch.zeros((), device=self.device)
        self.seconds = 0.0
        self.rows: list[dict[str, Any]] = []
        self.single = model
        self._shown = time.monotonic()

    def run(self) -> None:
        self.model.train()
        every, over = self.training.evaluate_every, False
        while not over:
            begin = time.perf_counter()
            self.show(self.step())
            before, self.epochs = self.epochs, self.batches.taken // self.batches.length
            if self.epochs > before:
                self.mover.end_epoch(self.epochs)
                over = self.over()
            over = over or self.batches.taken >= self.total
            self.seconds += time.perf_counter() - begin
            if over or self.epochs // every > before // every:
                self.evaluate()

    def step(self) -> Tensor:
        """One step of the method; returns the loss per cover."""
        loss = self.mover.step(self.fresh, self.again)
        self.objective.settle()
        self.loss += loss
        self.steps_since += 1
        return loss

    def fresh(self) -> Tensor:
        """Gradients on the next batch."""
        if self.batches.taken % self.batches.length == 0:
            self.objective.begin(self.batches.taken // self.batches.length)
        self.batches.next()
        return self.again()

    def again(self) -> Tensor:
        """Gradients on the same batch."""
        with _noisy(self.parameters, self.training.weight_noise, self.noise):
            loss = self.objective.gradient(*self.batches.now, self.mover.each)
        self.gradients += self.objective.width
        return loss

    def over(self) -> bool:
        """Whether the stopping rule is met."""
        rule = self.training
        if (rule.stop_loss is None and rule.stop_error is None) or not self.mover.ready:
            return False
        with self.mover.source() as source:
            losses, wrong = self.objective.judge(source, self.images, self.labels, rule.judge)
        if rule.stop_loss is not None and losses.max() < rule.stop_loss:
            self.stopped = "loss"
        elif rule.stop_error is not None and wrong.max() <= rule.stop_error:
            self.stopped = "errors"
        return self.stopped != "epochs"

    def evaluate(self) -> None:
        loss = float(self.loss) / self.steps_since
        if not np.isfinite(loss):
            raise McoverError(
                f"training diverged: the loss is {loss} after {self.batches.passes:.4g} epochs; "
                f"write a smaller lr (it is {self.training.lr}) or less noise."
            )
        self.single = self.collapsed()
        judge = self.objective.judge
        self.rows.append(
            {
                "epoch": self.batches.passes,
                "train_loss": loss,
                "cover_error": judge(self.model, *self.test, "covers")[1],
                "routed_error": self.objective.routed_errors(self.model, *self.test),
                "collapse_error": judge(self.single, *self.test, "covers")[1][0],
                "seconds": self.seconds,
                "gradients": self.gradients,
            }
        )
        self.loss.zero_()
        self.steps_since = 0

    def collapsed(self) -> nn.Module:
        """The collapse of the covers, an average of weights, or the module itself."""
        with self.mover.source() as source:
            if source is self.model:
                return self.objective.collapse(source)
            source = copy.deepcopy(source)
        update_bn(self.images.split(self.training.batch), source)
        return self.objective.collapse(source)

    def show(self, loss: Tensor) -> None:
        now = time.monotonic()
        if self.progress is None or now - self._shown < _SHOW_SECONDS:
            return
        self._shown = now
        done, error = self.batches.taken, self.rows[-1]["collapse_error"] if self.rows else np.nan
        epoch = -(-done // self.batches.length)
        self.progress(Status(min(done / self.total, 1.0), epoch, float(loss), error))

    def history(self) -> History:
        names = [one.name for one in fields(History) if one.name not in ("stopped", "model")]
        columns: dict[str, Any] = {
            name: np.array([row[name] for row in self.rows]) for name in names
        }
        if columns["routed_error"].dtype == object:  # of None
            columns["routed_error"] = None
        return History(**columns, stopped=self.stopped, model=self.single)


def _generator(seed: SeedSequence, device: torch.device | str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(int(seed.generate_state(1)[0]))


class Batches:
    """The training images in minibatches, endlessly, in an order drawn anew for every pass.

    All covers share them, or each has its own; the first cover's order is then that of a plain
    training with the same seed.

    Attributes:
        taken: batches so far.
        length: batches in a pass.
    """

    def __init__(
        self, images: Tensor, labels: Tensor, size: int, seed: SeedSequence, each: int | None
    ) -> None:
        self.images, self.labels, self.size, self.each = images, labels, size, each
        seeds = [seed, *(seed.spawn(each - 1) if each else ())]
        self._orders = [_generator(one) for one in seeds]
        self.taken = 0
        self.length = -(-len(labels) // size)
        self._whole = (each or 1) * images.nbytes <= _WHOLE_BYTES
        self.now: tuple[Tensor, Tensor] = images[:0], labels[:0]

    @property
    def passes(self) -> float:
        """Passes over the images so far."""
        return self.taken / self.length

    def next(self) -> tuple[Tensor, Tensor]:
        """Images (B, ...) and labels (B,), with covers first where each has its own."""
        number = self.taken % self.length
        if not number:
            drawn = [torch.randperm(len(self.labels), generator=one) for one in self._orders]
            self._order = torch.stack(drawn) if self.each else drawn[0]
            if self._whole:
                self._pass = self.images[self._order], self.labels[self._order]
        span = slice(number * self.size, (number + 1) * self.size)
        if self._whole:
            cut = (slice(None), span) if self.each else (span,)
            self.now = self._pass[0][cut], self._pass[1][cut]
        else:
            chosen = self._order[..., span]
            self.now = self.images[chosen], self.labels[chosen]
        self.taken += 1
        return self.now


@contextmanager
def _noisy(parameters: list[nn.Parameter], scale: float, rng: torch.Generator) -> Iterator[None]:
    """Inside, all parameters carry Gaussian noise; outside, they are what they were, bit by bit."""
    if not scale:
        yield
        return
    kept = [one.detach().clone() for one in parameters]
    with torch.no_grad():
        for one in parameters:
            noise = torch.randn(one.shape, generator=rng, device=one.device, dtype=one.dtype)
            one.add_(noise, alpha=scale)
    try:
        yield
    finally:
        with torch.no_grad():
            for one, before in zip(parameters, kept, strict=True):
                one.copy_(before)
