"""Bop: ±1 weights without latent ones, flipped by a running mean of their gradients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from mcover import checks
from mcover.errors import McoverError
from mcover.optim.groups import Group, add_group, check_group, check_number, evaluated, own_groups


class Bop(Optimizer):
    """The binary optimizer (Helwegen et al., 2019), for weights w = ±1.

        m ← (1 − γ)m + γ∇,    w ← −w  where m has the sign of w, and at least the size τ.

    It acts on each weight by itself, so that stacks of covers are M runs of it.

    >>> import mcover, torch
    >>> from mcover.nn import binary
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    >>> student = binary.binarize(net, estimator="identity")
    >>> covered = mcover.lift(student, 4, mcover.Uniform(), seed=0)
    >>> binary.snap_latents(covered)  # latents are signs from now on, and stay so
    >>> rest = torch.optim.Adam(binary.others(covered), lr=1e-3)
    >>> optimizer = Bop(binary.latents(covered).values(), lr=0.1, threshold=1e-3, rest=rest)
    >>> mcover.cover_loss(torch.nn.functional.mse_loss, covered(torch.randn(5, 3)),
    ...                   torch.zeros(5, 4)).backward()
    >>> optimizer.step()

    Args:
        params: parameters of ±1, or parameter groups of them.
        lr: γ, the adaptivity: the share of the new gradient in the mean.
        threshold: τ.
        rest: an optimizer of the other parameters. It steps with this one, and its groups follow
            those of this one in ``param_groups``, with ``"flips": False``: one scheduler, one
            ``zero_grad`` and one checkpoint serve both.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-4,
        threshold: float = 1e-8,
        *,
        rest: Optimizer | None = None,
    ) -> None:
        if rest is not None:
            checks.check_instance(
                "rest", rest, Optimizer, "e.g. torch.optim.Adam(binary.others(model))"
            )
        self.rest: Optimizer | None = None
        self._flipped: list[Tensor] = []
        super().__init__(own_groups(params), {"lr": lr, "threshold": threshold, "flips": True})
        self.rest = rest
        if rest is not None:
            for group in rest.param_groups:
                self._share(group)
            self.state.update(rest.state)
            self._hand_over()

    @property
    def flipped(self) -> float:
        """The share of weights that flipped in the last step; the paper looks at it to set τ."""
        weights = sum(p.numel() for g in self.param_groups if g["flips"] for p in g["params"])
        return sum(int(flips) for flips in self._flipped) / max(1, weights)

    def add_param_group(self, param_group: Group) -> None:
        """As in torch; with ``"flips": False`` for what the other optimizer trains."""
        check_group(param_group)
        if not checks.check_bool("flips", param_group.setdefault("flips", True)):
            if self.rest is None:
                raise McoverError("there is no other optimizer; write Bop(..., rest=Adam(...)).")
            self.rest.add_param_group(param_group)
            self._share(self.rest.param_groups[-1])
            return
        add_group(super().add_param_group, param_group)
        try:
            _check(self.param_groups[-1])
            for number, weight in enumerate(self.param_groups[-1]["params"]):
                if weight.is_complex() or not bool((weight.detach().abs() == 1).all()):
                    raise McoverError(
                        f"parameter {number} of shape {tuple(weight.shape)} is not ±1; write "
                        "binary.snap_latents(model) and binary.latents(model).values(), and give "
                        "the other parameters to rest=torch.optim.Adam(binary.others(model))."
                    )
        except McoverError:
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the other optimizer, if there is one, and the flips.

        Args:
            closure: clears the gradients, computes the loss and its gradients, returns the loss.
        """
        loss = evaluated(closure)
        self._flipped = []
        for group in self.param_groups:
            for weight in group["params"] if group["flips"] else ():
                if weight.grad is not None:
                    mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
                    mean.lerp_(weight.grad, float(group["lr"]))
                    along = mean * weight
                    flips = (along >= group["threshold"]) & (along > 0)
                    weight.copy_(torch.where(flips, -weight, weight))
                    self._flipped.append(flips.sum())
        if self.rest is not None:
            self.rest.step()
            self.state.update(self.rest.state)
        return loss

    def _share(self, group: Group) -> None:
        """Takes a group of the other optimizer, the same dict, among its own."""
        group["flips"] = False
        own = {id(p) for g in self.param_groups for p in g["params"]}
        if any(id(p) in own for p in group["params"]):
            raise McoverError(
                "a parameter is given to Bop and to rest; write binary.others(model) for rest."
            )
        self.param_groups.append(group)

    def _hand_over(self) -> None:
        """Gives the other optimizer its groups and its state, each parameter's the same dict."""
        if self.rest is not None:
            groups = [group for group in self.param_groups if not group["flips"]]
            state: dict[Tensor, Any] = defaultdict(dict)
            for weight in (p for group in groups for p in group["params"] if p in self.state):
                state[weight] = self.state[weight]
            self.rest.__setstate__({"state": state, "param_groups": groups})

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "rest": self.rest, "_flipped": self._flipped}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            if group["flips"]:
                _check(group)
        self._hand_over()


def _check(group: Group) -> None:
    check_number(group, "lr", least=0, most=1)
    check_number(group, "threshold")
