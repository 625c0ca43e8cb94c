"""How to anneal: methods and options as frozen values.

:class:`AnnealOptions` is the one place where options have their defaults, checks and documentation;
:func:`mcover.anneal` takes them as keywords, and results and files keep them.
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
    """What the annealer reads of any method; a method overrides what it has options for."""

    covers: int = 1
    topology: Topology = Identity()
    bank: int | None = 1
    redraw_every: int | None = None
    coupling: float = 0.0
    coupling_growth: float = 0.0


@dataclass(frozen=True)
class MCover(_Method, kind="mcover"):
    """The M-cover: M copies whose weights are read along drawn routes.

    With a coupling the covers also attract each other: the joint weight is
    exp(−E/T + γ/M Σ_{a<b} w_a·w_b), E the energy along the routes. The paper's method has none.
    """

    covers: int = 3  # Number of covers M.
    topology: Topology = _RING  # Where routes are drawn from.
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
    """Destinations S that a method keeps for a problem with so many weights."""
    bank = sites if method.bank is None else method.bank
    if bank > sites:
        raise McoverError(
            f"bank is {bank}, but the problem has {sites} weights; write a bank of at most "
            f"{sites}, or bank=None for all of them."
        )
    return bank


@dataclass(frozen=True)
class AnnealOptions:
    """How each read is annealed: the options of :func:`mcover.anneal`, which a result keeps.

    The defaults are what our study of structured patterns found best with one setting for all
    families; :data:`PAPER` has the paper's.
    """

    method: Method = MCover(5, bank=2, coupling=0.3)
    """:class:`~mcover.MCover`, :class:`~mcover.RSA` (replicas that attract each other) or
    :class:`~mcover.Vanilla` (one copy)."""
    schedule: Schedule = field(default_factory=AutoSchedule)  # One temperature for each sweep.
    rule: Rule = "glauber"
    """Acceptance of flips: "glauber", 1/(1 + exp(ΔE/T)), or "metropolis", min(1, exp(−ΔE/T));
    "repair", metropolis on weights that disagree with a pattern drawn from the unsatisfied ones,
    until there are none; or "descent", flips that lower the energy, until there are none."""
    energy: Energy = "linear"
    """What is minimised: "linear", Σ max(0, −Δ), or "errors", the number of wrong patterns."""
    order: Order = "random"
    """Proposals of a sweep: at "random", "sequential", cover after cover of site after site, or
    "permutation", each once in an order that is drawn for each sweep. Not for repair."""
    stop_at_zero: bool = False
    """End a read after the first sweep that leaves a solution: a student, the majority of the
    covers, without errors, or a lifted energy of zero. Repair ends at the latter in any case."""
    improvement: Improvement = "first"
    """Descent takes each flip that improves, "first", or, a sweep being one flip, the "best"."""

    def __post_init__(self) -> None:
        example = "mcover.MCover(...), RSA or Vanilla"
        checks.check_instance("method", self.method, (MCover, RSA, Vanilla), example)
        example = "LinearSchedule(0.4, 0.01, 1e-4) or another schedule of mcover.annealing"
        checks.check_instance("schedule", self.schedule, Schedule.__args__, example)
        checks.check_choice("rule", self.rule, get_args(Rule))
        checks.check_choice("energy", self.energy, get_args(Energy))
        checks.check_choice("order", self.order, get_args(Order))
        checks.check_bool_fields(self, "stop_at_zero")
        checks.check_choice("improvement", self.improvement, get_args(Improvement))
        if self.improvement != "first" and self.rule != "descent":
            raise McoverError(
                f"improvement is {self.improvement!r}, which is of descent, and rule is "
                f'{self.rule!r}; leave improvement out, or write rule="descent".'
            )
        if self.order != "random" and (self.rule == "repair" or self.improvement == "best"):
            why = "goes to unsatisfied patterns" if self.rule == "repair" else "tries every flip"
            raise McoverError(
                f"order is {self.order!r}, but {self.rule} {why} and has no order; leave it out."
            )
        couplings_of(self)


PAPER = AnnealOptions(
    MCover(3, GaussianRing(3.0, shift=2), bank=10),
    LinearSchedule(0.4, 0.01, 1e-4),
)
"""The paper's perceptron: M = 3 covers, σ = 3, shift = 2, S = 10, and 3,901 temperatures."""
