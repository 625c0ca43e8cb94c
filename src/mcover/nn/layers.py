"""Which layers mix, and the mixers that they take.

A layer that mixes runs its own forward. Inside it, the product of inputs with weights (a linear
map, a convolution, a lookup, attention) is where covers meet; what a subclass does before and after
stays its own, and so do computed weights, e.g. normalised or quantised ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: F401, N812  # for the doctest
from numpy.random import SeedSequence
from torch import Tensor, nn

from mcover import checks
from mcover.errors import McoverError
from mcover.lifting import Messages, Settings, input_blocks
from mcover.nn.modules import structure
from mcover.routing import draw_mixers
from mcover.topology import Topology


@dataclass(frozen=True)
class Shape:
    """What a mixer is for: output units, and the inputs that each of them reads."""

    units: int
    inputs: int
    part: str = ""  # tells mixers apart where a layer has several
    channels: bool = False  # whether inputs are channels of a convolution

    def __post_init__(self) -> None:
        checks.check_count_fields(self, "units", "inputs")
        checks.check_instance("part", self.part, str, "a word, or ''")
        checks.check_bool_fields(self, "channels")


@dataclass(frozen=True)
class MixingLayer:
    """One layer that mixes: its name, and the shapes of its mixers by their parts."""

    name: str
    shapes: Mapping[str, Shape]

    def place(self, part: str = "") -> str:
        """What a mixer of the layer is called."""
        return f"{self.name} ({part})" if part else self.name or "(model)"


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
            f"kind is {checks.shown(kind)}; write a class of layers, or its full name "
            "'package.module.Class'."
        )
    if not callable(shapes):
        raise McoverError(
            f"shapes is {checks.shown(shapes)}; write a function of a layer, e.g. "
            "lambda layer: [mcover.nn.Shape(layer.out_features, layer.in_features)]."
        )
    _KINDS[name] = shapes


def shapes_of(layer: nn.Module) -> Sequence[Shape]:
    """The mixers that a layer takes; none if it does not mix."""
    for kind in type(layer).__mro__:
        found = _KINDS.get(full_name(kind))
        if found is not None:
            return _checked(found(layer), layer)
    return ()


def _checked(shapes: Any, layer: nn.Module) -> list[Shape]:
    """The shapes that a registered function gave, if that is what they are."""
    if not isinstance(shapes, list | tuple) or not all(isinstance(s, Shape) for s in shapes):
        raise McoverError(
            f"shapes of {full_name(type(layer))} gave {checks.shown(shapes)}; return a list of "
            "mcover.nn.Shape(units, inputs)."
        )
    return list(shapes)


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


def mixing_layers(
    net: nn.Module, lifted: Sequence[str], settings: Settings
) -> dict[str, MixingLayer]:
    """The layers of a covered model that mix, by name."""
    if not isinstance(settings.routing, Messages) or not settings.mixes:
        return {}
    lifts = [net.get_parameter(name) for name in lifted]
    # Shapes are asked of a tree with the base's own shapes: one slice in the place of each stack.
    single = structure(net, {stack: stack.detach()[0] for stack in lifts})
    # Stacks of matrices or more: a layer whose bias alone is lifted has no messages to mix.
    stacks = {stack for stack in lifts if stack.ndim > 2}
    found: dict[str, MixingLayer] = {}
    inside: set[nn.Module] = set()
    for (name, layer), own in zip(net.named_modules(), single.modules(), strict=True):
        mixes = layer not in inside and any(p in stacks for p in layer.parameters())
        shapes = shapes_of(own) if mixes else ()
        if shapes:
            found[name] = MixingLayer(name, {shape.part: shape for shape in shapes})
        if isinstance(layer, nn.MultiheadAttention):  # multiplies by its projections itself
            inside |= set(layer.children())
    return found


def draw_mixer(
    covers: int, topology: Topology, how: Messages, shape: Shape, seed: SeedSequence
) -> Tensor:
    """One mixer Q̂ in float64: multiples of 1/draws, so that any dtype rounds them once.

    Shape: (units, blocks, M, M); with streams (S, units, blocks, M, M); exact (1, 1, M, M).
    """
    if how.mixer == "exact":
        return torch.from_numpy(topology.matrix(covers))[None, None]
    blocks = input_blocks(how, shape.inputs, shape.channels)
    if how.streams is not None:  # a stream follows one route: a mixer of a single draw
        drawn = draw_mixers(topology, covers, how.streams * shape.units, blocks, 1, seed)
        return torch.from_numpy(drawn).double().unflatten(0, (how.streams, -1))
    drawn = draw_mixers(topology, covers, shape.units, blocks, how.draws, seed)
    return torch.from_numpy(drawn).double().mul_(how.draws).round_().div_(how.draws)
