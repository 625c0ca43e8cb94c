"""Options of the training loop, and one frozen dataclass per method.

Trials, study cells and result tables all read these. Each option is a field of its method, so
options of another method cannot be set.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import ClassVar, Literal, get_args

from mcover import (
    Chain,
    Custom,
    Directed,
    GaussianRing,
    Identity,
    McoverError,
    Messages,
    Uniform,
)
from reproduction.checks import check_choice, check_counts, check_numbers, check_type

Start = Literal["common", "independent"]
Optimizer = Literal["sgd", "adam"]
Schedule = Literal["constant", "cosine"]
Topology = Uniform | GaussianRing | Chain | Identity | Custom

_UNIFORM, _DIRECTED = Uniform(), Directed(redraw_every=None)

# Above this, tanh(βF/√N) is ±1 for every nonzero field in single precision; β would overflow.
SHARPEST = 1e15


@dataclass(frozen=True)
class Training:
    """How to train; the defaults are the paper's for its network."""

    epochs: int = 40
    """Passes over the training images, the same number for each cover."""
    batch: int = 256
    """Images in a gradient step."""
    lr: float = 0.05
    """Learning rate, the initial one under a schedule."""
    momentum: float = 0.9
    """Nesterov momentum, 0 for plain SGD; β₁ for Adam, with β₂ = 0.999."""
    weight_decay: float = 0.0
    """L2 penalty on the weights."""
    weight_noise: float = 0.0
    """Standard deviation of Gaussian noise on all weights, redrawn in each gradient step."""
    drop_connect: float = 0.0
    """DropConnect: share of all weights and biases set to 0 in training, with one mask per batch;
    the others are scaled by 1/(1 − share)."""
    evaluate_every: int = 1
    """Epochs between evaluations; the last epoch is always evaluated."""
    stop_loss: float | None = None
    """Stop when the collapse's training loss falls below this; None for never."""
    stop_error: float | None = None
    """Stop when the collapse's training error is at most this; None for never."""
    optimizer: Optimizer = "sgd"
    """Base optimizer of every method except Entropy-SGD, which has its own."""
    lr_schedule: Schedule = "constant"
    """Whether the learning rate falls to 0 over all epochs, along half a cosine."""

    def __post_init__(self) -> None:
        check_counts(self, "epochs", "batch", "evaluate_every")
        check_numbers(self, "lr", above=0)
        check_numbers(self, "momentum", "weight_decay", "weight_noise", least=0)
        check_numbers(self, "drop_connect", least=0, below=1)
        check_numbers(self, "stop_loss", "stop_error", least=0, optional=True)
        check_choice("optimizer", self.optimizer, get_args(Optimizer))
        check_choice("lr_schedule", self.lr_schedule, get_args(Schedule))
        if self.optimizer == "adam" and self.momentum >= 1:
            raise McoverError(f"momentum is {self.momentum}; Adam takes one below 1, e.g. 0.9.")


@dataclass(frozen=True)
class Sharpening:
    """How a soft committee machine becomes a hard one: β and γ, one pair per epoch.

    β_t = beta (1 + beta_growth)^t and γ_t likewise, t the epoch, from 0.

    >>> Sharpening(0.5, 1e-3, 0.5, 1e-3).at(0)
    (0.5, 0.5)
    """

    beta: float = 0.5
    """Initial gain of the hidden units."""
    beta_growth: float = 1e-3
    """Its relative growth per epoch."""
    gamma: float = 0.5
    """Initial gain of the loss."""
    gamma_growth: float = 1e-3
    """Its relative growth per epoch."""

    def __post_init__(self) -> None:
        check_numbers(self, "beta", "gamma", above=0, most=SHARPEST)
        check_numbers(self, "beta_growth", "gamma_growth", least=0)

    def at(self, epoch: float) -> tuple[float, float]:
        """β and γ in an epoch."""

        def grown(start: float, growth: float) -> float:
            return min(start * math.exp(min(math.log1p(growth) * epoch, 100.0)), SHARPEST)

        return grown(self.beta, self.beta_growth), grown(self.gamma, self.gamma_growth)

    def __str__(self) -> str:
        numbers = ",".join(f"{value:g}" for value in astuple(self))
        return {SLOW: "slow", FAST: "fast"}.get(self, numbers)


