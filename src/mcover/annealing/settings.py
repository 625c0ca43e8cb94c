"""How to anneal: one frozen value, read alike by Python, the command line and result files."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mcover import checks
from mcover.annealing.schedules import CustomSchedule, LinearSchedule, Schedule
from mcover.errors import McoverError
from mcover.topology import GaussianRing, Topology

Method = Literal["mcover", "exact", "rsa", "vanilla"]
Energy = Literal["linear", "errors"]
Rule = Literal["glauber", "metropolis"]
Order = Literal["random", "sequential"]

# Which options a method has; given to another one they are refused, not ignored.
_OWN = {
    "vanilla": (),
    "rsa": ("covers", "coupling", "coupling_growth"),
    "mcover": ("covers", "topology", "bank", "redraw_every"),
    "exact": ("covers", "topology", "redraw_every"),
}
_DEFAULTS: dict[str, Any] = {
    "covers": 3,
    "topology": GaussianRing(sigma=1.5, shift=2),
    "bank": 10,
    "coupling": 1.0,
    "coupling_growth": 0.0,
    "redraw_every": None,
}
_MAX_COVERS = 255
_MAX_COUPLING = 300.0


@dataclass(frozen=True)
class Settings:
    """What :func:`mcover.anneal` does to each read; options left out take the method's defaults.

    Attributes:
        method: "mcover" (a bank of destinations), "exact" (all destinations), "rsa" (replicas that
            attract each other) or "vanilla" (one copy).
        covers: M.
        topology: where routes are drawn from.
        bank: destinations S that are kept.
        coupling: γ of RSA, joint weight exp(−E/T + γ/M Σ_{a<b} w_a·w_b).
        coupling_growth: γ is multiplied by 1 + this after every sweep.
        redraw_every: draw new routes after so many sweeps; by default they are quenched.
        energy: "linear", Σ max(0, −Δ), or "errors", the number of wrong patterns.
        rule: acceptance, "glauber" 1/(1 + exp(ΔE/T)) or "metropolis" min(1, exp(−ΔE/T)).
        order: one sweep is M · sites proposals, at "random" or "sequential" (cover after cover of
            site after site).
        schedule: one temperature a sweep.
        stop_at_zero: end a read after the sweep in which its lifted energy reaches zero.
    """

    method: Method = "mcover"
    covers: int | None = None
    topology: Topology | None = None
    bank: int | None = None
    coupling: float | None = None
    coupling_growth: float | None = None
    redraw_every: int | None = None
    energy: Energy = "linear"
    rule: Rule = "glauber"
    order: Order = "random"
    schedule: Schedule = field(default_factory=LinearSchedule)
    stop_at_zero: bool = False

    def __post_init__(self) -> None:
        _check_choice("method", self.method, tuple(_OWN))
        _check_choice("energy", self.energy, ("linear", "errors"))
        _check_choice("rule", self.rule, ("glauber", "metropolis"))
        _check_choice("order", self.order, ("random", "sequential"))
        for name, default in _DEFAULTS.items():
            given = getattr(self, name)
            if name in _OWN[self.method]:
                object.__setattr__(self, name, default if given is None else given)
            elif given is not None and not (name == "covers" and given == 1):
                owners = [method for method, own in _OWN.items() if name in own]
                raise McoverError(
                    f"method {self.method!r} has no {name}; leave it out, or write "
                    f"method={' or '.join(map(repr, owners))}."
                )
        if self.covers is None:
            object.__setattr__(self, "covers", 1)
        self._check_numbers()
        if not hasattr(self.schedule, "temperatures"):
            raise McoverError(
                f"schedule is {self.schedule!r}; write LinearSchedule(0.4, 0.01, 1e-4) or another "
                "schedule of mcover.annealing."
            )
        self.temperatures()

    def temperatures(self) -> NDArray[np.float64]:
        """Temperature of every sweep."""
        return self.schedule.temperatures()

    def couplings(self) -> NDArray[np.float64]:
        """γ of every sweep; zero but for RSA."""
        sweeps = np.arange(len(self.temperatures()))
        growth = np.float64(1 + (self.coupling_growth or 0.0))
        with np.errstate(over="ignore"):  # an infinite coupling is refused when settings are made
            return np.asarray((self.coupling or 0.0) * growth**sweeps, dtype=np.float64)

    def bank_size(self, sites: int) -> int:
        """Destinations kept for a problem with so many weights: S."""
        if self.method == "exact":
            return sites
        if self.method != "mcover" or self.bank is None:
            return 1
        if self.bank > sites:
            raise McoverError(
                f"bank is {self.bank}, but the problem has {sites} weights; write a bank of at "
                f"most {sites}, or method='exact' for all of them."
            )
        return self.bank

    def to_dict(self) -> dict[str, Any]:
        """A plain dict for result files and tables."""
        plain = asdict(self)
        plain["topology"] = self.topology.to_dict() if self.topology else None
        plain["schedule"] = {"kind": type(self.schedule).__name__} | asdict(self.schedule)
        if isinstance(self.schedule, CustomSchedule):
            plain["schedule"]["values"] = list(self.schedule.values)
        return plain

    def _check_numbers(self) -> None:
        checks.whole("covers", self.covers if self.covers is not None else 1, 1)
        if self.covers is not None and self.covers > _MAX_COVERS:
            raise McoverError(f"covers is {self.covers}; the annealer goes to {_MAX_COVERS}.")
        if self.topology is not None and not isinstance(self.topology, Topology):
            raise McoverError(
                f"topology is {self.topology!r}; write e.g. mcover.GaussianRing(1.5, shift=2)."
            )
        for name in ("bank", "redraw_every"):
            count = getattr(self, name)
            if count is not None and (not isinstance(count, int | np.integer) or count < 1):
                raise McoverError(f"{name} is {count!r}; write a whole number of at least 1.")
        if self.coupling is not None:
            last = float(self.couplings().max())
            if not self.coupling >= 0 or not last <= _MAX_COUPLING:
                raise McoverError(
                    f"the coupling goes from {self.coupling} to {last:.3g}; it must stay between 0 "
                    f"and {_MAX_COUPLING:g}. Write a smaller coupling or coupling_growth."
                )


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise McoverError(f"{name} is {value!r}; write one of {', '.join(map(repr, choices))}.")
