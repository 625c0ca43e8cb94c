"""Selects the tensors to lift, and makes their stacks: M copies of each, plus noise."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.random import SeedSequence
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.nn.utils.parametrize import ParametrizationList

from mcover import checks
from mcover.errors import McoverError, McoverWarning
from mcover.lifting import Settings
from mcover.nn.modules import Override, copied_with

Select: TypeAlias = str | Sequence[str] | Callable[[str, nn.Module], bool] | None

LOUD = 0.3  # absolute noise warns above this share of a tensor's own standard deviation


def selected_parameters(model: nn.Module, select: Select, argument: str = "select") -> list[str]:
    """Names of the parameters to lift; a selected module includes everything inside it.

    Without a selection these are all parameters that are not frozen. Names and globs are matched
    against the names of modules and of parameters. A tied parameter, which has several names, is
    listed once, and is lifted if any of its names is selected.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> selected_parameters(model, "2")
    ['2.weight', '2.bias']
    >>> selected_parameters(model, ["*.bias"])
    ['0.bias', '2.bias']
    """
    if select is None:
        trained = [name for name, value in model.named_parameters() if value.requires_grad]
        if not trained:
            raise McoverError(
                "no parameter of the model trains (requires_grad is False for all), and frozen "
                "ones are lifted only by name; write select=[...], or requires_grad_(True)."
            )
        return trained
    everywhere = dict(model.named_parameters(remove_duplicate=False))
    if callable(select):
        inside = {
            name for name, module in model.named_modules() if _takes(argument, select, name, module)
        }
        found = {"the predicate": [name for name in everywhere if inside & {*_ancestors(name)}]}
    else:
        found = _matched(argument, select, everywhere) or {"an empty list": []}
    known = [name for name, module in model.named_modules() if name and [*module.parameters()]]
    known += [name for name, _ in model.named_parameters(recurse=False)]
    chosen = {everywhere[name] for name in _chosen(argument, found, "parameters", known)}
    named = {name: value for name, value in model.named_parameters() if value in chosen}
    for name, value in named.items():
        if not value.is_floating_point() and not value.is_complex():
            raise McoverError(
                f"{argument}: {name!r} holds {value.dtype}, which cannot be trained or averaged; "
                "leave it out."
            )
    return list(named)


def kept_buffers(model: nn.Module, buffers: str | Sequence[str] | None) -> list[str]:
    """Buffers of which each cover has its own: all except sparse ones, or the named ones."""
    names = [name for name, value in model.named_buffers() if value.layout == torch.strided]
    if buffers is None:
        return names
    chosen = _chosen("buffers", _matched("buffers", buffers, names), "buffer", names or ["none"])
    return [name for name in names if name in chosen]


def _takes(argument: str, predicate: Callable[..., Any], name: str, module: nn.Module) -> bool:
    """Whether a user's predicate selects a module; refuses a predicate of other arguments."""
    try:
        return bool(predicate(name, module))
    except (TypeError, ValueError) as error:
        raise McoverError(
            f"{argument} is a function that refuses a name and a module: {error}. Write a "
            "function of both, e.g. lambda name, module: isinstance(module, torch.nn.Linear)."
        ) from error


def _matched(argument: str, given: Any, names: Iterable[str]) -> dict[str, list[str]]:
    """By pattern, the tensors whose name, or that of a surrounding module, it matches."""
    patterns: list[Any] = [given] if isinstance(given, str) else [None]
    if isinstance(given, Sequence) and not isinstance(given, str):
        with contextlib.suppress(Exception):  # a user's sequence may raise anything
            patterns = list(given)
    if not all(isinstance(p, str) for p in patterns):
        seen = checks.shown(given)
        raise McoverError(f"{argument} is {seen}; write names or globs, e.g. ['head.*'].")
    around = {name: [name, *_ancestors(name)[:-1]] for name in names}
    return {
        repr(p): [name for name, of in around.items() if any(fnmatchcase(n, p) for n in of)]
        for p in patterns
    }


def _chosen(argument: str, found: dict[str, list[str]], what: str, known: list[str]) -> set[str]:
    """All names that were found; refuses patterns that match nothing."""
    lost = [pattern for pattern, names in found.items() if not names]
    if lost:
        more = f" and {len(known) - 40} more" if len(known) > 40 else ""
        raise McoverError(
            f"{argument}: {', '.join(lost)} matches no {what}. "
            f"Available: {', '.join(known[:40])}{more}."
        )
    return set().union(*found.values())


def _ancestors(name: str) -> list[str]:
    """Names of the modules around a tensor, the root ("") last.

    >>> _ancestors("layers.0.weight")
    ['layers.0', 'layers', '']
    """
    parts = name.split(".")[:-1]
    return [".".join(parts[:end]) for end in range(len(parts), -1, -1)]


def check_model(model: Any) -> None:
    """Refuses objects that cannot be lifted, and models with uninitialised parameters."""
    if not isinstance(model, nn.Module):
        raise McoverError(f"lift takes a torch.nn.Module, got {type(model).__name__}.")
    if hasattr(model, "_orig_mod"):
        raise McoverError("the model is compiled; lift the model first, and compile its collapse.")
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if isinstance(value, UninitializedParameter | UninitializedBuffer):
            raise McoverError(f"{name!r} is not initialised yet; run one batch through the model.")
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) and [*module.parameters()]:
            raise McoverError(
                f"{name or 'the model'!r} is a TorchScript module, whose tensors cannot be "
                "replaced; lift the module that it was made from."
            )
    if not [*model.parameters()]:
        raise McoverError("the model has no parameters, so there is nothing to lift.")


