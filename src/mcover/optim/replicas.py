"""Optimizers of coupled replicas: a base optimizer, and a pull that brings replicas together.

The pull is computed from the values before the step, and added to the update of the base, as AdamW
adds weight decay to that of Adam. So momentum and normalisation act only on the gradients of the
losses.
"""

import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import ParamsT

from mcover import checks
from mcover.errors import McoverError
from mcover.optim.groups import Group, added_group, check_number, evaluated, own_groups

Base = Callable[..., Optimizer]
Coupling = float | Literal["auto"]

_BETA = 0.9  # the rate of the centre that Zhang et al. recommend


class _Coupled(Optimizer):
    """A base optimizer on stacks (M, *shape), with a coupling between the replicas.

    The base and the coupling share the parameter groups, which hold the options of both, so that
    schedulers, checkpoints and added groups apply to both. Parameters without a gradient are not
    changed, as in every optimizer of torch.
    """

    def __init__(self, params: ParamsT, base: Base, options: Group, own: Group) -> None:
        self.base = _made(base, params, options)
        defaults = {**self.base.defaults, **own, "replicas": True, "taken": 0}
        super().__init__(self.base.param_groups, defaults)
        self.__setstate__({})

    @abstractmethod
    def _check(self, group: Group) -> None:
        """Refuses invalid options of a group, and computes those that follow from others."""

    @abstractmethod
    def _pull(self, group: Group) -> float:
        """The fraction of its offset that a replica is pulled back in the coming step."""

    @abstractmethod
    def _offsets(self, stack: Tensor) -> Tensor:
        """The offset of each replica from the point that it is pulled to, as a new tensor."""

    def _ready(self, loss: Any) -> None:
        """Called with the loss from the closure, before anything is changed."""

    def _follow(self, stack: Tensor, pull: float) -> Tensor | None:
        """The new centre, computed from the values before the step; None without a centre."""
        return None

    @property
    def covers(self) -> int:
        """M, or 1 as long as there is no stack."""
        return next((len(stack) for stack in self.stacks() if stack.ndim), 1)

    def stacks(self) -> list[Tensor]:
        """All parameters that have the covers first."""
        return [p for group in self.param_groups if group["replicas"] for p in group["params"]]

    def add_param_group(self, param_group: Group) -> None:
        """As in torch, for stacks of the same M, or for shared tensors with ``replicas=False``."""
        with added_group(super().add_param_group, self.param_groups, param_group):
            is_stacked = checks.check_bool("replicas", param_group["replicas"])
            for stack in param_group["params"] if is_stacked else ():
                if stack.ndim == 0 or len(stack) != self.covers:
                    raise McoverError(
                        f"a parameter of shape {tuple(stack.shape)} does not have the covers "
                        f"first, which are {self.covers} in others; give "
                        "covered.stacks().values(), and shared parameters as a separate group, "
                        "{'params': [...], 'replicas': False}."
                    )
            check_number(param_group, "lr")
            self._check(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the base, and the pull between replicas.

        Args:
            closure: a function that clears the gradients, computes loss and gradients, and returns
                the loss.
        """
        loss = evaluated(closure)
        self._ready(loss)
        pulled = []
        for group in self.param_groups:
            pull = self._pull(group) if group["replicas"] else 0.0
            for stack in group["params"] if group["replicas"] else ():
                if stack.grad is not None:
                    correction = self._offsets(stack).mul_(pull) if 0 < pull < 1 else None
                    pulled.append((stack, pull, correction, self._follow(stack, pull)))
        self.base.step()
        for stack, pull, correction, centre in pulled:
            if correction is not None:
                stack.sub_(correction)
            elif pull >= 1:  # replicas are set to their barycentre after the step of the base
                stack.copy_(stack.mean(0, keepdim=True).expand_as(stack))
            if centre is not None:
                # Stored after the step of the base: some optimizers initialise only an empty state.
                self.state[stack]["centre"] = stack[0].clone() if pull >= 1 else centre
        for group in self.param_groups:
            group["taken"] += 1
        return loss

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "base": self.base}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            # A checkpoint of the plain base has no options of the coupling.
            for name, default in self.defaults.items():
                group.setdefault(name, default)
            self._check(group)
        self.base.__setstate__({"state": self.state, "param_groups": self.param_groups})


class ReplicatedSGD(_Coupled):
    """rSGD: w_a ← w_a − η[∇L_a + 2g(w_a − w̄)], with w̄ the barycentre before the step.

    It descends ``Σ_a [L_a + g |w_a − w̄|²]`` (Pittorino et al., 2021), and g grows exponentially:
    g_t = g_0 · growth^(t/steps) in step t, constant after ``steps`` steps. If the fraction 2ηg of
    the pull is 1 or more, all replicas are set to their barycentre after the step of the base, so
    ``coupling=inf`` keeps them equal.

    >>> import mcover, torch
    >>> covered = mcover.lift(torch.nn.Linear(3, 2), 4, mcover.Identity(), seed=0)
    >>> optimizer = ReplicatedSGD(covered.stacks().values(), lr=0.1, steps=100, momentum=0.9)
    >>> x, y = torch.ones(5, 3), torch.zeros(5, 2)
    >>> loss = mcover.cover_loss(torch.nn.functional.mse_loss, covered(x), y)
    >>> loss.backward()
    >>> optimizer.start(loss)  # once: coupling="auto" depends on the first loss
    >>> optimizer.step()

    Args:
        params: stacks ``(M, *shape)``, ``covered.stacks().values()``; or parameter groups, with
            ``"replicas": False`` for shared parameters, which only the base updates.
        lr: η, also of the base optimizer.
        coupling: g_0. "auto" is ``Σ_a L_a / Σ_a |w_a − w̄|²`` at the start, summed over all weights,
            which makes both terms of the objective equal. The losses come from the closure of the
            first step or from :meth:`start`.
        growth: the factor by which the coupling grows in ``steps`` steps.
        steps: the planned number of steps; None only with ``growth=1``.
        base: the optimizer of the gradient step. It should act on each weight separately, as SGD
            and Adam do; others would couple the replicas.
        options: options of the base, e.g. momentum, nesterov, weight_decay.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        coupling: Coupling = "auto",
        growth: float = 1e4,
        steps: int | None = None,
        base: Base = SGD,
        **options: Any,
    ) -> None:
        own = {"coupling": coupling, "growth": growth, "steps": steps}
        super().__init__(params, base, {"lr": lr, **options}, own)

    @torch.no_grad()
    def start(self, loss: Tensor | float) -> None:
        """Sets the coupling of all groups with "auto" by the loss, summed over the covers."""
        groups = self._waiting()
        if not groups:
            raise McoverError("no coupling is 'auto', or it has started; leave start() out.")
        is_one = isinstance(loss, Tensor) and loss.numel() == 1 and not loss.is_meta
        value = checks.check_float("loss", loss.item() if is_one else loss, infinite=True)  # type: ignore[union-attr]
        if not 0 < value < math.inf:
            raise McoverError(
                f"the loss at the start is {value}; coupling='auto' needs a positive one: "
                "write a number for coupling."
            )
        stacks = [p for group in groups for p in group["params"] if p.requires_grad]
        squares = sum(float(self._offsets(stack).square().sum()) for stack in stacks)
        if squares == 0 and self.covers > 1:
            raise McoverError(
                "all replicas are equal at the start, which leaves coupling='auto' without a "
                "scale; lift with noise above 0, or write a number for coupling."
            )
        for group in groups:
            group["coupling"] = value / squares if squares else 0.0

    def _waiting(self) -> list[Group]:
        return [g for g in self.param_groups if g["replicas"] and g["coupling"] == "auto"]

    def _ready(self, loss: Any) -> None:
        if not self._waiting():
            return
        if loss is None:
            raise McoverError(
                "coupling='auto' needs the loss at the start; before the first step write "
                "optimizer.start(loss), or step with a closure that returns the loss."
            )
        self.start(loss)

    def _check(self, group: Group) -> None:
        _is_auto(group)
        check_number(group, "growth", above=0)
        if group["steps"] is not None:
            group["steps"] = checks.check_int("steps", group["steps"], 1)
        elif group["growth"] != 1 and group["replicas"]:
            raise McoverError(
                f"the coupling grows by {group['growth']:g} over an unknown number of steps; "
                "write steps=epochs * len(loader), or growth=1."
            )

    def _pull(self, group: Group) -> float:
        """2ηg of the coming step."""
        g = float(group["coupling"])
        if group["steps"] is not None:
            g *= group["growth"] ** min(group["taken"] / group["steps"], 1.0)
        return math.inf if math.isinf(g) else 2 * float(group["lr"]) * g

    def _offsets(self, stack: Tensor) -> Tensor:
        """w_a − w̄, exactly 0 for equal replicas, whose mean may differ from them by rounding."""
        offsets = stack - stack[:1]
        return offsets.sub_(offsets.mean(0))


