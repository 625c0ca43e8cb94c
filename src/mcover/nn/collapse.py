"""From M covers back to one model of the base's class, with the base's ``state_dict`` keys."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from mcover.errors import McoverError
from mcover.nn.covers import Covers
from mcover.nn.layers import is_covered, plain_layer

Method = Literal["mean", "sign"]
Buffers = Literal["average", "first", "recalibrate"]


def collapse(
    covered: Covers,
    method: Method | Callable[[Tensor], Tensor] = "mean",
    buffers: Buffers = "average",
    loader: Iterable[Any] | None = None,
) -> nn.Module:
    """One model made of all covers, in evaluation mode; see :meth:`Covered.collapse`."""
    how = {"mean": _mean, "sign": _sign}.get(method) if isinstance(method, str) else method
    if how is None:
        raise McoverError(f"method is {method!r}; write one of {get_args(Method)} or a function.")
    if buffers not in get_args(Buffers):
        raise McoverError(f"buffers is {buffers!r}; write one of {get_args(Buffers)}.")
    if (buffers == "recalibrate") != (loader is not None):
        raise McoverError(
            "buffers='recalibrate' runs training batches through the collapsed model; "
            "write collapse(buffers='recalibrate', loader=train_loader)."
        )
    of_buffers = _first if buffers == "first" else _mean
    tensors = {name: how(stack.detach()) for name, stack in covered.stacks().items()}
    tensors |= {name: of_buffers(stack) for name, stack in covered.state_stacks().items()}
    net = rebuild(covered, tensors)
    if loader is not None:
        update_bn(loader, net, next(net.parameters()).device)
    return net.eval()


def one_cover(covered: Covers, index: int) -> nn.Module:
    """Cover ``index`` as a model by itself, in evaluation mode."""
    if not isinstance(index, int) or not -covered.covers <= index < covered.covers:
        raise McoverError(f"there is no cover {index!r}; write 0 to {covered.covers - 1}.")
    stacks = {**covered.stacks(), **covered.state_stacks()}
    return rebuild(covered, {name: stack.detach()[index] for name, stack in stacks.items()}).eval()


def rebuild(covered: Covers, tensors: Mapping[str, Tensor]) -> nn.Module:
    """The base model with these tensors in the place of the stacks; tied names stay tied."""
    memo: dict[int, Any] = {}
    stacks = {**covered.stacks(), **covered.state_stacks()}
    for name, stack in stacks.items():
        value = tensors[name]
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            wrong = [k for k, row in enumerate(stack) if not bool(torch.isfinite(row).all())]
            raise McoverError(
                f"{name!r} has values that are not finite"
                + (f" (in covers {wrong})" if wrong else "")
                + "; the training has diverged: lower the learning rate or clip gradients."
            )
        own = value.detach().clone()
        trained = isinstance(stack, nn.Parameter)
        memo[id(stack)] = nn.Parameter(own, requires_grad=stack.requires_grad) if trained else own
    net = copy.deepcopy(covered.net, memo)
    for layer in net.modules():
        if is_covered(layer):
            plain_layer(layer)
    return net


def _mean(stack: Tensor) -> Tensor:
    return stack.mean(0) if stack.is_floating_point() or stack.is_complex() else _first(stack)


def _first(stack: Tensor) -> Tensor:
    return stack[0]


def _sign(stack: Tensor) -> Tensor:
    """The sign of the sum over covers; a tie is +1."""
    return torch.where(stack.sum(0) < 0, -1.0, 1.0).to(stack.dtype)
