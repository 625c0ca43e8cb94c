"""Weights that are signs of latent weights, with straight-through gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from mcover import checks
from mcover.errors import McoverError
from mcover.nn.covered import Covered
from mcover.nn.layers import full_name
from mcover.nn.modules import without_graph
from mcover.nn.stacking import Select, check_model, selected_parameters

Estimator: TypeAlias = (
    Literal["identity", "clip", "polynomial", "tanh", "swish"] | Callable[[Tensor], Tensor]
)

TWN = 0.7  # share of the mean size of a latent weight above which a ternary weight is not 0

_BETA = 5.0  # of SignSwish, as in Darabi et al.


def _swish(x: Tensor) -> Tensor:
    x = _BETA * x
    # 1 / (1 + cosh x), written so that it does not overflow.
    return _BETA * (2 - x * torch.tanh(x / 2)) * torch.sigmoid(x) * torch.sigmoid(-x) * 2


_LARGEST_BOUND = 1e4  # larger than any latent, and in the range of half precision

# Surrogates for the derivative of the sign at x, by the names of a :class:`SignWeight`.
SLOPES: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": torch.ones_like,
    "clip": lambda x: (x.abs() <= 1).to(x.dtype),
    "polynomial": lambda x: (2 - 2 * x.abs()).clamp(min=0),
    "tanh": lambda x: 1 - torch.tanh(x).square(),
    "swish": _swish,
}


class _Through(torch.autograd.Function):
    """The sign, or 0 up to a threshold; the backward multiplies by a slope."""

    @staticmethod
    def forward(latent: Tensor, threshold: Tensor | None, slope: Any) -> Tensor:
        signs = torch.where(latent < 0, -1.0, 1.0).to(latent.dtype)
        return signs if threshold is None else signs * (latent.abs() > threshold)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.slope = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad * ctx.slope(ctx.saved_tensors[0]), None, None


def _through(latent: Tensor, threshold: Tensor | None, estimator: Estimator) -> Tensor:
    slope = SLOPES[estimator] if isinstance(estimator, str) else estimator
    made: Tensor = _Through.apply(latent, threshold, slope)  # type: ignore[no-untyped-call]
    return made


def _estimator(given: Any) -> Any:
    if not callable(given):
        try:
            checks.check_choice("estimator", given, tuple(SLOPES))
        except McoverError as error:
            remedy = "or a function of a tensor that gives the slope at each of its elements"
            raise McoverError(f"{str(error).rstrip('.')}, {remedy}.") from None
    return given


class Sign(nn.Module):
    """The sign of an activation, +1 at zero, with a straight-through gradient.

    >>> x = torch.tensor([-2.0, -0.5, 0.0, 0.5], requires_grad=True)
    >>> Sign()(x).tolist()
    [-1.0, -1.0, 1.0, 1.0]
    >>> Sign()(x).sum().backward()
    >>> x.grad.tolist()
    [0.0, 1.0, 1.0, 1.0]

    Args:
        estimator: the surrogate for the derivative, as for ``binarize``.
    """

    def __init__(self, estimator: Estimator = "clip") -> None:
        super().__init__()
        self.estimator = _estimator(estimator)

    def forward(self, x: Tensor) -> Tensor:
        """Signs of the same shape and dtype."""
        return _through(x, None, self.estimator)

    def extra_repr(self) -> str:
        """The estimator, for ``print``."""
        return f"estimator={_shown(self.estimator)}"


class SignWeight(nn.Module):
    """The parametrization of one weight, which :func:`binarize` registers: latents to signs.

    Args:
        axes: the number of axes of the weight; a stack of covers has one more.
        estimator: the surrogate for the derivative of the sign.
        ternary: whether small latents are 0.
        scale: None, or "channel".
        axis: the axis of the output channels.
    """

    of_stacks = True  # it can compute a whole stack, with the covers first

    def __init__(
        self,
        axes: int,
        estimator: Estimator = "clip",
        ternary: bool = False,
        scale: Literal["channel"] | None = None,
        axis: int = 0,
    ) -> None:
        super().__init__()
        self.estimator = _estimator(estimator)
        self.ternary = checks.check_bool("ternary", ternary)
        if scale is not None:
            checks.check_choice("scale", scale, ("channel",))
        self.scale, self.axes, self.axis = scale, axes, axis

    def forward(self, latent: Tensor) -> Tensor:
        """The weight that the layer multiplies with."""
        signs = self.signs(latent)
        if self.scale is None:
            return signs
        return signs * self.sizes(latent, signs.detach())

    def right_inverse(self, weight: Tensor) -> Tensor:
        """A value assigned to the weight becomes its latents."""
        return weight

    def signs(self, latent: Tensor) -> Tensor:
        """The weight without its scale."""
        threshold = TWN * self._mean(latent.detach().abs()) if self.ternary else None
        return _through(latent, threshold, self.estimator)

    def sizes(self, latent: Tensor, signs: Tensor) -> Tensor:
        """The mean size of latents whose sign is not 0, of each channel if there is a scale."""
        if not self.ternary:
            return self._mean(latent.abs())
        kept = signs.abs()
        return self._mean(latent.abs() * kept) / self._mean(kept).clamp(min=1e-12)

    def _mean(self, sizes: Tensor) -> Tensor:
        """The mean over the weights that share a scale: those of a channel, or all."""
        one = None if self.scale is None else self.axis
        axes = [k - self.axes for k in range(self.axes) if k != one]
        return sizes.mean(axes, keepdim=True)

    def extra_repr(self) -> str:
        """The options, for ``print``."""
        return f"estimator={_shown(self.estimator)}, ternary={self.ternary}, scale={self.scale!r}"


def binarize(
    model: nn.Module,
    *,
    select: Select = None,
    skip: Select = None,
    ternary: bool = False,
    estimator: Estimator = "clip",
    scale: Literal["channel"] | None = None,
) -> nn.Module:
    """Returns the model with ±1 weights as a new module; the model itself is not changed.

    The original weights become latent weights, which optimizers train and covers hold. Layers
    multiply by their signs, +1 for a latent of zero. Biases and norms do not change.

    >>> net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), Sign(), nn.Linear(4, 2))
    >>> student = binarize(net)
    >>> sorted(set(student[0].weight.flatten().tolist()))
    [-1.0, 1.0]
    >>> list(latents(student))
    ['0.parametrizations.weight.original', '3.parametrizations.weight.original']

    Args:
        model: any module.
        select: the parameters to binarize, as names, globs or a predicate as for
            :func:`mcover.lift`; only parameters with two or more axes are. By default these are all
            that are not frozen and are named "weight", except those of embeddings and norms.
        skip: parameters to leave out of these, e.g. the first and the last layer.
        ternary: -1, 0 and +1; 0 for latents up to 0.7 times their mean size (Li et al., 2016),
            over the tensor, or over a channel if each channel has a scale.
        estimator: the surrogate for the derivative of the sign at a latent x. "identity" is 1;
            "clip" is 1 for ``|x| <= 1`` and 0 elsewhere (Courbariaux et al., 2016), to be used with
            ``clip_latents``; "polynomial" is ``max(0, 2 − 2|x|)`` (Liu et al., 2018); "tanh" is ``1
            − tanh²x``; "swish" is the derivative of SignSwish with β = 5 (Darabi et al., 2018); or
            a function of the latents.
        scale: None for weights that are signs; "channel" multiplies the signs of an output channel
            by the mean size of their latents, without those that are 0 if ternary (Rastegari et
            al., 2016). Gradients also reach the latents through the scale.

    The message lift mixes the messages of such layers like those of any other. The directed lift
    routes latents; scales and thresholds are those of the virtual model.

    Raises:
        McoverError: no weight is left to binarize, or the model is binarized or covered already.
    """
    checks.check_instance("model", model, nn.Module, "a torch.nn.Module")
    check_model(model)
    if any(isinstance(module, Covered) for module in model.modules()):
        raise McoverError("the model is covered; write lift(binarize(model), ...).")
    chosen = _chosen(model, select, skip)
    made = _copied(model)
    done = set()
    for name in chosen:
        at, _, key = name.rpartition(".")
        owner = made.get_submodule(at)
        if (owner, key) not in done:  # a module may have several names
            done.add((owner, key))
            axis = _output_axis(name, owner) if scale is not None else 0
            how = SignWeight(getattr(owner, key).ndim, estimator, ternary, scale, axis)
            parametrize.register_parametrization(owner, key, how)
    return made


def _chosen(model: nn.Module, select: Select, skip: Select) -> list[str]:
    """All names of the weights that become signs."""
    everywhere = dict(model.named_parameters(remove_duplicate=False))
    taken = {everywhere[name] for name in selected_parameters(model, select)}
    if select is None:
        kept = (nn.Embedding, nn.EmbeddingBag, nn.LayerNorm, nn.RMSNorm)
        for name, value in everywhere.items():
            *at, key = name.split(".")
            if at[-2:-1] == ["parametrizations"]:  # the name that a parametrized tensor had
                key = at[-1]
            if "weight" not in key or isinstance(model.get_submodule(".".join(at)), kept):
                taken.discard(value)
    if skip is not None:
        taken -= {everywhere[name] for name in selected_parameters(model, skip, "skip")}
    found = [n for n, p in everywhere.items() if p in taken and p.ndim >= 2]
    found = [name for name in found if everywhere[name].is_floating_point()]
    if not found:
        raise McoverError(
            "no weight is left to binarize: it needs two or more axes, and must not be frozen; "
            "change select or skip."
        )
    for name in found:
        owner = model.get_submodule(name.rpartition(".")[0])
        if isinstance(owner, parametrize.ParametrizationList):
            raise McoverError(
                f"{name!r} is parametrized already; give the model as it was before, or leave it "
                f"out with skip=[{name!r}]."
            )
        if getattr(owner, "padding_idx", None) is not None:
            raise McoverError(f"{name!r} has a row for padding, which no sign can be; skip it.")
    return found


def _output_axis(name: str, owner: nn.Module) -> int:
    """The axis of the output channels of a weight."""
    transposed = isinstance(owner, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d)
    if transposed and owner.groups != 1:
        raise McoverError(f"{name!r} has no axis of output channels; write scale=None, or skip it.")
    names = {full_name(kind) for kind in type(owner).__mro__}
    return int(transposed or "transformers.pytorch_utils.Conv1D" in names)


def weights_of(model: nn.Module) -> Iterator[tuple[str, SignWeight, Tensor]]:
    """Name, parametrization and latents of each binary weight of a model, or of its covers."""
    checks.check_instance("model", model, nn.Module, "a binarized model, or its covers")
    seen: set[Tensor] = set()
    for name, module in model.named_modules():
        if isinstance(module, parametrize.ParametrizationList):
            how = next(iter(module))
            if isinstance(how, SignWeight) and (latent := module.original) not in seen:
                seen.add(latent)
                yield f"{name}.original", how, latent


def latents(model: nn.Module) -> dict[str, Tensor]:
    """The latent weights of a binarized model by name, or their stacks if it is covered."""
    found = {name: latent for name, _, latent in weights_of(model)}
    if not found:
        raise McoverError(
            f"this {type(model).__name__} has no latent weights; write binarize(model), and lift "
            "what it returns."
        )
    return found


def other_parameters(model: nn.Module) -> list[Tensor]:
    """All other parameters that are not frozen: biases, norms, skipped layers."""
    own = set(latents(model).values())
    return [p for p in model.parameters() if p.requires_grad and p not in own]


@torch.no_grad()
def clip_latents(model: nn.Module, bound: float = 1.0) -> None:
    """Clips latent weights to ±bound, in place; call it after each step.

    With the estimator "clip", a latent beyond 1 gets no gradient and would never return.
    ``optimizer.register_step_post_hook(lambda *_: clip_latents(model))`` calls it automatically.

    Args:
        model: a binarized model, which may be covered.
        bound: the largest size of a latent.
    """
    bound = checks.check_float("bound", bound, above=0, most=_LARGEST_BOUND)
    for latent in latents(model).values():
        latent.clamp_(-bound, bound)


@torch.no_grad()
def snap_latents(model: nn.Module) -> None:
    """Sets latent weights to their signs, in place: the start of :class:`mcover.optim.Bop`.

    If covers should start with different signs, lift first: noise flips the signs of small latents,
    but not those of ±1.
    """
    latents(model)  # refuses a model without any
    for name, how, latent in weights_of(model):
        if how.ternary:
            raise McoverError(
                f"{name!r} is ternary, and has no sign where it is 0; write ternary=False."
            )
        latent.copy_(torch.where(latent < 0, -1.0, 1.0))


def bake(model: nn.Module) -> nn.Module:
    """A new model with the ±1 weights of a binarized one as plain parameters.

    It has the classes and ``state_dict`` keys of the model before ``binarize``.
    """
    latents(model)
    if any(isinstance(module, Covered) for module in model.modules()):
        raise McoverError("the model is covered; write bake(collapse(model, ...)).")
    made = _copied(model)
    for module in tuple(made.modules()):
        if parametrize.is_parametrized(module):
            for key, parts in tuple(module.parametrizations.items()):  # type: ignore[union-attr,operator]
                if isinstance(parts[0], SignWeight):
                    parametrize.remove_parametrizations(module, key)
    return made


def _copied(model: nn.Module) -> nn.Module:
    """A deep copy whose parametrizations can be changed without changing those of the model.

    Torch makes a class for each parametrized module, with the parametrized tensor as a property;
    deep copies share that class. So each parametrized module of the copy gets a new class.
    """
    made = copy.deepcopy(model, without_graph(model))
    for module in made.modules():
        if parametrize.is_parametrized(module):
            kind = type(module)
            module.__class__ = type(kind.__name__, kind.__bases__, dict(vars(kind)))
    return made


def _shown(estimator: Any) -> str:
    return repr(estimator) if isinstance(estimator, str) else getattr(estimator, "__name__", "own")
