"""Bop: ±1 weights without latent weights, flipped by a running mean of their gradients."""

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
from mcover.optim.groups import Group, added_group, check_group, check_number, evaluated, own_groups


class Bop(Optimizer):
    """The binary optimizer (Helwegen et al., 2019), for weights w = ±1.

        m ← (1 − γ)m + γ∇, w ← −w if m·w ≥ τ.

    It acts on each weight separately, so on stacks of covers it is M independent runs.

    >>> import mcover, torch
    >>> from mcover.nn import binary
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    >>> student = binary.binarize(net, estimator="identity")
    >>> covered = mcover.lift(student, 4, mcover.Uniform(), seed=0)
    >>> binary.snap_latents(covered)  # latents become signs; Bop keeps them so
    >>> rest = torch.optim.Adam(binary.other_parameters(covered), lr=1e-3)
    >>> optimizer = Bop(binary.latents(covered).values(), lr=0.1, threshold=1e-3, rest=rest)
    >>> mcover.cover_loss(torch.nn.functional.mse_loss, covered(torch.randn(5, 3)),
    ...                   torch.zeros(5, 4)).backward()
    >>> optimizer.step()

    Args:
        params: parameters of ±1, or parameter groups of them.
        lr: γ, the adaptivity rate: the share of the new gradient in the mean.
        threshold: τ.
        rest: an optimizer of the other parameters, which steps with this one. Its groups follow
            those of this one in ``param_groups``, with ``"flips": False``, so that one scheduler,
            one ``zero_grad`` and one checkpoint serve both.
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
                "rest", rest, Optimizer, "e.g. torch.optim.Adam(binary.other_parameters(model))"
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
        """The share of weights that flipped in the last step, by which the paper chooses τ."""
        weights = sum(p.numel() for g in self.param_groups if g["flips"] for p in g["params"])
        return sum(int(flips) for flips in self._flipped) / max(1, weights)

    def add_param_group(self, param_group: Group) -> None:
        """As in torch; a group with ``"flips": False`` is added to the other optimizer."""
        check_group(param_group)
        if not checks.check_bool("flips", param_group.setdefault("flips", True)):
            if self.rest is None:
                raise McoverError("there is no other optimizer; write Bop(..., rest=Adam(...)).")
            self.rest.add_param_group(param_group)
            self._share(self.rest.param_groups[-1])
            return
        with added_group(super().add_param_group, self.param_groups, param_group) as group:
            _check(group)
            for number, weight in enumerate(group["params"]):
                if weight.is_complex() or not bool((weight.detach().abs() == 1).all()):
                    raise McoverError(
                        f"parameter {number} of shape {tuple(weight.shape)} is not ±1; write "
                        "binary.snap_latents(model) and binary.latents(model).values(), and "
                        "rest=torch.optim.Adam(binary.other_parameters(model)) for all others."
                    )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Flips weights, and steps the other optimizer if there is one.

        Args:
            closure: a function that clears the gradients, computes loss and gradients, and returns
                the loss.
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
        """Adds a group of the other optimizer, the same dict, to those of this one."""
        group["flips"] = False
        own = {p for g in self.param_groups for p in g["params"]}
        if any(p in own for p in group["params"]):
            raise McoverError(
                "a parameter is given to Bop and to rest; write "
                "rest=torch.optim.Adam(binary.other_parameters(model))."
            )
        self.param_groups.append(group)

    def _hand_over(self) -> None:
        """Gives the other optimizer its groups and its state, as the same dicts."""
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
