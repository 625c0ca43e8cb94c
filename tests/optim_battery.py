"""A table of all optimizers, their test problem, and their rules as loops.

The loops are written from the published equations, replica by replica, and know nothing of stacks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mcover.optim import Bop, ElasticSGD, EntropySGD, ReplicatedSGD
from mcover.optim.entropy import stream

COVERS = 3


@dataclass(frozen=True)
class Case:
    """One optimizer with options that enable all its features."""

    kind: type
    options: dict[str, Any]
    off: dict[str, Any]  # no coupling
    full: dict[str, Any]  # infinite coupling
    base: Callable[..., torch.optim.Optimizer] = torch.optim.SGD
    walks: bool = False  # takes a closure, and evaluates it several times
    shared: dict[str, Any] = field(default_factory=dict)  # options of the base
    rest: Callable[..., torch.optim.Optimizer] | None = None  # of the second of two parameters

    @property
    def signs(self) -> bool:
        """Whether the weights are ±1."""
        return self.kind is Bop

    def problem(self, seed: int = 0) -> Quadratics:
        return Quadratics(seed, signs=self.signs)

    def make(self, params: Any, **more: Any) -> torch.optim.Optimizer:
        given = {"lr": 0.1, **self.shared, **self.options}
        if not self.walks and self.base not in (torch.optim.SGD, self.kind):
            given["base"] = self.base
        if self.rest is not None:
            *params, last = params
            given["rest"] = self.rest([last])
        return self.kind(params, **(given | more))


NESTEROV = {"momentum": 0.9, "nesterov": True}
GROWING = {"coupling": 0.5, "growth": 20.0, "steps": 5}
NO_PULL, WHOLE_PULL = {"coupling": 0.0}, {"coupling": float("inf")}
WALK = {"inner_lr": 0.2, "inner_steps": 4, "scope": 0.5, "scoping": 0.1, "noise": 0.1, "seed": 7}
REST, PINNED = {"scope": 0.0, "noise": 0.0}, {"scope": float("inf"), "noise": 0.0}

CASES = {
    "rSGD": Case(ReplicatedSGD, GROWING, NO_PULL, WHOLE_PULL),
    "rSGD with momentum": Case(
        ReplicatedSGD, GROWING, NO_PULL, WHOLE_PULL, shared=NESTEROV | {"weight_decay": 0.1}
    ),
    "rSGD on Adam": Case(ReplicatedSGD, GROWING, NO_PULL, WHOLE_PULL, base=torch.optim.Adam),
    "Elastic": Case(ElasticSGD, {"coupling": 2.0}, NO_PULL, WHOLE_PULL),
    "Elastic with momentum": Case(
        ElasticSGD, {"coupling": 2.0, "period": 2}, NO_PULL, WHOLE_PULL | {"period": 1},
        shared=NESTEROV | {"weight_decay": 0.1},
    ),
    "Elastic on Adam": Case(
        ElasticSGD, {"coupling": "auto"}, NO_PULL, WHOLE_PULL, base=torch.optim.AdamW
    ),
    "Entropy": Case(EntropySGD, WALK | {"lr": 0.7}, REST, PINNED, walks=True),
    "Entropy with momentum": Case(
        EntropySGD, WALK, REST, PINNED, walks=True, shared=NESTEROV | {"weight_decay": 0.1}
    ),
    "Bop": Case(Bop, {}, {}, {}, base=Bop, shared={"lr": 0.3, "threshold": 0.05}),
}  # fmt: skip
RESTS = {
    "Adam": partial(torch.optim.Adam, lr=0.1),
    "SGD": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.1),
}
BESIDE = {f"Bop beside {name}": replace(CASES["Bop"], rest=rest) for name, rest in RESTS.items()}
# Those that couple replicas. Bop does not: it takes part in what holds for any optimizer.
REPLICAS = {name: case for name, case in CASES.items() if not case.signs}


class Quadratics:
    """Σ_a Σ ½h(w_a − target_a)² over a matrix and a vector: replicas with different minima."""

    def __init__(self, seed: int = 0, h: float = 1.0, signs: bool = False) -> None:
        draw = torch.Generator().manual_seed(seed)
        shapes = [(COVERS, 2, 3), (COVERS, 4)]
        normal = {"generator": draw, "dtype": torch.float64}
        values = [torch.randn(shape, **normal) for shape in shapes]
        self.params = [torch.nn.Parameter(v.sign() if signs else v) for v in values]
        self.targets = [torch.randn(shape, **normal) for shape in shapes]
        self.h = h

    def loss(self) -> Tensor:
        parts = zip(self.params, self.targets, strict=True)
        return sum(self.h * (p - t).square().sum() / 2 for p, t in parts)

    def closure(self, optimizer: torch.optim.Optimizer) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self.loss()
            loss.backward()
            return loss

        return closure

    def run(self, optimizer: torch.optim.Optimizer, steps: int) -> Quadratics:
        for _ in range(steps):
            optimizer.step(self.closure(optimizer))
        return self

    def values(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.params]


def alone(case: Case, problem: Quadratics, steps: int) -> list[Tensor]:
    """Each replica trained separately, with the base optimizer of the case."""
    results = []
    for start, targets in zip(problem.values(), problem.targets, strict=True):
        rows = []
        for row, target in zip(start, targets, strict=True):
            if case.walks:
                x = row
                for t in range(steps):
                    x = walk(
                        x, lambda w, a=target: w - a, t, {**case.options, **case.shared, **case.off}
                    )
                rows.append(x)
                continue
            own = torch.nn.Parameter(row.clone())
            optimizer = case.base([own], **{"lr": 0.1, **case.shared})
            for _ in range(steps):
                own.grad = problem.h * (own.detach() - target)
                optimizer.step()
            rows.append(own.detach())
        results.append(torch.stack(rows))
    return results


def walk(x: Tensor, gradient: Callable[[Tensor], Tensor], t: int, options: dict[str, Any],
         noise: Callable[[], Tensor] | None = None) -> Tensor:  # fmt: skip
    """One step of Entropy-SGD, as published, with the pull back to x limited to all of the way."""
    rate, eps = options["inner_lr"], options["noise"]
    gamma = options["scope"] * (1 + options["scoping"]) ** t
    momentum, kept = options.get("momentum", 0.0), options.get("average", 0.75)
    here, mu, velocity = x, x, torch.zeros_like(x)
    for _ in range(options["inner_steps"]):
        force = gradient(here) + options.get("weight_decay", 0.0) * here
        velocity = momentum * velocity + force
        force = force + momentum * velocity if options.get("nesterov") else velocity
        back = gamma * (x - here) if rate * gamma < 1 else (x - here) / rate
        here = here - rate * (force - back)
        if noise is not None:
            here = here + eps * rate**0.5 * noise()
        mu = kept * mu + (1 - kept) * here
    return x - options.get("lr", 0.1) * (x - mu)


def walk_noise(optimizer: EntropySGD, step: int, like: list[Tensor]) -> list[Callable[[], Tensor]]:
    """The random numbers of a walk for each parameter, drawn in sequence in each step."""
    generator = stream(optimizer.param_groups[0]["seed"], step, like[0].device)
    drawn: list[list[Tensor]] = [[] for _ in like]
    for _ in range(optimizer.param_groups[0]["inner_steps"]):
        for own, p in zip(drawn, like, strict=True):
            own.append(torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return [iter(own).__next__ for own in drawn]
