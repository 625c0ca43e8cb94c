"""How covers run: one forward, and what must hold when a forward is computed twice.

That happens to checkpointed forwards, which a backward repeats, and to those that change their
input, which all covers share.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mcover.errors import McoverError, McoverWarning
from mcover.nn import trees
from mcover.nn.copies import Copies, structure, written_to_shared
from mcover.nn.layers import sites_of
from mcover.nn.lockstep import run, saved_tensor_hooks_are_active
from mcover.nn.meetings import Mixed, Pass, Site, attention_as_written


class Runner:
    """Runs the forwards of a covered model, one at a time."""

    covered: Any
    copies: Copies

    def __init__(self, covered: Any) -> None:
        copies = Copies(covered.net, len(covered.held), self._prepare)
        self.__setstate__({"covered": covered, "copies": copies})

    def __getstate__(self) -> dict[str, Any]:
        """What belongs to the model, and not to forwards that run now."""
        return {"covered": self.covered, "copies": self.copies}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self.lock = threading.RLock()
        self.current = Pass()
        self.bank: NDArray[Any] | None = None  # the routes in force, once they were asked for
        self._weights: list[int] = []  # versions of the weights that these forwards ran with:
        self._known: dict[Any, tuple[int, int]] = {}  # their step and draw, by their inputs
        self._pending = [False]  # whether a backward may still run the copies once more
        self._checked = False
        # Whether the model writes to its input, in training and in evaluation, once it has run.
        self._changes: dict[bool, bool] = {}

    @functools.cached_property
    def sites(self) -> dict[str, Site]:
        """The layers that mix, by name."""
        covered = self.covered
        return sites_of(covered.net, covered.lifted, covered.settings, self.current)

    @torch.compiler.disable  # it cannot follow covers from one to the other
    def forward(self, args: Any, kwargs: Any, *, each: bool) -> Any:
        """One forward; ``each`` where every tensor has the covers first."""
        covered, whole = self.covered, (args, kwargs)
        with self.lock:
            step, number = self._count(trees.tensors(whole))
            covered.draw(number)
            run = functools.partial(self._all, step=step, each=each)
            readers = covered.passes * (1 if each else len(covered.held))
            changes = self._changes.get(covered.training)
            if changes or readers == 1:
                return run(whole, own=bool(changes))
            undo = self._snapshot() if changes is None else None
            # Once, a copy of the input shows what the model does to it; the input stays as it is.
            shared = whole if undo is None else trees.map_tensors(_watched, whole)
            untouched = versions(trees.tensors(shared))
            outputs = run(shared, own=False)
            changed = versions(trees.tensors(shared)) != untouched
            if changed and undo is None:
                raise McoverError(
                    "the model changed its input in place, which it did not do before, and all "
                    "covers share the input; write x = x.clone() where its forward begins."
                )
            self._changes[covered.training] = changed
            if undo is None or not changed:
                return outputs
            undo()
            return run(whole, own=True)

    def _snapshot(self) -> Callable[[], None]:
        """A function that undoes all that a forward may change in the model."""
        covered, copies = self.covered, self.copies
        copies.follow()
        modules = [structure(module) for module in copies.modules]
        state, tables = covered.state, [module._buffers for module in covered.net.modules()]
        buffers = [dict(table) for table in tables]
        stacks = [(stack, stack.detach().clone()) for stack in covered.state_stacks().values()]
        random = torch.get_rng_state()

        def undo() -> None:
            with torch.no_grad():
                for stack, before in stacks:
                    stack.copy_(before)
            for table, own in zip(tables, buffers, strict=True):
                table.update(own)
            covered.state = state
            torch.set_rng_state(random)
            copies.replace(modules)

        return undo

    def _all(self, whole: Any, step: int, each: bool, *, own: bool) -> Any:
        """All passes of a forward; ``own`` where covers may write to their inputs."""

        def given(cover: int, tensor: Tensor) -> Tensor:
            tensor = tensor[cover] if each else tensor
            return tensor.clone() if own else tensor

        covers = [functools.partial(given, cover) for cover in range(len(self.covered.held))]
        outputs = [
            self._pass(which, [trees.map_tensors(of, whole) for of in covers])
            for which in self.turn(step)
        ]
        return outputs[0] if len(outputs) == 1 else trees.merge(_along_batch, *outputs)

    def _pass(self, which: int, inputs: Sequence[Any]) -> Any:
        """One pass over the M covers: a stream or a destination."""
        covered, copies = self.covered, self.copies
        if self._pending[0]:
            copies.renew()
        else:
            copies.release()
        stacks, state = covered.stacks(), list(covered.state_stacks().values())
        rows = [*covered.rows(which), *(stack.unbind() for stack in state)]
        self.current.begin([*stacks.values(), *state], rows)
        self.current.across = covered.across
        self.current.mixers = {
            place: mixer[which] if mixer.ndim == 5 else mixer  # one for each stream, or for all
            for place, mixer in covered.mixers().items()
        }
        shared = {n: b for n, b in covered.net.named_buffers() if n not in covered.state}
        untouched = versions(shared.values())
        modules = copies.bind(self.current.rows)
        calls = [
            functools.partial(module, *args, **kwargs)
            for module, (args, kwargs) in zip(modules, inputs, strict=True)
        ]
        if self.sites:
            with attention_as_written():
                outputs = run(calls)
            self._check_meetings()
        else:
            outputs = [call() for call in calls]
        for (name, buffer), before in zip(shared.items(), untouched, strict=True):
            if versions([buffer]) != [before]:
                raise written_to_shared(name, buffer)
        new = copies.keep_buffers(self.current.rows)
        covered.state = (*covered.state, *(name for name in new if name not in covered.state))
        result = trees.stack(*outputs)
        self._pending = mark_until_backward(trees.tensors(result))
        return result

    def turn(self, step: int) -> list[int]:
        """The streams of a forward, or its destinations: the bank is gone through in turn."""
        count = self.covered.passes
        size = len(self.covered.route_index) if self.covered.is_directed else count
        return [(step * count + k) % size for k in range(count)]

    def _count(self, given: list[Tensor]) -> tuple[int, int]:
        """Step and draw of this forward; one that checkpointing computes again has those it had.

        Such a forward ran under saved-tensor hooks or without gradients, and comes again with the
        same inputs in memory before any weight has changed.
        """
        may_come_again = not torch.is_grad_enabled() or saved_tensor_hooks_are_active()
        if not self.covered.training or not (may_come_again or self._known):
            return self.advance()
        weights = versions(self.covered.parameters())
        if weights != self._weights:
            self._weights, self._known = weights, {}
        pairs = zip(given, versions(given), strict=True)
        key = tuple((_address(tensor), tensor.shape, version) for tensor, version in pairs)
        number = self._known.get(key) or self.advance()
        if may_come_again:
            self._known[key] = number
        return number

    def advance(self) -> tuple[int, int]:
        """Step and draw of the next evaluation; one in training mode is counted."""
        covered = self.covered
        if not covered.training:
            return covered.steps, covered.redraws
        every = covered.settings.routing.redraw_every
        if every is not None and covered.steps and covered.steps % every == 0:
            covered.redraws += 1
        covered.steps += 1
        return covered.steps - 1, covered.redraws

    def _check_meetings(self) -> None:
        """Refuses, or says, that layers which seemed to mix were not called as such."""
        if self._checked:
            return
        places = [site.place(part) for site in self.sites.values() for part in site.shapes]
        silent = [place for place in places if place not in self.current.met]
        if len(silent) == len(places):
            raise McoverError(
                f"no covers met: the model does not call its layers that mix, {silent[:5]}, but "
                "uses their weights in some other way. Take routing='directed'; or, where "
                "torch.export runs it, export covered.collapse()."
            )
        self._checked = True
        if 2 * len(silent) > len(places):
            warnings.warn(
                f"covers met at {len(places) - len(silent)} layers of {len(places)}: not at "
                f"{silent[:5]}, which this forward did not call. See covered.report(x).",
                McoverWarning,
                stacklevel=2,
            )

    def _prepare(self, copy: nn.Module) -> None:
        """Gives the layers of a copy that mix the forward in which they meet."""
        for name, layer in copy.named_modules():
            if name in self.sites:
                vars(layer)["forward"] = Mixed(layer, self.sites[name])


def versions(tensors: Iterable[Tensor]) -> list[int]:
    """How often each tensor was changed in place; inference tensors do not count it."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def _watched(tensor: Tensor) -> Tensor:
    """A copy that counts how often it is changed, also in inference mode."""
    if not torch.is_inference_mode_enabled():
        return tensor.clone()
    with torch.inference_mode(False):
        return tensor.detach().clone()


def mark_until_backward(outputs: Iterable[Tensor]) -> list[bool]:
    """A mark that is true until gradients of these outputs arrive."""
    trained = [output for output in outputs if output.requires_grad]
    mark = [bool(trained)]

    def clear(grad: Tensor) -> None:
        mark[0] = False

    for output in trained:
        output.register_hook(clear)
    return mark


def _address(tensor: Tensor) -> int:
    try:
        return tensor.data_ptr()
    except RuntimeError:  # of a transform, without memory of its own
        return id(tensor)


def _along_batch(*outputs: Any) -> Any:
    """Joins what S passes returned: (M, B, ...) each, to (M, S·B, ...)."""
    if not isinstance(outputs[0], Tensor):
        return outputs[0]
    joined = torch.stack(outputs, 1)
    return joined if joined.ndim == 2 else joined.flatten(1, 2)
