"""Inside a layer that mixes, products of inputs with weights become meetings of all covers.

The layer's own forward runs under a ``TorchFunctionMode``, which intercepts each call of a torch
function. Calls that multiply by the layer's weight become meetings; all others run as usual. So
whatever a subclass computes around the product (clamped inputs, normalised weights) still happens.
A forward of our own for each kind of layer would replace it. The weight is recognised by its shape
(:meth:`Site.fits`), because a computed weight is a new tensor in every forward. If a layer
multiplies with a function that is not in ``_PRODUCTS``, its covers do not meet; execution reports
such layers after the first pass.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mcover.errors import McoverError
from mcover.nn.contributions import Geometry
from mcover.nn.layers import MixingLayer, Shape
from mcover.nn.lockstep import MeetingRule, inside_cover, meet, without_autocast
from mcover.nn.mixing import Convolution, Linear, Product, Rules
from mcover.nn.modules import Override

_LINEAR = Linear()


@dataclass(eq=False)
class Pass:
    """Slices and mixers of the current pass, as the layers that mix need them."""

    rules: Rules
    slices: dict[Tensor, Sequence[Tensor]] = field(default_factory=dict)  # of each stack
    stacks: dict[Tensor, Tensor] = field(default_factory=dict)  # by their first slice
    mixers: dict[str, Tensor] = field(default_factory=dict)  # by the place where covers meet
    met: dict[str, int] = field(default_factory=dict)  # how often they met there

    def begin(self, slices: dict[Tensor, Sequence[Tensor]]) -> None:
        """Starts a pass with these slices of each stack."""
        self.slices = slices
        self.stacks = {own[0]: stack for stack, own in slices.items()}

    def stacked(self, values: Sequence[Tensor]) -> Tensor:
        """Stacks the tensors of all covers; if they are the slices of a stack, returns that stack.

        Most weights at a meeting are slices that were bound. To stack those again would copy every
        weight in each forward and every gradient in its backward. So slices are recognised by
        identity, and their stack is used. Only computed weights (normalised, quantised) are
        stacked.
        """
        stack = self.stacks.get(values[0])
        slices = () if stack is None else self.slices[stack]
        if stack is not None and all(a is b for a, b in zip(values, slices, strict=True)):
            return stack
        if _is_one(values):
            return values[0].expand(len(values), *values[0].shape)
        return torch.stack(list(values))


@dataclass(eq=False)
class Site:
    """One layer that mixes, while covers run."""

    layer: MixingLayer
    current: Pass

    @property
    def shapes(self) -> Mapping[str, Shape]:
        return self.layer.shapes

    def fits(self, weight: Any, transposed: bool = False) -> bool:
        """Whether a tensor has the type and shape of the layer's weight."""
        shape = self.shapes.get("")
        if shape is None or type(weight) not in (Tensor, nn.Parameter) or weight.ndim < 2:
            return False
        seen = tuple(weight.shape[:2])
        return (seen[::-1] if transposed else seen) == (shape.units, shape.inputs)

    def linear(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        part: str = "",
        transposed: bool = False,
    ) -> Tensor:
        """x W^T + b; ``transposed`` if the given weight is W^T."""
        if x.shape[-1:] != (self.shapes[part].inputs,):
            return F.linear(x, weight.T if transposed else weight, bias)  # raises torch's own error

        return self._product(_LINEAR, part, x, weight, bias, transposed)

    def convolution(self, x: Tensor, weight: Tensor, bias: Tensor | None, at: Geometry) -> Tensor:
        if x.ndim == weight.ndim - 1:
            return self.convolution(x.unsqueeze(0), weight, bias, at).squeeze(0)
        if not at.fits(x, weight):
            return at.convolve(x, weight, bias, at.groups)  # raises torch's own error

        return self._product(Convolution(at), "", x, weight, bias)

    def lookup(self, found: Tensor) -> Tensor:
        """Mixes the rows that an embedding looked up."""

        def rule(slices: Sequence[Any]) -> Sequence[Tensor]:
            with without_autocast():
                mixer = self._mixer("", slices[0].dtype)
                return self.current.rules.lookup(tuple(slices), mixer)

        return self._meet("", found, rule)

    def _meet(self, part: str, slices: Any, rule: MeetingRule) -> Tensor:
        result: Tensor = meet(self.layer.place(part), slices, rule)
        if result.requires_grad:
            result.register_hook(self._refuse_inside)
        return result

    def _refuse_inside(self, grad: Tensor) -> None:
        """Refuses a gradient inside a forward, which would cover one cover's messages only."""
        if inside_cover():
            raise McoverError(
                f"the model computes gradients in its forward, through {self.layer.name!r}, where "
                "covers meet: the gradients would lack the parts of the other covers. Take "
                "routing='directed'."
            )

    def _mixer(self, part: str, dtype: torch.dtype) -> Tensor:
        place = self.layer.place(part)
        self.current.met[place] = self.current.met.get(place, 0) + 1
        return self.current.mixers[place].to(dtype)

    def _product(
        self,
        product: Product,
        part: str,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        transposed: bool = False,
    ) -> Tensor:
        def rule(slices: Sequence[Any]) -> Sequence[Tensor]:
            xs, weights, biases = zip(*slices, strict=True)
            stack = self.current.stacked(weights)
            stack = stack.transpose(1, 2) if transposed else stack
            shift = None if biases[0] is None else self.current.stacked(biases)
            device = stack.device.type
            if torch.is_autocast_enabled(device):
                to = torch.get_autocast_dtype(device)
                xs, stack = tuple(_cast(x, to) for x in xs), _cast(stack, to)
                shift = None if shift is None else _cast(shift, to)
            inputs = xs[0] if _is_one(xs) else xs
            with without_autocast():
                mixer = self._mixer(part, stack.dtype)
                return self.current.rules.product(product, inputs, stack, mixer, shift)

        return self._meet(part, (x, weight, bias), rule)


