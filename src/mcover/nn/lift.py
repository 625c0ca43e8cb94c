"""Makes covered models: ``lift`` from a model, ``load`` from a file."""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import nn

from mcover import checks
from mcover.announce import announced
from mcover.errors import McoverError, McoverWarning
from mcover.lifting import Directed, Messages, Settings, check_noise
from mcover.nn.covered import Covered
from mcover.nn.files import frozen_names, read
from mcover.nn.layers import full_name
from mcover.nn.noise import auto_noise
from mcover.nn.stacking import (
    Select,
    add_noise,
    check_covers,
    check_model,
    kept_buffers,
    selected_parameters,
    stacked_copy,
)
from mcover.seeds import Seed, seed_sequence
from mcover.topology import Topology


def lift(
    model: nn.Module,
    covers: int | Sequence[nn.Module],
    topology: Topology | type[Topology] | str = "uniform",
    routing: Messages | Directed | type[Messages | Directed] | str = "directed",
    *,
    seed: Seed = None,
    noise: float | str = "auto",
    select: Select = None,
    freeze: bool = False,
    buffers: str | Sequence[str] | None = None,
) -> Covered:
    """Returns M covers of a model as a new module; the model itself is not changed.

    >>> import mcover, torch
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> covered = lift(model, 4, seed=0)
    >>> covered(torch.zeros(3, 4)).shape
    torch.Size([4, 3, 2])
    >>> type(covered.collapse())
    <class 'torch.nn.modules.container.Sequential'>

    Args:
        model: any module.
        covers: M, for covers that start from the model's weights plus noise (a single cover gets no
            noise), or M modules of the same architecture, which are used unchanged.
        topology: the mixing kernel Q, e.g. :class:`mcover.GaussianRing`. "uniform", "ring", "chain"
            and "identity" stand for their defaults.
        routing: :class:`mcover.Directed` gathers each weight of a whole virtual model from its
            routed cover, for any module; :class:`mcover.Messages`, the paper's lift of networks,
            mixes the block messages of linear, convolutional, embedding and attention layers across
            covers (others: see :func:`mcover.nn.register`). "directed" and "messages" stand for
            their defaults.
        seed: the seed of noise and routes.
        noise: standard deviation of the Gaussian that separates the covers: a number, or a share
            of each tensor's own standard deviation, such as "10%". "auto" is 100% if all parameters
            belong to linear layers, and 10% otherwise (see :func:`mcover.nn.noise.auto_noise`). The
            paper uses 0.01. Covers that are given as modules get no noise.
        select: the modules to lift, as names, globs, or a predicate of name and module. All other
            modules are shared by the covers. None lifts everything that is not frozen.
        freeze: whether to freeze the parameters that covers share.
        buffers: names or globs of the buffers of which each cover has its own; the others are
            constants that all covers share. None gives each cover all buffers.

    Each cover runs the model's own code. In the message lift all covers must call the layers that
    mix in the same order; different branches around such a layer are refused, and so is activation
    checkpointing around such a layer. Checkpointing works around the whole covered model, and
    anywhere in the directed lift. A shared trunk runs once for each cover; ``nn.Sequential(trunk,
    mcover.lift(head, ...))`` runs it only once.

    Raises:
        McoverError: an argument is invalid; the message says what to write.
    """
    _check_call(model, covers)
    check_model(model)
    if any(isinstance(module, Covered) for module in model.modules()):
        raise McoverError("the model is covered already; lift the base model, or its collapse().")
    if any(kind.__name__ == "LightningModule" for kind in type(model).__mro__):
        warnings.warn(
            f"the lift of {type(model).__name__} is not a LightningModule, so no Trainer accepts "
            "it: lift the network inside it, self.net = mcover.lift(net, ...), and return "
            "mcover.cover_loss(loss, self.net(x), y) from its training_step. See mcover.lightning.",
            McoverWarning,
            stacklevel=2,
        )
    given: tuple[Any, ...] = ()
    if isinstance(covers, Sequence) and not isinstance(covers, str):
        with suppress(Exception):  # a user's sequence may raise anything
            given = tuple(covers)
    if not given and not isinstance(covers, numbers.Integral):
        checks.check_instance("covers", covers, int, "how many, or a list of modules")
    asked: Any = len(given) or covers
    is_auto = isinstance(noise, str) and noise == "auto"
    noise = noise if is_auto else check_noise(noise)
    if given and not is_auto and noise != 0:
        warnings.warn(
            f"noise={noise!r} has no effect on covers that are given as modules, which start "
            "unchanged; leave it out.",
            McoverWarning,
            stacklevel=2,
        )
    names = selected_parameters(model, select)
    share = auto_noise(model) if is_auto else noise
    words: Any = {"topology": topology, "routing": routing}  # Settings converts them
    settings = Settings(asked, noise=0.0 if given else share, **words)
    count = settings.covers
    settings.topology.matrix(count)  # refuses an impossible number before anything is copied
    check_covers(model, given)
    state = kept_buffers(model, buffers)
    root, freeze = seed_sequence(seed), checks.check_bool("freeze", freeze)
    with announced(f"copying the parameters of {type(model).__name__} for {count} covers"):
        net = stacked_copy(model, count, names, state, given)
        if count > 1 and settings.noise_std(1.0):
            add_noise(net, names, settings, root)
    if freeze:
        for name, value in net.named_parameters():
            value.requires_grad_(value.requires_grad and name in names)
    covered = Covered(net, settings, tuple(names), tuple(state), root)
    if isinstance(settings.routing, Messages) and settings.mixes:
        _check_mixing(covered)
    return covered


