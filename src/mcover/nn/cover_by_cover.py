"""Parts of ``covered.loss``, which runs forward and backward of one cover, then of the next.

In the directed lift covers never meet. So the gradients of one cover can be computed before the
next cover runs, and the activations of only one model are alive at a time. An ordinary forward
returns the outputs of all covers, and has to keep all their activations for the backward.

Covers run on leaves of the autograd graph: the gathered weights of a virtual model, and detached
inputs. The backward of one cover ends at its leaves. When all covers have run, their gradients
return along the routes together. The returned loss is connected to the stacks and to the original
inputs. Its backward only hands over gradients that exist already, so hooks, DDP and the optimizer
see an ordinary backward.

Gradients of lifted weights are bit-identical to those of ``cover_loss``, since the same operations
compute them. Gradients of shared parameters and inputs are not: they are sums over covers, added
here in the order of the covers and by autograd in the order of its graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mcover.errors import McoverError
from mcover.nn import trees
from mcover.nn.lockstep import without_autocast
from mcover.nn.loss import loss_of_cover, own_loss, repeated
from mcover.nn.recomputation import versions, watched


@dataclass(frozen=True, eq=False)
class Objective:
    """The loss and the target of one forward."""

    loss: Callable[[Any, Any], Any] | None  # None if the model computes its own
    target: Any
    each: bool
    scale: float

    def of_cover(self, cover: int, output: Any, passes: int) -> Tensor:
        """The loss of a cover; ``output`` joins its passes along the batch."""
        if self.loss is None:
            value: Any = own_loss(output, (0, 1)).mean()
        else:
            target = self.target
            if self.each:
                target = trees.map_tensors(lambda tensor: tensor[cover], target)
            value = loss_of_cover(self.loss, output, repeated(target, passes))
        if not isinstance(value, Tensor) or value.numel() != 1:
            seen = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise McoverError(
                f"the loss of a cover has {seen}; write one that returns a single number, e.g. the "
                "mean over the batch."
            )
        return value


class VirtualModels:
    """The weights of the virtual models of one pass, each replaced by its gradient once used.

    Gradients are copied into the memory of the weights, which are no longer read. To keep
    autograd's own gradient tensors and free the weights instead needs as many bytes, but fragments
    the heap: those tensors are allocated between activations and prevent the allocator from
    returning the pages around them. In a training step of a ResNet-18 with a batch of 32 that took
    885 MiB instead of 590 to 710.
    """

    def __init__(self, stacks: dict[str, Tensor], slices: list[Any]) -> None:
        self.stacks = stacks
        self.weights = {name: list(own) for name, own in zip(stacks, slices, strict=True)}

    def leaves(self, cover: int, trains: bool) -> dict[Tensor, Tensor]:
        """The weights of a cover, by their stacks."""
        own = {stack: self.weights[name][cover] for name, stack in self.stacks.items()}
        if trains:
            for stack, leaf in own.items():
                leaf.requires_grad_(stack.requires_grad)
        return own

    def keep_gradients(self, cover: int) -> None:
        """Replaces the weights of a cover by their gradients."""
        for values in self.weights.values():
            leaf = values[cover]
            grad, leaf.grad = leaf.grad, None
            values[cover] = None if grad is None else leaf.detach().copy_(grad)

    def gradients(self) -> dict[str, list[Tensor]]:
        """Gradients by the name of the stack, zeros for a cover without one; clears this object."""
        found, self.weights = self.weights, {}
        reached = {n: [v for v in of if v is not None] for n, of in found.items()}
        return {
            name: [torch.zeros_like(reached[name][0]) if v is None else v for v in values]
            for name, values in found.items()
            if reached[name]
        }


def join_passes(*values: Any) -> Any:
    """Joins the outputs of one cover's passes along the batch; scalars become a vector."""
    if not isinstance(values[0], Tensor):
        return values[0]
    return torch.cat(values) if values[0].ndim else torch.stack(values)


