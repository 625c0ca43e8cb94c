"""From M covers back to models of the base's class: their mean, or one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from mcover import checks
from mcover.errors import McoverError

How = Literal["mean", "sign"]


def collapse(covered: Any, how: How = "mean", loader: Iterable[Any] | None = None) -> nn.Module:
    """One model of the base's class and ``state_dict`` keys, in evaluation mode.

    Args:
        covered: the covered model.
        how: the "mean" over covers, or the "sign" of it, for ±1 weights.
        loader: training batches to compute running statistics on, as for
            ``torch.optim.swa_utils.update_bn``. Without it they are averaged over covers, and
            counters are those of the first.
    """
    method = _sign if checks.choice("how", how, get_args(How)) == "sign" else _mean
    lifted = set(covered.lifted)
    net = _rebuilt(covered, lambda name, stack: (method if name in lifted else _mean)(stack))
    if loader is not None:
        update_bn(loader, net, next(net.parameters()).device)
    return net


def cover(covered: Any, index: int) -> nn.Module:
    """Cover ``index`` as a model of the base's class by itself, in evaluation mode."""
    index = checks.whole("cover", index, -covered.covers, covered.covers - 1)
    return _rebuilt(covered, lambda _, stack: stack[index], index)


def _rebuilt(covered: Any, value: Callable[[str, Tensor], Tensor], index: int = 0) -> nn.Module:
    """The base model with ``value(name, stack)`` in the place of each stack, in evaluation mode.

    Tied names stay tied. What the model keeps in attributes is that of cover ``index``.
    """
    made = {id(own): own for own in (*covered.net.parameters(), *covered.net.buffers())}
    for name, stack in (covered.stacks() | covered.state_stacks()).items():
        made[id(stack)] = one = value(name, stack.detach())
        if one.is_floating_point() and not bool(torch.isfinite(one).all()):
            wrong = [k for k, row in enumerate(stack) if not bool(torch.isfinite(row).all())]
            raise McoverError(
                f"{name!r} has values that are not finite"
                + (f" (in covers {wrong})" if wrong else "")
                + "; the training has diverged: lower the learning rate or clip gradients."
            )
    copies = {key: one.detach().clone() for key, one in made.items()}
    for own in covered.net.parameters():
        copies[id(own)] = nn.Parameter(copies[id(own)], own.requires_grad)
    return covered._runner.copies.apart(index, copies).eval()


def _mean(stack: Tensor) -> Tensor:
    """The mean over covers; equal values stay what they are, to the last bit."""
    if not (stack.is_floating_point() or stack.is_complex()):
        return stack[0]
    return torch.where((stack == stack[0]).all(0), stack[0], stack.mean(0))


def _sign(stack: Tensor) -> Tensor:
    """The sign of the sum over covers; a tie is +1."""
    if stack.is_complex():
        raise McoverError("complex weights have no sign; write how='mean'.")
    return torch.where(stack.sum(0) < 0, -1.0, 1.0).to(stack.dtype)
