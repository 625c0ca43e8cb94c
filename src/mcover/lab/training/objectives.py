"""What a training minimises: how gradients are taken, and how models are judged.

The loop, the methods and the objectives know nothing of each other's insides.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from mcover import cover_loss
from mcover.errors import McoverError
from mcover.lab.committee.fused import FusedGradient, Paths, paths
from mcover.lab.committee.machine import (
    CommitteeMachine,
    collapse,
    machine_of,
    majority,
    surrogates,
    unit_rows,
)

Floats = NDArray[np.float64]

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
        """Minibatch gradients of one model in a call of :meth:`gradient`."""
        return self.covers * int(getattr(self.model, "passes", 1))

    def tensors(
        self, images: NDArray[np.float32], labels: NDArray[np.int64]
    ) -> tuple[Tensor, Tensor]:
        """Images and labels as the model and its loss take them."""
        like = next(self.model.parameters())
        x = torch.from_numpy(images).to(like.device, like.dtype)
        return x, torch.from_numpy(labels).to(like.device)

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
        """The collapse of covers; a plain module as it is."""
        return cast(Any, model).collapse() if is_covered(model) else model

    def judge(
        self, source: nn.Module, images: Tensor, labels: Tensor, on: str
    ) -> tuple[Floats, Floats]:
        """Mean loss and share of wrong labels, of the collapse or of each cover by itself.

        Args:
            source: what to judge; a plain module is its own collapse.
            images: what to judge on.
            labels: likewise.
            on: "collapse", for arrays of one entry, or "covers".
        """
        models = [self.collapse(source)] if on == "collapse" else covers_apart(source)
        judged = [self._judge(one, images, labels) for one in models]
        losses, wrong = (np.array(column) for column in zip(*judged, strict=True))
        return losses, wrong

    def _judge(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
        loss = wrong = 0.0
        for output, target in _outputs(model, images, labels):
            loss += float(self.criterion(output, target)) * len(target)
            wrong += float((output.argmax(dim=-1) != target).sum())
        return loss / len(labels), wrong / len(labels)

    def cover_errors(self, model: nn.Module, images: Tensor, labels: Tensor) -> Floats:
        """Share of wrong labels of each cover by itself, shape (covers,); (1,) of a module."""
        return np.concatenate([errors(one, images, labels) for one in covers_apart(model)])

    def routed_errors(self, model: nn.Module, images: Tensor, labels: Tensor) -> Floats | None:
        """Share of wrong labels of what the covered model puts out, along its routes."""
        return errors(model, images, labels) if is_covered(model) else None


class CommitteeObjective(Objective):
    """f_γ of a :class:`CommitteeMachine`, or of covers of it; errors are those of the hard one.

    Gradients are taken by :class:`FusedGradient`, on the covered model's own storage and along its
    own routes. ``fused=False``, or weights that are not on a CPU, take autograd through the module.
    """

    def __init__(self, model: nn.Module, fused: bool | None = None) -> None:
        super().__init__(model)
        self.machine = machine_of(model)
        weights = self.machine.J
        if not is_covered(model) and weights.ndim != 2:
            raise McoverError("a machine of stacked weights was given; give the covered model.")
        usable = weights.device.type == "cpu"
        self._fused = FusedGradient(self._stack()) if usable and fused is not False else None
        self._paths: Paths | None = None
        self._drawn: object = None

    def tensors(
        self, images: NDArray[np.float32], labels: NDArray[np.int64]
    ) -> tuple[Tensor, Tensor]:
        """Patterns as rows, shape (P, N); −1 for label 0 and +1 for label 1."""
        if labels.size and labels.max() > 1:
            raise McoverError(
                f"a committee machine separates two classes; the labels go up to {labels.max()}: "
                "name two classes, e.g. 'digits:3,8'."
            )
        x, y = super().tensors(images, 2 * labels - 1)
        return x.flatten(1), y.to(x.dtype)

    def begin(self, epoch: int) -> None:
        """β and γ of the epoch."""
        self.machine.sharpen(epoch)

    def gradient(self, images: Tensor, labels: Tensor, each: bool) -> Tensor:
        """Puts fresh gradients in place, and returns the loss per cover."""
        if self._fused is None:
            return super().gradient(images, labels, each)
        fused, machine = self._fused, self.machine
        fused.stack = self._stack()
        loss = fused(images, labels, machine.beta, machine.gamma, self._step())
        machine.J.grad = fused.gradient.view(machine.J.shape)
        return loss.mean()

    def criterion(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean f_γ."""
        return self.machine.loss(output, target)

    def settle(self) -> None:
        """Rows back to √N, where the machine says so."""
        if self._fused is None:
            self.machine.settle()
        elif self.machine.normalize:
            self._fused.stack = self._stack()
            self._fused.settle()

    def collapse(self, model: nn.Module) -> CommitteeMachine:
        """The mean of the covers, rows at √N where the machine says so."""
        one = collapse(model)
        # An average of weights was copied when the machine was less sharp.
        one.beta, one.gamma = self.machine.beta, self.machine.gamma
        return one

    def judge(
        self, source: nn.Module, images: Tensor, labels: Tensor, on: str
    ) -> tuple[Floats, Floats]:
        """Mean f_γ, and share of patterns wrong as a hard machine; no machine is built for it."""
        machine = self.machine  # as sharp as it is now, whatever copy of it is judged
        with torch.no_grad():
            weights = machine_of(source).J.detach()
            if weights.ndim == 3 and on == "collapse":
                weights = weights.mean(0)
                weights = unit_rows(weights) if machine.normalize else weights
            fields = _fields(weights, images)
            # No gradient is wanted, so the plain tanh will do.
            hidden, inputs = weights.shape[-2:]
            output = torch.tanh(fields * (machine.beta / math.sqrt(inputs))).sum(-2)
            losses = surrogates(output * labels / math.sqrt(hidden), machine.gamma).mean(-1)
            wrong = (majority(fields.mT) != labels).sum(-1)
        return losses.double().cpu().numpy(), wrong.cpu().numpy() / len(labels)

    def cover_errors(self, model: nn.Module, images: Tensor, labels: Tensor) -> Floats:
        """Share of wrong patterns of each cover as a hard machine by itself, shape (covers,)."""
        fields = _fields(machine_of(model).J.detach(), images)
        share = (majority(fields.mT) != labels).double().mean(-1)
        return cast(Floats, share.cpu().numpy())

    def routed_errors(self, model: nn.Module, images: Tensor, labels: Tensor) -> None:
        """A covered model has no hard output."""

    def _stack(self) -> Tensor:
        """The weights as they are now, covers first."""
        weights = self.machine.J.detach()
        return weights if weights.ndim == 3 else weights.unsqueeze(0)

    def _step(self) -> Paths | None:
        """The routes of this evaluation; counts it, and draws anew where it is time to."""
        model = cast(Any, self.model)
        if not is_covered(model):
            return None
        routes = model.next_routes()
        if routes is None:  # messages: a bare parameter has one copy per cover, and nothing mixes
            return None
        if routes.bank is not self._drawn:
            self._drawn = routes.bank
            self._paths = paths(routes.bank, self.machine.J[0].numel())
        if self._paths is None:
            return None
        return self._paths._replace(chosen=np.array(routes.destinations))


