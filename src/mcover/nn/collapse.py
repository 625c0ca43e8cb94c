"""Turns M covers into models of the base's class, or into one prediction."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from mcover import checks
from mcover.errors import McoverError, McoverWarning
from mcover.nn import trees
from mcover.nn.state import CoverState

How = Literal["mean", "sign"] | Callable[[Tensor], Tensor]


def collapse(
    covered: CoverState, how: How = "mean", loader: Iterable[Any] | None = None
) -> nn.Module:
    """One model of the base's class and ``state_dict`` keys, in evaluation mode.

    Args:
        covered: the covered model.
        how: the "mean" over covers; the "sign" of it, for ±1 weights; or a function of a stack
            ``(M, *shape)``.
        loader: training batches from which running statistics are recomputed, as in
            ``torch.optim.swa_utils.update_bn``. Without it they are averaged over covers, which
            describes the covers and not their mean, and counters are taken from the first cover.
    """
    method = {"mean": mean_over_covers, "sign": _sign}.get(how) if isinstance(how, str) else how
    if not callable(method):
        seen = checks.shown(how)
        raise McoverError(f"how is {seen}; write 'mean', 'sign' or a function of a stack.")

    def value(name: str, stack: Tensor) -> Tensor:
        return _made(method, name, stack) if name in covered.lifted else mean_over_covers(stack)

    if loader is not None:
        check_loader("loader", loader)
    else:
        warn_of_statistics(covered)
    return recalibrated(rebuilt(covered, value), loader)


def warn_of_statistics(covered: CoverState) -> None:
    """Warns at the caller's call if running statistics of a batch norm differ between covers."""
    for name, stack in covered.state_stacks().items():
        at, _, key = name.rpartition(".")
        if key == "running_mean" and bool((stack != stack[0]).any()):
            warnings.warn(
                f"the running statistics of batch norm {at!r} describe the covers and not the "
                "collapsed model, which may predict at random; write collapse(loader=batches) with "
                "a few batches of training inputs.",
                McoverWarning,
                stacklevel=3,
            )
            return


def check_loader(name: str, loader: Any) -> None:
    """Refuses anything but an iterable of batches."""
    is_batches = isinstance(loader, Iterable) and not isinstance(
        loader, str | bytes | Mapping | np.ndarray | Tensor | nn.Module
    )
    if not is_batches:
        raise McoverError(
            f"{name} is {checks.shown(loader)}; write batches of inputs, e.g. a DataLoader or a "
            "list of tensors."
        )


class _Counted:
    """Batches, counted as they are read."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self.was_read = False
        self.batches = 0

    def __iter__(self) -> Iterator[Any]:
        self.was_read = True
        for batch in self.loader:
            self.batches += 1
            yield batch


def recalibrated(net: nn.Module, loader: Iterable[Any] | None) -> nn.Module:
    """Recomputes the running statistics of a model's batch norms, if a loader is given."""
    if loader is None:
        return net
    counted = _Counted(loader)
    try:
        update_bn(counted, net, next(net.parameters()).device)
    except torch.OutOfMemoryError:
        raise
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
        raise McoverError(
            f"the model cannot run on the batches of loader: {error}. Write batches that the base "
            "model takes, as tensors or as tuples that begin with one."
        ) from error
    if not counted.was_read:
        warnings.warn(
            "loader has no effect, because the model has no batch norm with running statistics; "
            "leave it out.",
            McoverWarning,
            stacklevel=3,
        )
    elif not counted.batches:
        raise McoverError(
            "loader has no batches, so running statistics cannot be computed; write a DataLoader "
            "or a list of batches (a generator can be read only once)."
        )
    return net


def _made(method: Callable[[Tensor], Any], name: str, stack: Tensor) -> Tensor:
    """The result of a method for one stack; refused unless it is a tensor of the base's shape."""
    try:
        made = method(stack)
        seen = f"shape {tuple(made.shape)}" if isinstance(made, Tensor) else repr(made)
    except McoverError:
        raise
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        made, seen = error, repr(error)
    if not isinstance(made, Tensor) or made.shape != stack.shape[1:]:
        raise McoverError(
            f"how made {seen} of {name!r}, whose stack is {tuple(stack.shape)}; return a tensor of "
            f"shape {tuple(stack.shape[1:])}, e.g. stack.median(0).values."
        ) from (made if isinstance(made, Exception) else None)
    return made.to(stack.dtype)


def cover(covered: CoverState, index: int) -> nn.Module:
    """Cover ``index`` as a separate model of the base's class, in evaluation mode."""
    index = checks.check_int("cover", index, -covered.covers, covered.covers - 1)
    return rebuilt(covered, lambda _, stack: stack[index], index)


def ensemble(covered: CoverState, /, *args: Any, **kwargs: Any) -> Any:
    """The mean prediction of the M covers, each run as a separate model, shape (B, ...).

    For integers and booleans it is the most frequent value, or the smallest of several.
    """
    each = []
    for index in range(covered.covers):
        own, named = trees.map_tensors(torch.clone, (args, kwargs))  # the model may write to it
        each.append(cover(covered, index)(*own, **named))
    return trees.map_tensors(_average, trees.stack(*each))


def _average(stack: Tensor) -> Tensor:
    """The mean over the first axis, or the most frequent value for integers and booleans."""
    if stack.is_floating_point() or stack.is_complex():
        return stack.mean(0)
    return stack.long().mode(0).values.to(stack.dtype)


def rebuilt(
    covered: CoverState, value: Callable[[str, Tensor], Tensor], index: int = 0
) -> nn.Module:
    """The base model with ``value(name, stack)`` in the place of each stack, in evaluation mode.

    Tied names stay tied. Attributes of the model are copied from cover ``index``.
    """
    net = covered.net
    made: dict[Tensor, Tensor] = {own: own for own in (*net.parameters(), *net.buffers())}
    for name, stack in (covered.stacks() | covered.state_stacks()).items():
        made[stack] = one = value(name, stack.detach())
        if one.is_floating_point() and not bool(torch.isfinite(one).all()):
            wrong = [k for k, own in enumerate(stack) if not bool(torch.isfinite(own).all())]
            raise McoverError(
                f"{name!r} has values that are not finite"
                + (f" (in covers {wrong})" if wrong else "")
                + "; the training has diverged: lower the learning rate or clip gradients."
            )
    values: dict[Tensor, Tensor] = {key: one.detach().clone() for key, one in made.items()}
    for parameter in net.parameters():
        values[parameter] = nn.Parameter(values[parameter], parameter.requires_grad)
    return covered._cover_module(index, values).eval()


def mean_over_covers(stack: Tensor) -> Tensor:
    """The mean over covers; if all are equal, exactly their value."""
    if not (stack.is_floating_point() or stack.is_complex()):
        return stack[0]
    return torch.where((stack == stack[0]).all(0), stack[0], stack.mean(0))


def _sign(stack: Tensor) -> Tensor:
    """The sign of the sum over covers; a tie is +1."""
    if stack.is_complex():
        raise McoverError("complex weights have no sign; write how='mean' or a function.")
    return torch.where(stack.sum(0) < 0, -1.0, 1.0).to(stack.dtype)
