"""The layers that mix, and their mixers.

A layer that mixes runs its own forward, and covers meet at the products of inputs with weights in
it (a linear map, a convolution, a lookup, attention). Whatever a subclass computes before and after
the product still happens, and weights may be computed, e.g. normalised or quantised.
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
    """The size of a mixer: output units, and the inputs that each of them reads."""

    units: int
    inputs: int
    part: str = ""  # identifies a mixer of a layer that has several
    channels: bool = False  # whether inputs are channels of a convolution

    def __post_init__(self) -> None:
        checks.check_count_fields(self, "units", "inputs")
        checks.check_instance("part", self.part, str, "a word, or ''")
        checks.check_bool_fields(self, "channels")


@dataclass(frozen=True)
class MixingLayer:
    """A layer that mixes: its name, and the shapes of its mixers by part."""

    name: str
    shapes: Mapping[str, Shape]

    def place(self, part: str = "") -> str:
        """The name of a meeting in this layer."""
        return f"{self.name} ({part})" if part else self.name or "(model)"


Shapes = Callable[[Any], Sequence[Shape]]

_KINDS: dict[str, Shapes] = {}  # by the full name of a class, which need not be imported


def register(kind: type[nn.Module] | str, shapes: Shapes) -> None:
    """Makes a kind of layer mix, with all its subclasses.

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
        shapes: a function that takes a layer and returns the :class:`Shape` of each of its mixers,
            or an empty list if the layer should not mix.
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
    """The shapes of a layer's mixers; none if it does not mix."""
    for kind in type(layer).__mro__:
        found = _KINDS.get(full_name(kind))
        if found is not None:
            return _checked(found(layer), layer)
    return ()


def _checked(shapes: Any, layer: nn.Module) -> list[Shape]:
    """The result of a registered function; refused unless it is a list of shapes."""
    if not isinstance(shapes, list | tuple) or not all(isinstance(s, Shape) for s in shapes):
        raise McoverError(
            f"shapes of {full_name(type(layer))} gave {checks.shown(shapes)}; return a list of "
            "mcover.nn.Shape(units, inputs)."
        )
    return list(shapes)


def full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _embedding(layer: Any) -> Sequence[Shape]:
    # A token is one input, and its row one message. A lookup with max_norm rescales its rows.
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
    # Layers are inspected in a tree with one slice in place of each stack: the base's shapes.
    single = structure(net, {stack: stack.detach()[0] for stack in lifts})
    # Only stacks of matrices: a layer of which only the bias is lifted has no messages to mix.
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
    """One mixer Q̂ in float64, exact multiples of 1/draws, so that a later cast rounds only once.

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
