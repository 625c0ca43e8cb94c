"""Replicated SGD: replicas that attract each other, ever more strongly."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import SGD
from torch.optim.optimizer import ParamsT

from mcover import checks
from mcover.errors import McoverError
from mcover.optim.coupled import Base, Coupled, Group, check_number, is_auto


class ReplicatedSGD(Coupled):
    """rSGD: w_a ← w_a − η[∇L_a + 2g(w_a − w̄)], with w̄ the barycentre before the step.

    It descends Σ_a [L_a + g |w_a − w̄|²] (Pittorino et al., 2021), and g grows exponentially:
    g_t = g_0 · growth^(t/steps) in step t, constant from step ``steps`` on. The fraction 2ηg that a
    step pulls is limited: from 1 on, all replicas are set to the barycentre of what the base made
    of them, so that ``coupling=inf`` keeps them together.

    >>> import mcover, torch
    >>> covered = mcover.lift(torch.nn.Linear(3, 2), 4, mcover.Identity(), seed=0)
    >>> optimizer = ReplicatedSGD(covered.stacks().values(), lr=0.1, steps=100, momentum=0.9)
    >>> x, y = torch.ones(5, 3), torch.zeros(5, 2)
    >>> loss = mcover.cover_loss(torch.nn.functional.mse_loss, covered(x), y)
    >>> loss.backward()
    >>> optimizer.start(loss)  # once: coupling="auto" takes its size from the first loss
    >>> optimizer.step()

    Args:
        params: stacks (M, *shape), ``covered.stacks().values()``; or parameter groups, those with
            ``"replicas": False`` for what all covers share.
        lr: η, also of the base optimizer.
        coupling: g_0. "auto" is Σ_a L_a / Σ_a |w_a − w̄|² at the start, squared distances summed
            over all weights: then both terms of the objective are of one size. The losses are
            taken from the closure of the first step, or from :meth:`start`. One cover is not
            coupled.
        growth: by how much the coupling grows in all.
        steps: the planned number of steps; None with ``growth=1`` alone.
        base: the optimizer that makes the gradient step, plain or with momentum; one that acts on
            each weight by itself, as SGD and Adam do, keeps the replicas apart.
        options: of the base, e.g. momentum, nesterov, weight_decay.

    Shape:
        A parameter (M, *shape) has the barycentre (*shape); M is the same in all groups.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        coupling: float | Literal["auto"] = "auto",
        growth: float = 1e4,
        steps: int | None = None,
        base: Base = SGD,
        **options: Any,
    ) -> None:
        own = {"coupling": coupling, "growth": growth, "steps": steps}
        super().__init__(params, base, {"lr": lr, **options}, own)

    @torch.no_grad()
    def start(self, loss: Tensor | float) -> None:
        """Sets the coupling of all groups with "auto".

        Args:
            loss: at the start, summed over the covers, as :func:`mcover.cover_loss` returns it.
        """
        groups = self._waiting()
        if not groups:
            raise McoverError("no coupling is 'auto', or it has started; leave start() out.")
        value = float(torch.as_tensor(loss).detach())
        if not 0 < value < math.inf:
            raise McoverError(
                f"the loss at the start is {value}; coupling='auto' needs a positive one: "
                "write a number for coupling."
            )
        stacks = [p for group in groups for p in group["params"] if p.requires_grad]
        apart = sum(float(self._offsets(stack).square().sum()) for stack in stacks)
        if apart == 0 and self.covers > 1:
            raise McoverError(
                "all replicas are equal at the start, which leaves coupling='auto' without a "
                "scale; lift with noise above 0, or write a number for coupling."
            )
        for group in groups:
            group["coupling"] = value / apart if apart else 0.0

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
        is_auto(group)
        check_number(group, "growth", above=0)
        if group["steps"] is not None:
            group["steps"] = checks.whole("steps", group["steps"], 1)
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
        """w_a − w̄, exactly 0 for equal replicas: the mean of equal floats may be another float."""
        offsets = stack - stack[:1]
        return offsets.sub_(offsets.mean(0))