class ElasticSGD(_Coupled):
    """Synchronous EASGD (Zhang et al., 2015), and EAMSGD with ``momentum`` and ``nesterov``.

    In every ``period``-th step, starting with the first, with the values before the step on the
    right-hand side:

        x_i ← x_i − η∇L_i − α(x_i − x̃),    x̃ ← x̃ + β(mean_i x_i − x̃),    α = ηρ, β = Mα;

    In the other steps only the base steps. The centre x̃ starts at the barycentre. β is limited to
    1, where the centre becomes the barycentre; then SGD with curvature h is stable for α < 1 −
    ηh/2. If α is 1 or more, replicas and centre are set to the barycentre of the replicas after the
    base's step, so that ``coupling=inf`` averages them every ``period`` steps.

    >>> import mcover, torch
    >>> covered = mcover.lift(torch.nn.Linear(3, 2), 4, mcover.Identity(), seed=0)
    >>> optimizer = ElasticSGD(covered.stacks().values(), lr=0.1, momentum=0.9, nesterov=True)
    >>> mcover.cover_loss(torch.nn.functional.mse_loss, covered(torch.ones(5, 3)),
    ...                   torch.zeros(5, 2)).backward()
    >>> optimizer.step()
    >>> with optimizer.at_centre():
    ...     net = covered.collapse()

    Args:
        params: as for :class:`ReplicatedSGD`, as are ``base`` and its ``options``.
        lr: η, also of the base optimizer.
        coupling: ρ. "auto" gives β = 0.9 for the learning rate of the group.
        period: τ, the steps between communications.
        base: the optimizer of the gradient step.
        options: options of the base.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        coupling: Coupling = "auto",
        period: int = 1,
        base: Base = SGD,
        **options: Any,
    ) -> None:
        own = {"coupling": coupling, "period": period}
        super().__init__(params, base, {"lr": lr, **options}, own)

    @torch.no_grad()
    def centre(self, stack: Tensor) -> Tensor:
        """x̃ of one stack, in the base's shape; the barycentre before the first step."""
        if not any(stack is own for own in self.stacks()):
            raise McoverError(
                f"stack is {checks.shown(stack)}; write one of covered.stacks().values(), as the "
                "optimizer was given."
            )
        found: Tensor | None = self.state.get(stack, {}).get("centre")
        return stack.mean(0) if found is None else found.clone()

    @contextmanager
    def at_centre(self) -> Iterator[None]:
        """In this context all replicas are at the centre; on exit they are restored.

        Running statistics remain those of the replicas; write ``collapse(loader=...)``.
        """
        kept = [(stack, stack.detach().clone()) for stack in self.stacks()]
        with torch.no_grad():
            for stack, _ in kept:
                stack.copy_(self.centre(stack).expand_as(stack))
        try:
            yield
        finally:
            with torch.no_grad():
                for stack, before in kept:
                    stack.copy_(before)

    def _check(self, group: Group) -> None:
        group["period"] = checks.check_int("period", group["period"], 1)
        if _is_auto(group) and group["replicas"]:
            if not float(group["lr"]) > 0:
                raise McoverError(
                    f"coupling='auto' divides by lr, which is {group['lr']}; write a positive lr, "
                    "or a number for coupling."
                )
            group["coupling"] = _BETA / (self.covers * float(group["lr"]))

    def _pull(self, group: Group) -> float:
        """α in every ``period``-th step, 0 in the others."""
        rho = float(group["coupling"])
        if group["taken"] % group["period"]:
            return 0.0
        return rho if math.isinf(rho) else float(group["lr"]) * rho

    def _offsets(self, stack: Tensor) -> Tensor:
        return stack - self.centre(stack)

    def _follow(self, stack: Tensor, pull: float) -> Tensor:
        centre = self.centre(stack)
        if not 0 < pull < 1:
            return centre
        return centre.add_(stack.mean(0).sub_(centre), alpha=min(len(stack) * pull, 1.0))


