"""Which tensors are lifted, and M copies of each under one name: where covers live and begin."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from mcover import checks
from mcover.errors import McoverError, McoverWarning
from mcover.nn.copies import Override, without_graph
from mcover.nn.settings import Settings

Select: TypeAlias = str | Sequence[str] | Callable[[str, nn.Module], bool] | None

LOUD = 0.3  # share of a tensor's own standard deviation from which absolute noise warns


def selected_parameters(model: nn.Module, select: Select) -> list[str]:
    """Names of the parameters to lift; a module that is selected brings all it contains.

    Without a selection these are all that train. Names and globs are matched with the names of
    modules and of parameters, a predicate is called with each module's name and the module. A
    parameter with several names (tied) is listed once, and is lifted when any of its names is
    selected.

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
    everywhere = list(model.named_parameters(remove_duplicate=False))
    if callable(select):
        inside = {name for name, module in model.named_modules() if select(name, module)}
        chosen = {id(value) for name, value in everywhere if inside & set(ancestors(name))}
        lost = [] if chosen else ["the predicate"]
    else:
        patterns = [select] if isinstance(select, str) else list(select)
        found = {
            pattern: {id(value) for name, value in everywhere if matches(name, [pattern])}
            for pattern in patterns
        }
        chosen = set().union(*found.values()) if found else set()
        lost = [repr(pattern) for pattern, ids in found.items() if not ids] or (
            [] if found else ["an empty list"]
        )
    if lost:
        raise McoverError(
            f"select: {', '.join(lost)} matches no parameters. Available: {_available(model)}."
        )
    names = [name for name, value in model.named_parameters() if id(value) in chosen]
    odd = [name for name in names if not _can_train(model.get_parameter(name))]
    if odd:
        raise McoverError(
            f"select: {odd[0]!r} holds {model.get_parameter(odd[0]).dtype}, which cannot be "
            "trained or averaged; leave it out."
        )
    return names


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern matches a tensor's name or that of a module around it."""
    candidates = [name, *ancestors(name)]
    return any(fnmatchcase(candidate, pattern) for pattern in patterns for candidate in candidates)


def ancestors(name: str) -> list[str]:
    """Names of the modules around a tensor, the root ("") last.

    >>> ancestors("layers.0.weight")
    ['layers.0', 'layers', '']
    """
    parts = name.split(".")[:-1]
    return [".".join(parts[:end]) for end in range(len(parts), -1, -1)]


def kept_buffers(model: nn.Module, patterns: str | Sequence[str] | None) -> list[str]:
    """Buffers that each cover keeps for itself: all but sparse ones, or those that are named."""
    names = [name for name, value in model.named_buffers() if value.layout == torch.strided]
    if patterns is None:
        return names
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    for pattern in patterns:
        if not any(matches(name, [pattern]) for name in names):
            raise McoverError(
                f"buffers: {pattern!r} matches no buffer. Available: {names or 'none'}."
            )
    return [name for name in names if matches(name, patterns)]


def stacked_copy(
    model: nn.Module,
    sources: Sequence[nn.Module],
    parameters: Sequence[str],
    buffers: Sequence[str],
) -> nn.Module:
    """A copy of ``model`` in which the named tensors have shape (M, *shape): those of sources.

    All names of a tied tensor get the same stack: the copy is made with the stacks in its memo.
    """
    tensors: list[Tensor] = [model.get_parameter(name) for name in parameters]
    tensors += [model.get_buffer(name) for name in buffers]
    sizes = [tensor.nbytes for tensor in tensors]
    checks.memory(
        len(sources) * sum(sizes), f"{len(sources)} covers of this model", "take fewer covers, or "
        "lift a part of the model with select=[...]",
    )  # fmt: skip
    memo: dict[int, Any] = without_graph(model)
    tables = [dict(source.named_parameters(remove_duplicate=False)) for source in sources]
    for name in parameters:
        base = model.get_parameter(name)
        stack = torch.stack([table[name].detach().to(base) for table in tables])
        memo[id(base)] = nn.Parameter(stack, requires_grad=base.requires_grad)
    for name in buffers:
        base_buffer = model.get_buffer(name)
        rows = [source.get_buffer(name).detach().to(base_buffer) for source in sources]
        memo[id(base_buffer)] = torch.stack(rows)
    return copy.deepcopy(model, memo)