def check_covers(model: nn.Module, given: Sequence[Any]) -> None:
    """Refuses covers whose architecture is not that of the model."""
    expected = {name: tuple(value.shape) for name, value in _tensors(model).items()}
    for index, cover in enumerate(given):
        if not isinstance(cover, nn.Module):
            raise McoverError(f"cover {index} is {type(cover).__name__}, not a torch.nn.Module.")
        seen = {name: tuple(value.shape) for name, value in _tensors(cover).items()}
        for name in sorted(expected.keys() | seen.keys()):
            if expected.get(name) != seen.get(name):
                raise McoverError(
                    f"cover {index} does not match the model at {name!r}: the model has "
                    f"{expected.get(name, 'nothing')}, the cover {seen.get(name, 'nothing')}; "
                    "give modules of one architecture."
                )


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, under each of their names."""
    parameters = model.named_parameters(remove_duplicate=False)
    return dict(parameters) | dict(model.named_buffers(remove_duplicate=False))


def stacked_copy(
    model: nn.Module,
    covers: int,
    parameters: Sequence[str],
    buffers: Sequence[str],
    given: Sequence[nn.Module] = (),
) -> nn.Module:
    """A copy of ``model`` in which the named tensors have shape (M, *shape).

    Each slice is a copy of the model's tensor, or of that of one of the ``given`` modules. All
    names of a tied tensor get the same stack, because deepcopy finds the stacks in its memo. The
    forwards of modules that hold stacks are replaced by an error, because such a module cannot run
    on its own.
    """
    own: dict[str, Tensor] = {name: model.get_parameter(name) for name in parameters}
    own |= {name: model.get_buffer(name) for name in buffers}
    checks.check_memory(
        covers * sum(tensor.nbytes for tensor in own.values()),
        f"{covers} covers of this model",
        "take fewer covers, or lift a part of the model with select=[...]",
    )
    tables = [_tensors(each) for each in given] or [_tensors(model)] * covers
    stacks = {
        base: torch.stack([table[name].detach().to(base) for table in tables])
        for name, base in own.items()
    }
    net = copied_with(model, stacks)
    for module in {_caller(net, name) for name in parameters}:
        vars(module)["forward"] = Refusal(module)
    return net


def _caller(net: nn.Module, name: str) -> nn.Module:
    """The module whose forward computes with a parameter.

    A parametrization computes the weight of a layer. One with an attribute ``of_stacks`` can
    compute it for a whole stack, and stays callable: some layers read their weight when they are
    saved.
    """
    at = name.rpartition(".")[0]
    owner = net.get_submodule(at)
    if isinstance(owner, ParametrizationList) and all(hasattr(one, "of_stacks") for one in owner):
        return net.get_submodule(at.rpartition("parametrizations")[0].rstrip("."))
    return owner


class Refusal(Override):
    """The forward of modules that hold stacks, with the signature of the original forward."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self._kind = type(module)

    @property
    def __signature__(self) -> inspect.Signature:
        if self.instance is not None:
            return inspect.signature(self.instance)
        own = inspect.signature(self._kind.forward)
        return own.replace(parameters=list(own.parameters.values())[1:])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise McoverError(
            "a layer of a covered model was called by itself; call the covered model, or take "
            "covered.cover(k) or covered.collapse() for a model of plain layers."
        )


def add_noise(
    net: nn.Module, parameters: Sequence[str], settings: Settings, seed: SeedSequence
) -> None:
    """Adds the noise that separates the covers; the padding row of an embedding gets none."""
    child = SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, 0))
    generator = torch.Generator().manual_seed(int(child.generate_state(1, np.uint64)[0] >> 1))
    padding: dict[Any, Any] = {
        layer.weight: layer.padding_idx
        for layer in net.modules()
        if getattr(layer, "padding_idx", None) is not None and hasattr(layer, "weight")
    }
    loud = []
    for name in parameters:
        parameter = net.get_parameter(name)
        stack = parameter.detach()
        own = float(stack[0].std()) if stack[0].numel() > 1 else 0.0
        std = settings.noise_std(own)
        # Drawn even for a standard deviation of 0, so that the noise of later tensors is the same.
        drawn = torch.randn(stack.shape, generator=generator, dtype=torch.float64)
        if stack.is_complex():
            other = torch.randn(stack.shape, generator=generator, dtype=torch.float64)
            drawn = torch.complex(drawn, other) / 2**0.5
        if parameter in padding:
            drawn[:, padding[parameter]] = 0
        stack += std * drawn.to(stack)
        if std > LOUD * own > 0 and not isinstance(settings.noise, str):
            loud.append((name, own))
    if loud:
        name, own = loud[0]
        more = f" and {len(loud) - 1} more" if len(loud) > 1 else ""
        warnings.warn(
            f"noise={settings.noise} is {settings.noise_std(own) / own:.0%} of the standard "
            f"deviation of {name!r} ({own:.2g}){more}: covers of a trained model would lose what "
            "it learned. Write noise='10%' for a share of each tensor's own.",
            McoverWarning,
            stacklevel=3,
        )
