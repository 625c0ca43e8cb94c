"""Covers in lockstep: each runs the base model's code, and all meet at layers that mix.

Every cover is a greenlet. It runs until it reaches a layer that mixes, passes its slices to the
conductor, and stops. When all covers have reached that layer, the conductor computes it once for
all of them, and each cover continues with its own result. ``execution.md`` beside this file has a
picture.

Greenlets run the base's code unchanged, whatever it does between two meetings. Two alternatives
were tried and dropped. With one OS thread per cover, every meeting costs the switch of threads, and
each thread gets its own OpenMP team. ``torch.vmap`` over covers cannot run code that branches on
values, and on a CPU it took longer than M separate forwards.

All greenlets run on one thread and share torch's thread-local state. The part that a cover may
change is saved and restored at each switch (:class:`_Modes`). Saved-tensor hooks cannot be
restored, so they are refused. Any new switch between covers has to do the same; without it,
``no_grad`` of one cover would silently turn off gradients in the next.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from greenlet import GreenletExit, getcurrent, greenlet
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from mcover.errors import McoverError

MeetingRule = Callable[[Sequence[Any]], Sequence[Any]]


class Meeting(NamedTuple):
    """The call of a mixing layer by one cover."""

    place: str  # the layer's name; covers meet when their places are equal
    slices: Any  # this cover's slice of each argument: input, weight, bias
    rule: MeetingRule  # computes the results of all covers from the slices of all covers


def meet(place: str, slices: Any, rule: MeetingRule) -> Any:
    """Waits for all covers, and returns this cover's result of ``rule(all slices)``."""
    cover = getcurrent()
    if not isinstance(cover, _Cover):
        raise McoverError(
            f"the layer {place!r} of a covered model ran outside of the covered model's forward, "
            "without the other covers. If activation checkpointing ran it again, checkpoint "
            "around the covered model instead of inside, or take routing='directed'. Otherwise "
            "call the covered model, or covered.collapse() for a plain one."
        )
    if cover.hooks_can_be_seen and saved_tensor_hooks_are_active():
        raise McoverError(
            "activation checkpointing, or another saved-tensor hook, is active inside the model "
            f"at {place!r}, where covers meet: a single cover cannot be recomputed there. "
            "Checkpoint around the covered model instead, or take routing='directed'."
        )
    modes = _Modes.now()
    conductor: Any = cover.parent
    result = conductor.switch(Meeting(place, slices, rule))
    modes.restore(cover.guards)
    return result


def inside_cover() -> bool:
    """Whether this code runs in a cover, that is, inside the covered model's forward."""
    return isinstance(getcurrent(), _Cover)


def run(covers: Sequence[Callable[[], Any]]) -> list[Any]:
    """Runs all covers to their ends, meeting by meeting, and returns their results.

    An exception in one cover ends the others, and is raised with that cover's traceback.
    """
    begin = _Modes.now()
    with contextlib.ExitStack() as guards:
        guards.enter_context(torch.inference_mode(begin.inference))
        visible = not saved_tensor_hooks_are_active()
        running = [_Cover(function, guards, visible) for function in covers]
        try:
            begin.restore(guards)
            with _InsideTorch(lambda: _conduct(running, begin)):
                result: Any = torch.empty(0)  # replaced by the mode: the results of the covers
            return result
        finally:
            begin.restore(guards)


def saved_tensor_hooks_are_active() -> bool:
    """Whether hooks on saved tensors are active outside the covers, e.g. by checkpointing."""
    try:
        with disable_saved_tensors_hooks("hooks are active"):
            return False
    except RuntimeError:
        return True


