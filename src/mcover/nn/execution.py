"""How covers run: one forward, and the rules for a forward that is computed twice.

Two kinds of forwards are computed twice. Activation checkpointing repeats a forward inside its
backward; it must take the same routes again (:mod:`mcover.nn.recomputation`). The first forward of
a model that writes to its input is repeated on copies, because all covers share the input
(:meth:`Execution.forward`). ``execution.md`` beside this file follows one weight through a forward
and its backward.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mcover.errors import McoverError, McoverWarning
from mcover.nn import loss, trees
from mcover.nn.copies import Copies, StackSlices, copied, shared_buffer_error
from mcover.nn.cover_by_cover import (
    KeptGradients,
    Objective,
    OwnInputs,
    VirtualModels,
    changed_input_error,
    join_passes,
    without_autocast_cache,
)
from mcover.nn.lockstep import run
from mcover.nn.meetings import Mixed, Pass, Site, attention_as_written
from mcover.nn.mixing import Rules
from mcover.nn.recomputation import Recomputations, versions, watched
from mcover.nn.state import CoverState


class Execution:
    """Runs the forwards of a covered model, one at a time.

    It reads and advances the state. It holds the copies that covers run on, and records of the
    forwards whose backward has not run yet. Only ``state``, ``copies`` and ``rules`` are copied or
    pickled, because the rest describes forwards of this object.
    """

    state: CoverState
    copies: Copies
    rules: Rules

    def __init__(self, state: CoverState, rules: Rules) -> None:
        copies = Copies(state.net, len(state.held), self._install_meetings)
        self.__setstate__({"state": state, "copies": copies, "rules": rules})

    def __getstate__(self) -> dict[str, Any]:
        return {"state": self.state, "copies": self.copies, "rules": self.rules}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self.lock = threading.RLock()
        self.current = Pass(self.rules)
        self._recomputations = Recomputations()
        # Set if the next forward is one of ``covered.loss``.
        self.objective: Objective | None = None
        self._pending = [False]  # whether a backward may still run these copies again
        self._checked = False
        # Whether the model writes to its input; by training mode, known after the first forward.
        self._changes: dict[bool, bool] = {}

    @functools.cached_property
    def sites(self) -> dict[str, Site]:
        """The layers that mix, by name."""
        layers = self.state._mixing_layers
        return {name: Site(layer, self.current) for name, layer in layers.items()}

    @torch.compiler.disable  # the compiler cannot trace switches between greenlets
    def forward(self, args: Any, kwargs: Any, *, each: bool) -> Any:
        """One forward; with ``each``, every input tensor has the covers first.

        Covers share the input tensors, because a layer whose input is the same tensor for all
        covers mixes weights instead of messages, which is cheaper. But a model that writes to its
        input would change it for the covers that run later. Whether it does is not known before it
        has run. Copying the input for each cover in advance would turn off the cheaper way. So the
        first forward in training mode, and the first in evaluation mode, runs on one copy whose
        version counter is compared before and after. If it changed, everything the forward did is
        undone, the forward is repeated, and from then on each cover has its own copy.
        """
        state, inputs = self.state, (args, kwargs)
        with self.lock:
            self.copies.check_children()  # before compiled loops read the stacks
            step, number = self._count_forward(trees.tensors(inputs))
            state._draw(number)
            objective, self.objective = self.objective, None
            if objective is not None:
                return self._cover_by_cover(inputs, step, objective)
            run_passes = functools.partial(self._all_passes, step=step, each=each)
            readers = state.passes * (1 if each else len(state.held))
            changes = self._changes.get(state.training)
            if changes or readers == 1:
                return run_passes(inputs, own=bool(changes))
            undo = self._snapshot() if changes is None else None
            shared = inputs if undo is None else trees.map_tensors(watched, inputs)
            untouched = versions(trees.tensors(shared))
            outputs = run_passes(shared, own=False)
            changed = versions(trees.tensors(shared)) != untouched
            if changed and undo is None:
                raise changed_input_error()
            self._changes[state.training] = changed
            if undo is None or not changed:
                return outputs
            undo()
            return run_passes(inputs, own=True)

    @contextlib.contextmanager
    def expect(self, objective: Objective) -> Iterator[Callable[[], bool]]:
        """In this context the next forward computes an objective, cover by cover.

        Yields a function that returns whether that forward has yet to run.
        """
        with self.lock:
            self.objective = objective
            try:
                yield lambda: self.objective is not None
            finally:
                self.objective = None

    def _snapshot(self) -> Callable[[], None]:
        """Returns a function that undoes everything a forward may change in the model."""
        state, copies = self.state, self.copies
        copies.follow_changes()
        modules = copied(copies.modules)
        names, tables = state.state, [module._buffers for module in state.net.modules()]
        buffers = [dict(table) for table in tables]
        stacks = [(stack, stack.detach().clone()) for stack in state.state_stacks().values()]
        random = torch.get_rng_state()

        def undo() -> None:
            with torch.no_grad():
                for stack, before in stacks:
                    stack.copy_(before)
            for table, own in zip(tables, buffers, strict=True):
                table.update(own)
            state.state = names
            torch.set_rng_state(random)
            copies.use(modules)

        return undo

    def _all_passes(self, inputs: Any, step: int, each: bool, *, own: bool) -> Any:
        """All passes of a forward; with ``own``, each cover has its own copy of the inputs."""

        def given(cover: int, tensor: Tensor) -> Tensor:
            tensor = tensor[cover] if each else tensor
            return tensor.clone() if own else tensor

        covers = [functools.partial(given, cover) for cover in range(len(self.state.held))]
        outputs = [
            self._one_pass(which, [trees.map_tensors(of, inputs) for of in covers])
            for which in self.state._passes_of(step)
        ]
        return outputs[0] if len(outputs) == 1 else trees.merge(_along_batch, *outputs)

    def _one_pass(self, which: int, inputs: Sequence[Any]) -> Any:
        """One pass over the M covers: a stream or a destination."""
        state, copies = self.state, self.copies
        self._prepare_copies()
        buffers = list(state.state_stacks().values())
        lifted = zip(state.stacks().values(), state._slices(which), strict=True)
        slices = {**dict(lifted), **{stack: stack.unbind() for stack in buffers}}
        self.current.begin(slices)
        self.current.met = state._met
        self.current.mixers = {
            place: mixer[which] if mixer.ndim == 5 else mixer  # with streams, one mixer for each
            for place, mixer in state.mixers().items()
        }
        modules = copies.bind(slices)
        calls = [
            functools.partial(module, *args, **kwargs)
            for module, (args, kwargs) in zip(modules, inputs, strict=True)
        ]
        with self._unchanged_buffers():
            if self.sites:
                with attention_as_written():
                    outputs = run(calls)
                self._check_meetings()
            else:
                outputs = [call() for call in calls]
        self._collect_buffers(slices)
        result = trees.stack(*outputs)
        self._pending = mark_until_backward(trees.tensors(result))
        return result

    def _cover_by_cover(self, inputs: Any, step: int, objective: Objective) -> Tensor:
        """One forward and backward of all covers, one after the other; returns the loss."""
        state, copies = self.state, self.copies
        trains, kept = torch.is_grad_enabled(), KeptGradients()
        self._prepare_copies()
        covers, passes = len(state.held), state._passes_of(step)
        stacks = state.stacks()
        with torch.no_grad():
            models = [VirtualModels(stacks, state._slices(which)) for which in passes]
        buffers = {stack: stack.unbind() for stack in state.state_stacks().values()}
        lifted = set(stacks.values())
        shared = {p: [kept.leaf_of(p)] * covers for p in state.net.parameters() if p not in lifted}
        unset: dict[Tensor, Any] = {stack: [None] * covers for stack in lifted}
        copies.bind(unset | buffers | shared)
        inputs = trees.map_tensors(kept.leaf_of, inputs)
        own_inputs = OwnInputs(self._changes, state.training, inputs, objective.each)
        losses = []
        with self._unchanged_buffers(), without_autocast_cache():
            for cover in range(covers):
                outputs = []
                for number, model in enumerate(models):
                    if number and trains:
                        copies.replace_copy(cover)  # a backward may run this cover's passes again
                    module = copies.bind_cover(cover, model.leaves(cover, trains))
                    args, named = own_inputs.of_cover(cover)
                    outputs.append(module(*args, **named))
                    own_inputs.check()
                output = outputs[0] if len(outputs) == 1 else trees.merge(join_passes, *outputs)
                ends = {t.grad_fn for t in trees.tensors(output)}
                value = objective.of_cover(cover, output, len(passes))
                losses.append(value.detach())
                if value.requires_grad:
                    kept.backward(value, ends, objective.scale)
                copies.bind_cover(cover, dict.fromkeys(lifted))
                del outputs, output, ends, value
                for model in models:
                    model.keep_gradients(cover)
        self._collect_buffers(buffers)
        if trains:
            # From the last pass to the first, as one backward of all passes would add them up.
            for which, model in zip(reversed(passes), reversed(models), strict=True):
                kept.add(stacks, state._returned(which, model.gradients()))
        total = sum(losses[1:], start=losses[0])
        return kept.connected(total, objective.scale)

    def _prepare_copies(self) -> None:
        """Prepares copies for a pass: new ones if a backward may run the current ones again."""
        if self._pending[0]:
            self.copies.replace_copies()
            self._pending = [False]
        else:
            self.copies.release_tensors()

    @contextlib.contextmanager
    def _unchanged_buffers(self) -> Iterator[None]:
        """Refuses covers that write to a shared buffer."""
        state = self.state
        shared = {n: b for n, b in state.net.named_buffers() if n not in state.state}
        untouched = versions(shared.values())
        yield
        for (name, buffer), before in zip(shared.items(), untouched, strict=True):
            if versions([buffer]) != [before]:
                raise shared_buffer_error(name, buffer)

    def _collect_buffers(self, slices: StackSlices) -> None:
        """Stacks the buffers that covers assigned to, given the slices that were bound."""
        state = self.state
        new = self.copies.collect_buffers(slices)
        state.state = (*state.state, *(name for name in new if name not in state.state))

    def _count_forward(self, given: list[Tensor]) -> tuple[int, int]:
        """Step and draw of this forward; a recomputation gets those of the forward it repeats."""
        state = self.state
        if not state.training:
            return state._advance()
        return self._recomputations.number(given, state.parameters(), state._advance)

    def _check_meetings(self) -> None:
        """Refuses a model in which covers never met; warns if most layers were not called."""
        if self._checked:
            return
        places = [site.layer.place(part) for site in self.sites.values() for part in site.shapes]
        silent = [place for place in places if place not in self.current.met]
        if len(silent) == len(places):
            raise McoverError(
                f"no covers met: the model does not call its layers that mix, {silent[:5]}, but "
                "uses their weights in some other way. Take routing='directed'. For torch.export, "
                "export covered.collapse()."
            )
        self._checked = True
        if 2 * len(silent) > len(places):
            warnings.warn(
                f"covers met at {len(places) - len(silent)} of {len(places)} layers: this forward "
                f"did not call {silent[:5]}. See covered.report(x).",
                McoverWarning,
                stacklevel=2,
            )

    def _install_meetings(self, copy: nn.Module) -> None:
        """Replaces the forwards of a copy's mixing layers by forwards in which covers meet."""
        for name, layer in copy.named_modules():
            if name in self.sites:
                vars(layer)["forward"] = Mixed(layer, self.sites[name])


def mark_until_backward(outputs: Iterable[Tensor]) -> list[bool]:
    """A list of one flag, which is true until the backward reaches one of these outputs."""
    trained = [output for output in outputs if output.requires_grad]
    mark = [bool(trained)]

    def clear(grad: Tensor) -> None:
        mark[0] = False

    for output in trained:
        output.register_hook(clear)
    return mark


def _along_batch(*outputs: Any) -> Any:
    """Joins the outputs of S passes, (M, B, ...) each, to (M, S·B, ...)."""
    if not isinstance(outputs[0], Tensor):
        return outputs[0]
    joined = torch.stack(outputs, 1)
    joined = joined if joined.ndim == 2 else joined.flatten(1, 2)
    return loss.mark_passes(joined, len(outputs))
