"""The covered model: M covers of one base model, run as one module."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import SeedSequence
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from mcover.errors import McoverError
from mcover.nn import directed
from mcover.nn.across import alone
from mcover.nn.collapse import Buffers, Method, collapse, one_cover
from mcover.nn.covers import Covers
from mcover.nn.diagnostics import Diagnostics, diagnose, path_loss
from mcover.nn.mixers import draw_mixer
from mcover.nn.report import Report, report
from mcover.nn.saving import save
from mcover.nn.settings import Settings
from mcover.routing import draw_bank


class Covered(Covers):
    """What :func:`mcover.lift` returns: an input of shape (B, ...) gives outputs (M, B, ...).

    Several streams or destinations lie along the batch: (M, S·B, ...), stream by stream.
    """

    def __init__(
        self,
        net: nn.Module,
        settings: Settings,
        lifted: tuple[str, ...],
        state: tuple[str, ...],
        seed: SeedSequence,
    ) -> None:
        super().__init__(net, settings, lifted, state, seed)
        self._draw()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs all covers on the same inputs."""
        return self._forward(args, kwargs, each=False)

    def each(self, *args: Any, **kwargs: Any) -> Any:
        """Runs each cover on inputs of its own; outputs are (M, B, ...) as of a common input.

        Where covers mix, the messages of cover α come from its own inputs; in the directed lift,
        context α sees the inputs of cover α.

        Args:
            args: what the base model takes, every tensor with the covers first, (M, B, ...).
            kwargs: the same by keyword.
        """
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if _is(leaf)]
        wrong = [t for t in tensors if t.ndim == 0 or len(t) != self.covers]
        if wrong or not tensors:
            seen = f"a tensor of shape {tuple(wrong[0].shape)}" if wrong else "no tensor"
            raise McoverError(
                f"each takes every tensor with the {self.covers} covers first, and got {seen}; "
                f"write covered.each(x) with x of shape ({self.covers}, B, ...), or covered(x) for "
                "inputs that all covers share."
            )
        return self._forward(args, kwargs, each=True)

    def _forward(self, args: Any, kwargs: Any, *, each: bool) -> Any:
        if self.training:
            every = self.settings.redraw_every
            if every is not None and self.steps and self.steps % every == 0:
                self.redraw()
        outputs = [self._run(*tensors, args, kwargs, each) for tensors in self._passes()]
        if self.training:
            self.steps += 1
        if len(outputs) == 1:
            return outputs[0]
        return tree_map(_along_batch, *outputs)

    def redraw(self) -> None:
        """Fresh routes from the same topology, reproducible from the seed given to ``lift``."""
        self.redraws += 1
        self._draw()

    def collapse(
        self,
        method: Method | Callable[[Tensor], Tensor] = "mean",
        buffers: Buffers = "average",
        loader: Iterable[Any] | None = None,
    ) -> nn.Module:
        """One model of the base's class and ``state_dict`` keys, in evaluation mode.

        Args:
            method: the mean over covers; the "sign" of it, for ±1 weights; or a function of a
                stack (M, *shape).
            buffers: running statistics averaged over covers (counters from the first), taken
                from the "first" cover, or computed anew on ``loader``
                ("recalibrate").
            loader: training batches for "recalibrate", as for ``torch.optim.swa_utils.update_bn``.
        """
        return collapse(self, method, buffers, loader)

    def cover(self, index: int) -> nn.Module:
        """Cover ``index`` as a model of the base's class by itself, in evaluation mode."""
        return one_cover(self, index)

    def ensemble(self, *args: Any, routed: bool = False, **kwargs: Any) -> Any:
        """The mean prediction of the M covers as models by themselves, shape (B, ...).

        ``routed=True`` averages what the covered model itself puts out, routes and all.
        """
        if routed:
            outputs = self(*args, **kwargs)
            size = self.passes
            return tree_map(lambda y: _split(y, size).mean((0, 1)) if _is(y) else y, outputs)
        each = [self.cover(index)(*args, **kwargs) for index in range(self.covers)]
        return tree_map(lambda *ys: torch.stack(ys).mean(0) if _is(ys[0]) else ys[0], *each)

    def diagnostics(self) -> Diagnostics:
        """Overlaps between covers and their distances from the mean."""
        return diagnose(self)

    def path_loss(
        self, loss: Callable[[nn.Module], float], cover: int, points: int = 11
    ) -> NDArray[np.float64]:
        """``loss(model)`` along the straight path from a cover to the mean of all."""
        return path_loss(self, loss, cover, points)

    def report(self, *args: Any, **kwargs: Any) -> Report:
        """What was lifted, mixed, copied or shared, and what it costs; print it for a table.

        With an example of the model's inputs the cost is counted on it, otherwise estimated.
        """
        return report(self, *args, **kwargs)

    def save(self, path: str | Path) -> tuple[Path, Path]:
        """Writes ``path`` with the endings .safetensors and .json; :func:`mcover.nn.load` reads."""
        return save(self, path)

    def _passes(self) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
        """Stacked and common tensors of each pass over the M covers: a stream or a destination."""
        stacks = self.stacks()
        if self.settings.routing == "weights":
            for s in self._turn():
                routes, back = self.routes[s], self.back[s]
                yield directed.gather(stacks, routes, back, self.settings.granularity), {}
        elif self.settings.streams is None:
            yield stacks, {}
        else:
            mixers = {name: mixer for name, mixer, _, _ in self.mixers()}
            for s in range(self.settings.streams):
                yield stacks, {name: mixer[s] for name, mixer in mixers.items()}

    def _turn(self) -> list[int]:
        """The destinations of this step: the bank is gone through in turn."""
        size, count = len(self.routes), self.passes
        return [(self.steps * count + k) % size for k in range(count)]

    def _run(
        self,
        stacks: Mapping[str, Tensor],
        common: Mapping[str, Tensor],
        args: Any,
        kwargs: Any,
        each: bool,
    ) -> Any:
        """One pass over the M covers, each cover seeing the base's own shapes."""
        forms: list[tuple[list[Any], Any]] = []
        given, taken = tree_flatten((args, kwargs)) if each else ([], None)
        places = self._places()

        def one_cover(own: dict[str, Tensor], inputs: list[Tensor]) -> list[Tensor]:
            own_args, own_kwargs = (
                tree_unflatten(_filled(given, inputs), taken) if taken else (args, kwargs)
            )
            tensors = {place: own[name] for name in own for place in places[name]}
            # Ties are ours to keep: functional_call leaves a module with two names half restored.
            output = functional_call(
                self.net, {**tensors, **common}, own_args, own_kwargs, tie_weights=False
            )
            leaves, form = tree_flatten(output)
            forms.append((leaves, form))
            return [leaf for leaf in leaves if _is(leaf)]

        state = {name: self._held(name) for name in self.state}
        run = _of_one if self.covers == 1 else _of_all
        try:
            values = run(one_cover, {**stacks, **state}, [leaf for leaf in given if _is(leaf)])
        except RuntimeError as error:
            if "data-dependent control flow" not in str(error):
                raise
            raise McoverError(
                "the model branches in Python on the value of a tensor, and all covers run as one; "
                "write the branch with torch.where, or lift only modules without one: select=[...]."
            ) from error
        leaves, form = forms[-1]
        return tree_unflatten(_filled(leaves, values), form)

    def _places(self) -> dict[str, list[str]]:
        """Where each tensor is held: all its names, but one only for each module."""
        held: dict[int, list[str]] = {}
        for prefix, module in self.net.named_modules():
            for name, value in (*module._parameters.items(), *module._buffers.items()):
                if value is not None:
                    held.setdefault(id(value), []).append(f"{prefix}.{name}".lstrip("."))
        named = (*self.net.named_parameters(), *self.net.named_buffers())
        return {name: held[id(value)] for name, value in named}

    def _draw(self) -> None:
        """Routes of draw number ``redraws``, each layer from its own stream."""
        root = SeedSequence(self.seed.entropy, spawn_key=(*self.seed.spawn_key, 1, self.redraws))
        if self.settings.routing == "weights":
            spans = list(directed.slices(self.stacks(), self.settings.granularity))
            count = spans[-1][1].stop
            size = min(self.settings.bank or count, count)
            if self.settings.redraw_every is not None and self.settings.destinations is not None:
                # More than are visited before the next draw would never be looked at.
                size = min(size, self.settings.redraw_every * self.settings.destinations)
            bank = draw_bank(self.settings.topology, self.covers, count, size, root)
            self.routes = directed.routes_of(bank.routes).to(self.routes.device)
            self.invert_routes()
            return
        for (_, mixer, units, inputs), child in zip(
            mixers := list(self.mixers()), root.spawn(len(mixers)), strict=True
        ):
            mixer.copy_(draw_mixer(self.settings, units, inputs, child))