class _InsideTorch(TorchFunctionMode):
    """Replaces the next call of a torch function by a call of ``function``.

    A Python call into torch sets a thread-local pointer to a warning handler on its own C stack,
    and restores the previous pointer when it returns. Ordinary calls are nested. Covers that stop
    inside such a call are not: cover 0 enters its call, cover 1 enters its own, and cover 0 returns
    first. Then the last call to return restores the pointer of one that has returned already. A
    later warning from C++ code, e.g. of DistributedDataParallel's reducer, would follow it into
    freed memory and end the process. One more call around all covers is enough: it was entered
    before any of them and returns after all of them, so the pointer that it restores is valid. The
    call is ``torch.empty(0)``; the mode runs the covers in its place, and returns what they
    returned.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__()
        self.function = function

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.function()


class _Cover(greenlet):
    """One cover, which runs up to its next meeting when it is resumed."""

    def __init__(
        self, function: Callable[[], Any], guards: contextlib.ExitStack, hooks_can_be_seen: bool
    ) -> None:
        super().__init__(function)
        self.gr_context = contextvars.copy_context()
        self.guards = guards
        self.hooks_can_be_seen = hooks_can_be_seen


def _conduct(covers: list[_Cover], begin: _Modes) -> list[Any]:
    try:
        return _all_meetings(covers, begin)
    finally:
        for cover in covers:
            if not cover.dead:
                cover.throw(GreenletExit)


def _all_meetings(covers: list[_Cover], begin: _Modes) -> list[Any]:
    replies: list[tuple[Any, ...]] = [()] * len(covers)
    while True:
        arrived = []
        for cover, reply in zip(covers, replies, strict=True):
            begin.restore(cover.guards)  # for a cover that starts; later ones restore their own
            arrived.append(cover.switch(*reply))
            _check_together(covers, arrived)
        if covers[0].dead:
            return arrived
        try:
            results = arrived[0].rule([meeting.slices for meeting in arrived])
        except Exception as error:
            covers[0].throw(error)  # so that the traceback names the line of the user's model
            raise
        replies = [(result,) for result in results]


def _check_together(covers: list[_Cover], arrived: list[Any]) -> None:
    """Refuses the last cover that arrived if its place is not that of cover 0."""
    index = len(arrived) - 1
    first, here = (None if covers[k].dead else arrived[k].place for k in (0, index))
    if first == here:
        return
    where = [f"at {place!r}" if place is not None else "at its end" for place in (first, here)]
    error = McoverError(
        f"covers took different branches of the model: cover 0 is {where[0]}, cover {index} "
        f"{where[1]}. All covers must call layers that mix in the same order; if values or random "
        "numbers of a cover decide about such a layer, switch that off, leave the layer out with "
        "select=[...], or take routing='directed'."
    )
    if here is not None:
        covers[index].throw(error)
    raise error


_DEVICES = ("cpu", "cuda")


def without_autocast() -> contextlib.ExitStack:
    """Turns autocast off, for operands that have been cast already, and for their backward."""
    stack = contextlib.ExitStack()
    for device in _DEVICES:
        if torch.is_autocast_enabled(device):
            stack.enter_context(torch.autocast(device, enabled=False))
    return stack


class _Modes(NamedTuple):
    """Torch's thread-local modes, which are kept separately for each cover.

    All covers run on one thread, so ``torch.no_grad()`` in one of them would stay active in the
    next. A cover saves its modes when it stops and restores them when it continues. Inference mode
    has no setter, only a guard; guards are kept in an ExitStack and closed when all covers have
    ended.
    """

    grad: bool
    inference: bool
    autocast: tuple[tuple[bool, torch.dtype], ...]
    cache: bool

    @classmethod
    def now(cls) -> _Modes:
        autocast = [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES]
        grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        return cls(grad, inference, tuple(autocast), torch.is_autocast_cache_enabled())

    def restore(self, guards: contextlib.ExitStack) -> None:
        """Activates these modes; a change of inference mode lasts until the guards are closed."""
        now = _Modes.now()
        if now == self:
            return
        if now.inference != self.inference:
            guards.enter_context(torch.inference_mode(self.inference))
        torch.set_grad_enabled(self.grad)
        for device, (enabled, dtype) in zip(_DEVICES, self.autocast, strict=True):
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self.cache)
