"""Objectives of training: how gradients are computed, and how models are evaluated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import update_bn

from mcover import McoverError, cover_loss
from mcover.nn import Covered, binary
from reproduction import committee
from reproduction.data import Images, Labels
from reproduction.training.fused import FusedGradient, Paths, paths

Floats = NDArray[np.float64]

_TEST_BATCH = 2000
_CALIBRATION = 10_000  # images for running statistics; the standard error is 0.01 of a deviation


class Objective:
    """Cross-entropy of a module or of its covers; the base class of other objectives."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.covers = covers_of(model)
        # Minibatch gradients of one model in a call of ``gradient``.
        self.width = self.covers * int(getattr(model, "passes", 1))

    def tensors(self, images: Images, labels: Labels) -> tuple[Tensor, Tensor]:
        """Images and labels in the form that the model and its loss expect."""
        like = next(self.model.parameters())
        x = torch.from_numpy(images).to(like.device, like.dtype)
        return x, torch.from_numpy(labels).to(like.device)

    def begin_epoch(self, epoch: int) -> None:
        """Called before the first batch of each epoch, from 0."""

    def gradient(self, images: Tensor, labels: Tensor, each: bool) -> Tensor:
        """Sets the gradients of a batch, and returns the loss per cover.

        Shape: images (B, ...) and labels (B,); with ``each`` (M, B, ...) and (M, B), a batch for
        every cover.
        """
        self.model.zero_grad()
        if is_covered(self.model):
            model, passes = cast(Any, self.model), self.width // self.covers
            if isinstance(model, Covered) and model.is_directed and passes == 1:
                loss = model.loss(self.criterion, images, labels, each=each)  # in less memory
            else:
                run = model.each if each else model
                loss = cover_loss(self.criterion, run(images), labels, each=each, passes=passes)
        else:
            loss = self.criterion(self.model(images), labels)
        loss.backward()
        return loss.detach() / self.covers

    def criterion(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss of one model, a mean over the batch."""
        return functional.cross_entropy(output, target)

    def after_step(self) -> None:
        """Called after every step of the optimizer."""

    def collapse(self, model: nn.Module) -> nn.Module:
        """The collapse of covers, or the plain module itself."""
        return cast(Any, model).collapse() if is_covered(model) else model

    def recalibrated(self, model: nn.Module, images: Tensor) -> nn.Module:
        """The collapse with running statistics recomputed on the training images, if needed."""
        return model

    def evaluate(
        self, source: nn.Module, images: Tensor, labels: Tensor, on: str
    ) -> tuple[Floats, Floats]:
        """Mean loss and share of wrong labels of the "collapse", or of each of the "covers".

        A plain module counts as its collapse and as its only cover.
        """
        if on == "covers" and is_covered(source):
            models = [cast(Any, source).cover(index) for index in range(covers_of(source))]
        else:
            models = [self.collapse(source)]
        sums = np.zeros((2, len(models)))
        for number, model in enumerate(models):
            for output, target in _outputs(model, images, labels):
                sums[0, number] += float(self.criterion(output, target)) * len(target)
                sums[1, number] += float((output.argmax(dim=-1) != target).sum())
        losses, wrong = sums / len(labels)
        return losses, wrong

    def routed_errors(self, model: nn.Module, images: Tensor, labels: Tensor) -> Floats | None:
        """Share of wrong labels of the outputs along the routes of a covered model, (covers,)."""
        if not is_covered(model):
            return None
        wrong = torch.zeros(covers_of(model), dtype=torch.float64)
        for output, target in _outputs(model, images, labels):
            # Streams or destinations are concatenated along the batch: (covers, streams · B, ...).
            guess = output.argmax(dim=-1).reshape(len(wrong), -1, len(target))
            wrong += (guess != target).double().mean(dim=1).sum(dim=1).cpu()
        return cast(Floats, (wrong / len(labels)).numpy())


class DistillingObjective(Objective):
    """The loss of a student of several teachers (Hinton, Vinyals and Dean, 2015).

    (1 − w) H(y, softmax z) + w T² H(p, softmax(z/T)), where H is the cross-entropy, z the student's
    logits, and p the mean of the teachers' softmax(z/T). Evaluations use only the labels.
    """

    def __init__(
        self, model: nn.Module, teachers: Sequence[nn.Module], temperature: float, weight: float
    ) -> None:
        super().__init__(model)
        if is_covered(model):
            raise McoverError("the student is covered; give a plain module.")
        self.teachers = [teacher.eval() for teacher in teachers]
        self.temperature, self.weight = temperature, weight

    def gradient(self, images: Tensor, labels: Tensor, each: bool) -> Tensor:
        self.model.zero_grad()
        heat = self.temperature
        with torch.no_grad():
            answers = [(teacher(images) / heat).softmax(dim=-1) for teacher in self.teachers]
        output = self.model(images)
        soft = functional.cross_entropy(output / heat, torch.stack(answers).mean(dim=0))
        loss = (1 - self.weight) * self.criterion(output, labels) + self.weight * heat**2 * soft
        loss.backward()
        return loss.detach()


class BinaryObjective(Objective):
    """Cross-entropy of a network of binary weights, whose latent weights stay within ±1."""

    def after_step(self) -> None:
        binary.clip_latents(self.model)

    def recalibrated(self, model: nn.Module, images: Tensor) -> nn.Module:
        """Recomputes batch norms, since no cover had the signs of the mean latents as weights."""
        update_bn(calibration(images), model)
        return model


def calibration(images: Tensor) -> list[Tensor]:
    """Batches of training images for running statistics: all, or the first 10,000."""
    return list(images[:_CALIBRATION].split(_TEST_BATCH))


class CommitteeObjective(Objective):
    """f_γ of a committee machine or of its covers; errors are those of the hard machine.

    Gradients are computed by :class:`FusedGradient` along the model's routes; by autograd with
    ``fused=False``, and for weights that are not on a CPU.
    """

    def __init__(self, model: nn.Module, fused: bool = True) -> None:
        super().__init__(model)
        self.machine = committee.machine_of(model)
        weights = self.machine.J
        if not is_covered(model) and weights.ndim != 2:
            raise McoverError("the machine has stacked weights; give the covered model.")
        self._fused = FusedGradient(weights) if fused and weights.device.type == "cpu" else None
        self._bank: object = None
        self._paths: Paths | None = None

    def tensors(self, images: Images, labels: Labels) -> tuple[Tensor, Tensor]:
        """Patterns as rows, shape (P, N); −1 for label 0 and +1 for label 1."""
        if labels.size and labels.max() > 1:
            raise McoverError(
                f"a committee machine separates two classes; the labels go up to {labels.max()}: "
                "name two classes, e.g. 'digits:3,8'."
            )
        x, y = super().tensors(images, 2 * labels - 1)
        return x.flatten(1), y.to(x.dtype)

    def begin_epoch(self, epoch: int) -> None:
        self.machine.sharpen(epoch)

    def gradient(self, images: Tensor, labels: Tensor, each: bool) -> Tensor:
        if self._fused is None:
            return super().gradient(images, labels, each)
        machine, routes = self.machine, None
        if is_covered(self.model):
            routes = self._along(cast(Any, self.model).next_routes())
        loss = self._fused(images, labels, machine.beta, machine.gamma, routes)
        machine.J.grad = self._fused.gradient.view(machine.J.shape)
        return loss.mean()

    def _along(self, routes: Any) -> Paths | None:
        """The routes in the kernels' layout, kept until the bank is redrawn."""
        if routes is None:  # the message lift does not mix a bare parameter
            return None
        if routes.bank is not self._bank:
            self._bank = routes.bank
            self._paths = paths(routes.bank, self.machine.J[0].numel())
        return self._paths and self._paths._replace(chosen=np.array(routes.destinations))

    def criterion(self, output: Tensor, target: Tensor) -> Tensor:
        return self.machine.loss(output, target)

    def after_step(self) -> None:
        (self._fused or self.machine).rescale_rows()

    def collapse(self, model: nn.Module) -> committee.CommitteeMachine:
        one = committee.collapse(model)
        # An average of weights still has the β and γ of the epoch in which it was copied.
        one.beta, one.gamma = self.machine.beta, self.machine.gamma
        return one

    @torch.no_grad()
    def evaluate(
        self, source: nn.Module, images: Tensor, labels: Tensor, on: str
    ) -> tuple[Floats, Floats]:
        """Mean f_γ, and share of patterns that the hard machine gets wrong, without new modules."""
        machine = self.machine  # it has the current β and γ; a copy may have older ones
        weights = committee.machine_of(source).J.detach()
        if weights.ndim == 3 and on == "collapse":
            weights = committee.unit_rows(weights.mean(0))
        hidden, inputs = weights.shape[-2:]
        fields = (weights @ images.T).view(-1, hidden, len(images))  # the faster order of axes
        # No gradient is needed, so plain tanh is accurate.
        output = torch.tanh(fields * (machine.beta / math.sqrt(inputs))).sum(-2)
        z = output * labels / math.sqrt(hidden)
        losses = committee.surrogates(z, machine.gamma).mean(-1)
        wrong = (committee.majority(fields.mT) != labels).sum(-1)
        return losses.double().cpu().numpy(), wrong.cpu().numpy() / len(labels)

    def routed_errors(self, model: nn.Module, images: Tensor, labels: Tensor) -> None:
        """None: a covered model has no hard output."""


def objective_of(model: nn.Module) -> Objective:
    """The default objective of a committee machine, of binary weights, or of other modules."""
    if isinstance(getattr(model, "net", model), committee.CommitteeMachine):
        return CommitteeObjective(model)
    try:
        binary.latents(model)
    except McoverError:  # no binary weights
        return Objective(model)
    return BinaryObjective(model)


def is_covered(model: nn.Module) -> bool:
    """Whether a module can be collapsed."""
    return callable(getattr(model, "collapse", None))


def covers_of(model: nn.Module) -> int:
    """M, or 1 for a plain module."""
    return int(cast(Any, model).covers) if is_covered(model) else 1


@torch.no_grad()
def distance(model: nn.Module) -> float | None:
    """Mean |w_a − w_b|² over pairs of covers, over the mean |w_a|²; None for a plain module.

    For a committee machine, whose rows J_k have norm √N, this is the mean of |J_k^a − J_k^b|²/N.
    """
    if not is_covered(model) or not hasattr(model, "stacks"):
        return None
    covers, apart, norm = covers_of(model), 0.0, 0.0
    for stack in cast(Any, model).stacks().values():
        values = stack.double()
        apart += float((values - values.mean(0)).square().sum())  # Σ over pairs |·|² is M times it
        norm += float(values.square().sum())
    return 2 * apart * covers / (max(covers - 1, 1) * norm) if norm else 0.0


def _outputs(model: nn.Module, images: Tensor, labels: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Outputs and labels in evaluation mode, in batches."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        parts = zip(images.split(_TEST_BATCH), labels.split(_TEST_BATCH), strict=True)
        found = [(model(batch), target) for batch, target in parts]
    model.train(was_training)
    return found
