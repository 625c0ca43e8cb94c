"""How a training loop takes gradients of a committee machine, and judges it."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mcover.errors import McoverError
from mcover.lab.committee.fused import FusedGradient, Paths
from mcover.lab.committee.machine import (
    CommitteeMachine,
    collapse,
    machine_of,
    majority,
    unit_rows,
)
from mcover.lab.committee.surrogate import surrogates
from mcover.lab.training.objectives import Objective, is_covered
from mcover.routing import inverse


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
        stack = weights if is_covered(model) else weights.unsqueeze(0)
        usable = weights.device.type == "cpu"
        self._fused = FusedGradient(stack) if usable and fused is not False else None
        self._paths: Paths | None = None
        self._seen: NDArray[Any] | None = None

    def images(self, images: NDArray[np.float32], like: Tensor) -> Tensor:
        """Patterns as rows, shape (P, N)."""
        return super().images(images, like).flatten(1)

    def labels(self, labels: NDArray[np.int64], like: Tensor) -> Tensor:
        """−1 for label 0 and +1 for label 1."""
        if labels.size and labels.max() > 1:
            raise McoverError(
                f"a committee machine tells two classes apart; the labels go up to {labels.max()}: "
                "name two classes, e.g. 'digits:3,8'."
            )
        return torch.from_numpy(2 * labels - 1).to(like.device, like.dtype)

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
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean f_γ, and share of patterns wrong as a hard machine; no machine is built for it."""
        machine = self.machine  # as sharp as it is now, whatever copy of it is judged
        with torch.no_grad():
            weights = machine_of(source).J.detach()
            if weights.ndim == 3 and on == "collapse":
                weights = weights.mean(0)
                weights = unit_rows(weights) if machine.normalize else weights
            # (..., K, P) is the fast way round; no gradient is wanted, so the plain tanh will do.
            fields = (weights @ images.T).view(-1, weights.shape[-2], len(images))
            hidden, inputs = weights.shape[-2:]
            output = torch.tanh(fields * (machine.beta / math.sqrt(inputs))).sum(-2)
            losses = surrogates(output * labels / math.sqrt(hidden), machine.gamma).mean(-1)
            wrong = (majority(fields.mT) != labels).sum(-1)
        return losses.double().cpu().numpy(), wrong.cpu().numpy() / len(labels)

    def errors(self, model: nn.Module, images: Tensor, labels: Tensor) -> NDArray[np.float64]:
        """Share of wrong patterns of each cover as a hard machine by itself, shape (covers,)."""
        weights = machine_of(model).J.detach()
        fields = (weights @ images.T).view(-1, weights.shape[-2], len(images))
        share = (majority(fields.mT) != labels).double().mean(-1)
        return cast(NDArray[np.float64], share.cpu().numpy())

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
        if routes.bank is not self._seen:
            self._seen, self._paths = routes.bank, self._read(routes.bank)
        if self._paths is None:
            return None
        return self._paths._replace(chosen=np.array(routes.destinations))

    def _read(self, routes: NDArray[Any]) -> Paths | None:
        """Routes of (S, sources, M) with covers first and one for each weight."""
        size, sources, covers = routes.shape
        if np.array_equal(routes, np.broadcast_to(np.arange(covers), routes.shape)):
            return None  # nothing is routed, and all destinations are alike
        wide = np.repeat(routes, self.machine.J[0].numel() // sources, axis=1)
        first = [np.ascontiguousarray(one.transpose(2, 0, 1)) for one in (wide, inverse(wide))]
        return Paths(first[0], first[1], np.arange(size))
