"""What a training minimises: how gradients are taken, and how models are judged."""

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

from mcover import cover_loss
from mcover.errors import McoverError
from mcover.nn import binary
from reproduction import committee
from reproduction.data import Images, Labels
from reproduction.training.fused import FusedGradient, Paths, paths

Floats = NDArray[np.float64]

_TEST_BATCH = 2000
_CALIBRATION = 10_000  # images that running statistics are computed on: 0.01 of a deviation


class Objective:
    """Cross-entropy of a module, or of covers of it; the base of other objectives."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.covers = covers_of(model)
        # Minibatch gradients of one model in a call of ``gradient``.
        self.width = self.covers * int(getattr(model, "passes", 1))

    def tensors(self, images: Images, labels: Labels) -> tuple[Tensor, Tensor]:
        """Images and labels as the model and its loss take them."""
        like = next(self.model.parameters())
        x = torch.from_numpy(images).to(like.device, like.dtype)
        return x, torch.from_numpy(labels).to(like.device)

    def begin(self, epoch: int) -> None:
        """Called before the first batch of a pass over the images, from 0."""

    def gradient(self, images: Tensor, labels: Tensor, each: bool) -> Tensor:
        """Puts fresh gradients in place, and returns the loss per cover.

        Shape: images (B, ...) and labels (B,); with ``each`` (M, B, ...) and (M, B), a batch for
        every cover.
        """
        self.model.zero_grad()
        if is_covered(self.model):
            run = cast(Any, self.model).each if each else self.model
            loss = cover_loss(self.criterion, run(images), labels, each=each)
        else:
            loss = self.criterion(self.model(images), labels)
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

    def recalibrated(self, model: nn.Module, images: Tensor) -> nn.Module:
        """The collapse as it is evaluated, given the training images."""
        return model

    def judge(
        self, source: nn.Module, images: Tensor, labels: Tensor, on: str
    ) -> tuple[Floats, Floats]:
        """Mean loss and share of wrong labels, on the "collapse" or "covers", each by itself.

        A plain module is its own collapse, and its only cover.
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
        """Share of wrong labels of what a covered model puts out along its routes, (covers,)."""
        if not is_covered(model):
            return None
        wrong = torch.zeros(covers_of(model), dtype=torch.float64)
        for output, target in _outputs(model, images, labels):
            # Several streams or destinations lie along the batch: (covers, streams · B, classes).
            guess = output.argmax(dim=-1).reshape(len(wrong), -1, len(target))
            wrong += (guess != target).double().mean(dim=1).sum(dim=1).cpu()
        return cast(Floats, (wrong / len(labels)).numpy())


class DistillingObjective(Objective):
    """What a student of several teachers minimises (Hinton, Vinyals and Dean, 2015).

    (1 − w) H(y, softmax z) + w T² H(p, softmax(z/T)), where H is the cross-entropy, z the student's
    logits, and p the mean of the teachers' softmax(z/T). Errors and losses of evaluations are those
    of the labels.
    """

    def __init__(
        self, model: nn.Module, teachers: Sequence[nn.Module], temperature: float, weight: float
    ) -> None:
        super().__init__(model)
        if is_covered(model):
            raise McoverError("a student is one model; give a plain module.")
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

    def settle(self) -> None:
        binary.clip_latents(self.model)

    def recalibrated(self, model: nn.Module, images: Tensor) -> nn.Module:
        """With norms of its own: signs of averaged latents are other weights than any cover had."""
        update_bn(calibration(images), model)
        return model


def calibration(images: Tensor) -> list[Tensor]:
    """Batches of training images to compute running statistics on: all, or the first 10,000."""
    return list(images[:_CALIBRATION].split(_TEST_BATCH))


class CommitteeObjective(Objective):
    """f_γ of a committee machine, or of covers of it; errors are those of the hard one.

    Gradients are taken by :class:`FusedGradient` along the model's own routes; by autograd with
    ``fused=False``, and where the weights are not on a CPU.
    """

    def __init__(self, model: nn.Module, fused: bool = True) -> None:
        super().__init__(model)
        self.machine = committee.machine_of(model)
        weights = self.machine.J
        if not is_covered(model) and weights.ndim != 2:
            raise McoverError("a machine of stacked weights was given; give the covered model.")
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

    def begin(self, epoch: int) -> None:
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
        """The routes of an evaluation as the kernels read them, kept until they are redrawn."""
        if routes is None:  # messages: a bare parameter has one copy per cover, and nothing mixes
            return None
        if routes.bank is not self._bank:
            self._bank = routes.bank
            self._paths = paths(routes.bank, self.machine.J[0].numel())
        return self._paths and self._paths._replace(chosen=np.array(routes.destinations))

    def criterion(self, output: Tensor, target: Tensor) -> Tensor:
        return self.machine.loss(output, target)

    def settle(self) -> None:
        (self._fused or self.machine).settle()

    def collapse(self, model: nn.Module) -> committee.CommitteeMachine:
        one = committee.collapse(model)
        # An average of weights was copied when the machine was less sharp.
        one.beta, one.gamma = self.machine.beta, self.machine.gamma
        return one

    @torch.no_grad()
    def judge(
        self, source: nn.Module, images: Tensor, labels: Tensor, on: str
    ) -> tuple[Floats, Floats]:
        """Mean f_γ, and share of patterns wrong as a hard machine; no machine is built for it."""
        machine = self.machine  # as sharp as it is now, whatever copy of it is judged
        weights = committee.machine_of(source).J.detach()
        if weights.ndim == 3 and on == "collapse":
            weights = committee.unit_rows(weights.mean(0))
        hidden, inputs = weights.shape[-2:]
        fields = (weights @ images.T).view(-1, hidden, len(images))  # the fast order of the axes
        # No gradient is wanted, so the plain tanh will do.
        output = torch.tanh(fields * (machine.beta / math.sqrt(inputs))).sum(-2)
        z = output * labels / math.sqrt(hidden)
        losses = committee.surrogates(z, machine.gamma).mean(-1)
        wrong = (committee.majority(fields.mT) != labels).sum(-1)
        return losses.double().cpu().numpy(), wrong.cpu().numpy() / len(labels)

    def routed_errors(self, model: nn.Module, images: Tensor, labels: Tensor) -> None:
        """None: a covered model has no hard output."""


def objective_of(model: nn.Module) -> Objective:
    """Committee machines have an objective of their own; every other module the cross-entropy."""
    if isinstance(getattr(model, "net", model), committee.CommitteeMachine):
        return CommitteeObjective(model)
    try:
        binary.latents(model)
    except McoverError:  # it has none
        return Objective(model)
    return BinaryObjective(model)


def is_covered(model: nn.Module) -> bool:
    """Whether a module holds covers that can be collapsed."""
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
    """Outputs in evaluation mode, some images at a time, with their labels."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        parts = zip(images.split(_TEST_BATCH), labels.split(_TEST_BATCH), strict=True)
        found = [(model(batch), target) for batch, target in parts]
    model.train(was_training)
    return found