class Mixed(Override):
    """The forward of a layer that mixes: its original forward, with meetings for products."""

    def __init__(self, layer: nn.Module, site: Site) -> None:
        super().__init__(layer)
        self.layer, self.site = layer, site

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _Meetings(self.site):
            return Override.of(self.layer)(*args, **kwargs)


class _Meetings(TorchFunctionMode):
    """Turns each product of the layer into a meeting.

    Torch removes the mode from its stack of modes while the mode handles a call, and covers stop
    inside that handler. So at every switch between covers the stack is as it was before the layer,
    and no cover sees the mode of another. A cover that stopped anywhere else inside the layer would
    leave its mode active in the next cover.
    """

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.site = site

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        odd = [kind for kind in types if kind not in (Tensor, nn.Parameter)]
        if odd:  # e.g. quantised weights, which implement their own products
            with _Meetings(self.site):
                return odd[0].__torch_function__(func, types, args, kwargs or {})
        rule = _PRODUCTS.get(func)
        result = NotImplemented if rule is None else rule(self.site, *args, **kwargs or {})
        return func(*args, **kwargs or {}) if result is NotImplemented else result


def _of_linear(site: Site, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    return site.linear(input, weight, bias) if site.fits(weight) else NotImplemented


def _of_addmm(
    site: Site, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Any:
    if not site.fits(mat2, transposed=True) or (beta, alpha) != (1, 1) or input.ndim != 1:
        return NotImplemented
    return site.linear(mat1, mat2, input, transposed=True)


def _of_product(site: Site, input: Tensor, other: Tensor) -> Any:
    fits = site.fits(other, transposed=True) and other.ndim == 2
    return site.linear(input, other, None, transposed=True) if fits else NotImplemented


def _of_convolution(
    site: Site,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    if not site.fits(weight):
        return NotImplemented
    space = weight.ndim - 2
    stride, dilation = (_each(value, space) for value in (stride, dilation))
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        # F.pad takes the last axis first; of an odd total the larger half is at the end.
        input = F.pad(input, [side for n in reversed(total) for side in (n // 2, n - n // 2)])
    padding = _each(0 if isinstance(padding, str) else padding, space)
    return site.convolution(input, weight, bias, Geometry(stride, padding, dilation, groups))


def _of_embedding(site: Site, input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Any:
    shape = site.shapes.get("")
    if shape is None or weight.shape[1:] != (shape.units,):
        return NotImplemented
    return site.lookup(F.embedding(input, weight, *args, **kwargs))


_ATTENTION = inspect.signature(F.multi_head_attention_forward)


def _of_attention(site: Site, *args: Any, **kwargs: Any) -> Any:
    """Covers meet at the four projections; each computes its own attention between them.

    Shape: query (L, N, E), key and value (T, N, ...), or without N; as in torch.
    """
    bound = _ATTENTION.bind(*args, **kwargs)
    bound.apply_defaults()
    given = SimpleNamespace(**bound.arguments)
    if given.static_k is not None or given.static_v is not None:
        return NotImplemented
    if given.is_causal and given.attn_mask is None:
        raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
    inputs, single = [given.query, given.key, given.value], given.query.ndim == 2
    if single:
        inputs = [x.unsqueeze(1) for x in inputs]
    if given.use_separate_proj_weight:
        weights = given.q_proj_weight, given.k_proj_weight, given.v_proj_weight
    else:
        weights = given.in_proj_weight.chunk(3)
    biases = (None,) * 3 if given.in_proj_bias is None else given.in_proj_bias.chunk(3)
    q, k, v = (
        site.linear(x, weight, bias, part).unflatten(-1, (given.num_heads, -1)).permute(1, 2, 0, 3)
        for x, weight, bias, part in zip(inputs, weights, biases, "qkv", strict=True)
    )
    mask = _mask(given.attn_mask, given.key_padding_mask, q, given.num_heads)
    dropout = given.dropout_p if given.training else 0.0
    scores = None
    if given.need_weights:
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        scores = torch.softmax(scores if mask is None else scores + mask, -1)
        scores = F.dropout(scores, dropout, given.training)
        heads = scores @ v
        scores = scores.mean(1) if given.average_attn_weights else scores
        scores = scores.squeeze(0) if single else scores
    else:
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    joined = heads.permute(2, 0, 1, 3).flatten(-2)
    y = site.linear(joined, given.out_proj_weight, given.out_proj_bias, "out")
    return (y.squeeze(1) if single else y), scores


def _mask(mask: Tensor | None, padding: Tensor | None, like: Tensor, heads: int) -> Tensor | None:
    """Both masks as one additive mask that broadcasts to scores (N, heads, L, T)."""

    def additive(mask: Tensor | None) -> Tensor | None:
        if mask is None or mask.dtype != torch.bool:
            return mask
        return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, float("-inf"))

    mask, padding = additive(mask), additive(padding)
    if mask is not None and mask.ndim == 3:
        mask = mask.unflatten(0, (-1, heads))
    if padding is None:
        return mask
    padding = padding.view(-1, 1, 1, padding.shape[-1])
    return padding if mask is None else mask + padding


_PRODUCTS: dict[Any, Callable[..., Any]] = {
    F.linear: _of_linear,
    torch.addmm: _of_addmm,
    F.embedding: _of_embedding,
    F.multi_head_attention_forward: _of_attention,
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), _of_convolution),
    **dict.fromkeys(
        (torch.matmul, torch.mm, Tensor.matmul, Tensor.__matmul__, Tensor.mm), _of_product
    ),
}


def _each(value: Any, space: int) -> tuple[int, ...]:
    """One number for each axis."""
    given = (value,) if isinstance(value, int) else tuple(value)
    return given * space if len(given) == 1 else given


def _is_one(values: Sequence[Tensor]) -> bool:
    """Whether the covers have one tensor in common, or identical views of one memory."""
    first = values[0]
    if all(value is first for value in values):
        return True
    if any(value.requires_grad for value in values):
        return False
    try:
        layout = (first.data_ptr(), first.shape, first.stride(), first.dtype)
        return all((v.data_ptr(), v.shape, v.stride(), v.dtype) == layout for v in values)
    except RuntimeError:  # a tensor of a torch.func transform has no memory
        return False


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Casts as autocast does for a matrix product, which leaves float64 unchanged."""
    eligible = tensor.is_floating_point() and tensor.dtype != torch.float64
    return tensor.to(dtype) if eligible else tensor


_lock = threading.Lock()
_runs: list[bool] = []  # torch's setting before each run that is active; the last one restores it


@contextlib.contextmanager
def attention_as_written() -> Iterator[None]:
    """Prevents torch from replacing attention by a fused call, in which covers do not meet."""
    with _lock:
        _runs.append(torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        with _lock:
            torch.backends.mha.set_fastpath_enabled(_runs.pop())
