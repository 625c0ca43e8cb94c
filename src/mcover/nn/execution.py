"""How covers run: one forward, and what must hold when a forward is computed twice.

That happens to checkpointed forwards, which a backward repeats, and to those that change their
input, which all covers share. ``execution.md`` beside this file follows one tensor through a
forward and its backward.
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
from mcover.nn.cover_by_cover import Objective, run_covers
from mcover.nn.lockstep import run
from mcover.nn.meetings import Mixed, Pass, Site, attention_as_written
from mcover.nn.mixing import Rules
from mcover.nn.recomputation import Recomputations, versions, watched
from mcover.nn.state import CoverState


class Execution:
    """Runs the forwards of a covered model, one at a time.

    It reads and advances the state, and keeps what belongs to forwards: the copies that covers run
    on, and what is known of forwards whose backward has not run yet. Only ``state``, ``copies`` and
    ``rules`` are copied or pickled: the rest describes forwards of this object.
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
        self.objective: Objective | None = None  # of the next forward, if it is to train by it
        self._pending = [False]  # whether a backward may still run the copies once more
        self._checked = False
        # Whether the model writes to its input, in training and in evaluation, once it has run.
        self._changes: dict[bool, bool] = {}

    @functools.cached_property
    def sites(self) -> dict[str, Site]:
        """The layers that mix, by name."""
        layers = self.state._mixing_layers
        return {name: Site(layer, self.current) for name, layer in layers.items()}

    @torch.compiler.disable  # it cannot follow execution from one cover to another
    def forward(self, args: Any, kwargs: Any, *, each: bool) -> Any:
        """One forward; ``each`` where every tensor has the covers first.

        Covers share the input, since a layer to which all bring the same tensor mixes weights
        instead of messages. A model that writes to its input would then change it for the covers
        that run later. Whether it does cannot be known before it has run, and copying every input
        for each cover would make that layer mix messages. So the first forward, in training and in
        evaluation, runs on one watched copy. If the copy was written to, everything the forward did
        is undone, and from then on each cover has its own copy.
        """
        state, inputs = self.state, (args, kwargs)
        with self.lock:
            step, number = self._count_forward(trees.tensors(inputs))
            state._draw(number)
            objective, self.objective = self.objective, None
            if objective is not None:
                return run_covers(self, inputs, step, objective)
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
                raise _changed_input_error()
            self._changes[state.training] = changed
            if undo is None or not changed:
                return outputs
            undo()
            return run_passes(inputs, own=True)

    @contextlib.contextmanager
    def expect(self, objective: Objective) -> Iterator[Callable[[], bool]]:
        """The next forward computes an objective; the function says whether it is still to come."""
        with self.lock:
            self.objective = objective
            try:
                yield lambda: self.objective is not None
            finally:
                self.objective = None

    def own_inputs(self, inputs: Any, each: bool) -> OwnInputs:
        """The inputs of covers that run one after the other."""
        return OwnInputs(self._changes, self.state.training, inputs, each)

    def _snapshot(self) -> Callable[[], None]:
        """A function that undoes everything a forward may change in the model."""
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
        """All passes of a forward; ``own`` where covers may write to their inputs."""

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
        self.prepare_copies()
        buffers = list(state.state_stacks().values())
        lifted = zip(state.stacks().values(), state._slices(which), strict=True)
        slices = {**dict(lifted), **{stack: stack.unbind() for stack in buffers}}
        self.current.begin(slices)
        self.current.met = state._met
        self.current.mixers = {
            place: mixer[which] if mixer.ndim == 5 else mixer  # one for each stream, or for all
            for place, mixer in state.mixers().items()
        }
        modules = copies.bind(slices)
        calls = [
            functools.partial(module, *args, **kwargs)
            for module, (args, kwargs) in zip(modules, inputs, strict=True)
        ]
        with self.unchanged_buffers():
            if self.sites:
                with attention_as_written():
                    outputs = run(calls)
                self._check_meetings()
            else:
                outputs = [call() for call in calls]
        self.collect_buffers(slices)
        result = trees.stack(*outputs)
        self._pending = mark_until_backward(trees.tensors(result))
        return result

    def prepare_copies(self) -> None:
        """Makes copies ready for a pass: new ones where a backward may run the last once more."""
        if self._pending[0]:
            self.copies.replace_copies()
            self._pending = [False]
        else:
            self.copies.release_tensors()

    @contextlib.contextmanager
    def unchanged_buffers(self) -> Iterator[None]:
        """Refuses covers that write to a buffer which they share."""
        state = self.state
        shared = {n: b for n, b in state.net.named_buffers() if n not in state.state}
        untouched = versions(shared.values())
        yield
        for (name, buffer), before in zip(shared.items(), untouched, strict=True):
            if versions([buffer]) != [before]:
                raise shared_buffer_error(name, buffer)

    def collect_buffers(self, slices: StackSlices) -> None:
        """Stacks the buffers that covers assigned, given the slices that they began with."""
        state = self.state
        new = self.copies.collect_buffers(slices)
        state.state = (*state.state, *(name for name in new if name not in state.state))

    def _count_forward(self, given: list[Tensor]) -> tuple[int, int]:
        """Step and draw of this forward; one that checkpointing computes again has those it had."""
        state = self.state
        if not state.training:
            return state._advance()
        return self._recomputations.number(given, state.parameters(), state._advance)

    def _check_meetings(self) -> None:
        """Refuses a model in which no covers met, and warns of one in which few did."""
        if self._checked:
            return
        places = [site.layer.place(part) for site in self.sites.values() for part in site.shapes]
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

    def _install_meetings(self, copy: nn.Module) -> None:
        """Replaces the forwards of layers that mix in a copy by those in which covers meet."""
        for name, layer in copy.named_modules():
            if name in self.sites:
                vars(layer)["forward"] = Mixed(layer, self.sites[name])


