"""How a model is trained: one frozen value for Python, the command line and result tables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from mcover.errors import McoverError

Method = Literal["sgd", "mcover", "rsgd", "elastic", "entropy", "swa", "ema", "sam"]
METHODS: tuple[str, ...] = get_args(Method)

# What belongs to a method alone, and what it is where it is not given.
OPTIONS: dict[str, dict[str, Any]] = {
    "rsgd": {"coupling": None, "growth": 1e4},
    "elastic": {"coupling": None, "period": 1},
    "entropy": {
        "inner_steps": 20, "outer_lr": 1.0, "scope": 1e-4, "scoping": 1e-3, "langevin": 1e-4,
    },
    "swa": {"average_from": 0.75},
    "ema": {"decay": 0.999},
    "sam": {"rho": 0.05},
}  # fmt: skip


@dataclass(frozen=True)
class Training:
    """How to train; the defaults are the paper's for its network."""

    epochs: int = 40
    """Passes over the training images; each cover makes as many."""
    batch: int = 256
    """Images in a step."""
    lr: float = 0.05
    """Learning rate of the gradient steps, kept constant."""
    momentum: float = 0.9
    """Nesterov momentum; 0 is plain SGD."""
    weight_decay: float = 0.0
    """Decay of the weights (L2)."""
    weight_noise: float = 0.0
    """Gaussian noise of this standard deviation on all weights, drawn anew in each step."""
    evaluate_every: int = 1
    """Epochs between evaluations; the last epoch is always evaluated."""
    method: Method = "sgd"
    """What moves the weights: SGD on the model as it is; on routed covers (mcover); on covers that
    are coupled by their weights, each with batches of its own (rsgd, elastic); Entropy-SGD; SGD
    whose weights are averaged (swa, ema); or sharpness-aware (sam)."""
    coupling: float | None = None
    """rsgd, elastic: strength of the coupling; None is found from the first loss, or from lr."""
    growth: float | None = None
    """rsgd: by how much the coupling grows over all epochs; None is 1e4."""
    period: int | None = None
    """elastic: steps between communications; None is 1."""
    inner_steps: int | None = None
    """entropy: gradients in the walk of each step; None is 20."""
    outer_lr: float | None = None
    """entropy: share of the way to the mean of the walk, whose own steps are lr; None is 1."""
    scope: float | None = None
    """entropy: first strength that holds the walk back; None is 1e-4."""
    scoping: float | None = None
    """entropy: by what share it grows with each step; None is 1e-3."""
    langevin: float | None = None
    """entropy: noise of the walk; None is 1e-4."""
    average_from: float | None = None
    """swa: average the weights of each epoch's end after this share of them; None is 0.75."""
    decay: float | None = None
    """ema: what the average keeps of itself in each step; None is 0.999."""
    rho: float | None = None
    """sam: how far the weights are moved uphill; None is 0.05."""
    stop_loss: float | None = None
    """End where the training loss of the one model falls below this; None is never."""
    stop_error: float | None = None
    """End where its share of wrong training images is no more than this; None is never."""
    judge: Literal["collapse", "covers"] = "collapse"
    """Whether the collapse, or every cover by itself, has to get there."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "evaluate_every"):
            if getattr(self, name) < 1:
                raise McoverError(f"{name} is {getattr(self, name)}; write at least 1.")
        if not self.lr > 0:
            raise McoverError(f"lr is {self.lr}; write a positive learning rate, e.g. 0.05.")
        for name in ("momentum", "weight_decay", "weight_noise"):
            if not getattr(self, name) >= 0:
                raise McoverError(f"{name} is {getattr(self, name)}; write 0 or more.")
        for name, choices in (("method", Method), ("judge", Literal["collapse", "covers"])):
            if getattr(self, name) not in get_args(choices):
                allowed = ", ".join(map(repr, get_args(choices)))
                raise McoverError(f"{name} is {getattr(self, name)!r}; write one of {allowed}.")
        self._check_options()

    def option(self, name: str) -> Any:
        """An option of the method, or its default."""
        given = getattr(self, name)
        return OPTIONS[self.method][name] if given is None else given

    @property
    def stops(self) -> bool:
        """Whether the training may end before its last epoch."""
        return self.stop_loss is not None or self.stop_error is not None

    def _check_options(self) -> None:
        for name in sorted({name for options in OPTIONS.values() for name in options}):
            value = getattr(self, name)
            if value is None:
                continue
            owners = [method for method, options in OPTIONS.items() if name in options]
            if self.method not in owners:
                raise McoverError(
                    f"{name} is an option of method {' and '.join(map(repr, owners))}; the method "
                    f"is {self.method!r}: leave {name} out, or write method={owners[0]!r}."
                )
            if not value >= 0:
                raise McoverError(f"{name} is {value}; write 0 or more.")
        for name in ("period", "inner_steps"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise McoverError(f"{name} is {count}; write at least 1.")
        for name in ("average_from", "decay"):
            if (share := getattr(self, name)) is not None and not share < 1:
                raise McoverError(f"{name} is {share}; write a share from 0 to below 1.")
        for name in ("stop_loss", "stop_error"):
            if (limit := getattr(self, name)) is not None and not 0 <= limit < math.inf:
                raise McoverError(f"{name} is {limit}; write 0 or more, or leave it out.")
