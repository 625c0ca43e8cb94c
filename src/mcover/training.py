"""An ordinary training loop, for a plain module and for a covered one alike."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, update_bn

from mcover.data import Dataset
from mcover.errors import McoverError
from mcover.history import History, Status
from mcover.models import seeded
from mcover.seeds import Seed, seed_sequence
from mcover.training_settings import Training

_TEST_BATCH = 2000
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
    trained with :func:`mcover.cover_loss`; any other with the cross-entropy. Ctrl-C ends the
    training and returns what was reached.

    Args:
        model: takes images (B, height, width), returns logits (B, classes) or (covers, B, classes).
        dataset: what to train and to test on.
        settings: how; the paper's by default.
        seed: orders the images, and draws dropout and weight noise.
        progress: called now and then.
    """
    loop = _Loop(model, dataset, settings or Training(), seed, progress)
    with seeded(loop.torch_seed, loop.device):
        try:
            loop.run()
        except KeyboardInterrupt:
            loop.interrupted = True
            if loop.steps_since:
                loop.evaluate()
    return loop.history()


def errors(model: nn.Module, images: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """Share of wrong labels, shape (covers,), or (1,) for a plain module; in evaluation mode."""
    was_training = model.training
    model.eval()
    wrong: Tensor | int = 0
    with torch.no_grad():
        for batch, target in zip(images.split(_TEST_BATCH), labels.split(_TEST_BATCH), strict=True):
            guess = model(batch).argmax(dim=-1)
            # Several streams or destinations lie along the batch: (covers, streams · B).
            guess = guess.reshape(len(guess) if is_covered(model) else 1, -1, len(target))
            wrong = wrong + (guess != target).double().mean(dim=1).sum(dim=1)
    model.train(was_training)
    share: NDArray[np.float64] = (torch.as_tensor(wrong) / len(labels)).cpu().numpy()
    return share


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
        self.device, dtype = parameters[0].device, parameters[0].dtype
        self.images = torch.from_numpy(dataset.train_images).to(self.device, dtype)
        self.labels = torch.from_numpy(dataset.train_labels).to(self.device)
        self.test_images = torch.from_numpy(dataset.test_images).to(self.device, dtype)
        self.test_labels = torch.from_numpy(dataset.test_labels).to(self.device)
        self.torch_seed, order, noise = seed_sequence(seed).spawn(3)
        self.order = torch.Generator().manual_seed(int(order.generate_state(1)[0]))
        self.noise = torch.Generator(self.device).manual_seed(int(noise.generate_state(1)[0]))
        self.parameters = parameters
        self.optimizer = torch.optim.SGD(
            parameters,
            lr=settings.lr,
            momentum=settings.momentum,
            nesterov=settings.momentum > 0,
            weight_decay=settings.weight_decay,
        )
        self.average: AveragedModel | None = None
        self.interrupted = False
        self.steps = self.steps_since = 0
        self.loss = torch.zeros((), device=self.device)
        self.seconds = 0.0
        self.rows: list[tuple[float, float, NDArray[np.float64], float, float]] = []
        self.single = model
        self._shown = time.monotonic()

    def run(self) -> None:
        self.model.train()
        for epoch in range(1, self.settings.epochs + 1):
            begin = time.perf_counter()
            for batch in torch.randperm(len(self.labels), generator=self.order).split(
                self.settings.batch
            ):
                loss = self.step(self.images[batch], self.labels[batch])
                self.show(epoch, loss)
            first = self.settings.swa_from
            if first is not None and epoch > first * self.settings.epochs:
                self.average = self.average or AveragedModel(self.model)
                self.average.update_parameters(self.model)
            self.seconds += time.perf_counter() - begin
            if epoch % self.settings.evaluate_every == 0 or epoch == self.settings.epochs:
                self.evaluate()

    def step(self, images: Tensor, labels: Tensor) -> Tensor:
        """One step of SGD; returns the loss per cover."""
        with _noisy(self.parameters, self.settings.weight_noise, self.noise):
            output = self.model(images)
            loss, covers = _loss(self.model, output, labels)
            self.optimizer.zero_grad()
            loss.backward()
        self.optimizer.step()
        per_cover = loss.detach() / covers
        self.loss += per_cover
        self.steps += 1
        self.steps_since += 1
        return per_cover

    def evaluate(self) -> None:
        loss = float(self.loss) / self.steps_since
        done = self.steps / -(-len(self.labels) // self.settings.batch)
        if not np.isfinite(loss):
            raise McoverError(
                f"training diverged: the loss is {loss} after {done:.4g} epochs; write a smaller "
                f"lr (it is {self.settings.lr}) or less noise."
            )
        self.single = self.one_model()
        covers = errors(self.model, self.test_images, self.test_labels)
        collapse = float(errors(self.single, self.test_images, self.test_labels)[0])
        self.rows.append((done, loss, covers, collapse, self.seconds))
        self.loss.zero_()
        self.steps_since = 0

    def one_model(self) -> nn.Module:
        """The collapse of the covers, the SWA average, or the module itself."""
        source = self.model
        if self.average is not None:
            source = copy.deepcopy(self.average.module)
            if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in source.modules()):
                update_bn(self.images.split(self.settings.batch), source)
        return cast(Any, source).collapse() if is_covered(source) else source

    def show(self, epoch: int, loss: Tensor) -> None:
        now = time.monotonic()
        if self.progress is None or now - self._shown < _SHOW_SECONDS:
            return
        self._shown = now
        last = self.rows[-1] if self.rows else None
        total = self.settings.epochs * -(-len(self.labels) // self.settings.batch)
        cover, collapse = (float(last[2].mean()), last[3]) if last else (np.nan, np.nan)
        self.progress(Status(self.steps / total, epoch, float(loss), cover, collapse))

    def history(self) -> History:
        columns: Sequence[tuple[object, ...]] = list(zip(*self.rows, strict=True)) or [()] * 5
        epoch, loss, covers, collapse, seconds = map(np.array, columns)
        return History(epoch, loss, covers, collapse, seconds, self.interrupted, self.single)


def is_covered(model: nn.Module) -> bool:
    """Whether a module holds covers that can be collapsed."""
    return callable(getattr(model, "collapse", None))


def _loss(model: nn.Module, output: Tensor, labels: Tensor) -> tuple[Tensor, int]:
    """The loss that is minimised, and the number of covers it sums over."""
    if not is_covered(model):
        return functional.cross_entropy(output, labels), 1
    from mcover import cover_loss

    return cover_loss(functional.cross_entropy, output, labels), len(output)


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