class OwnInputs:
    """Inputs of covers that run one after the other: copies, unless the model leaves them alone.

    Whether it writes to them cannot be known before it has run, so the first forward takes copies.
    """

    def __init__(self, changes: dict[bool, bool], training: bool, inputs: Any, each: bool) -> None:
        self.changes, self.training = changes, training
        self.copies = changes.get(training) is not False
        self.inputs, self.each = inputs, each
        self.given: list[Tensor] = trees.tensors(inputs)
        self.untouched = versions(self.given)

    def of_cover(self, cover: int) -> Any:
        """What one cover is called with."""
        given = trees.map_tensors(lambda t: t[cover], self.inputs) if self.each else self.inputs
        if self.copies:
            given = trees.map_tensors(watched, given)
            self.given = trees.tensors(given)
            self.untouched = versions(self.given)
        return given

    def check(self) -> None:
        """Notes whether the cover that has just run wrote to its inputs."""
        changed = versions(self.given) != self.untouched
        if changed and not self.copies:
            raise _changed_input_error()
        if self.copies:
            self.changes[self.training] = changed or self.changes.get(self.training, False)


def _changed_input_error() -> McoverError:
    return McoverError(
        "the model changed its input in place, which it did not do before, and all covers share "
        "the input; write x = x.clone() where its forward begins."
    )


def mark_until_backward(outputs: Iterable[Tensor]) -> list[bool]:
    """A mark that is true until gradients of these outputs arrive."""
    trained = [output for output in outputs if output.requires_grad]
    mark = [bool(trained)]

    def clear(grad: Tensor) -> None:
        mark[0] = False

    for output in trained:
        output.register_hook(clear)
    return mark


def _along_batch(*outputs: Any) -> Any:
    """Joins what S passes returned: (M, B, ...) each, to (M, S·B, ...)."""
    if not isinstance(outputs[0], Tensor):
        return outputs[0]
    joined = torch.stack(outputs, 1)
    joined = joined if joined.ndim == 2 else joined.flatten(1, 2)
    return loss.mark_passes(joined, len(outputs))
