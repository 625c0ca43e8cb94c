"""What the optimizers of coupled replicas share: a base optimizer steps, and replicas are pulled.

The pull is found from the values before the step and applied beside the base's own update, as
AdamW decays weights beside Adam's: momentum and normalisation act on gradients of losses alone.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from mcover import checks
from mcover.errors import McoverError

Base = Callable[..., Optimizer]
Group = dict[str, Any]


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

    @abstractmethod
    def _check(self, group: Group) -> None:
        """Refuses bad options of a group, and completes those that follow from others."""

    @abstractmethod
    def _pull(self, group: Group) -> float:
        """The share of the way to its anchor that a replica is pulled in the coming step."""

    @abstractmethod
    def _offsets(self, stack: Tensor) -> Tensor:
        """How far each replica is from what it is pulled to, as a new tensor."""

    def _ready(self, loss: Any) -> None:
        """Called with what the closure returned, before anything is changed."""

    def _follow(self, stack: Tensor, pull: float) -> Tensor | None:
        """What an optimizer keeps for itself after the step, from the values before it."""
        return None

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
            check_number(param_group, "lr")
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
        pulled = []
        for group in self.param_groups:
            pull = self._pull(group) if group["replicas"] else 0.0
            for stack in group["params"] if group["replicas"] else ():
                if stack.grad is not None:
                    way = self._offsets(stack).mul_(pull) if 0 < pull < 1 else None
                    pulled.append((stack, pull, way, self._follow(stack, pull)))
        self.base.step()
        for stack, pull, way, centre in pulled:
            if way is not None:
                stack.sub_(way)
            elif pull >= 1:  # all the way: to the barycentre of what the base made of the replicas
                stack.copy_(stack.mean(0, keepdim=True).expand_as(stack))
            if centre is not None:
                # Only now: some optimizers take a state that is not empty for one of their own.
                self.state[stack]["centre"] = stack[0].clone() if pull >= 1 else centre
        for group in self.param_groups:
            group["taken"] += 1
        return loss

    def _check_stacks(self, group: Group) -> None:
        checks.flag("replicas", group["replicas"])
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


def check_number(group: Group, name: str, also: str = "", **limits: float) -> None:
    """Refuses an option outside its limits, 0 on by default; ``also`` is what else is allowed."""
    value = group[name]
    is_tensor = isinstance(value, Tensor) and value.ndim == 0  # torch takes them for lr
    plain = value.item() if is_tensor else value
    try:
        plain = checks.real(name, plain, **(limits or {"least": 0}), infinite=bool(also))
    except McoverError as error:
        raise McoverError(f"{str(error).rstrip('.')}{also}.") from None
    group[name] = value if is_tensor else plain


def is_auto(group: Group) -> bool:
    """Whether the coupling is "auto"; refused where it is no number either."""
    auto = isinstance(group["coupling"], str) and group["coupling"] == "auto"
    if not auto:
        check_number(group, "coupling", also=", inf or 'auto'")
    return auto


def own_groups(params: ParamsT) -> ParamsT:
    """Parameter groups as copies: torch writes into those it is given, and two optimizers share."""
    if isinstance(params, Tensor | str | bytes | dict) or not isinstance(params, Iterable):
        raise McoverError(
            f"params is a {type(params).__name__}; write model.parameters(), "
            "covered.stacks().values() or a list of parameter groups."
        )
    return [dict(entry) if isinstance(entry, dict) else entry for entry in params]  # type: ignore[return-value]


def _made(base: Base, params: ParamsT, options: Group) -> Optimizer:
    """The base optimizer, or an error that says what it takes."""
    if not callable(base):
        raise McoverError(f"base is {base!r}; write a class of optimizers, e.g. torch.optim.SGD.")
    name = getattr(base, "__name__", repr(base))
    try:
        made = base(own_groups(params), **options)
    except (TypeError, ValueError) as error:
        remedy = "Write e.g. base=torch.optim.SGD."
        with suppress(ValueError):  # some classes written in C have no signature
            names = [name for name in inspect.signature(base).parameters if name != "params"]
            remedy = f"It takes {', '.join(names)}."
        raise McoverError(
            f"the base optimizer {name} refuses what it was given: {error}. {remedy}"
        ) from error
    if not isinstance(made, Optimizer):
        raise McoverError(f"base {name} makes a {type(made).__name__}; write e.g. torch.optim.SGD.")
    closure = inspect.signature(made.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise McoverError(f"{name} cannot step without a closure; write e.g. base=torch.optim.SGD.")
    return made
