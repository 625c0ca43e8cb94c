"""Which layers mix, and the mixers that they take.

A layer that mixes runs its own forward. Inside of it, the product of inputs with weights (a linear
map, a convolution, a lookup, attention) is where covers meet; what a subclass does before and after
stays its own, and so do computed weights, e.g. normalised or quantised ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: F401, N812  # for the doctest
from numpy.random import SeedSequence
from torch import Tensor, nn

from mcover.errors import McoverError
from mcover.lifting import Messages, Settings
from mcover.nn.copies import structure
from mcover.nn.meetings import Pass, Shape, Site
from mcover.routing import draw_mixers
from mcover.topology import Topology

Shapes = Callable[[Any], Sequence[Shape]]

_KINDS: dict[str, Shapes] = {}  # by the full name of a class, so that nothing need be imported


def register(kind: type[nn.Module] | str, shapes: Shapes) -> None:
    """Lets a kind of layer mix, and all its subclasses.

    In the layer's forward, each call of a torch function that multiplies inputs by a weight of the
    given size (``F.linear``, ``torch.addmm``, ``F.conv1d`` to ``F.conv3d``, ``F.embedding``) is
    computed for all covers at once, with block messages mixed. Call it before ``lift``.

    >>> class Scaled(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.weight = nn.Parameter(torch.randn(3, 8))
    ...
    ...     def forward(self, x):
    ...         return F.linear(x, 2 * self.weight)
    >>> register(Scaled, lambda layer: [Shape(*layer.weight.shape)])

    Args:
        kind: a class of layers, or its full name, "package.module.Class".
        shapes: takes a layer and gives the :class:`Shape` of each mixer that it needs; none for a
            layer that is not to mix.
    """
    name = full_name(kind) if isinstance(kind, type) and issubclass(kind, nn.Module) else kind
    if not isinstance(name, str) or "." not in name:
        raise McoverError(
            f"kind is {kind!r}; write a class of layers, or its full name 'package.module.Class'."
        )
    if not callable(shapes):
        raise McoverError(
            f"shapes is {shapes!r}; write a function of a layer, e.g. "
            "lambda layer: [mcover.nn.Shape(layer.out_features, layer.in_features)]."
        )
    _KINDS[name] = shapes


def shapes_of(layer: nn.Module) -> Sequence[Shape]:
    """The mixers that a layer takes; none if it does not mix."""
    for kind in type(layer).__mro__:
        found = _KINDS.get(full_name(kind))
        if found is not None:
            return found(layer)
    return ()


def full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _embedding(layer: Any) -> Sequence[Shape]:
    # A token is one input: its row is one message. A lookup with max_norm rescales its rows.
    return [] if layer.max_norm is not None else [Shape(layer.embedding_dim, 1)]


def _attention(layer: Any) -> Sequence[Shape]:
    if layer.bias_k is not None or layer.add_zero_attn:
        return []  # appended keys are not products with block messages
    width = layer.embed_dim
    inner = {"q": width, "k": layer.kdim, "v": layer.vdim, "out": width}
    return [Shape(width, inputs, name) for name, inputs in inner.items()]


def _convolution(layer: Any) -> Sequence[Shape]:
    return [Shape(layer.out_channels, layer.in_channels // layer.groups, channels=True)]


register(nn.Linear, lambda layer: [Shape(layer.out_features, layer.in_features)])
for _kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
    register(_kind, _convolution)
register(nn.Embedding, _embedding)
register(nn.MultiheadAttention, _attention)
register("transformers.pytorch_utils.Conv1D", lambda layer: [Shape(layer.nf, layer.nx)])
register(
    "torch_geometric.nn.dense.linear.Linear",
    lambda layer: [Shape(layer.out_channels, layer.in_channels)],
)


def sites_of(
    net: nn.Module, lifted: Sequence[str], settings: Settings, current: Pass
) -> dict[str, Site]:
    """The layers of a covered model that mix, by name."""
    if not isinstance(settings.routing, Messages) or not settings.mixes:
        return {}
    lifts = [net.get_parameter(name) for name in lifted]
    single = structure(net, {id(stack): stack.detach()[0] for stack in lifts})
    # Stacks of matrices or more: a layer whose bias alone is lifted has no messages to mix.
    stacks = {id(stack) for stack in lifts if stack.ndim > 2}
    sites: dict[str, Site] = {}
    inside: set[int] = set()
    for (name, layer), own in zip(net.named_modules(), single.modules(), strict=True):
        mixes = id(layer) not in inside and any(id(p) in stacks for p in layer.parameters())
        shapes = shapes_of(own) if mixes else ()
        if shapes:
            sites[name] = Site(name, {shape.part: shape for shape in shapes}, current)
        if isinstance(layer, nn.MultiheadAttention):  # multiplies by its projections itself
            inside |= {id(child) for child in layer.children()}
    return sites


def draw_mixer(
    covers: int, topology: Topology, how: Messages, shape: Shape, seed: SeedSequence
) -> Tensor:
    """One mixer Q̂ in float64: multiples of 1/draws, so that any dtype rounds them once.

    Shape: (units, blocks, M, M); with streams (S, units, blocks, M, M); exact (1, 1, M, M).
    """
    if how.mixer == "exact":
        return torch.from_numpy(topology.matrix(covers))[None, None]
    blocks = how.blocks_of(shape.inputs, shape.channels)
    if how.streams is not None:  # a stream follows one route: a mixer of a single draw
        drawn = draw_mixers(topology, covers, how.streams * shape.units, blocks, 1, seed)
        return torch.from_numpy(drawn).double().unflatten(0, (how.streams, -1))
    drawn = draw_mixers(topology, covers, shape.units, blocks, how.draws, seed)
    return torch.from_numpy(drawn).double().mul_(how.draws).round_().div_(how.draws)
