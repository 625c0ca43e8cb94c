"""What a training minimises: how gradients are taken, and how one model is judged.

The loop, the methods and the objectives know nothing of each other's insides. Which objective a
model is trained by: :mod:`mcover.lab.training.objective_of`.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

_TEST_BATCH = 2000


class Objective:
    """Cross-entropy of a module, or of covers of it; the base of other objectives.

    Attributes:
        model: what is trained, changed in place.
        covers: M, or 1 for a plain module.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.covers = covers_of(model)

    @property
    def width(self) -> int:
        """Gradients of a single model in one call of :meth:`gradient`."""
        return self.covers * int(getattr(self.model, "passes", 1))

    def images(self, images: NDArray[np.float32], like: Tensor) -> Tensor:
        """Images as the model takes them."""
        return torch.from_numpy(images).to(like.device, like.dtype)

    def labels(self, labels: NDArray[np.int64], like: Tensor) -> Tensor:
        """Labels as the loss takes them."""
        return torch.from_numpy(labels).to(like.device)

    def begin(self, epoch: int) -> None:
        """Called before the first batch of a pass over the images, from 0."""

    def gradient(self, images: Tensor, labels: Tensor, each: bool) -> Tensor:
        """Puts fresh gradients in place, and returns the loss per cover.

        Args:
            images: (B, ...), or (M, B, ...) with ``each``: a batch for every cover.
            labels: likewise.
            each: whether covers come first.
        """
        self.model.zero_grad()
        if not is_covered(self.model):
            loss = self.criterion(self.model(images), labels)
        else:
            from mcover import cover_loss

            run, more = (cast(Any, self.model).each, {"each": True}) if each else (self.model, {})
            output = run(images)
            self.covers = len(output)
            loss = cover_loss(self.criterion, output, labels, **more)
        loss.backward()
        return loss.detach() / self.covers

    def criterion(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss of one model, a mean over the batch."""
        return functional.cross_entropy(output, target)

    def settle(self) -> None:
        """Called after every step of the optimizer."""

    def collapse(self, model: nn.Module) -> nn.Module:
        """One model: the collapse of covers, a plain module as it is."""
        return cast(Any, model).collapse() if is_covered(model) else model

    def judge(
        self, source: nn.Module, images: Tensor, labels: Tensor, on: str
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean loss, and share of wrong labels, of the collapse or of each cover by itself.

        Args:
            source: the module, or covers of it.
            images: to judge on.
            labels: likewise.
            on: "collapse", for arrays of one entry, or "covers".
        """
        alone = on == "collapse" or not is_covered(source)
        models = [self.collapse(source)] if alone else _apart(source)
        judged = [self._judge(one, images, labels) for one in models]
        losses, wrong = (np.array(column) for column in zip(*judged, strict=True))
        return losses, wrong

    def _judge(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
        was_training = model.training
        model.eval()
        with torch.no_grad():
            loss = sum(
                float(self.criterion(model(batch), target)) * len(target)
                for batch, target in _batches(images, labels)
            )
        model.train(was_training)
        return loss / len(labels), float(self.errors(model, images, labels)[0])

    def errors(self, model: nn.Module, images: Tensor, labels: Tensor) -> NDArray[np.float64]:
        """Share of wrong labels, shape (covers,), or (1,) for a plain module."""
        return errors(model, images, labels)


def errors(model: nn.Module, images: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """Share of wrong labels, shape (covers,), or (1,) for a plain module; in evaluation mode."""
    predict = getattr(model, "predict", None) or (lambda batch: model(batch).argmax(dim=-1))
    was_training = model.training
    model.eval()
    wrong: Tensor | int = 0
    with torch.no_grad():
        for batch, target in _batches(images, labels):
            # Several streams or destinations lie along the batch: (covers, streams · B).
            guess = predict(batch)
            guess = guess.reshape(len(guess) if is_covered(model) else 1, -1, len(target))
            wrong = wrong + (guess != target).double().mean(dim=1).sum(dim=1)
    model.train(was_training)
    share: NDArray[np.float64] = (torch.as_tensor(wrong) / len(labels)).cpu().numpy()
    return share


def is_covered(model: nn.Module) -> bool:
    """Whether a module holds covers that can be collapsed."""
    return callable(getattr(model, "collapse", None))


def covers_of(model: nn.Module) -> int:
    """M, or 1 for a plain module."""
    return int(getattr(model, "covers", 1)) if is_covered(model) else 1


def _batches(images: Tensor, labels: Tensor) -> Any:
    return zip(images.split(_TEST_BATCH), labels.split(_TEST_BATCH), strict=True)


def _apart(covered: nn.Module) -> list[nn.Module]:
    return [cast(Any, covered).cover(index) for index in range(covers_of(covered))]
