"""Entropy-SGD: descent on the local entropy, estimated by a short Langevin walk in each step."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from mcover import checks
from mcover.errors import McoverError
from mcover.optim.groups import Group, add_group, check_group, check_number, own_groups
from mcover.seeds import Seed, seed_sequence


class EntropySGD(Optimizer):
    """Entropy-SGD (Chaudhari et al., 2017): each step is a walk of L inner steps that starts at x.

        x' ← x' − η'[∇f(x') − γ(x − x')] + ε√η' · noise,    μ ← 0.75μ + 0.25x',    L times;
        x ← x − η(x − μ).

    The scope γ_t = γ_0 (1 + scoping)^t grows with the steps. Each inner step returns a fraction η'γ
    of the way to x. The fraction is limited to 1, where every inner step starts at x and the method
    is gradient descent. It does not need covers; on stacks of covers it is M independent runs.

    >>> import torch
    >>> model = torch.nn.Linear(3, 2)
    >>> optimizer = EntropySGD(model.parameters(), inner_steps=5, seed=0)
    >>> batches = iter(torch.ones(5, 8, 3))
    >>> def closure():  # called for each step of the walk, each time on a batch of its own
    ...     optimizer.zero_grad()
    ...     loss = model(next(batches)).square().mean()
    ...     loss.backward()
    ...     return loss
    >>> loss = optimizer.step(closure)  # the loss at x

    Args:
        params: any parameters, or parameter groups.
        lr: η.
        momentum: the momentum of the walk, for gradients of f only; it starts at 0 in each walk.
        nesterov: whether to use Nesterov's momentum.
        weight_decay: adds weight_decay · x' to the gradients of f.
        inner_lr: η'.
        inner_steps: L, the same for all groups; one step costs L evaluations of the closure.
        scope: γ_0.
        scoping: the relative growth of γ in each step.
        noise: ε.
        average: the share of μ that an inner step keeps.
        seed: the seed of the noise. The walk of step t has its own stream, so that training resumed
            from a checkpoint has the same noise.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1.0,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        inner_lr: float = 0.1,
        inner_steps: int = 20,
        scope: float = 1e-4,
        scoping: float = 1e-3,
        noise: float = 1e-4,
        average: float = 0.75,
        seed: Seed = None,
    ) -> None:
        drawn = int(seed_sequence(seed).generate_state(1, np.uint64)[0])
        defaults = {
            "lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay,
            "inner_lr": inner_lr, "inner_steps": inner_steps, "scope": scope, "scoping": scoping,
            "noise": noise, "average": average, "seed": drawn, "taken": 0,
        }  # fmt: skip
        _check(defaults)
        super().__init__(own_groups(params), defaults)

    def add_param_group(self, param_group: Group) -> None:
        """As in torch; ``inner_steps`` and ``seed`` have to be those of the other groups."""
        check_group(param_group)
        for name, default in self.defaults.items():
            param_group.setdefault(name, default)
        _check(param_group)
        for name in ("inner_steps", "seed"):
            common = (self.param_groups[0] if self.param_groups else self.defaults)[name]
            if param_group[name] != common:
                raise McoverError(
                    f"{name} is {param_group[name]!r} in one group and {common!r} in another, but "
                    f"all groups share it; write {name} once, for the optimizer."
                )
        add_group(super().add_param_group, param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One walk and one step; returns the first loss of the walk, at x.

        Args:
            closure: a function that clears the gradients, computes loss and gradients, and returns
                the loss. It is called ``inner_steps`` times, and may use a new batch each time.
        """
        if closure is None:
            raise McoverError(
                "EntropySGD evaluates the loss several times in a step; write a closure that "
                "clears the gradients, calls backward and returns the loss: step(closure)."
            )
        checks.check_callable("closure", closure, "a function that returns the loss")
        walks = [
            _Walk(group, p, p.detach().clone(), p.detach().clone())
            for group in self.param_groups
            for p in group["params"]
            if p.requires_grad
        ]
        seed, taken = self.param_groups[0]["seed"], self.param_groups[0]["taken"]
        streams = {at: stream(seed, taken, at) for at in {walk.here.device for walk in walks}}
        first = None
        try:
            for _ in range(self.param_groups[0]["inner_steps"]):
                with torch.enable_grad():
                    loss = closure()
                first = loss if first is None else first
                for walk in walks:
                    if walk.here.grad is not None:
                        walk.advance(streams[walk.here.device])
        except BaseException:
            for walk in walks:  # an interrupted walk restores the parameters
                walk.here.copy_(walk.start)
            raise
        for walk in walks:
            walk.here.copy_(walk.start - walk.group["lr"] * (walk.start - walk.mean))
        for group in self.param_groups:
            group["taken"] += 1
        return first


@dataclass
class _Walk:
    """The walk of one parameter, whose values are x' until the walk ends."""

    group: Group
    here: Tensor
    start: Tensor
    mean: Tensor
    velocity: Tensor | None = None

    def advance(self, generator: torch.Generator) -> None:
        group, here = self.group, self.here
        rate, kept, momentum = group["inner_lr"], group["average"], group["momentum"]
        force: Any = here.grad
        if group["weight_decay"]:
            force = force + group["weight_decay"] * here
        if momentum:
            self.velocity = force if self.velocity is None else momentum * self.velocity + force
            force = force + momentum * self.velocity if group["nesterov"] else self.velocity
        # The exponent is limited so that exp does not overflow; ``back`` reaches 1 long before.
        growth = math.exp(min(group["taken"] * math.log1p(group["scoping"]), 700.0))
        back = min(rate * group["scope"] * growth, 1.0) if rate else 0.0
        move = rate * force + back * (here - self.start)
        if group["noise"]:
            drawn = torch.randn(
                here.shape, generator=generator, dtype=here.dtype, device=here.device
            )
            move -= group["noise"] * rate**0.5 * drawn
        here.sub_(move)
        self.mean.mul_(kept).add_(here, alpha=1 - kept)


def stream(seed: int, step: int, device: torch.device) -> torch.Generator:
    """The noise of one walk."""
    child = np.random.SeedSequence(seed, spawn_key=(step,))
    drawn = int(child.generate_state(1, np.uint64)[0] >> np.uint64(1))
    return torch.Generator(device).manual_seed(drawn)


def _check(group: Group) -> None:
    for name in ("lr", "inner_lr", "weight_decay", "scoping", "noise"):
        check_number(group, name)
    check_number(group, "scope", also=" or inf")
    for name in ("average", "momentum"):
        check_number(group, name, least=0, below=1)
    group["inner_steps"] = checks.check_int("inner_steps", group["inner_steps"], 1)
    if checks.check_bool("nesterov", group["nesterov"]) and not group["momentum"]:
        raise McoverError("nesterov is a kind of momentum; write momentum=0.9, or nesterov=False.")