# Both schedules are from memory of the works that the paper cites, and unverified.
SLOW = Sharpening()
FAST = Sharpening(2.0, 1e-4, 5.0, 1e-4)


@dataclass(frozen=True)
class SGD:
    """Ordinary training of one model."""

    kind: ClassVar[str] = "sgd"


PLAIN = SGD()


@dataclass(frozen=True)
class _OnCovers:
    """Common options of methods on covers."""

    covers: int = 4
    """Covers M."""
    noise: float | str = 0.01
    """Gaussian noise between covers with a common start: a standard deviation, or a share of each
    tensor's standard deviation, such as 150%."""
    start: Start = "common"
    """Whether covers start from one model plus noise, or each from a different model."""

    def __post_init__(self) -> None:
        check_counts(self, "covers")
        if not isinstance(self.noise, str):
            check_numbers(self, "noise", least=0)
        elif not self.noise.endswith("%"):
            raise McoverError(
                f"noise is {self.noise!r}; write a standard deviation, or a share such as '10%'."
            )
        check_choice("start", self.start, get_args(Start))
        if self.start == "independent" and self.noise != 0:
            raise McoverError(
                f"noise is {self.noise!r}, but covers start independent; write noise=0, or "
                "start='common'."
            )


@dataclass(frozen=True)
class Lifted(_OnCovers):
    """M-cover: SGD on covers whose weights or messages are routed."""

    kind: ClassVar[str] = "lifted"

    topology: Topology = _UNIFORM
    """Distribution of the routes between covers."""
    routing: Directed | Messages = _DIRECTED
    """What is routed: weights or messages."""
    redraw_each_epoch: bool = False
    """Whether routes are redrawn after each epoch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_type("topology", self.topology, Topology, "mcover.Uniform() or mcover.GaussianRing()")
        check_type("routing", self.routing, (Directed, Messages), "mcover.Directed() or Messages()")
        if self.redraw_each_epoch and self.routing.redraw_every is not None:
            raise McoverError(
                "redraw_each_epoch and redraw_every exclude each other; leave one out."
            )


@dataclass(frozen=True)
class _Coupled(_OnCovers):
    """Replicas: covers with separate batches that attract each other."""

    coupling: float | Literal["auto"] = "auto"
    """Initial strength of the attraction; auto derives it from the first loss in rsgd, and from
    the learning rate in elastic."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.coupling not in ("auto", math.inf):
            check_numbers(self, "coupling", least=0)


@dataclass(frozen=True)
class RSGD(_Coupled):
    """Replicated SGD: covers with their own batches attract each other, increasingly."""

    kind: ClassVar[str] = "rsgd"

    growth: float = 1e4
    """Total factor by which the coupling grows."""
    growth_epochs: int | None = None
    """Epochs over which the coupling grows before it stays constant. None means all planned epochs;
    if training stops early, the coupling has then grown little."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(self, "growth", above=0)
        check_counts(self, "growth_epochs", optional=True)


@dataclass(frozen=True)
class Elastic(_Coupled):
    """Elastic SGD: covers are attracted to a centre, which is the resulting model."""

    kind: ClassVar[str] = "elastic"

    period: int = 1
    """Gradient steps between updates of the centre."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "period")


