"""M copies of each tensor under one name: where covers live, and how they start."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import UninitializedParameter

from mcover.errors import McoverError
from mcover.nn.selection import matches


def stacked_copy(
    model: nn.Module,
    sources: Sequence[nn.Module],
    parameters: Sequence[str],
    buffers: Sequence[str],
    noise: float = 0.0,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """A copy of ``model`` in which the named tensors have shape (M, *shape).

    Cover α is ``sources[α]`` plus Gaussian noise on its floating-point parameters. All names of a
    tied tensor get the same stack: the copy is made with the stacks already in its memo.
    """
    memo: dict[int, object] = {}
    tables = [dict(source.named_parameters(remove_duplicate=False)) for source in sources]
    for name in parameters:
        base = model.get_parameter(name)
        rows = [table[name].detach() for table in tables]
        stack = torch.stack([row.to(base) for row in rows])
        if noise and stack.is_floating_point():
            drawn = torch.randn(stack.shape, generator=generator, dtype=torch.float64)
            stack += noise * drawn.to(stack)
        memo[id(base)] = nn.Parameter(stack, requires_grad=base.requires_grad)
    for name in buffers:
        base_buffer = model.get_buffer(name)
        rows = [source.get_buffer(name).to(base_buffer) for source in sources]
        memo[id(base_buffer)] = torch.stack(rows)
    return copy.deepcopy(model, memo)


def stateful_buffers(
    model: nn.Module, parameters: Iterable[str], patterns: Sequence[str]
) -> list[str]:
    """Buffers that each cover keeps for itself.

    These are running statistics, buffers beside lifted parameters in the same module, and what
    ``patterns`` name. Others (masks, position tables) are constants that all covers share.
    """
    beside = {name.rpartition(".")[0] for name in parameters}
    kept, found = [], set()
    for name, _ in model.named_buffers():
        owner = name.rpartition(".")[0]
        named = {pattern for pattern in patterns if matches(name, [pattern])}
        found |= named
        if named or owner in beside or isinstance(model.get_submodule(owner), _NormBase):
            kept.append(name)
    lost = set(patterns) - found
    if lost:
        available = [name for name, _ in model.named_buffers()]
        raise McoverError(
            f"buffers: {sorted(lost)} matches no buffer. Available: {available or 'none'}."
        )
    return kept


def check_sources(model: nn.Module, sources: Sequence[nn.Module]) -> None:
    """Refuses covers that are not all of the base's architecture, and models not yet built."""
    if not isinstance(model, nn.Module):
        raise McoverError(f"lift takes a torch.nn.Module, got {type(model).__name__}.")
    for name, value in model.named_parameters():
        if isinstance(value, UninitializedParameter):
            raise McoverError(f"{name!r} is not initialised yet; run one batch through the model.")
    if not any(True for _ in model.parameters()):
        raise McoverError("the model has no parameters, so there is nothing to lift.")
    expected = _shapes(model)
    for index, source in enumerate(sources):
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


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    state = model.state_dict()
    return {name: tuple(value.shape) for name, value in state.items() if torch.is_tensor(value)}
