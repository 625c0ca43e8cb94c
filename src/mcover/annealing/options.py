"""How to anneal: methods, schedules and options as frozen values.

:class:`AnnealOptions` is the one place where options have their defaults, checks and documentation;
:func:`mcover.anneal` takes them as keywords, and results and files keep them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mcover import checks
from mcover.errors import McoverError
from mcover.plain import Tagged
from mcover.topology import GaussianRing, Identity, Topology, as_topology

Temperatures: TypeAlias = NDArray[np.float64]
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


@dataclass(frozen=True)
class LinearSchedule(Tagged, kind="linear"):
    """T = start, start − step, … down to stop: the paper's is LinearSchedule(0.4, 0.01, 1e-4).

    >>> len(LinearSchedule(0.4, 0.01, 1e-4).temperatures())
    3901
    """

    start: float = 0.4
    stop: float = 0.01
    step: float = 1e-4
    sweeps: int = 1  # Sweeps at each temperature.

    def __post_init__(self) -> None:
        checks.check_float_fields(self, "start", "stop", "step", above=0)
        _check_schedule(self, (self.start - self.stop) / self.step)

    def temperatures(self) -> Temperatures:
        """Temperature of every sweep."""
        count = 1 + int((self.start - self.stop) / self.step + 1e-6)
        falling = self.start - self.step * np.arange(count)
        # The last step may end below stop by a rounding error; more than that is cut off.
        return np.repeat(np.where(falling < 0.999 * self.stop, self.stop, falling), self.sweeps)


@dataclass(frozen=True)
class GeometricSchedule(Tagged, kind="geometric"):
    """``count`` temperatures from start to stop, each the same factor below the last."""

    start: float = 0.4
    stop: float = 0.01
    count: int = 1000
    sweeps: int = 1  # Sweeps at each temperature.

    def __post_init__(self) -> None:
        checks.check_float_fields(self, "start", "stop", above=0)
        checks.check_count_fields(self, "count")
        _check_schedule(self, self.count)

    def temperatures(self) -> Temperatures:
        """Temperature of every sweep."""
        return np.repeat(np.geomspace(self.start, self.stop, self.count), self.sweeps)


@dataclass(frozen=True)
class BetaSchedule(GeometricSchedule, kind="beta"):
    """``count`` temperatures from start to stop, evenly spaced in β = 1/T."""

    def temperatures(self) -> Temperatures:
        """Temperature of every sweep."""
        betas = np.linspace(1 / self.start, 1 / self.stop, self.count)
        return np.repeat(1 / betas, self.sweeps)


@dataclass(frozen=True)
class CustomSchedule(Tagged, kind="custom"):
    """Any positive temperatures, one for each sweep, in the order given."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        given = checks.check_floats("values", self.values, ndim=1)
        if not np.all(given > 0):
            raise McoverError(
                f"a schedule needs positive temperatures, the smallest here is {given.min():g}; "
                "write e.g. [0.4, 0.2, 0.1]."
            )
        object.__setattr__(self, "values", tuple(given.tolist()))

    def temperatures(self) -> Temperatures:
        """Temperature of every sweep."""
        return np.array(self.values)


Schedule: TypeAlias = LinearSchedule | GeometricSchedule | BetaSchedule | CustomSchedule


def schedule_of(schedule: Schedule | ArrayLike | None, num_sweeps: int | None) -> Schedule:
    """The schedule that is meant: one as it is, plain numbers, or so many sweeps."""
    if num_sweeps is not None and schedule is not None:
        raise McoverError("both schedule and num_sweeps were given; leave one of them out.")
    if num_sweeps is not None:
        sweeps = checks.check_int("num_sweeps", num_sweeps, 1)
        if sweeps == 1:
            return CustomSchedule((LinearSchedule.start,))
        return LinearSchedule(step=(LinearSchedule.start - LinearSchedule.stop) / (sweeps - 1))
    if schedule is None:
        return LinearSchedule()
    if isinstance(schedule, Sequence | np.ndarray) and not isinstance(schedule, str | bytes):
        return CustomSchedule(schedule)  # type: ignore[arg-type]
    return schedule  # type: ignore[return-value]


def _check_schedule(schedule: LinearSchedule | GeometricSchedule, count: float) -> None:
    checks.check_count_fields(schedule, "sweeps")
    if schedule.stop > schedule.start:
        raise McoverError(
            f"stop is {schedule.stop:g}, above start, {schedule.start:g}; temperatures fall: "
            "write start ≥ stop."
        )
    # Per sweep a temperature, a coupling and what is made on the way.
    needed = min(32 * (count + 1) * schedule.sweeps, 2.0**63)
    checks.check_memory(int(needed), f"{schedule!r}", "write fewer temperatures or sweeps")


def couplings_of(options: AnnealOptions) -> NDArray[np.float64]:
    """γ of every sweep."""
    method, sweeps = options.method, np.arange(len(options.schedule.temperatures()))
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
    """How each read is annealed: the options of :func:`mcover.anneal`, which a result keeps."""

    method: Method = MCover()
    """:class:`~mcover.MCover`, :class:`~mcover.RSA` (replicas that attract each other) or
    :class:`~mcover.Vanilla` (one copy)."""
    schedule: Schedule = field(default_factory=LinearSchedule)  # One temperature for each sweep.
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
    MCover(3, GaussianRing(3.0, shift=2), bank=10), LinearSchedule(0.4, 0.01, 1e-4)
)
"""The paper's perceptron: M = 3 covers, σ = 3, shift = 2, S = 10, and 3,901 temperatures."""
