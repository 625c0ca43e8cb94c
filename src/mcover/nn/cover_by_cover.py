"""The loss of the directed lift, cover by cover: forward and backward of one, then of the next.

In the directed lift covers never meet. So the gradients of one cover can be computed before the
next cover runs, and the activations of a single model are alive at a time. An ordinary forward
returns the outputs of all covers, and has to keep the activations of all for the backward.

Weights and inputs are cut from the graph that they come from: covers run on leaves that share
their memory. The gradients of the leaves are kept, in place of the weights, and the loss that is
returned is connected to where the leaves were cut. Its backward only hands the gradients over: to
the routes, which return them to the stacks, and from there to hooks, to DDP, to the optimizer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mcover import checks
from mcover.errors import McoverError
from mcover.nn import trees
from mcover.nn.loss import check_loss, loss_of_cover, own_loss, repeated

# Typed as Any are the covered model and its execution, which import this module.


@dataclass(frozen=True, eq=False)
class Objective:
    """What the covers of one forward are trained on."""

    loss: Callable[[Any, Any], Any] | None  # None for a model that computes its own
    target: Any
    each: bool
    scale: float

    def of_cover(self, cover: int, output: Any, passes: int) -> Tensor:
        """The loss of a cover, from its outputs of all passes, joined along the batch."""
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


def loss(
    covered: Any,
    loss: Callable[[Any, Any], Any] | None,
    inputs: Any,
    target: Any = None,
    *,
    each: bool = False,
    scale: float = 1.0,
    through: Callable[..., Any] | None = None,
) -> Tensor:
    """The sum over covers of a loss, computed cover by cover; its backward sets the gradients.

    The same value and the same gradients as ``cover_loss(loss, covered(x), target)``, in the memory
    of one model: gradients are computed here, for one cover at a time, and ``backward`` hands them
    over. So call it where gradients are wanted, and at most once for a loss. For the directed lift;
    covers of the message lift meet in every layer, and none of them can go ahead.

    >>> import mcover, torch
    >>> from torch.nn import functional as F
    >>> covered = mcover.lift(torch.nn.Linear(4, 2), 3, mcover.Uniform(), "directed", seed=0)
    >>> x, y = torch.ones(5, 4), torch.zeros(5, dtype=torch.long)
    >>> covered.loss(F.cross_entropy, x, y).backward()
    >>> covered.net.weight.grad.shape
    torch.Size([3, 2, 4])

    Args:
        covered: a covered model.
        loss: a function of output and target; None for a model that computes its own loss.
        inputs: what the model takes: a tensor, a tuple of arguments, or a dict of named ones.
        target: what the loss takes, batch first, the same for all covers.
        each: whether covers have inputs and targets of their own: every tensor has the covers
            first.
        scale: by which losses are multiplied inside, so that gradients of half precision do not
            vanish: ``scaler.scale(covered.loss(..., scale=scaler.get_scale())).backward()``.
        through: a module around the covered model that returns what it returns, such as
            DistributedDataParallel: it is called in its place.

    Raises:
        McoverError: the model is lifted by messages, or the loss does not fit.
    """
    if not covered.is_directed:
        raise McoverError(
            "covered.loss runs cover by cover, and covers of the message lift meet in every layer "
            "that mixes; write cover_loss(loss, covered(x), target), or take routing='directed'."
        )
    if loss is not None:
        check_loss(loss)
    objective = Objective(
        loss,
        target,
        checks.check_bool("each", each),
        checks.check_float("scale", scale, above=0),
    )
    if each:
        count = len(covered.held)
        trees.check_covers_first(inputs, count, "each=True", "each=False for inputs")
        if loss is not None:
            trees.check_covers_first(target, count, "each=True", "each=False for a target")
    args = inputs if isinstance(inputs, tuple) else () if isinstance(inputs, dict) else (inputs,)
    named = inputs if isinstance(inputs, dict) else {}
    if through is not None and not callable(through):
        raise McoverError(f"through is {through!r}; write a module around the covered model.")
    with covered._execution.expect(objective) as expected:
        total: Tensor = (through or covered)(*args, **named)
        if expected():
            raise McoverError(
                "through did not call this covered model; write a module that holds it."
            )
    return total


def run_covers(execution: Any, inputs: Any, step: int, objective: Objective) -> Tensor:
    """One forward and backward of all covers, one after the other; returns the loss."""
    state, copies = execution.state, execution.copies
    trains, kept = torch.is_grad_enabled(), Kept()
    execution.prepare_copies()
    covers, passes = len(state.held), state._passes_of(step)
    stacks = list(state.stacks().values())
    # The virtual models, pass by pass: each tensor is emptied once its cover has run.
    models = [dict(zip(stacks, state._slices(which), strict=True)) for which in passes]
    buffers = {stack: stack.unbind() for stack in state.state_stacks().values()}
    lifted = set(stacks)
    shared = {p: [kept.cut(p)] * covers for p in state.net.parameters() if p not in lifted}
    empty: dict[Tensor, Any] = {stack: [None] * covers for stack in stacks}
    copies.bind(empty | buffers | shared)
    inputs = trees.map_tensors(kept.cut, inputs)
    own_inputs = execution.own_inputs(inputs, objective.each)
    losses = []
    with execution.unchanged_buffers(), _casting_anew():
        for cover in range(covers):
            weights = [{stack: own[cover] for stack, own in model.items()} for model in models]
            leaves = [{stack: one.detach() for stack, one in own.items()} for own in weights]
            pairs = [pair for a, b in zip(leaves, weights, strict=True) for pair in _pairs(a, b)]
            if trains:
                for leaf, root in pairs:
                    leaf.requires_grad_(root.requires_grad)
            outputs = []
            for number, own in enumerate(leaves):
                if number and trains:
                    copies.replace_copy(cover)  # a backward may run this cover's passes again
                module = copies.bind_cover(cover, own)
                args, named = own_inputs.of_cover(cover)
                outputs.append(module(*args, **named))
                own_inputs.check()
            output = outputs[0] if len(outputs) == 1 else trees.merge(_join, *outputs)
            before = {t.grad_fn for t in trees.tensors(output)}
            value = objective.of_cover(cover, output, len(passes))
            losses.append(value.detach())
            if value.requires_grad:
                kept.backward(value, before, objective.scale)
            copies.bind_cover(cover, dict.fromkeys(stacks))
            for leaf, root in pairs:
                kept.take(leaf, root)
                root.data = root.new_empty(0)  # the graph needs the node, not the values
            del leaf, root, own, pairs, leaves, weights, outputs, output, before, value
    execution.collect_buffers(buffers)
    total = sum(losses[1:], start=losses[0])
    return kept.connected(total, objective.scale)


def _pairs(leaves: dict[Tensor, Tensor], roots: dict[Tensor, Tensor]) -> Any:
    return zip(leaves.values(), roots.values(), strict=True)


def _join(*values: Any) -> Any:
    """What one cover returned in several passes, along the batch; numbers become a stack."""
    if not isinstance(values[0], Tensor):
        return values[0]
    return torch.cat(values) if values[0].ndim else torch.stack(values)


class Kept:
    """The gradients so far, by the tensors that get them when the loss is differentiated."""

    def __init__(self) -> None:
        self.grads: dict[Tensor, Tensor] = {}
        self.leaves: list[tuple[Tensor, Tensor]] = []  # of what all covers share

    def cut(self, tensor: Tensor) -> Tensor:
        """A leaf in the memory of a tensor that all covers share; itself if it does not train."""
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            return tensor
        leaf = tensor.detach().requires_grad_()
        self.leaves.append((leaf, tensor))
        return leaf

    def take(self, leaf: Tensor, tensor: Tensor) -> None:
        """Keeps the gradient of a leaf for the tensor that it was cut from."""
        grad, leaf.grad = leaf.grad, None
        if grad is not None:
            self.grads[tensor] = grad

    def backward(self, value: Tensor, outputs: set[Any], scale: float) -> None:
        """The backward of one cover's loss, from ``value`` down to leaves.

        The loss itself may train something, e.g. a temperature. Its gradient has to wait for the
        backward of the sum as well. It is found by a search of the loss's own graph, which is
        small: it ends at the nodes of the model's outputs.
        """
        others = _leaves(value, outputs)
        before = [other.grad for other in others]
        for other in others:
            other.grad = self.grads.get(other)
        try:
            with _without_autocast():
                # What the loss took from outside of itself is differentiated for each cover.
                start = None if scale == 1 and not value.ndim else torch.full_like(value, scale)
                torch.autograd.backward(value, start, retain_graph=bool(others))
        finally:
            for other, grad in zip(others, before, strict=True):
                self.take(other, other)
                other.grad = grad

    def connected(self, total: Tensor, scale: float) -> Tensor:
        """The loss, whose backward hands all gradients over."""
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
                "the gradients of this loss were handed over already; call covered.loss again for "
                "another backward, or write cover_loss(loss, covered(x), target)."
            )
        factor = float(grad) / ctx.scale
        if factor != 1:
            for own in grads:
                own.mul_(factor)
        return None, None, None, *grads


def _leaves(value: Tensor, outputs: set[Any]) -> list[Tensor]:
    """What trains in the graph between a loss and the outputs that it was computed on."""
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


_DEVICES = ("cpu", "cuda")


def _without_autocast() -> contextlib.ExitStack:
    """Backwards compute in the dtypes of their forwards."""
    stack = contextlib.ExitStack()
    for device in _DEVICES:
        if torch.is_autocast_enabled(device):
            stack.enter_context(torch.autocast(device, enabled=False))
    return stack


@contextlib.contextmanager
def _casting_anew() -> Iterator[None]:
    """Autocast would keep the cast weights of every cover until it ends."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