_Pass = Callable[[dict[str, Tensor], list[Tensor]], list[Tensor]]


@torch.compiler.disable  # it cannot follow covers out of vmap and back, but would try in each layer
def _of_all(one_cover: _Pass, stacks: dict[str, Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """All covers as one."""
    with alone(False), _kernels_that_batch():
        run = torch.vmap(one_cover, (0, 0), randomness="different")
        return run(stacks, inputs)


def _of_one(one_cover: _Pass, stacks: dict[str, Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """The only cover, as the base would run: views of its tensors, and nothing to batch."""
    own = {name: stack.squeeze(0) for name, stack in stacks.items()}
    with alone(True):
        outputs = one_cover(own, [x.squeeze(0) for x in inputs])
    return [y.unsqueeze(0) for y in outputs]


def _is(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)


def _filled(leaves: Iterable[Any], tensors: Iterable[Tensor]) -> list[Any]:
    """The leaves with other tensors in the places of theirs."""
    values = iter(tensors)
    return [next(values) if _is(leaf) else leaf for leaf in leaves]


def _split(output: Tensor, size: int) -> Tensor:
    """Undoes :func:`_along_batch`: (M, S, B, ...)."""
    return output.unflatten(1, (size, -1)) if output.ndim > 1 and size > 1 else output.unsqueeze(1)


def _along_batch(*outputs: Any) -> Any:
    """Joins what S passes returned: (M, B, ...) each, to (M, S·B, ...)."""
    if not isinstance(outputs[0], Tensor):
        return outputs[0]
    joined = torch.stack(outputs, 1)
    return joined if joined.ndim == 2 else joined.flatten(1, 2)


@contextlib.contextmanager
def _kernels_that_batch() -> Iterator[None]:
    """Fused attention kernels have no rule under vmap; the plain ones do."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
