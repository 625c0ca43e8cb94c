"""How a model is trained: the loop's options, and one frozen value for each method.

Python, the command line, study cells and result tables all read these. An option belongs to the
method whose value it is a field of, so that options of another method cannot be written.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from importlib.util import find_spec
from typing import Annotated, ClassVar, Literal, get_args

import tyro

from mcover import checks
from mcover.errors import McoverError
from mcover.lifting import Directed, Messages, Settings
from mcover.topology import Topology, Uniform

Judge = Literal["collapse", "covers"]
Start = Literal["common", "independent"]
Optimizer = Literal["sgd", "adam"]
Schedule = Literal["constant", "cosine"]
Noise = Annotated[float | str, tyro.conf.arg(metavar="FLOAT|SHARE%")]

_UNIFORM, _DIRECTED = Uniform(), Directed()

MOST = 10**9  # epochs, images or hidden units: beyond any use, and safe to multiply
# Past it tanh(βF/√N) is a sign for every field that single precision distinguishes from zero, and
# further growth would only leave the range of the numbers.
SHARPEST = 1e15


@dataclass(frozen=True)
class Training:
    """How to train; the defaults are the paper's for its network."""

    epochs: int = 40
    """Passes over the training images; each cover makes as many."""
    batch: int = 256
    """Images in a gradient step."""
    lr: float = 0.05
    """Learning rate; the first one, where a schedule lowers it."""
    momentum: float = 0.9
    """Nesterov momentum, where 0 is plain SGD; in Adam β₁, whose β₂ is 0.999."""
    weight_decay: float = 0.0
    """L2 penalty on the weights."""
    weight_noise: float = 0.0
    """Standard deviation of Gaussian noise on all weights, drawn anew in each gradient step."""
    drop_connect: float = 0.0
    """DropConnect: share of all weights, biases too, that are dropped in training, and the others
    scaled by 1/(1 − share); one mask for a whole batch, drawn anew in each gradient step."""
    evaluate_every: int = 1
    """Epochs between evaluations; the last epoch is always evaluated."""
    stop_loss: float | None = None
    """Stop when the training loss falls below this; none is never."""
    stop_error: float | None = None
    """Stop when the training error is at most this; none is never."""
    judge: Judge = "collapse"
    """Whether the collapse, or every cover by itself, has to meet the stopping rule."""
    optimizer: Optimizer = "sgd"
    """What steps along the gradients, beneath every method but Entropy-SGD, which has its own."""
    lr_schedule: Schedule = "constant"
    """Whether the learning rate falls to 0 over all epochs, along half a cosine."""

    def __post_init__(self) -> None:
        checks.check_count_fields(self, "epochs", "batch", "evaluate_every", most=MOST)
        checks.check_float_fields(self, "lr", above=0)
        checks.check_float_fields(self, "momentum", "weight_decay", "weight_noise", least=0)
        checks.check_float_fields(self, "drop_connect", least=0, below=1)
        checks.check_float_fields(self, "stop_loss", "stop_error", least=0, optional=True)
        checks.check_choice("judge", self.judge, get_args(Judge))
        checks.check_choice("optimizer", self.optimizer, get_args(Optimizer))
        checks.check_choice("lr_schedule", self.lr_schedule, get_args(Schedule))
        if self.optimizer == "adam" and not self.momentum < 1:
            raise McoverError(f"momentum is {self.momentum}; Adam takes one below 1, e.g. 0.9.")


@dataclass(frozen=True)
class Sharpening:
    """How a soft committee machine becomes a hard one: β and γ, one pair an epoch.

    β_t = beta (1 + beta_growth)^t and γ_t likewise, t the epoch, from 0.

    >>> Sharpening(0.5, 1e-3, 0.5, 1e-3).at(0)
    (0.5, 0.5)
    """

    beta: float = 0.5
    """First gain of the hidden units."""
    beta_growth: float = 1e-3
    """Its relative growth an epoch."""
    gamma: float = 0.5
    """First gain of the loss."""
    gamma_growth: float = 1e-3
    """Its relative growth an epoch."""

    def __post_init__(self) -> None:
        checks.check_float_fields(self, "beta", "gamma", above=0, most=SHARPEST)
        checks.check_float_fields(self, "beta_growth", "gamma_growth", least=0)

    def at(self, epoch: float) -> tuple[float, float]:
        """β and γ in an epoch."""

        def grown(start: float, growth: float) -> float:
            return min(start * math.exp(min(math.log1p(growth) * epoch, 100.0)), SHARPEST)

        return grown(self.beta, self.beta_growth), grown(self.gamma, self.gamma_growth)

    def __str__(self) -> str:
        numbers = ",".join(f"{value:g}" for value in astuple(self))
        return {SLOW: "slow", FAST: "fast"}.get(self, numbers)


