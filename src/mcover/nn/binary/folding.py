"""Networks with one bit per weight: packed signs, batch-norms folded into integer thresholds."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from mcover import checks
from mcover.annealing.packed import pack_bits, packed_fields, unpack_signs
from mcover.errors import McoverError
from mcover.nn.binary.signs import Sign
from mcover.nn.covered import Covered

_PASS = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_TAKEN = "Linear, Conv2d, BatchNorm, MaxPool2d, Sign, Flatten, Dropout and Identity"

Named = tuple[str, Any]


def fold(model: nn.Module) -> Folded:
    """Packs a network of ±1 weights and signs into bits; outputs are those of ``model.eval()``.

    >>> from mcover.nn import binary
    >>> net = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), Sign(), nn.Linear(128, 10))
    >>> student = binary.binarize(net).eval()
    >>> folded, x = fold(student), torch.randn(5, 64)
    >>> torch.equal(folded(x).argmax(1), student(x).argmax(1)), folded.nbytes
    (True, 4976)

    Args:
        model: an ``nn.Sequential``, also of others, of ``Linear`` and ``Conv2d`` layers with ±1
            weights, each but the last followed by an optional batch-norm and a ``Sign``.
            ``MaxPool2d`` may follow a convolution or a ``Sign``; ``Flatten``, ``Dropout`` and
            ``Identity`` may be anywhere between layers. Output channels may have a scale.

    A hidden unit compares a count of bits with an integer threshold, which replaces batch-norm,
    bias and scale before the sign. The threshold is found by evaluating these in the model's own
    arithmetic. So hidden signs equal the model's if its sums are exact, which they are without
    scale and bias. The first layer reads ±1 inputs as bits, and multiplies other inputs in floats.

    Raises:
        McoverError: a layer cannot be folded; the message names it.
    """
    checks.check_instance("model", model, nn.Module, "a binarized nn.Sequential")
    if isinstance(model, Covered):
        raise McoverError("the model is covered; write fold(collapse(covered, ...)).")
    found = [(name, layer) for name, layer in _flat("", model) if not isinstance(layer, _PASS)]
    steps: list[nn.Module] = []
    first = True
    at = 0
    while at < len(found):
        name, layer = found[at]
        at += 1
        if isinstance(layer, nn.Linear | nn.Conv2d):
            pool = None
            if isinstance(layer, nn.Conv2d):
                pool, at = _next(found, at, nn.MaxPool2d)
            norm, at = _next(found, at, _NORMS)
            sign, at = _next(found, at, Sign)
            if sign is None and at < len(found):
                raise McoverError(
                    f"after {name!r} there is {found[at][0]!r}, a {type(found[at][1]).__name__}, "
                    "where a Sign belongs: layers between bits are followed by BatchNorm and Sign."
                )
            steps.append(PackedLayer(name, layer, pool, norm, hidden=sign is not None, first=first))
            first = False
        elif isinstance(layer, Sign):
            steps.append(_Signs())
            first = False
        elif isinstance(layer, nn.MaxPool2d):
            steps.append(_Pool(layer))
        elif isinstance(layer, nn.Flatten):
            steps.append(copy.deepcopy(layer))
        else:
            raise McoverError(
                f"{name!r} is a {type(layer).__name__}, which fold does not know; it takes "
                f"{_TAKEN}."
            )
    if not any(isinstance(step, PackedLayer) for step in steps):
        raise McoverError("the model has no layer of ±1 weights to fold.")
    return Folded(steps)


def _flat(name: str, module: nn.Module) -> Iterator[Named]:
    """The layers of nested sequences, by name."""
    if type(module).forward is not nn.Sequential.forward:
        if next(module.children(), None) is not None and not hasattr(module, "parametrizations"):
            raise McoverError(
                f"{name or 'the model'!r} is a {type(module).__name__}, whose forward is its own "
                "code; write its layers as an nn.Sequential."
            )
        yield name, module
        return
    for key, child in module._modules.items():  # all of them: named_children skips repeated ones
        yield from _flat(f"{name}.{key}".lstrip("."), child)  # type: ignore[arg-type]


def _next(found: list[Named], at: int, kinds: Any) -> tuple[Any, int]:
    """The next layer if it is of one of these kinds, and the position after it."""
    is_one = at < len(found) and isinstance(found[at][1], kinds)
    return (found[at][1], at + 1) if is_one else (None, at)


class Folded(nn.Module):
    """The result of :func:`fold`, which is called like the model and returns its outputs.

    Its state dict holds the bits, and can be loaded into the fold of any model of the same
    architecture: ``fold(model).load_state_dict(...)``.
    """

    def __init__(self, steps: list[nn.Module]) -> None:
        super().__init__()
        self.steps = nn.ModuleList(steps)

    @property
    def nbytes(self) -> int:
        """Bytes of weights, thresholds, and the floats of the first and last layer."""
        return sum(tensor.nbytes for tensor in self.buffers())

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """The outputs of the model in evaluation mode; ±1 if it ends with signs."""
        h = x > 0 if bool((x.abs() == 1).all()) else x
        for step in self.steps:
            h = step(h)
        return _as_floats(h).to(x.dtype) if h.dtype == torch.bool else h


class _Signs(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h if h.dtype == torch.bool else ~(h < 0)


class _Pool(nn.Module):
    """Max-pooling of numbers, or of bits after signs."""

    def __init__(self, pool: nn.MaxPool2d) -> None:
        super().__init__()
        self.pool = copy.deepcopy(pool)

    def forward(self, h: Tensor) -> Tensor:
        made: Tensor = self.pool(_as_floats(h) if h.dtype == torch.bool else h)
        return made > 0 if h.dtype == torch.bool else made


class _Floats(nn.Module):
    """The operations after the sum of signs: scale and bias of the layer, and the norm."""

    sizes: Tensor
    bias: Tensor | None
    norm_running_mean: Tensor
    norm_running_var: Tensor
    norm_weight: Tensor | None
    norm_bias: Tensor | None

    def __init__(self, layer: Any, sizes: Tensor, norm: Any) -> None:
        super().__init__()
        self.axes = layer.weight.ndim - 2
        self.eps = None if norm is None else norm.eps
        held = {"sizes": sizes, "bias": layer.bias}
        for key in ("running_mean", "running_var", "weight", "bias"):
            held[f"norm_{key}"] = getattr(norm, key, None)
        for key, value in held.items():
            self.register_buffer(key, None if value is None else value.detach().clone())

    def scaled(self, fields: Tensor) -> Tensor:
        """The output of the layer from sums of signs, (B, units, ...)."""
        y = fields.to(self.sizes.dtype) * self.sizes.view(-1, *[1] * self.axes)
        return y if self.bias is None else y + self.bias.view(-1, *[1] * self.axes)

    def normed(self, y: Tensor) -> Tensor:
        """The batch-norm in evaluation mode."""
        if self.eps is None:
            return y
        statistics = self.norm_running_mean, self.norm_running_var
        return F.batch_norm(y, *statistics, self.norm_weight, self.norm_bias, eps=self.eps)

    def thresholds(self, most: int) -> tuple[Tensor, Tensor]:
        """Polarity ±1 and threshold: a unit is +1 if polarity · field ≥ threshold.

        ``most`` is the largest field.

        The map from the field to the sign is monotonic, rounding included, so bisection is exact.
        """
        down = torch.zeros_like(self.sizes) if self.norm_weight is None else self.norm_weight
        polarity = torch.where(down < 0, -1, 1)
        low = torch.full_like(polarity, -most)
        high = torch.full_like(polarity, most + 1)
        while bool((low < high).any()):
            middle = (low + high).div(2, rounding_mode="floor")
            fields = (polarity * middle).view(1, -1, *[1] * self.axes)
            above = ~(self.normed(self.scaled(fields)) < 0).flatten()
            high = torch.where(above, middle, high)
            low = torch.where(above, low, middle + 1).minimum(high)
        return polarity.to(torch.int8), high.to(torch.int32)


class PackedLayer(nn.Module):
    """One layer of a :class:`Folded` network: bits of weights, and a threshold for each unit."""

    words: Tensor
    polarity: Tensor
    thresholds: Tensor

    def __init__(
        self, name: str, layer: Any, pool: Any, norm: Any, *, hidden: bool, first: bool
    ) -> None:
        super().__init__()
        weight = layer.weight.detach()
        sizes = weight.flatten(1).abs()
        if not bool((sizes == sizes[:, :1]).all()):
            raise McoverError(
                f"the weights of {name!r} are not ±1, nor ± one size for each output; write "
                "binarize(model) without skipping it, and ternary=False."
            )
        if norm is not None and norm.running_mean is None:
            raise McoverError(f"the batch-norm after {name!r} keeps no running statistics.")
        self.name, self.hidden = name, hidden
        self.shape = weight.shape
        self.pool = None if pool is None else _Pool(pool)
        self.at = _geometry(name, layer) if isinstance(layer, nn.Conv2d) else None
        floats = _Floats(layer, sizes[:, 0], norm)
        bits = (weight.flatten(1) > 0).cpu().numpy()
        self.register_buffer("words", torch.from_numpy(pack_bits(bits).view(np.int64)))
        polarity, thresholds = floats.thresholds(sizes.shape[1]) if hidden else (None, None)
        self.register_buffer("polarity", polarity)
        self.register_buffer("thresholds", thresholds)
        self.floats = floats if first or not hidden else None

    def forward(self, h: Tensor) -> Tensor:
        """Bits, or numbers from the last layer; the input is bits, or numbers for the first layer.

        Shape: (B, inputs) to (B, units), or (B, channels, H, W) to (B, units, H', W').
        """
        if h.ndim != len(self.shape):
            raise McoverError(
                f"{self.name!r} takes tensors of {len(self.shape)} axes and got {tuple(h.shape)}."
            )
        if h.dtype == torch.bool:
            fields = self._convolved(h) if self.at is not None else self._fields(h)
            fields = fields if self.pool is None else self.pool(fields)
            if self.hidden:
                polarity, thresholds = (
                    t.view(-1, *[1] * (h.ndim - 2)) for t in (self.polarity, self.thresholds)
                )
                return fields * polarity >= thresholds
            y = self.floats.scaled(fields)  # type: ignore[union-attr]
        else:
            y = self._product(h)
            y = y if self.pool is None else self.pool(y)
        y = self.floats.normed(y)  # type: ignore[union-attr]
        return ~(y < 0) if self.hidden else y

    def _signs(self) -> Tensor:
        words = self.words.cpu().numpy().view(np.uint64)
        return torch.from_numpy(unpack_signs(words, self.shape[1:].numel())).view(self.shape)

    def _fields(self, h: Tensor) -> Tensor:
        """Sums over ±1 inputs, in float32: exact up to 2²⁴ inputs."""
        patterns = pack_bits(h.cpu().numpy())
        words = self.words.cpu().numpy().view(np.uint64)
        fields = packed_fields(patterns, words, h.shape[1])
        return torch.from_numpy(fields).to(h.device, torch.float32)

    def _convolved(self, h: Tensor) -> Tensor:
        """Fields of all patches. Padding is 0, but −1 as a bit: ``undone`` corrects the sums."""
        at: Any = self.at
        edge = F.pad(torch.zeros(1, *h.shape[1:], dtype=torch.float32), at.padding, value=1.0)
        undone = F.conv2d(edge, self._signs().float(), None, at.stride, 0, at.dilation)
        padded = F.pad(h.float(), at.padding)
        patches = F.unfold(padded, self.shape[2:], at.dilation, 0, at.stride) > 0
        fields = self._fields(patches.transpose(1, 2).flatten(0, 1)).unflatten(0, (len(h), -1))
        shape = len(h), self.shape[0], *undone.shape[2:]
        return fields.transpose(1, 2).reshape(shape) + undone.to(fields)

    def _product(self, h: Tensor) -> Tensor:
        """The layer of the model, for inputs that are not signs."""
        floats: Any = self.floats
        sizes = floats.sizes.view(-1, *[1] * (len(self.shape) - 1))
        weight = self._signs().to(sizes) * sizes
        if (at := self.at) is None:
            return F.linear(h, weight, floats.bias)
        # The convolution pads, as in the model; separate padding may sum in another order.
        return F.conv2d(h, weight, floats.bias, at.stride, at.asked, at.dilation)


class _Geometry(NamedTuple):
    stride: tuple[int, int]
    padding: list[int]  # left, right, top, bottom
    dilation: tuple[int, int]
    asked: Any  # the padding as the layer has it


def _geometry(name: str, layer: nn.Conv2d) -> _Geometry:
    if layer.groups != 1 or layer.padding_mode != "zeros":
        raise McoverError(
            f"{name!r} has groups={layer.groups} and padding_mode={layer.padding_mode!r}; bits are "
            "counted over all channels, with padding_mode='zeros'."
        )
    spans = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    if layer.padding == "same":
        both = [(n // 2, n - n // 2) for n in spans]
    else:
        given: Any = (0, 0) if layer.padding == "valid" else layer.padding
        both = [(n, n) for n in given]
    padding = [side for pair in reversed(both) for side in pair]
    return _Geometry(layer.stride, padding, layer.dilation, layer.padding)  # type: ignore[arg-type]


def _as_floats(bits: Tensor) -> Tensor:
    return torch.where(bits, 1.0, -1.0)
