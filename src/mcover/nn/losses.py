"""The objective of a covered model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from mcover.errors import McoverError


def cover_loss(
    criterion: Callable[[Any, Any], Any], outputs: Any, target: Any, *, each: bool = False
) -> Any:
    """Sum over covers of ``criterion(outputs[α], target)``.

    With a criterion that averages over the batch, each cover sees gradients of the base's size.
    Outputs of several streams or destinations lie along the batch, (M, S·B, ...); the target is
    repeated to match, so that the loss is also averaged over them.

    Args:
        criterion: any ``criterion(output, target)``, e.g. ``F.cross_entropy``.
        outputs: what the covered model returned, covers first: a tensor, or tuples, lists and
            dicts of tensors.
        target: what the criterion takes, batch first, the same for all covers.
        each: whether covers have targets of their own, beside inputs of their own
            (``covered.each(x)``): then every tensor of the target has the covers first.

    >>> outputs = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> cover_loss(torch.nn.functional.mse_loss, outputs, torch.tensor([1.0, 2.0]))
    tensor(4.)
    """
    leaves = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
    if not leaves or leaves[0].ndim == 0:
        raise McoverError("cover_loss takes what the covered model returned: covers come first.")
    covers = len(leaves[0])
    if each:
        _check_each(target, covers)
        targets = [_repeated(leaves[0], own) for own in _by_cover(target, covers)]
    else:
        targets = [_repeated(leaves[0], target)] * covers

    first, *others = map(criterion, _by_cover(outputs, covers), targets)
    return sum(others, start=first)


def _by_cover(tree: Any, covers: int) -> list[Any]:
    """The same tree for each cover."""
    leaves, form = tree_flatten(tree)
    # One at a time: a criterion may write into what it is given, but not into parts of an unbind.
    return [
        tree_unflatten([leaf[cover] if _is_tensor(leaf) else leaf for leaf in leaves], form)
        for cover in range(covers)
    ]


def _check_each(target: Any, covers: int) -> None:
    tensors = [leaf for leaf in tree_leaves(target) if _is_tensor(leaf)]
    wrong = [t for t in tensors if t.ndim == 0 or len(t) != covers]
    if wrong or not tensors:
        seen = f"a tensor of shape {tuple(wrong[0].shape)}" if wrong else "no tensor"
        raise McoverError(
            f"each=True takes a target with the {covers} covers first, and got {seen}; write a "
            f"target of shape ({covers}, B, ...), or each=False for one that all covers share."
        )


def _repeated(output: torch.Tensor, target: Any) -> Any:
    """The target once for each stream, where the outputs hold several."""
    targets = [leaf for leaf in tree_leaves(target) if _is_tensor(leaf) and leaf.ndim]
    if not targets or output.ndim < 2 or output.shape[1] == len(targets[0]):
        return target
    times, rest = divmod(output.shape[1], max(len(targets[0]), 1))
    if rest or not times:
        return target  # not batch against batch: the criterion knows what it does
    return tree_map(
        lambda leaf: torch.cat([leaf] * times) if _is_tensor(leaf) and leaf.ndim else leaf, target
    )


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)