# The numbers of both are from memory of the works that the paper cites, and unverified.
SLOW = Sharpening()
FAST = Sharpening(2.0, 1e-4, 5.0, 1e-4)


@dataclass(frozen=True)
class SGD:
    """SGD on the model as it is."""

    kind: ClassVar[str] = "sgd"


PLAIN = SGD()


@dataclass(frozen=True)
class _OnCovers:
    """What all methods on covers have."""

    covers: int = 4
    """Covers M."""
    noise: Noise = 0.01
    """Gaussian noise between covers of a common start: a standard deviation, or a share of each
    tensor's own, such as 150%."""
    start: Start = "common"
    """Whether covers start from one model plus noise, or each from a model of its own."""

    def __post_init__(self) -> None:
        checks.check_count_fields(self, "covers", most=1000)
        object.__setattr__(self, "noise", Settings(1, _UNIFORM, noise=self.noise).noise)
        checks.check_choice("start", self.start, get_args(Start))
        if self.start == "independent" and self.noise != 0:
            raise McoverError(
                f"noise is {self.noise!r}, and covers start independent; write noise=0, or "
                "start='common'."
            )


@dataclass(frozen=True)
class Lifted(_OnCovers):
    """M-cover: SGD on covers whose weights or messages are routed."""

    kind: ClassVar[str] = "lifted"

    topology: Topology = _UNIFORM
    """Which covers a source is read from."""
    routing: Directed | Messages = _DIRECTED
    """What is routed."""
    redraw_each_epoch: bool = False
    """Draw new routes after each epoch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        example = "mcover.Uniform() or mcover.GaussianRing(1.5, shift=2)"
        checks.check_instance("topology", self.topology, Topology, example)
        example = "mcover.Directed() or mcover.Messages()"
        checks.check_instance("routing", self.routing, (Directed, Messages), example)
        checks.check_bool_fields(self, "redraw_each_epoch")
        if self.redraw_each_epoch and self.routing.redraw_every is not None:
            raise McoverError(
                "redraw_each_epoch and redraw_every exclude each other; leave one out."
            )


@dataclass(frozen=True)
class _Coupled(_OnCovers):
    """Replicas: covers that attract each other, each with batches of its own."""

    coupling: float | Literal["auto"] = "auto"
    """Strength of the attraction at first; auto takes it from the first loss in rsgd, and from the
    learning rate in elastic."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.coupling != "auto":
            checks.check_float_fields(self, "coupling", least=0, infinite=True)


@dataclass(frozen=True)
class RSGD(_Coupled):
    """Replicated SGD: covers that attract each other ever more, each with batches of its own."""

    kind: ClassVar[str] = "rsgd"

    growth: float = 1e4
    """Factor by which the coupling grows in all."""
    growth_epochs: int | None = None
    """Epochs in which it grows so much, to stay there; none is all that are planned, and a training
    that stops early has then seen little of it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_float_fields(self, "growth", above=0)
        checks.check_count_fields(self, "growth_epochs", optional=True, most=MOST)


@dataclass(frozen=True)
class Elastic(_Coupled):
    """Elastic SGD: covers tied to a centre, which is the model that comes out."""

    kind: ClassVar[str] = "elastic"

    period: int = 1
    """Gradient steps between communications."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.check_count_fields(self, "period")


