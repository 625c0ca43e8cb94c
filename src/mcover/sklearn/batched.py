"""The directed lift of a multilayer perceptron, all covers in one batched product a layer.

The general lift runs the base's own code, cover by cover: about sixty small operations a step for
one hidden layer and four covers, and for the small layers of tables their overhead is nearly all of
the time. Here weights and biases of all covers lie in two tensors, and a step has about a dozen
operations. Steps and routes are those of the covered model, which is what the tests compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mcover import Directed
from mcover.nn import Covered
from mcover.nn.directed import sources

_SMALL = 2**25  # multiply-adds of a step that threads do not speed up

Losses = Callable[[Tensor, Tensor], Tensor]


class BatchedCovers:
    """Trains the covers of a perceptron; :meth:`write` brings them into the covered model.

    Args:
        covered: covers of a ``Sequential`` of linear layers and one kind of activation.
        activation: between the layers.
        losses: of each sample, from outputs and targets, samples first.
        lr: learning rate of AdamW.
        decay: weight decay of the matrices.
    """

    def __init__(
        self, covered: Covered, activation: nn.Module, losses: Losses, lr: float, decay: float
    ) -> None:
        self.covered, self.activation, self.losses = covered, activation, losses
        stacks = [stack.detach() for stack in covered.stacks().values()]
        self.shapes = [tuple(stack.shape[1:]) for stack in stacks]
        # Matrices, then biases: AdamW decays the former only.
        self.parts = [
            torch.cat([stack.flatten(1) for stack in stacks[first::2]], dim=1) for first in (0, 1)
        ]
        self.sources = self._sources()
        matrices, vectors = ({"params": [part]} for part in self.parts)
        groups: list[dict[str, Any]] = [matrices | {"weight_decay": decay}, vectors]
        self.optimizer = torch.optim.AdamW(groups, lr=lr, weight_decay=0.0, fused=True)
        self.bank: object = None
        self.indices: dict[int, list[Tensor]] = {}

    @staticmethod
    def fits(covered: Covered) -> bool:
        """Whether a lift evaluates one destination of the directed lift in a step."""
        return covered.is_directed and covered.passes == 1

    def step(self, x: Tensor, target: Tensor, weight: Tensor) -> float:
        """One step of the optimizer; the loss is summed over covers."""
        covers, index = len(self.parts[0]), self._index()
        virtual = [
            part.view(-1)[at].requires_grad_() for part, at in zip(self.parts, index, strict=True)
        ]
        losses = self.losses(
            self._outputs(x, *virtual).flatten(0, 1), torch.cat([target] * covers)
        ).view(covers, -1)
        loss = (losses * weight).mean(1).sum()
        grads = torch.autograd.grad(loss, virtual)
        for part, at, grad in zip(self.parts, index, grads, strict=True):
            # Back along the routes: each weight was read by one cover.
            part.grad = torch.empty_like(part)
            part.grad.view(-1)[at] = grad
        self.optimizer.step()
        return float(loss.detach())

    def write(self) -> None:
        """Copies the trained values into the covered model."""
        stacks = [*self.covered.stacks().values()]
        with torch.no_grad():
            for first, part in enumerate(self.parts):
                own = stacks[first::2]
                sizes = [stack[0].numel() for stack in own]
                for stack, values in zip(own, part.split(sizes, dim=1), strict=True):
                    stack.copy_(values.view_as(stack))

    def _outputs(self, x: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
        """Outputs of all virtual models, (M, B, outputs)."""
        covers, matrices, vectors = len(weights), self.shapes[::2], self.shapes[1::2]
        by_layer = zip(
            weights.split([rows * columns for rows, columns in matrices], dim=1),
            biases.split([rows for (rows,) in vectors], dim=1),
            matrices,
            strict=True,
        )
        hidden = x.expand(covers, *x.shape)
        for number, (weight, bias, shape) in enumerate(by_layer):
            hidden = self.activation(hidden) if number else hidden
            matrix = weight.view(covers, *shape).transpose(1, 2)
            hidden = torch.baddbmm(bias[:, None], hidden, matrix)
        return hidden

    def _index(self) -> list[Tensor]:
        """Where each weight of the virtual models is read, in each part as one row; (M, P)."""
        routes = self.covered.next_routes()
        assert routes is not None  # fits() saw a directed lift
        if routes.bank is not self.bank:
            self.bank, self.indices = routes.bank, {}
        (which,) = routes.destinations
        if which not in self.indices:
            made = []
            for source in self.sources:
                read = routes.bank[which][source].T.astype(np.int64)
                made.append(torch.from_numpy(read * len(source) + np.arange(len(source))))
            self.indices[which] = made
        return self.indices[which]

    def _sources(self) -> list[NDArray[np.int64]]:
        """The source that each element of both parts belongs to."""
        how = self.covered.settings.routing
        assert isinstance(how, Directed)
        sizes = [sources(torch.Size(shape), how.granularity) for shape in self.shapes]
        starts = np.cumsum([0, *sizes])
        of = [
            np.repeat(np.arange(begin, end), int(np.prod(shape)) // (end - begin))
            for (begin, end), shape in zip(pairwise(starts), self.shapes, strict=True)
        ]
        return [np.concatenate(of[first::2]) for first in (0, 1)]


@contextmanager
def few_threads(work: int) -> Iterator[None]:
    """One thread inside the block where a step has few multiply-adds.

    Threads that wait for each other take several times the CPU time of the work itself there.
    """
    before = torch.get_num_threads()
    if work < _SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
