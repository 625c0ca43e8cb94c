"""What each kind of layer does when it is covered: one table of functions.

A layer is found by the ``forward`` it runs, so a subclass that keeps ``nn.Linear.forward`` mixes
and one that writes its own is copied. The layer keeps its class (a subclass of it is put in
place), its hyperparameters and its parameters' names: ``isinstance`` and attributes still work.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mcover.errors import McoverError
from mcover.nn.across import across
from mcover.nn.affine import autocast, routed_linear
from mcover.nn.attention import attention
from mcover.nn.convolving import Geometry, convolve, convolve_common
from mcover.nn.looping import looped
from mcover.nn.mixing import mix_outputs


def linear(layer: Any, x: Tensor) -> Tensor:
    return routed_linear(x, layer.weight, layer.bias, layer.mixer)


def embedding(layer: Any, ids: Tensor) -> Tensor:
    rows = layer.base_class.forward(layer, ids)
    if layer.mixer is None:
        return rows
    return across(lambda common, c, mixer: mix_outputs(c, mixer), rows, layer.mixer)


def convolution(layer: Any, x: Tensor) -> Tensor:
    if layer.mixer is None:
        y: Tensor = layer.base_class.forward(layer, x)
        return y
    space = len(layer.kernel_size)
    single = x.ndim == space + 1
    if single:
        x = x.unsqueeze(0)
    padding = layer.padding
    if layer.padding_mode != "zeros" or isinstance(padding, str):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x = F.pad(x, layer._reversed_padding_repeated_twice, mode=mode)
        padding = (0,) * space
    at = Geometry(layer.stride, padding, layer.dilation, layer.groups)
    at.check(x, layer.weight)

    def rule(common: tuple[bool, ...], x: Tensor, weight: Tensor, mixer: Any, bias: Any) -> Tensor:
        return (convolve_common if common[0] else convolve)(x, weight, mixer, bias, at)

    x, weight, mixer = autocast(x, layer.weight, layer.mixer)
    bias = None if layer.bias is None else layer.bias.to(weight.dtype)
    y = across(rule, x, weight, mixer, bias)
    return y.squeeze(0) if single else y


def promoted(layer: Any, x: Tensor) -> Tensor:
    """Layers that take inputs of lower precision than their own tensors, but not under vmap."""
    if layer.training and getattr(layer, "momentum", 0) is None:
        raise McoverError(
            f"{layer.base_class.__name__}(momentum=None) counts batches in Python, which covers "
            "cannot do in one pass; write momentum=0.1."
        )
    own = next((t for t in (*layer.parameters(), *layer.buffers()) if t.is_floating_point()), x)
    y: Tensor = layer.base_class.forward(layer, x.to(own.dtype))
    return y.to(x.dtype)


COVER = "cover_index"  # a buffer of looped layers: tells vmap that they depend on the cover

_COVERED: dict[type[nn.Module], type[nn.Module]] = {}  # covered class to the base's

Shape = tuple[str, int, int]  # a mixer's name, its units and its inputs


def _linear_shape(layer: Any) -> list[Shape]:
    return [("mixer", layer.out_features, layer.in_features)]


def _convolution_shape(layer: Any) -> list[Shape]:
    return [("mixer", layer.out_channels, layer.in_channels // layer.groups)]


def _embedding_shape(layer: Any) -> list[Shape]:
    return [("mixer", layer.embedding_dim, 1)]  # a token is one input: its row is one message


def _attention_shape(layer: Any) -> list[Shape]:
    width = layer.embed_dim
    inner = {"q": width, "k": layer.kdim, "v": layer.vdim, "out": width}
    return [(f"mixer_{name}", width, inputs) for name, inputs in inner.items()]


MIXING: dict[Any, tuple[Callable[..., Any], Callable[[Any], list[Shape]]]] = {
    nn.Linear.forward: (linear, _linear_shape),
    nn.Conv1d.forward: (convolution, _convolution_shape),
    nn.Conv2d.forward: (convolution, _convolution_shape),
    nn.Conv3d.forward: (convolution, _convolution_shape),
    nn.Embedding.forward: (embedding, _embedding_shape),
    nn.MultiheadAttention.forward: (attention, _attention_shape),
}
LOOPED = {
    kind.forward
    for kind in (nn.RNN, nn.LSTM, nn.GRU, nn.RNNCell, nn.LSTMCell, nn.GRUCell, nn.EmbeddingBag)
}
PROMOTED = {kind.forward for kind in (nn.BatchNorm2d, nn.InstanceNorm2d, nn.PReLU)}


def mixers_of(layer: nn.Module) -> list[Shape]:
    """Name, units and inputs of each mixer that this layer takes; none if it does not mix."""
    _, shapes = MIXING.get(base_class(layer).forward, (None, None))
    # Appended keys and rows that a lookup rescales are not products with block messages.
    odd = getattr(layer, "bias_k", None) is not None or getattr(layer, "add_zero_attn", False)
    if shapes is None or odd or getattr(layer, "max_norm", None) is not None:
        return []
    return shapes(layer)


def is_covered(layer: nn.Module) -> bool:
    """Whether :func:`cover_layer` gave this layer its forward."""
    return type(layer) in _COVERED


def base_class(layer: nn.Module) -> type[nn.Module]:
    """The class that a layer has in the base model."""
    return _COVERED.get(type(layer), type(layer))


def is_attention(layer: nn.Module) -> bool:
    """Whether a layer runs the forward of ``nn.MultiheadAttention``."""
    return type(layer).forward is nn.MultiheadAttention.forward


def cover_layer(layer: nn.Module) -> None:
    """Gives a layer the forward of its kind on covers."""
    own = type(layer)
    rules = dict.fromkeys(LOOPED, looped) | dict.fromkeys(PROMOTED, promoted)
    rule = rules[own.forward] if own.forward in rules else MIXING[own.forward][0]
    layer.__class__ = _covered_class(own, rule)  # type: ignore[arg-type]  # classes do hash


def plain_layer(layer: nn.Module) -> None:
    """Undoes :func:`cover_layer`, and takes away the mixers."""
    layer.__class__ = base_class(layer)
    for name in [n for n in layer._buffers if n.startswith("mixer") or n == COVER]:
        delattr(layer, name)


@cache
def _covered_class(own: type[nn.Module], rule: Callable[..., Any]) -> type[nn.Module]:
    made = type(f"Covered{own.__name__}", (own,), {"forward": rule, "base_class": own})
    _COVERED[made] = own
    return made
