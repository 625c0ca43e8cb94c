"""An ordinary training loop, for plain modules and covered ones, for every method alike."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from mcover.errors import McoverError
from mcover.lab.data import Dataset
from mcover.lab.models import seeded
from mcover.lab.training.batches import Batches
from mcover.lab.training.history import History, Status, Stopped
from mcover.lab.training.methods import METHODS
from mcover.lab.training.objective_of import objective_of
from mcover.lab.training.objectives import covers_of, errors
from mcover.lab.training.settings import Training
from mcover.seeds import Seed, seed_sequence

__all__ = ["errors", "fit"]

_SHOW_SECONDS = 0.1


def fit(
    model: nn.Module,
    dataset: Dataset,
    settings: Training | None = None,
    *,
    seed: Seed = 0,
    progress: Callable[[Status], None] | None = None,
) -> History:
    """Trains a module in place, as any training loop does, and follows it on the test images.

    A covered module (one with a ``collapse`` method, whose output has the covers in front) is
    trained with :func:`mcover.cover_loss`; any other with the cross-entropy. A committee machine,
    or covers of one, bring their own loss and fast gradients. Ctrl-C ends the training and returns
    what was reached.

    Args:
        model: takes images (B, height, width), returns logits (B, classes) or (covers, B, classes).
        dataset: what to train and to test on.
        settings: how; plain SGD with the paper's numbers by default.
        seed: orders the images, and draws dropout and noise.
        progress: called now and then.
    """
    loop = _Loop(model, dataset, settings or Training(), seed, progress)
    with seeded(loop.torch_seed, loop.device):
        try:
            loop.run()
        except KeyboardInterrupt:
            loop.stopped = "interrupt"
            if loop.steps_since:
                loop.evaluate()
    return loop.history()


class _Loop:
    """The state of a training between its steps."""

    def __init__(
        self,
        model: nn.Module,
        dataset: Dataset,
        settings: Training,
        seed: Seed,
        progress: Callable[[Status], None] | None,
    ) -> None:
        parameters = [one for one in model.parameters() if one.requires_grad]
        if not parameters:
            raise McoverError("the model has no parameters to train; set requires_grad on some.")
        self.model, self.settings, self.progress = model, settings, progress
        self.objective = objective = objective_of(model)
        like, self.device = parameters[0], parameters[0].device
        self.images = objective.images(dataset.train_images, like)
        self.labels = objective.labels(dataset.train_labels, like)
        self.test_images = objective.images(dataset.test_images, like)
        self.test_labels = objective.labels(dataset.test_labels, like)
        self.torch_seed, order, noise, method = seed_sequence(seed).spawn(4)
        self.noise = torch.Generator(self.device).manual_seed(int(noise.generate_state(1)[0]))
        self.parameters = parameters
        kind = METHODS[settings.method]
        each = covers_of(model) if kind.each else None
        self.batches = Batches(self.images, self.labels, settings.batch, order, each)
        self.total = settings.epochs * self.batches.length
        self.method = kind(model, settings, self.total, method)
        self.stopped: Stopped = "epochs"
        self.epochs = self.evaluated = self.gradients = self.steps_since = 0
        self.loss = torch.zeros((), device=self.device)
        self.seconds = 0.0
        self.rows: list[tuple[float, float, NDArray[np.float64], float, float, int]] = []
        self.single = model
        self._shown = time.monotonic()

    def run(self) -> None:
        self.model.train()
        while self.batches.taken < self.total:
            begin = time.perf_counter()
            loss = self.step()
            self.show(loss)
            epochs = self.batches.taken // self.batches.length
            over = False
            if epochs > self.epochs:
                self.epochs = epochs
                self.method.end_epoch(epochs)
                over = self.over()
            self.seconds += time.perf_counter() - begin
            last = over or self.batches.taken >= self.total
            if last or epochs // self.settings.evaluate_every > self.evaluated:
                self.evaluated = epochs // self.settings.evaluate_every
                self.evaluate()
            if over:
                return

    def step(self) -> Tensor:
        """One step of the method; returns the loss per cover."""
        loss = self.method.step(self.fresh, self.again)
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
        """Gradients on the batch of before."""
        with _noisy(self.parameters, self.settings.weight_noise, self.noise):
            loss = self.objective.gradient(*self.batches.now, self.method.each)
        self.gradients += self.objective.width
        return loss

    def over(self) -> bool:
        """Whether the stopping rule is met."""
        rule = self.settings
        if not rule.stops or not self.method.ready:
            return False
        with self.method.source() as source:
            losses, wrong = self.objective.judge(source, self.images, self.labels, rule.judge)
        if rule.stop_loss is not None and losses.max() < rule.stop_loss:
            self.stopped = "loss"
        elif rule.stop_error is not None and wrong.max() <= rule.stop_error:
            self.stopped = "errors"
        return self.stopped != "epochs"

    def evaluate(self) -> None:
        loss = float(self.loss) / self.steps_since
        done = self.batches.passes
        if not np.isfinite(loss):
            raise McoverError(
                f"training diverged: the loss is {loss} after {done:.4g} epochs; write a smaller "
                f"lr (it is {self.settings.lr}) or less noise."
            )
        self.single = self.one_model()
        covers = self.objective.errors(self.model, self.test_images, self.test_labels)
        collapse = self.objective.errors(self.single, self.test_images, self.test_labels)
        self.rows.append((done, loss, covers, float(collapse[0]), self.seconds, self.gradients))
        self.loss.zero_()
        self.steps_since = 0

    def one_model(self) -> nn.Module:
        """The collapse of the covers, an average of weights, or the module itself."""
        with self.method.source() as source:
            if source is self.model:
                return self.objective.collapse(source)
            source = copy.deepcopy(source)
        if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in source.modules()):
            update_bn(self.images.split(self.settings.batch), source)
        return self.objective.collapse(source)

    def show(self, loss: Tensor) -> None:
        now = time.monotonic()
        if self.progress is None or now - self._shown < _SHOW_SECONDS:
            return
        self._shown = now
        last = self.rows[-1] if self.rows else None
        cover, collapse = (float(last[2].mean()), last[3]) if last else (np.nan, np.nan)
        done = self.batches.taken
        share, epoch = min(done / self.total, 1.0), -(-done // self.batches.length)
        self.progress(Status(share, epoch, float(loss), cover, collapse))

    def history(self) -> History:
        columns: Sequence[tuple[object, ...]] = list(zip(*self.rows, strict=True)) or [()] * 6
        epoch, loss, covers, collapse, seconds, gradients = map(np.array, columns)
        return History(epoch, loss, covers, collapse, seconds, gradients, self.stopped, self.single)


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