@dataclass(frozen=True)
class Entropy:
    """Entropy-SGD: each step moves to the mean of a Langevin walk around the weights."""

    kind: ClassVar[str] = "entropy"

    inner_steps: int = 20
    """Gradient steps of each walk."""
    outer_lr: float = 1.0
    """Fraction of the distance to the mean of the walk; the walk itself uses the learning rate."""
    scope: float = 1e-4
    """Initial strength of the attraction of the walk to the weights."""
    scoping: float = 1e-3
    """Relative growth of that strength in each step."""
    langevin: float = 1e-4
    """Standard deviation of the walk's noise."""

    def __post_init__(self) -> None:
        check_counts(self, "inner_steps")
        check_numbers(self, "outer_lr", "scope", "scoping", "langevin", least=0)


@dataclass(frozen=True)
class SWA:
    """Stochastic weight averaging: the mean of the weights at the ends of the last epochs."""

    kind: ClassVar[str] = "swa"

    average_from: float = 0.75
    """Share of the epochs before averaging starts."""

    def __post_init__(self) -> None:
        check_numbers(self, "average_from", least=0, below=1)


@dataclass(frozen=True)
class EMA:
    """The exponential moving average of the weights."""

    kind: ClassVar[str] = "ema"

    decay: float = 0.999
    """Weight of the previous average in each gradient step."""

    def __post_init__(self) -> None:
        check_numbers(self, "decay", least=0, below=1)


@dataclass(frozen=True)
class Soup:
    """A model soup: the mean of branches that continue one trunk, each with its own batches.

    The epochs include trunk and branches. The stopping rule is applied at the end.
    """

    kind: ClassVar[str] = "soup"

    branches: int = 4
    """Trainings of equal length that continue the trunk, one after the other."""
    trunk: float = 0.5
    """Share of the epochs in the trunk, which also gets the remainder of the division."""

    def __post_init__(self) -> None:
        check_counts(self, "branches")
        check_numbers(self, "trunk", least=0, below=1)

    def split(self, epochs: int) -> tuple[int, int]:
        """Epochs of the trunk and of each branch.

        >>> Soup(branches=4, trunk=0.5).split(240)
        (120, 30)
        """
        each = (epochs - round(self.trunk * epochs)) // self.branches
        if not each:
            raise McoverError(
                f"{epochs} epochs leave none for each of {self.branches} branches after a trunk of "
                f"{self.trunk:g}; write more epochs, fewer branches or a smaller trunk."
            )
        return epochs - self.branches * each, each


@dataclass(frozen=True)
class SAM:
    """Sharpness-aware minimization: the gradient is taken a step uphill."""

    kind: ClassVar[str] = "sam"

    rho: float = 0.05
    """Length of that step."""

    def __post_init__(self) -> None:
        check_numbers(self, "rho", least=0)


@dataclass(frozen=True)
class Flips:
    """Bop: ±1 weights without latents, flipped by a running mean of their gradients.

    For binary networks. Other parameters are trained as in SGD().
    """

    kind: ClassVar[str] = "bop"

    adaptivity: float = 1e-3
    """Weight γ of the new gradient in the mean; a schedule of the learning rate lowers it too."""
    threshold: float = 1e-6
    """Absolute mean τ above which a weight flips."""

    def __post_init__(self) -> None:
        check_numbers(self, "adaptivity", above=0, most=1)
        check_numbers(self, "threshold", least=0)


Method = Lifted | SGD | RSGD | Elastic | Entropy | SWA | EMA | Soup | SAM
BinaryMethod = Method | Flips
ON_COVERS = (Lifted, RSGD, Elastic)


def check_method(training: Training, method: BinaryMethod, allowed: object = BinaryMethod) -> None:
    """Raises if this is not a method, or for options that the method does not support."""
    names = ", ".join(f"{one.__name__}()" for one in get_args(allowed))
    check_type("method", method, allowed, f"one of {names}")
    given = (training.optimizer, training.lr_schedule)
    if isinstance(method, Entropy) and given != ("sgd", "constant"):
        raise McoverError(
            f"optimizer is {given[0]!r} and lr_schedule {given[1]!r}; Entropy-SGD supports 'sgd' "
            "and 'constant' only."
        )