class KeptGradients:
    """Gradients of the covers that have run, by the tensors to which the backward gives them."""

    def __init__(self) -> None:
        self.grads: dict[Tensor, Tensor] = {}
        self.leaves: list[tuple[Tensor, Tensor]] = []  # for tensors that all covers share

    def leaf_of(self, tensor: Tensor) -> Tensor:
        """A detached leaf for a tensor that covers share; without gradients the tensor itself."""
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            return tensor
        leaf = tensor.detach().requires_grad_()
        self.leaves.append((leaf, tensor))
        return leaf

    def take(self, leaf: Tensor, tensor: Tensor) -> None:
        """Moves the gradient of a leaf to the tensor that it was detached from."""
        grad, leaf.grad = leaf.grad, None
        if grad is not None:
            self.grads[tensor] = grad

    def add(self, stacks: dict[str, Tensor], grads: dict[str, Tensor]) -> None:
        """Adds gradients of stacks."""
        for name, grad in grads.items():
            before = self.grads.get(stacks[name])
            self.grads[stacks[name]] = grad if before is None else before.add_(grad)

    def backward(self, value: Tensor, outputs: set[Any], scale: float) -> None:
        """Runs the backward of one cover's loss, down to the leaves.

        The loss may have parameters of its own, e.g. a temperature, whose gradients have to wait
        for the backward of the sum too. They are found by a search of the graph between the loss
        and ``outputs``, the nodes of the model's outputs, which is small.
        """
        others = _leaves(value, outputs)
        before = [other.grad for other in others]
        for other in others:
            other.grad = self.grads.get(other)
        try:
            with without_autocast():  # a backward computes in the dtypes of its forward
                # Covers share the graph of the loss's own parameters: it is kept for the next one.
                start = None if scale == 1 and not value.ndim else torch.ones_like(value) * scale
                torch.autograd.backward(value, start, retain_graph=bool(others))
        finally:
            for other, grad in zip(others, before, strict=True):
                self.take(other, other)
                other.grad = grad

    def connected(self, total: Tensor, scale: float) -> Tensor:
        """The loss, with a backward that hands over all gradients."""
        for leaf, tensor in self.leaves:
            self.take(leaf, tensor)
        if not self.grads:
            return total
        given = list(self.grads.values())
        made: Tensor = _HandOver.apply(total, scale, given, *self.grads)  # type: ignore[no-untyped-call]
        return made


class _HandOver(torch.autograd.Function):
    """A loss whose gradients are computed already."""

    @staticmethod
    def forward(total: Tensor, scale: float, grads: list[Tensor], *tensors: Tensor) -> Tensor:
        return total.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.scale, ctx.grads = inputs[1:3]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grads, ctx.grads = ctx.grads, None
        if grads is None:
            raise McoverError(
                "the gradients of this loss were used already; call covered.loss again for "
                "another backward, or write cover_loss(loss, covered(x), target)."
            )
        factor = float(grad) / ctx.scale
        if factor != 1:
            for own in grads:
                own.mul_(factor)
        return None, None, None, *grads


class OwnInputs:
    """Inputs of covers that run one after the other: copies if the model writes to its input.

    Whether it does is not known before it has run, so the first forward runs on copies too.
    """

    def __init__(self, changes: dict[bool, bool], training: bool, inputs: Any, each: bool) -> None:
        self.changes, self.training, self.each = changes, training, each
        known = changes.get(training)
        self.copies = known is not False
        # With ``each``, the first forward runs on slices of one copy, as an ordinary forward does.
        # Copies of the slices would have another alignment in memory, and products could round
        # differently.
        self.copies_slices = self.copies and not (each and known is None)
        first = self.copies and not self.copies_slices
        self.inputs = trees.map_tensors(watched, inputs) if first else inputs
        self.given: list[Tensor] = trees.tensors(self.inputs)
        self.untouched = versions(self.given)

    def of_cover(self, cover: int) -> Any:
        """The inputs of one cover."""
        given = trees.map_tensors(lambda t: t[cover], self.inputs) if self.each else self.inputs
        if self.copies_slices:
            given = trees.map_tensors(watched, given)
        if self.copies:
            self.given = trees.tensors(given)
            self.untouched = versions(self.given)
        return given

    def check(self) -> None:
        """Records whether the cover that has just run wrote to its inputs."""
        changed = versions(self.given) != self.untouched
        if changed and not self.copies:
            raise changed_input_error()
        if self.copies:
            self.changes[self.training] = changed or self.changes.get(self.training, False)


def changed_input_error() -> McoverError:
    return McoverError(
        "the model changed its input in place, which all covers share, and had not done so "
        "before; write x = x.clone() at the start of its forward."
    )


def _leaves(value: Tensor, outputs: set[Any]) -> list[Tensor]:
    """The leaves of the graph between a loss and the model's outputs."""
    seen, waiting, found = set(outputs), [value.grad_fn], []
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)  # of a node that accumulates into a leaf
        if variable is not None:
            found.append(variable)
        waiting += [following for following, _ in node.next_functions]
    return found


@contextlib.contextmanager
def without_autocast_cache() -> Iterator[None]:
    """Turns off autocast's cache, which would keep the cast weights of all covers alive."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