def _is_auto(group: Group) -> bool:
    """Whether the coupling is "auto"; refuses anything but that and numbers."""
    auto = isinstance(group["coupling"], str) and group["coupling"] == "auto"
    if not auto:
        check_number(group, "coupling", also=", inf or 'auto'")
    return auto


def _made(base: Base, params: ParamsT, options: Group) -> Optimizer:
    """The base optimizer; if it refuses its options, the error lists the valid ones."""
    if not callable(base):
        raise McoverError(
            f"base is {checks.shown(base)}; write a class of optimizers, e.g. torch.optim.SGD."
        )
    name = getattr(base, "__name__", repr(base))
    try:
        made = base(own_groups(params), **options)
    except (TypeError, ValueError) as error:
        remedy = "Write e.g. base=torch.optim.SGD."
        with suppress(ValueError):  # some classes written in C have no signature
            names = [name for name in inspect.signature(base).parameters if name != "params"]
            remedy = f"It takes {', '.join(names)}."
        raise McoverError(
            f"the base optimizer {name} refuses its arguments: {error}. {remedy}"
        ) from error
    if not isinstance(made, Optimizer):
        raise McoverError(f"base {name} makes a {type(made).__name__}; write e.g. torch.optim.SGD.")
    closure = inspect.signature(made.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise McoverError(f"{name} cannot step without a closure; write e.g. base=torch.optim.SGD.")
    return made
