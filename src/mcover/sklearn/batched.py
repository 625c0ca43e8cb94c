"""The directed lift of a multilayer perceptron, with one batched product per layer.

The general lift runs the base's own code, cover by cover, under autograd: about sixty small
operations per step for one hidden layer and four covers. For the small layers of tabular data,
their overhead is nearly all of the time. Here the weights and biases of all covers are in one
tensor, each operation handles all covers, and the gradients of the layers are written out without
autograd. The tests compare steps and routes with those of the covered model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mcover import Directed
from mcover.nn import Covered
from mcover.nn.directed import move, words

_SMALL = 2**25  # steps with fewer multiply-adds run on one thread

Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""The loss of each sample, and its gradient, from outputs and targets, samples first."""

# The gradient at the input of an activation, from that at its output and from the output.
_SLOPES: dict[type[nn.Module], Callable[[Tensor, Tensor], Tensor]] = {
    nn.ReLU: lambda grad, out: grad * (out > 0),
    nn.Tanh: lambda grad, out: grad * (1 - out * out),
    nn.Sigmoid: lambda grad, out: grad * (out * (1 - out)),
    nn.Identity: lambda grad, out: grad,
}


class _Layer(NamedTuple):
    """Views of the parameters of one layer in a tensor of all parameters."""

    matrix: Tensor  # (M, outputs, inputs)
    bias: Tensor  # (M, 1, outputs)


class _Parameters:
    """A tensor of all parameters of all covers, (M, parameters), and views of it."""

    def __init__(self, values: Tensor, sizes: list[int], shapes: list[torch.Size]) -> None:
        self.values = values
        self.rows = words(values.unbind())
        parts = values.split(sizes, dim=1)
        matrices = [
            part.view(-1, *shape) for part, shape in zip(parts[::2], shapes[::2], strict=True)
        ]
        biases = [part.unsqueeze(1) for part in parts[1::2]]
        self.layers = [_Layer(*both) for both in zip(matrices, biases, strict=True)]


class BatchedCovers:
    """Trains the covers of a perceptron; :meth:`write` copies them into the covered model.

    Args:
        covered: covers of a ``Sequential`` of linear layers and one kind of activation.
        activation: the activation between layers.
        objective: the loss.
        lr: the learning rate of AdamW.
        decay: the weight decay of the matrices.
    """

    def __init__(
        self, covered: Covered, activation: nn.Module, objective: Objective, lr: float, decay: float
    ) -> None:
        self.covered, self.activation, self.objective = covered, activation, objective
        stacks = [stack.detach() for stack in covered.stacks().values()]
        self.shapes = [stack.shape[1:] for stack in stacks]
        self.sizes = [shape.numel() for shape in self.shapes]
        self.weights = torch.cat([stack.flatten(1) for stack in stacks], 1)
        # The weight decay of AdamW would apply to biases too.
        kept = [1.0 - lr * decay * (len(shape) > 1) for shape in self.shapes]
        self.kept = self.weights.new_tensor(np.repeat(kept, self.sizes))
        self.optimizer = torch.optim.AdamW([self.weights], lr=lr, weight_decay=0.0, fused=True)
        self._memory: list[_Parameters] = []

    def __getstate__(self) -> dict[str, Any]:
        """Everything except views, which would be separate tensors in a copy."""
        return {**self.__dict__, "_memory": []}

    @staticmethod
    def fits(covered: Covered) -> bool:
        """Whether a lift routes single weights and evaluates one destination per step."""
        how = covered.settings.routing
        by_weight = isinstance(how, Directed) and how.granularity == "weight"
        return by_weight and covered.passes == 1

    @torch.no_grad()
    def step(self, x: Tensor, target: Tensor, weight: Tensor) -> float:
        """One step of the optimizer; the loss is summed over covers."""
        stacks, gradients, virtual, to_virtual = self._memory or self._prepared()
        index = self._index()
        move(stacks.rows, virtual.rows, index, self.covered.route_table.T.numpy())
        hidden, outputs = [x.expand(len(self.weights), *x.shape)], x
        for number, layer in enumerate(virtual.layers):
            if number:
                hidden.append(self.activation(outputs))
            outputs = torch.baddbmm(layer.bias, hidden[-1], layer.matrix.mT)
        targets = torch.cat([target] * len(outputs))
        losses, errors = self.objective(outputs.flatten(0, 1), targets)
        errors = errors.view_as(outputs) * (weight / len(weight))[:, None]
        for number in reversed(range(len(hidden))):
            torch.sum(errors, 1, keepdim=True, out=to_virtual.layers[number].bias)
            to_virtual.layers[number].matrix.copy_(errors.mT @ hidden[number])
            if number:
                errors = errors @ virtual.layers[number].matrix
                errors = _SLOPES[type(self.activation)](errors, hidden[number])
        # Gradients return along the inverse routes; each weight is read by one cover.
        move(to_virtual.rows, gradients.rows, index, self.covered.route_inverse.T.numpy())
        self.weights.mul_(self.kept)
        self.optimizer.step()
        return float((losses.view(len(outputs), -1) * weight).mean(1).sum())

    def write(self) -> None:
        """Copies the trained values into the covered model."""
        parts = self.weights.split(self.sizes, dim=1)
        with torch.no_grad():
            for stack, values in zip(self.covered.stacks().values(), parts, strict=True):
                stack.copy_(values.view_as(stack))

    def _prepared(self) -> list[_Parameters]:
        """The tensors of the stacks and their gradients, and of virtual models and theirs."""
        gradients, virtual, to_virtual = (torch.empty_like(self.weights) for _ in range(3))
        self.weights.grad = gradients
        held = self.weights, gradients, virtual, to_virtual
        self._memory = [_Parameters(values, self.sizes, self.shapes) for values in held]
        return self._memory

    def _index(self) -> NDArray[np.unsignedinteger]:
        """The route of each parameter in the next step, as a row of the table."""
        (which,) = self.covered._next_destinations()
        return self.covered._route_index[which].numpy()


@contextmanager
def few_threads(work: int) -> Iterator[None]:
    """Runs the block on one thread if a step has few multiply-adds.

    For such steps, threads that wait for each other use several times the CPU time of the work.
    """
    before = torch.get_num_threads()
    if work < _SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