def _fields(weights: Tensor, images: Tensor) -> Tensor:
    """F of one or more machines, shape (machines, K, P): the fast order of the axes."""
    return (weights @ images.T).view(-1, weights.shape[-2], len(images))


def objective_of(model: nn.Module) -> Objective:
    """Committee machines have their own objective, and so may any module; else cross-entropy.

    A module that brings its objective has a method ``objective(model)``, where ``model`` is the
    module itself or covers of it.
    """
    base = getattr(model, "net", model) if is_covered(model) else model
    if isinstance(base, CommitteeMachine):
        return CommitteeObjective(model)
    own = getattr(base, "objective", None)
    return own(model) if callable(own) else Objective(model)


def errors(model: nn.Module, images: Tensor, labels: Tensor) -> Floats:
    """Share of wrong labels, shape (covers,), or (1,) for a plain module; in evaluation mode."""
    covers = covers_of(model)
    wrong = torch.zeros(covers, dtype=torch.float64)
    for output, target in _outputs(model, images, labels):
        # Several streams or destinations lie along the batch: (covers, streams · B, classes).
        guess = output.argmax(dim=-1).reshape(covers, -1, len(target))
        wrong += (guess != target).double().mean(dim=1).sum(dim=1).cpu()
    return cast(Floats, (wrong / len(labels)).numpy())


def is_covered(model: nn.Module) -> bool:
    """Whether a module holds covers that can be collapsed."""
    return callable(getattr(model, "collapse", None))


def covers_of(model: nn.Module) -> int:
    """M, or 1 for a plain module."""
    return int(cast(Any, model).covers) if is_covered(model) else 1


def covers_apart(model: nn.Module) -> list[nn.Module]:
    """Each cover as a module by itself; a plain module is one."""
    if not is_covered(model):
        return [model]
    return [cast(Any, model).cover(index) for index in range(covers_of(model))]


def _outputs(model: nn.Module, images: Tensor, labels: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Outputs in evaluation mode, some images at a time, with their labels."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        parts = zip(images.split(_TEST_BATCH), labels.split(_TEST_BATCH), strict=True)
        found = [(model(batch), target) for batch, target in parts]
    model.train(was_training)
    return found
