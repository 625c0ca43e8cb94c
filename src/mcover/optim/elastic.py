"""Elastic averaging SGD: replicas tied to a centre that follows them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import SGD
from torch.optim.optimizer import ParamsT

from mcover import checks
from mcover.errors import McoverError
from mcover.optim.coupled import Base, Coupled, Group, is_auto

_BETA = 0.9  # what Zhang et al. recommend for the centre's rate


class ElasticSGD(Coupled):
    """Synchronous EASGD (Zhang et al., 2015), and EAMSGD with ``momentum`` and ``nesterov``.

    In every ``period``-th step, beginning with the first, all values on the right being old ones:

        x_i ← x_i − η∇L_i − α(x_i − x̃),    x̃ ← x̃ + β(mean_i x_i − x̃),    α = ηρ, β = Mα;

    in the others the base steps alone. The centre x̃ starts at the barycentre. β is limited to 1,
    where the centre becomes the barycentre: then SGD with curvature h is stable for α < 1 − ηh/2.
    From α = 1 on, replicas and centre are set to the barycentre of what the base made of the
    replicas, so that ``coupling=inf`` averages them every ``period`` steps.

    >>> import mcover, torch
    >>> covered = mcover.lift(torch.nn.Linear(3, 2), 4, mcover.Identity(), seed=0)
    >>> optimizer = ElasticSGD(covered.stacks().values(), lr=0.1, momentum=0.9, nesterov=True)
    >>> x, y = torch.ones(5, 3), torch.zeros(5, 2)
    >>> loss = mcover.cover_loss(torch.nn.functional.mse_loss, covered(x), y)
    >>> loss.backward()
    >>> optimizer.step()
    >>> with optimizer.at_centre():
    ...     net = covered.collapse()

    Args:
        params: stacks (M, *shape), ``covered.stacks().values()``; or parameter groups, those with
            ``"replicas": False`` for what all covers share.
        lr: η, also of the base optimizer.
        coupling: ρ. "auto" makes β = 0.9 at the learning rate that the group is given.
        period: τ, the steps between communications.
        base: the optimizer that makes the gradient step; one that acts on each weight by itself,
            as SGD and Adam do, keeps the replicas apart.
        options: of the base, e.g. momentum, nesterov, weight_decay.

    Shape:
        A parameter (M, *shape) has the centre (*shape); M is the same in all groups.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        coupling: float | Literal["auto"] = "auto",
        period: int = 1,
        base: Base = SGD,
        **options: Any,
    ) -> None:
        own = {"coupling": coupling, "period": period}
        super().__init__(params, base, {"lr": lr, **options}, own)

    @torch.no_grad()
    def centre(self, stack: Tensor) -> Tensor:
        """x̃ of one stack, shape (*shape); the barycentre before the first step."""
        found: Tensor | None = self.state.get(stack, {}).get("centre")
        return stack.mean(0) if found is None else found.clone()

    @contextmanager
    def at_centre(self) -> Iterator[None]:
        """Inside, all replicas are at the centre; outside, they are what they were.

        Running statistics stay those of the replicas: ``collapse(loader=...)``.
        """
        stacks = self.stacks()
        kept = [stack.detach().clone() for stack in stacks]
        with torch.no_grad():
            for stack in stacks:
                stack.copy_(self.centre(stack).expand_as(stack))
        try:
            yield
        finally:
            with torch.no_grad():
                for stack, before in zip(stacks, kept, strict=True):
                    stack.copy_(before)

    def _check(self, group: Group) -> None:
        group["period"] = checks.whole("period", group["period"], 1)
        if is_auto(group) and group["replicas"]:
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