@dataclass(frozen=True)
class Entropy:
    """Entropy-SGD: each step follows the mean of a noisy walk around the weights."""

    kind: ClassVar[str] = "entropy"

    inner_steps: int = 20
    """Gradient steps of each walk."""
    outer_lr: float = 1.0
    """Share of the way to the mean of the walk; the walk's own steps have the learning rate."""
    scope: float = 1e-4
    """First strength of the pull that keeps the walk near the weights."""
    scoping: float = 1e-3
    """Relative growth of that strength in each step."""
    langevin: float = 1e-4
    """Standard deviation of the walk's noise."""

    def __post_init__(self) -> None:
        checks.check_count_fields(self, "inner_steps")
        checks.check_float_fields(self, "outer_lr", "scope", "scoping", "langevin", least=0)


@dataclass(frozen=True)
class SWA:
    """Stochastic weight averaging: the mean of the weights at the ends of the last epochs."""

    kind: ClassVar[str] = "swa"

    average_from: float = 0.75
    """Share of the epochs after which averaging begins."""

    def __post_init__(self) -> None:
        checks.check_float_fields(self, "average_from", least=0, below=1)


@dataclass(frozen=True)
class EMA:
    """The exponential moving average of the weights."""

    kind: ClassVar[str] = "ema"

    decay: float = 0.999
    """Share of itself that the average keeps in each gradient step."""

    def __post_init__(self) -> None:
        checks.check_float_fields(self, "decay", least=0, below=1)


@dataclass(frozen=True)
class Soup:
    """A soup: branches that leave one trunk, each with batches of its own; their mean is the model.

    The epochs are those of trunk and branches together. A stopping rule is looked at in the end.
    """

    kind: ClassVar[str] = "soup"

    branches: int = 4
    """Trainings that go on from the trunk, one after the other, as long each."""
    trunk: float = 0.5
    """Share of the epochs before they part, and what does not divide by the branches."""

    def __post_init__(self) -> None:
        checks.check_count_fields(self, "branches", most=1000)
        checks.check_float_fields(self, "trunk", least=0, below=1)

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
    """Sharpness-aware minimisation: the gradient is taken a little uphill."""

    kind: ClassVar[str] = "sam"

    rho: float = 0.05
    """Distance uphill."""

    def __post_init__(self) -> None:
        checks.check_float_fields(self, "rho", least=0)


@dataclass(frozen=True)
class Flips:
    """Bop: ±1 weights without latents, flipped by a running mean of their gradients.

    Only binary networks have them. Other parameters are trained as in SGD().
    """

    kind: ClassVar[str] = "bop"

    adaptivity: float = 1e-3
    """Share γ of the new gradient in the mean; a schedule of the learning rate lowers it too."""
    threshold: float = 1e-6
    """How large the mean has to be for a weight to flip, τ."""

    def __post_init__(self) -> None:
        checks.check_float_fields(self, "adaptivity", above=0, most=1)
        checks.check_float_fields(self, "threshold", least=0)


Method = Lifted | SGD | RSGD | Elastic | Entropy | SWA | EMA | Soup | SAM
METHODS: tuple[type[Method], ...] = get_args(Method)
BinaryMethod = Method | Flips
BINARY_METHODS: tuple[type[BinaryMethod], ...] = get_args(BinaryMethod)
ON_COVERS = (Lifted, RSGD, Elastic)


def require(package: str, why: str, extra: str) -> None:
    """Says what to install where a package is missing."""
    if find_spec(package) is None:
        raise McoverError(f"{why} needs {package}: pip install 'mcover[{extra}]'.")


def check_method(
    method: BinaryMethod, allowed: tuple[type[BinaryMethod], ...] = BINARY_METHODS
) -> BinaryMethod:
    """A value of one of the methods."""
    names = ", ".join(f"{one.__name__}()" for one in allowed)
    return checks.check_instance(
        "method", method, allowed, f"one of {names} of reproduction.training"
    )


def check_optimizer(training: Training, method: BinaryMethod) -> None:
    """Refuses what a method cannot be trained with."""
    given = (training.optimizer, training.lr_schedule)
    if isinstance(method, Entropy) and given != ("sgd", "constant"):
        raise McoverError(
            f"optimizer is {given[0]!r} and lr_schedule {given[1]!r}, and Entropy-SGD walks by SGD "
            "of a constant rate; leave both out, or take another method."
        )
