"""``lift``: any module in, M covers of it out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from mcover.errors import McoverError
from mcover.nn.covered import Covered
from mcover.nn.layers import COVER, LOOPED, PROMOTED, cover_layer, is_attention, mixers_of
from mcover.nn.mixers import mixer_shape
from mcover.nn.selection import Select, selected_parameters
from mcover.nn.settings import Granularity, Mixer, Routing, Settings
from mcover.nn.stacking import check_sources, stacked_copy, stateful_buffers
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
    noise: float = 1e-2,
    seed: Seed = None,
    select: Select = None,
    freeze: bool = False,
    mixer: Mixer = "sampled",
    streams: int | None = None,
    bank: int | None = 8,
    destinations: int | None = 1,
    granularity: Granularity = "weight",
    redraw_every: int | None = None,
    buffers: str | Sequence[str] = (),
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
            attention layers across covers; "weights" gathers each weight of a whole virtual model
            from its routed cover, for any module.
        blocks: input blocks of each mixing layer, at most one per input; None is one per input.
        draws: permutations in each mixer Q̂.
        noise: standard deviation of the Gaussian that separates the covers.
        seed: of noise and routes.
        select: which modules to lift: names, globs, or a predicate of name and module; what is
            not selected is shared by all covers.
        freeze: whether what is shared is left out of training.
        mixer: "sampled" Q̂, or the "exact" kernel Q.
        streams: S activation streams per cover along drawn routes, instead of their average Q̂.
        bank: destinations whose routes are kept, for routing="weights"; None keeps all of them,
            which is the exact directed lift. With ``redraw_every``, no more than are visited.
        destinations: how many of them each forward evaluates, in turn; None evaluates all.
        granularity: what is routed by itself, for routing="weights": each "weight", the weights
            of an output "unit" together, or each "tensor".
        redraw_every: training forwards between fresh routes; None keeps them for good.
        buffers: names or globs of further buffers that the model writes to. Running statistics,
            and buffers beside lifted parameters, are per cover without being named.

    Covers run under ``torch.vmap``: code of the model that branches on tensor values cannot be
    lifted, and attention runs on torch's plain kernels.

    Raises:
        McoverError: what was asked for makes no sense; the message says what to write.
    """
    given = None if isinstance(covers, int | np.integer) else _modules(covers)
    count = int(covers) if isinstance(covers, int | np.integer) else len(given or ())
    settings = Settings(
        count, topology, routing, blocks, draws, noise, mixer, streams, bank, destinations,
        granularity, redraw_every,
    )  # fmt: skip
    topology.matrix(count)  # an impossible number of covers is refused before anything is copied
    if isinstance(model, nn.Module) and any(isinstance(m, Covered) for m in model.modules()):
        raise McoverError("the model is covered already; lift the base model, or its collapse().")
    sources = [model] * count if given is None else given
    check_sources(model, sources)
    names = selected_parameters(model, select)
    patterns = [buffers] if isinstance(buffers, str) else list(buffers)
    state = stateful_buffers(model, names, patterns)
    root = seed_sequence(seed)
    spread = noise if given is None and count > 1 else 0.0
    net = stacked_copy(model, sources, names, state, spread, _generator(root))
    if freeze:
        for name, value in net.named_parameters():
            value.requires_grad_(value.requires_grad and name in names)
    return cover(net, settings, names, state, root)


def cover(
    net: nn.Module,
    settings: Settings,
    names: Sequence[str],
    state: Sequence[str],
    root: np.random.SeedSequence,
) -> Covered:
    """Makes a covered model of a net whose named tensors are stacks already."""
    handed = _cover_layers(net, set(names), settings)
    return Covered(net, settings, tuple(names), (*state, *handed), root)


def _modules(covers: Any) -> list[nn.Module]:
    """The modules given as covers."""
    if not isinstance(covers, Iterable) or isinstance(covers, str | nn.Module):
        raise McoverError(
            f"covers is {type(covers).__name__}; write how many, or a list of modules."
        )
    return list(covers)


def _cover_layers(net: nn.Module, names: set[str], settings: Settings) -> list[str]:
    """Gives layers their covered forward and empty mixers; names what vmap must hand to them."""
    lifted = {id(net.get_parameter(name)) for name in names}
    handed = []
    # Attention multiplies by its output projection itself, with a mixer of its own.
    inside = {id(m.out_proj) for m in net.modules() if is_attention(m)}
    for prefix, layer in list(net.named_modules()):
        shapes = [] if id(layer) in inside else mixers_of(layer)
        if type(layer).forward in LOOPED:
            layer.register_buffer(COVER, torch.arange(settings.covers), persistent=False)
            handed.append(f"{prefix}.{COVER}".lstrip("."))
            cover_layer(layer)
        elif type(layer).forward in PROMOTED:
            cover_layer(layer)
        elif shapes and all(id(value) in lifted for value in layer.parameters()):
            mixes = settings.mixes and settings.routing == "messages"
            for name, units, inputs in shapes:
                like = next(layer.parameters())
                shape = mixer_shape(settings, units, inputs)
                layer.register_buffer(name, like.new_empty(shape) if mixes else None)
            cover_layer(layer)
    return handed


def _generator(root: np.random.SeedSequence) -> torch.Generator:
    child = np.random.SeedSequence(root.entropy, spawn_key=(*root.spawn_key, 0))
    return torch.Generator().manual_seed(int(child.generate_state(1, np.uint64)[0] >> 1))
