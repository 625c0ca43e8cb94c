"""``lift``: any module in, M covers of it out."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from mcover.errors import McoverError, McoverWarning
from mcover.nn.covered import Covered
from mcover.nn.settings import Granularity, Mixer, Routing, Settings
from mcover.nn.stacking import (
    Refusal,
    Select,
    add_noise,
    check_sources,
    kept_buffers,
    selected_parameters,
    stacked_copy,
)
from mcover.progress import announced
from mcover.seeds import Seed, seed_sequence
from mcover.topology import Topology


def lift(
    model: nn.Module,
    covers: int | Sequence[nn.Module],
    topology: Topology,
    routing: Routing = "messages",
    *,
    blocks: int | None = 8,
    draws: int = 10,
    block_channels: int = 8,
    noise: float | str = "10%",
    seed: Seed = None,
    select: Select = None,
    freeze: bool = False,
    mixer: Mixer = "sampled",
    streams: int | None = None,
    bank: int | None = 8,
    destinations: int | None = 1,
    granularity: Granularity = "weight",
    redraw_every: int | None = None,
    buffers: str | Sequence[str] | None = None,
) -> Covered:
    """M covers of a model, as a new module; the model itself is left as it is.

    >>> import mcover, torch
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> covered = lift(model, covers=5, topology=mcover.GaussianRing(1.5, shift=2), seed=0)
    >>> covered(torch.zeros(3, 4)).shape
    torch.Size([5, 3, 2])
    >>> type(covered.collapse())
    <class 'torch.nn.modules.container.Sequential'>

    Args:
        model: any module.
        covers: M, for covers that start from the model's weights plus noise (one cover has no
            noise: it is the model); or M modules of the same architecture, taken as they are.
        topology: the mixing kernel Q.
        routing: "messages" mixes the block messages of linear, convolutional, embedding and
            attention layers across covers (others: see :func:`mcover.nn.register`); "weights"
            gathers each weight of a whole virtual model from its routed cover, for any module.
        blocks: input blocks of each mixing layer, at most one per input; None is one per input.
        draws: permutations in each mixer Q̂.
        block_channels: input channels that each block of a convolution has at least.
        noise: standard deviation of the Gaussian that separates the covers: a number, or a share
            of each tensor's own standard deviation, such as "10%". The paper has 0.01.
        seed: of noise and routes.
        select: which modules to lift: names, globs, or a predicate of name and module; what is
            not selected is shared by all covers. Without it, all that is not frozen is lifted.
        freeze: whether what is shared is left out of training.
        mixer: "sampled" Q̂, or the "exact" kernel Q.
        streams: S activation streams per cover along drawn routes, instead of their average Q̂.
        bank: destinations whose routes are kept, for routing="weights"; None keeps all of them,
            which is the exact directed lift. With ``redraw_every``, no more than are visited.
        destinations: how many of them each forward evaluates, in turn; None evaluates all.
        granularity: what is routed by itself, for routing="weights": each "weight", the weights
            of an output "unit" together, or each "tensor".
        redraw_every: training forwards between fresh routes; None keeps them for good.
        buffers: names or globs of the buffers that each cover keeps for itself, where the others
            are constants that all may share; None keeps every buffer for each cover.

    Each cover runs the model's own code. In the message lift all must call the layers that mix in
    the same order: a branch on a cover's own values, around such a layer, is refused when covers
    part there. Activation checkpointing around such a layer is refused too; around the covered
    model it works, and in the directed lift it works anywhere. A shared trunk runs once for each
    cover: write ``nn.Sequential(trunk, mcover.lift(head, ...))`` to run it once.

    Raises:
        McoverError: what was asked for makes no sense; the message says what to write.
    """
    given = None if isinstance(covers, int | np.integer) else _modules(covers)
    count = int(covers) if isinstance(covers, int | np.integer) else len(given or ())
    settings = Settings(
        count, topology, routing, blocks, draws, block_channels, noise, mixer, streams, bank,
        destinations, granularity, redraw_every,
    )  # fmt: skip
    topology.matrix(count)  # an impossible number of covers is refused before anything is copied
    if isinstance(model, nn.Module) and any(isinstance(m, Covered) for m in model.modules()):
        raise McoverError("the model is covered already; lift the base model, or its collapse().")
    sources = [model] * count if given is None else given
    check_sources(model, sources)
    names = selected_parameters(model, select)
    state = kept_buffers(model, buffers)
    root = seed_sequence(seed)
    with announced(f"copying the parameters of {type(model).__name__} for {count} covers"):
        net = stacked_copy(model, sources, names, state)
        if given is None and count > 1 and settings.spread(1.0):
            add_noise(net, names, settings, _generator(root))
    if freeze:
        for name, value in net.named_parameters():
            value.requires_grad_(value.requires_grad and name in names)
    Refusal.put(net, names)
    covered = Covered(net, settings, tuple(names), tuple(state), root)
    if routing == "messages" and settings.mixes:
        _check_mixing(covered)
    return covered


def _check_mixing(covered: Covered) -> None:
    """Refuses a message lift in which nothing mixes, and warns where little does."""
    inside = {id(p) for _, _, layer, _ in covered.mixing() for p in layer.parameters()}
    apart = {n: s.numel() for n, s in covered.stacks().items() if id(s) not in inside}
    total = sum(stack.numel() for stack in covered.stacks().values())
    share = 1 - sum(apart.values()) / total
    if share >= 0.5:
        return
    largest = sorted(apart, key=lambda name: -apart[name])[:5]
    kinds = {type(covered.net.get_submodule(n.rpartition(".")[0])).__name__ for n in largest}
    remedy = (
        f"no rule for {', '.join(sorted(kinds))}: their weights are copied for each cover and "
        f"never meet ({', '.join(largest)}{', …' if len(apart) > 5 else ''}). Take "
        "routing='weights', which routes any weight; or mcover.nn.register() a kind of layer; or "
        "select=[...] the layers that mix."
    )
    if not covered.mixing():
        raise McoverError(f"nothing in this model would mix: {remedy}")
    warnings.warn(
        f"only {share:.0%} of the lifted parameters are in layers that mix: {remedy}",
        McoverWarning,
        stacklevel=3,
    )


def _modules(covers: Any) -> list[nn.Module]:
    """The modules given as covers."""
    if not isinstance(covers, Iterable) or isinstance(covers, str | nn.Module):
        raise McoverError(
            f"covers is {type(covers).__name__}; write how many, or a list of modules."
        )
    return list(covers)


def _generator(root: np.random.SeedSequence) -> torch.Generator:
    child = np.random.SeedSequence(root.entropy, spawn_key=(*root.spawn_key, 0))
    return torch.Generator().manual_seed(int(child.generate_state(1, np.uint64)[0] >> 1))
