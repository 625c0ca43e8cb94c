"""The objective of a training loop: a loss of the base model, summed over covers."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from mcover import checks
from mcover.errors import McoverError, McoverWarning
from mcover.nn import trees

_PASSES = "_mcover_passes"  # the attribute of an output that holds several passes: how many


def mark_passes(output: Tensor, passes: int) -> Tensor:
    """Records on an output that it holds several passes along its batch."""
    setattr(output, _PASSES, passes)
    return output


def cover_loss(
    loss: Callable[[Any, Any], Any] | Any,
    outputs: Any = None,
    target: Any = None,
    *,
    each: bool = False,
    passes: int | None = None,
) -> Any:
    """Sum over covers of ``loss(outputs[α], target)``.

    With a loss that averages over the batch, each cover has gradients of the base's size.
    Outputs of several streams or destinations lie along the batch, (M, S·B, ...); the target is
    repeated S times, so that the loss is also averaged over them.

    For a model that computes its own loss write ``cover_loss(covered(**batch))``: it takes the
    output's ``loss``, or a tensor of losses, shape (M,) or (M, S).

    Args:
        loss: any ``loss(output, target)``, e.g. ``F.cross_entropy``; or outputs with their loss.
        outputs: what the covered model returned, covers first, in containers of any form.
        target: what the loss takes, batch first, the same for all covers.
        each: whether each cover has its own target, as with ``covered.each(x)``: then every tensor
            of the target has the covers first.
        passes: S, which the covered model records on its outputs. Write ``covered.passes`` if the
            outputs were processed further, or passed through a wrapper.

    >>> outputs = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> cover_loss(torch.nn.functional.mse_loss, outputs, torch.tensor([1.0, 2.0]))
    tensor(4.)
    >>> cover_loss({"loss": torch.tensor([0.5, 0.25])})
    tensor(0.7500)
    """
    if outputs is None:
        own = own_loss(loss, (1, 2))
        return own.sum() if own.ndim == 1 else own.mean(1).sum()
    check_loss(loss, outputs, target)
    each = checks.check_bool("each", each)
    stacks = trees.tensors(outputs)
    if not stacks or stacks[0].ndim == 0 or not len(stacks[0]):
        raise McoverError("cover_loss takes what the covered model returned: covers come first.")
    covers = len(stacks[0])
    if passes is None:
        passes = max(getattr(stack, _PASSES, 1) for stack in stacks)
    longest = max((stack.shape[1] for stack in stacks if stack.ndim > 1), default=1)
    passes = checks.check_int("passes", passes, 1, max(1, longest))  # they lie along the batch
    if each:
        trees.check_covers_first(target, covers, "each=True", "each=False for a target")
    else:
        target = repeated(target, passes)
    _warn_if_swapped(stacks, target)
    losses = []
    for cover in map(operator.itemgetter, range(covers)):
        # Indexed one by one: a loss may write to its output in place, but not to an unbind's.
        output = trees.map_tensors(cover, outputs)
        own = repeated(trees.map_tensors(cover, target), passes) if each else target
        losses.append(loss_of_cover(loss, output, own))
    return sum(losses[1:], start=losses[0])


def check_loss(loss: Any, *others: Any) -> None:
    """Refuses anything but a function of output and target.

    ``others`` are the arguments that follow it: a function among them was meant to be the loss.
    """
    if callable(loss) and not isinstance(loss, type):
        return
    if any(callable(one) for one in others):
        raise McoverError(
            f"loss is {checks.shown(loss)}, and a function comes after it; write the function "
            "first: cover_loss(loss, outputs, target)."
        )
    raise McoverError(
        f"loss is {checks.shown(loss)}; write cover_loss(loss, outputs, target) with a "
        "function of output and target as its loss, e.g. F.cross_entropy, or "
        "torch.nn.CrossEntropyLoss() with its parentheses."
    )


def _warn_if_swapped(outputs: list[Tensor], target: Any) -> None:
    """Warns where the target alone has gradients; many losses would broadcast in silence."""
    if any(one.requires_grad for one in trees.tensors(target)) and not any(
        one.requires_grad for one in outputs
    ):
        warnings.warn(
            "the target has gradients and the outputs have none, as if they were swapped; write "
            "cover_loss(loss, covered(x), y), the outputs before the target.",
            McoverWarning,
            stacklevel=3,
        )


def loss_of_cover(loss: Callable[[Any, Any], Any], output: Any, target: Any) -> Any:
    """``loss(output, target)``, with both shapes in the message where it refuses them."""
    try:
        return loss(output, target)
    except torch.OutOfMemoryError:
        raise
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        shapes = [[tuple(t.shape) for t in trees.tensors(tree)] for tree in (output, target)]
        raise McoverError(
            f"loss refuses a cover's output of shapes {shapes[0]} with a target of shapes "
            f"{shapes[1]}: {error}. Write a loss of the base model's output, and outputs with "
            "the covers first; for several destinations or streams also passes=covered.passes."
        ) from error


def own_loss(outputs: Any, axes: tuple[int, ...]) -> Tensor:
    """The losses that the model computed, a tensor of so many axes."""
    found = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    loss = outputs if isinstance(outputs, Tensor) else found
    if not isinstance(loss, Tensor) or loss.ndim not in axes:
        raise McoverError(
            "the model gave no loss for each cover, one number for each: give the model its "
            "labels, or write cover_loss(loss, outputs, target)."
        )
    return loss


def repeated(target: Any, passes: int) -> Any:
    """The target once for each pass; its first tensor with an axis has the length of the batch."""
    batches = [len(tensor) for tensor in trees.tensors(target) if tensor.ndim]
    if passes == 1 or not batches:
        return target
    # Tensors of another length are not batches, e.g. the weights of classes.
    return trees.map_tensors(
        lambda one: torch.cat([one] * passes) if one.ndim and len(one) == batches[0] else one,
        target,
    )
