"""Methods and options of annealing, as frozen dataclasses.

:class:`AnnealOptions` defines the defaults, checks and documentation of all options.
:func:`mcover.anneal` takes them as keywords, and results and files store them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from mcover import checks
from mcover.annealing.schedules import AutoSchedule, LinearSchedule, Schedule, sweeps_of
from mcover.errors import McoverError
from mcover.plain import Tagged
from mcover.topology import GaussianRing, Identity, Topology, as_topology

Energy = Literal["linear", "errors"]
Rule = Literal["glauber", "metropolis", "repair", "descent"]
Order = Literal["random", "sequential", "permutation"]
Improvement = Literal["first", "best"]

MAX_COVERS = 255
MAX_COUPLING = 300.0  # beyond it exp(coupling) leaves the range of a double
_RING = GaussianRing(1.5, shift=2)


class _Method(Tagged):
    """The attributes of every method; a method overrides those that are its options."""

    covers: int = 1
    topology: Topology = Identity()
    bank: int | None = 1
    redraw_every: int | None = None
    coupling: float = 0.0
    coupling_growth: float = 0.0


@dataclass(frozen=True)
class MCover(_Method, kind="mcover"):
    """The M-cover: M copies whose weights are read along random routes.

    With a coupling the covers also attract each other: the joint weight is exp(−E/T + γ/M Σ_{a<b}
    w_a·w_b) with the energy E along the routes. The paper uses no coupling.
    """

    covers: int = 3  # Number of covers M.
    topology: Topology = _RING  # The kernel of the law of the routes.
    bank: int | None = 10
    """Destinations S that are kept; None keeps all of them, which is the exact lift."""
    redraw_every: int | None = None  # Sweeps between redraws of the routes; None never redraws.
    coupling: float = 0.0  # Attraction γ between covers, at most 300.
    coupling_growth: float = 0.0  # γ is multiplied by 1 + this after every sweep.

    def __post_init__(self) -> None:
        _check_coupled(self)
        object.__setattr__(self, "topology", as_topology(self.topology))
        checks.check_count_fields(self, "bank", "redraw_every", optional=True)


@dataclass(frozen=True)
class RSA(_Method, kind="rsa"):
    """Replicated simulated annealing: joint weight exp(−E/T + γ/M Σ_{a<b} w_a·w_b)."""

    covers: int = 3  # Number of replicas M.
    coupling: float = 1.0  # Attraction γ between replicas, at most 300.
    coupling_growth: float = 0.0  # γ is multiplied by 1 + this after every sweep.

    def __post_init__(self) -> None:
        _check_coupled(self)


@dataclass(frozen=True)
class Vanilla(_Method, kind="vanilla"):
    """Plain simulated annealing of one copy."""


def _check_coupled(method: MCover | RSA) -> None:
    checks.check_count_fields(method, "covers", most=MAX_COVERS)
    checks.check_float_fields(method, "coupling", least=0, most=MAX_COUPLING)
    checks.check_float_fields(method, "coupling_growth", least=-1, most=1000)


Method: TypeAlias = MCover | RSA | Vanilla


def check_method(method: Method) -> None:
    """Refuses what is not a method."""
    example = "mcover.MCover(...), RSA or Vanilla"
    checks.check_instance("method", method, (MCover, RSA, Vanilla), example)


def couplings_of(options: AnnealOptions) -> NDArray[np.float64]:
    """γ of every sweep."""
    method, sweeps = options.method, np.arange(sweeps_of(options.schedule))
    if not method.coupling:
        return np.zeros(len(sweeps))
    with np.errstate(over="ignore"):
        couplings = method.coupling * np.float64(1 + method.coupling_growth) ** sweeps
    if not couplings.max() <= MAX_COUPLING:
        raise McoverError(
            f"the coupling grows from {method.coupling:g} to {couplings.max():.3g}; it "
            f"must stay between 0 and {MAX_COUPLING:g}: write a smaller coupling_growth."
        )
    return couplings


def bank_size(method: Method, sites: int) -> int:
    """The number S of destinations that a method keeps for a problem."""
    bank = sites if method.bank is None else method.bank
    if bank > sites:
        raise McoverError(
            f"bank is {bank}, but the problem has {sites} weights; write a bank of at most "
            f"{sites}, or bank=None for all of them."
        )
    return bank


@dataclass(frozen=True)
class AnnealOptions:
    """The options of :func:`mcover.anneal` for each read, which a result stores.

    The defaults, :data:`RECOMMENDED`, are the safest setting in our study of structured patterns:
    of all settings that were compared, they are never far behind the best one of a family.
    :data:`PAPER` has the paper's settings.
    """

    method: Method = MCover(7, bank=3, coupling=0.3)
    """:class:`~mcover.MCover`, :class:`~mcover.RSA` (replicas that attract each other) or
    :class:`~mcover.Vanilla` (one copy)."""
    schedule: Schedule = field(default_factory=AutoSchedule)  # One temperature for each sweep.
    rule: Rule = "glauber"
    """How flips are accepted: "glauber", with probability 1/(1 + exp(ΔE/T)); "metropolis", with
    probability min(1, exp(−ΔE/T)); "repair", metropolis for weights that disagree with a random
    unsatisfied pattern, until all are satisfied; or "descent", only flips that lower the energy."""
    energy: Energy = "linear"
    """The energy: "linear", Σ max(0, −Δ), or "errors", the number of misclassified patterns."""
    order: Order = "random"
    """The proposals of a sweep: "random"; "sequential", all covers of one site, then of the next;
    or "permutation", each weight once in an order drawn for each sweep. Not for repair."""
    stop_at_zero: bool = False
    """Whether to end a read after the first sweep with a solution: the student (the majority of the
    covers) has no errors, or the lifted energy is zero. Repair always ends at zero energy."""
    improvement: Improvement = "first"
    """The flips of descent: "first", each one that lowers the energy, or "best", the one that
    lowers it most, which is then a sweep."""

    def __post_init__(self) -> None:
        check_method(self.method)
        example = "LinearSchedule(0.4, 0.01, 1e-4) or another schedule of mcover.annealing"
        checks.check_instance("schedule", self.schedule, Schedule.__args__, example)
        checks.check_choice("rule", self.rule, get_args(Rule))
        checks.check_choice("energy", self.energy, get_args(Energy))
        checks.check_choice("order", self.order, get_args(Order))
        checks.check_bool_fields(self, "stop_at_zero")
        checks.check_choice("improvement", self.improvement, get_args(Improvement))
        if self.improvement != "first" and self.rule != "descent":
            raise McoverError(
                f"improvement is {self.improvement!r}, an option of descent, and rule is "
                f'{self.rule!r}; leave improvement out, or write rule="descent".'
            )
        if self.order != "random" and (self.rule == "repair" or self.improvement == "best"):
            why = "draws unsatisfied patterns" if self.rule == "repair" else "tries every flip"
            raise McoverError(
                f"order is {self.order!r}, but {self.rule} {why} and has no order; leave it out."
            )
        couplings_of(self)


PAPER = AnnealOptions(
    MCover(3, GaussianRing(3.0, shift=2), bank=10),
    LinearSchedule(0.4, 0.01, 1e-4),
)
"""The paper's perceptron: M = 3 covers, σ = 3, shift = 2, S = 10, and 3,901 temperatures."""

RECOMMENDED = AnnealOptions()
"""The defaults: seven routed covers that attract each other, at temperatures from the data."""
