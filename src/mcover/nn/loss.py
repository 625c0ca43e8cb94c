"""The objective of a training loop: a loss of the base model, summed over covers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from mcover import checks
from mcover.errors import McoverError
from mcover.nn import trees


def cover_loss(
    loss: Callable[[Any, Any], Any] | Any,
    outputs: Any = None,
    target: Any = None,
    *,
    each: bool = False,
) -> Any:
    """Sum over covers of ``loss(outputs[α], target)``.

    With a loss that averages over the batch, each cover sees gradients of the base's size.
    Outputs of several streams or destinations lie along the batch, (M, S·B, ...); the target is
    repeated to match, so that the loss is also averaged over them.

    A model that computes its own loss needs no other: ``cover_loss(covered(**batch))`` takes the
    output's ``loss``, or a tensor of losses, shape (M,) or (M, S).

    Args:
        loss: any ``loss(output, target)``, e.g. ``F.cross_entropy``; or outputs with their loss.
        outputs: what the covered model returned, covers first, in containers of any form.
        target: what the loss takes, batch first, the same for all covers.
        each: whether covers have targets of their own, beside inputs of their own
            (``covered.each(x)``): then every tensor of the target has the covers first.

    >>> outputs = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> cover_loss(torch.nn.functional.mse_loss, outputs, torch.tensor([1.0, 2.0]))
    tensor(4.)
    >>> cover_loss({"loss": torch.tensor([0.5, 0.25])})
    tensor(0.7500)
    """
    if outputs is None:
        return _own_loss(loss)
    if not callable(loss) or isinstance(loss, type):
        raise McoverError(
            f"loss is {checks.shown(loss)}; write a function of output and target, e.g. "
            "F.cross_entropy, or torch.nn.CrossEntropyLoss() with its parentheses."
        )
    each = checks.check_bool("each", each)
    stacks = trees.tensors(outputs)
    if not stacks or stacks[0].ndim == 0 or not len(stacks[0]):
        raise McoverError("cover_loss takes what the covered model returned: covers come first.")
    covers = len(stacks[0])
    if each:
        trees.check_covers_first(target, covers, "each=True", "each=False for a target")
    else:
        target = _repeated(stacks[0], target)
    losses = []
    for cover in map(operator.itemgetter, range(covers)):
        # One at a time: a loss may write into what it is given, but not into parts of an unbind.
        output = trees.map_tensors(cover, outputs)
        own = _repeated(stacks[0], trees.map_tensors(cover, target)) if each else target
        try:
            losses.append(loss(output, own))
        except torch.OutOfMemoryError:
            raise
        except (TypeError, ValueError, IndexError, RuntimeError) as error:
            shapes = [[tuple(t.shape) for t in trees.tensors(tree)] for tree in (output, own)]
            raise McoverError(
                f"loss refuses a cover's output of shapes {shapes[0]} with a target of shapes "
                f"{shapes[1]}: {error}. Write a loss of the base model's output, and outputs with "
                "the covers first."
            ) from error
    return sum(losses[1:], start=losses[0])


def _own_loss(outputs: Any) -> Tensor:
    """Sum over covers of the losses that the model computed."""
    found = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    loss = outputs if isinstance(outputs, Tensor) else found
    if not isinstance(loss, Tensor) or loss.ndim not in (1, 2):
        raise McoverError(
            "cover_loss(outputs) takes outputs with a loss for each cover, shape (M,): give the "
            "model its labels, or write cover_loss(loss, outputs, target)."
        )
    return loss.sum() if loss.ndim == 1 else loss.mean(1).sum()


def _repeated(output: Tensor, target: Any) -> Any:
    """The target once for each stream, where the outputs hold several."""
    targets = [tensor for tensor in trees.tensors(target) if tensor.ndim]
    if not targets or output.ndim < 2 or output.shape[1] == len(targets[0]):
        return target
    size = len(targets[0])
    times, rest = divmod(output.shape[1], max(size, 1))
    if rest or not times:
        return target  # not batch against batch: the loss knows what it does
    # Tensors of another length are not batches, e.g. the weights of classes.
    return trees.map_tensors(
        lambda one: torch.cat([one] * times) if one.ndim and len(one) == size else one, target
    )