def add_noise(
    net: nn.Module, parameters: Sequence[str], settings: Settings, generator: torch.Generator
) -> None:
    """Sets covers of equal weights apart; rows of an embedding that do not train stay equal."""
    padding: dict[int, Any] = {
        id(layer.weight): layer.padding_idx
        for layer in net.modules()
        if getattr(layer, "padding_idx", None) is not None and hasattr(layer, "weight")
    }
    loud = []
    for name in parameters:
        stack = net.get_parameter(name).detach()
        own = float(stack[0].std()) if stack[0].numel() > 1 else 0.0
        spread = settings.spread(own)
        # Drawn for each tensor, whatever its spread: others do not depend on it.
        drawn = torch.randn(stack.shape, generator=generator, dtype=torch.float64)
        if stack.is_complex():
            other = torch.randn(stack.shape, generator=generator, dtype=torch.float64)
            drawn = torch.complex(drawn, other) / 2**0.5
        if id(net.get_parameter(name)) in padding:
            drawn[:, padding[id(net.get_parameter(name))]] = 0
        stack += spread * drawn.to(stack)
        if spread > LOUD * own > 0 and not isinstance(settings.noise, str):
            loud.append((name, own))
    if loud:
        name, own = loud[0]
        more = f" and {len(loud) - 1} more" if len(loud) > 1 else ""
        warnings.warn(
            f"noise={settings.noise} is {settings.spread(own) / own:.0%} of the standard deviation "
            f"of {name!r} ({own:.2g}){more}: covers of a trained model would lose what it learned. "
            "Write noise='10%' for a share of each tensor's own.",
            McoverWarning,
            stacklevel=3,
        )


def check_sources(model: nn.Module, sources: Sequence[nn.Module]) -> None:
    """Refuses covers that are not all of the base's architecture, and models not yet built."""
    if not isinstance(model, nn.Module):
        raise McoverError(f"lift takes a torch.nn.Module, got {type(model).__name__}.")
    if hasattr(model, "_orig_mod"):
        raise McoverError("the model is compiled; lift the model first, and compile its collapse.")
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if isinstance(value, UninitializedParameter | UninitializedBuffer):
            raise McoverError(f"{name!r} is not initialised yet; run one batch through the model.")
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) and any(True for _ in module.parameters()):
            raise McoverError(
                f"{name or 'the model'!r} is a TorchScript module, whose tensors cannot be "
                "replaced; lift the module that it was made from."
            )
    if not any(True for _ in model.parameters()):
        raise McoverError("the model has no parameters, so there is nothing to lift.")
    expected = _shapes(model)
    for index, source in enumerate(sources):
        if source is model:
            continue
        if not isinstance(source, nn.Module):
            raise McoverError(f"cover {index} is {type(source).__name__}, not a torch.nn.Module.")
        seen = _shapes(source)
        different = sorted(
            name for name in expected.keys() | seen.keys() if expected.get(name) != seen.get(name)
        )
        if different:
            name = different[0]
            raise McoverError(
                f"cover {index} does not match the model at {name!r}: the model has "
                f"{expected.get(name, 'nothing')}, the cover {seen.get(name, 'nothing')}; "
                "give modules of one architecture."
            )


class Refusal(Override):
    """The forward of modules that hold stacks: they are run through the covered model only."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise McoverError(
            "a layer of a covered model was called by itself; call the covered model, or take "
            "covered.cover(k) or covered.collapse() for a model of plain layers."
        )

    @staticmethod
    def put(net: nn.Module, parameters: Sequence[str]) -> None:
        """On each module that holds one of these parameters."""
        for name in parameters:
            module = net.get_submodule(name.rpartition(".")[0])
            if not isinstance(vars(module).get("forward"), Refusal):
                vars(module)["forward"] = Refusal(module)


def _can_train(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _available(model: nn.Module) -> str:
    names = [name for name, module in model.named_modules() if name and [*module.parameters()]]
    names += [name for name, _ in model.named_parameters(recurse=False)]
    return ", ".join(names[:40]) + (f" and {len(names) - 40} more" if len(names) > 40 else "")


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    state = model.state_dict()
    return {name: tuple(value.shape) for name, value in state.items() if torch.is_tensor(value)}
