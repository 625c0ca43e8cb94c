"""What the optimizers of coupled replicas share: a base optimizer steps, and replicas are pulled.

The pull is found from the values before the step and applied beside the base's own update, as
AdamW decays weights beside Adam's: momentum and normalisation act on gradients of losses alone.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from mcover.errors import McoverError
from mcover.optim.options import Group, own_groups

Base = Callable[..., Optimizer]


class Coupled(Optimizer):
    """A base optimizer on stacks (M, *shape), with something that happens between the replicas.

    Options of the base and of the coupling live side by side in the parameter groups, which both
    share, so that schedulers, checkpoints and added groups reach both. A group with
    ``replicas=False`` holds parameters that all replicas share: the base alone acts on them.
    Parameters without a gradient are left alone, as by every optimizer of torch.

    Attributes:
        base: the optimizer that steps.
    """

    def __init__(self, params: ParamsT, base: Base, options: Group, own: Group) -> None:
        self.base = _made(base, params, options)
        defaults = {**self.base.defaults, **own, "replicas": True, "taken": 0}
        super().__init__(self.base.param_groups, defaults)
        self.__setstate__({})

    @property
    def covers(self) -> int:
        """M; 1 as long as there is no stack."""
        return next((len(stack) for stack in self.stacks() if stack.ndim), 1)

    def stacks(self) -> list[Tensor]:
        """All parameters that have the covers first."""
        return [p for group in self.param_groups if group["replicas"] for p in group["params"]]

    def add_param_group(self, param_group: Group) -> None:
        """As in torch, for stacks of the same M or, with ``replicas=False``, for shared tensors."""
        super().add_param_group(param_group)
        try:
            self._check_stacks(param_group)
            self._check(param_group)
        except McoverError:
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the base, and the pull between replicas beside it.

        Args:
            closure: clears the gradients, computes the loss and its gradients, returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._ready(loss)
        pulled = [
            (group, stack, self._before(group, stack))
            for group in self.param_groups
            if group["replicas"]
            for stack in group["params"]
            if stack.grad is not None
        ]
        self.base.step()
        for group, stack, kept in pulled:
            self._after(group, stack, kept)
        for group in self.param_groups:
            group["taken"] += 1
        return loss

    @abstractmethod
    def _check(self, group: Group) -> None:
        """Refuses bad options of a group, and completes those that follow from others."""

    @abstractmethod
    def _before(self, group: Group, stack: Tensor) -> Any:
        """What the coupling needs of the values before the step."""

    @abstractmethod
    def _after(self, group: Group, stack: Tensor, kept: Any) -> None:
        """Pulls the stepped replicas."""

    def _ready(self, loss: Any) -> None:
        """Called with what the closure returned, before anything is changed."""

    def _check_stacks(self, group: Group) -> None:
        if not isinstance(group["replicas"], bool):
            raise McoverError(f"replicas is {group['replicas']!r}; write True or False.")
        for stack in group["params"] if group["replicas"] else []:
            if stack.ndim == 0 or len(stack) != self.covers:
                raise McoverError(
                    f"a parameter of shape {tuple(stack.shape)} does not have the covers first, "
                    f"which are {self.covers} in others; give covered.stacks().values(), and what "
                    "all covers share as a group of its own: {'params': [...], 'replicas': False}."
                )

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "base": self.base}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            # A checkpoint of the plain base knows nothing of the coupling.
            for name, default in self.defaults.items():
                group.setdefault(name, default)
            self._check(group)
        self.base.__setstate__({"state": self.state, "param_groups": self.param_groups})


def join(stack: Tensor) -> None:
    """Sets all replicas to their barycentre."""
    stack.copy_(stack.mean(0, keepdim=True).expand_as(stack))


def _made(base: Base, params: ParamsT, options: Group) -> Optimizer:
    """The base optimizer, or an error that says what it takes."""
    name = getattr(base, "__name__", repr(base))
    if not callable(base):
        raise McoverError(f"base is {base!r}; write a class of optimizers, e.g. torch.optim.SGD.")
    try:
        made = base(own_groups(params), **options)
    except (TypeError, ValueError) as error:
        raise McoverError(
            f"the base optimizer {name} refuses what it was given: {error}. {_signature(base)}"
        ) from error
    if not isinstance(made, Optimizer):
        raise McoverError(f"base {name} makes a {type(made).__name__}; write e.g. torch.optim.SGD.")
    closure = inspect.signature(made.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise McoverError(f"{name} cannot step without a closure; write e.g. base=torch.optim.SGD.")
    return made


def _signature(base: Base) -> str:
    try:
        names = inspect.signature(base).parameters
    except ValueError:  # some classes written in C have none
        return "Write e.g. base=torch.optim.SGD."
    return f"It takes {', '.join(name for name in names if name != 'params')}."