def _check_call(model: Any, covers: Any) -> None:
    """Refuses arguments in the wrong order, and a class instead of a model."""
    if isinstance(covers, nn.Module) and not isinstance(model, nn.Module):
        raise McoverError("the model comes first; write lift(model, 4).")
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise McoverError(
            f"lift takes a model, got its class; write lift({model.__name__}(...), ...)."
        )


def load(path: str | Path, model: nn.Module) -> Covered:
    """Reads a covered model that :meth:`Covered.save` wrote, with routes, counters and settings.

    Args:
        path: as given to ``save``, with or without an ending.
        model: a model of the base's architecture, which is not changed. A file holds no code, so
            you provide the architecture. The model's own weights are used only for frozen ones that
            ``save(..., frozen_too=False)`` left out.

    Raises:
        McoverError: the file is missing, damaged, or of another architecture.
    """
    file, config, tensors = read(path)
    check_model(model)
    covers = config.settings.covers
    try:
        for name in config.lifted:
            model.get_parameter(name)
        buffers: dict[str, Any] = {name: model.get_buffer(name) for name in config.state}
    except AttributeError as error:
        raise McoverError(
            f"{file} was saved from a {config.model} with a tensor that this "
            f"{full_name(type(model))} does not have ({error}); give a model of the same "
            "architecture."
        ) from error
    held = [name for name, value in buffers.items() if value is not None]
    net = stacked_copy(model, covers, config.lifted, held)
    for name in buffers.keys() - held:  # buffers that the model sets when it runs
        value = tensors.get(f"net.{name}")
        if value is None or value.shape[:1] != (covers,):
            raise McoverError(f"{file} has no value of the buffer {name!r} for each cover.")
        prefix, _, key = name.rpartition(".")
        setattr(net.get_submodule(prefix), key, value.clone())
    for name, value in net.named_parameters():
        value.requires_grad_(name not in config.frozen)
    # The seed and the counters are part of the saved state.
    covered = Covered(net, config.settings, config.lifted, config.state, seed_sequence(0))
    own = covered.state_dict()
    tensors = {name: own[name] for name in frozen_names(covered)} | tensors
    try:
        for name, value in own.items():
            if name in tensors and value.dtype != tensors[name].dtype:
                raise RuntimeError(f"{name!r} is {tensors[name].dtype}, not {value.dtype}")
        covered.load_state_dict(tensors)
    except RuntimeError as error:  # missing or unexpected names, or other shapes
        raise McoverError(
            f"{file} does not fit: {error}. Give a model of the same architecture and dtype."
        ) from error
    for name, stack in covered.state_stacks().items():
        if stack.shape[:1] != (covers,):
            raise McoverError(
                f"{file} does not fit: the model replaces its buffer {name!r} when it is loaded, "
                "by one without covers; save covered.cover(k) for each cover instead."
            )
    return covered


def _check_mixing(covered: Covered) -> None:
    """Refuses a message lift in which nothing mixes, and warns if less than half mixes."""
    inside = {p for _, _, layer, _ in covered._mixing() for p in layer.parameters()}
    unmixed = {n: s.numel() for n, s in covered.stacks().items() if s not in inside}
    total = sum(stack.numel() for stack in covered.stacks().values())
    share = 1 - sum(unmixed.values()) / total
    if share >= 0.5:
        return
    largest = sorted(unmixed, key=lambda name: -unmixed[name])[:5]
    kinds = {type(covered.net.get_submodule(n.rpartition(".")[0])).__name__ for n in largest}
    remedy = (
        f"no rule for {', '.join(sorted(kinds))}: their weights are copied for each cover and "
        f"never meet ({', '.join(largest)}{', …' if len(unmixed) > 5 else ''}). Take "
        "routing='directed', which routes any weight; or register the kind of layer with "
        "mcover.nn.register(); or select only layers that mix, with select=[...]."
    )
    if not covered._mixing():
        raise McoverError(f"nothing in this model would mix: {remedy}")
    warnings.warn(
        f"only {share:.0%} of the lifted parameters are in layers that mix: {remedy}",
        McoverWarning,
        stacklevel=3,
    )
