"""Layers that have no rule under ``torch.vmap`` run one cover after the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from mcover.nn.across import across


def looped(layer: Any, *args: Any, **kwargs: Any) -> Any:
    """One cover after the other."""
    names = list(layer._parameters)
    weights = [layer._parameters[name] for name in names]
    leaves, form = tree_flatten((args, kwargs))
    spots = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    shape: list[Any] = []

    def rule(common: tuple[bool, ...], cover: Tensor, *tensors: Tensor | None) -> Any:
        results = []
        for index in range(len(cover)):
            here = [
                t if same or t is None else t[index]
                for same, t in zip(common[1:], tensors, strict=True)
            ]
            for spot, tensor in zip(spots, here[len(names) :], strict=True):
                leaves[spot] = tensor
            own_args, own_kwargs = tree_unflatten(leaves, form)
            with _holding(layer, dict(zip(names, here, strict=False))):
                flat, returned = tree_flatten(
                    layer.base_class.forward(layer, *own_args, **own_kwargs)
                )
            results.append(flat)
        shape.append(returned)
        return tuple(torch.stack(column) for column in zip(*results, strict=True))

    outputs = across(rule, layer.cover_index, *weights, *(leaves[spot] for spot in spots))
    return tree_unflatten(list(outputs), shape[-1])


class _holding:  # noqa: N801
    """Puts other tensors in the place of a layer's own parameters for a while."""

    def __init__(self, layer: nn.Module, tensors: dict[str, Tensor | None]) -> None:
        self.layer, self.tensors = layer, tensors

    def __enter__(self) -> None:
        self.own = dict(self.layer._parameters)
        self._put(self.tensors)

    def __exit__(self, *error: object) -> None:
        self._put(self.own)

    def _put(self, tensors: dict[str, Any]) -> None:
        self.layer._parameters.update(tensors)
        if isinstance(self.layer, nn.RNNBase):  # keeps a second list of its weights
            self.layer._flat_weights = [tensors[n] for n in self.layer._flat_weights_names]
