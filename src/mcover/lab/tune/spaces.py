"""What a search goes through: a trial as it is given, and the room around it.

A candidate is a table of plain values by name. What the trial itself has is always one of them, so
that the search begins where the user stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from mcover import Chain, GaussianRing, LinearSchedule, MCover, Uniform, checks
from mcover.annealing import BetaSchedule, GeometricSchedule, Schedule
from mcover.errors import McoverError
from mcover.lab.perceptron import Outcome, PerceptronTrial
from mcover.lab.training import Lifted, NetworkTrial, Training
from mcover.lifting import Directed, Granularity
from mcover.topology import Topology

Params = Mapping[str, Any]
Cost = Literal["proposals", "core_seconds"]
PerceptronScore = Literal["solved", "tts-proposals", "tts-seconds"]

_PENALTY = 10  # PAR10 of the field of algorithm configuration
_SURE = 0.99
_KINDS = (GaussianRing, Chain, Uniform)
_RING, _CHAIN = GaussianRing.kind, Chain.kind
_ON_DIGITS = NetworkTrial(training=Training(batch=64), validation=300)


@dataclass(frozen=True)
class Range:
    """Numbers between two ends, both included."""

    low: float
    high: float
    whole: bool = False
    log: bool = False

    def around(self, own: float) -> Range:
        """The same, widened where a value lies outside."""
        return replace(self, low=min(self.low, own), high=max(self.high, own))


Dimension = Range | tuple[str, ...]


@dataclass(frozen=True)
class _Search:
    """What searches of all kinds have."""

    kind: ClassVar[str]
    failed: ClassVar[Outcome] = {}
    """What a run of the test counts as that fails, if any may."""

    trial: Any
    seeds: int = 8
    """Paired seeds that every candidate meets, one after the other, unless it is pruned before."""
    prune: float = 0.1
    """Give a candidate up once a Wilcoxon test says, at this p, that the best one is better."""
    fix: tuple[str, ...] = ()
    """What is not searched but stays as the trial has it, by name."""

    def __post_init__(self) -> None:
        checks.check_count_fields(self, "seeds")
        checks.check_float_fields(self, "prune", least=0, most=1)
        if foreign := sorted(set(self.fix) - set(self._room())):
            names = ", ".join(self._room())
            raise McoverError(
                f"fix is {foreign[0]!r}, which is not searched; write one of {names}."
            )
        if not self.space():
            raise McoverError("fix holds all there is to search; leave something out of it.")

    def _room(self) -> dict[str, Dimension]:
        """Everything that could be searched, by name; a later entry may depend on earlier ones."""
        raise NotImplementedError

    def _own(self) -> dict[str, Any]:
        """What the trial has of each."""
        raise NotImplementedError

    def candidate(self, params: Params) -> Any:
        """The trial of these values, as it is to be used."""
        raise NotImplementedError

    def space(self) -> dict[str, Dimension]:
        """What is searched; the trial itself lies inside."""
        own, found = self._own(), dict[str, Any]()
        for name, dimension in self._room().items():
            if name in self.fix:
                continue
            value = own.get(name)
            if isinstance(dimension, tuple):
                found[name] = dimension if value in dimension else (value, *dimension)
            elif name not in own:  # of another topology than the trial's
                found[name] = dimension
            elif value is None or (dimension.log and not value > 0):
                raise McoverError(
                    f"{name} is {value!r}, where the search needs a number to begin with; write "
                    f"one from {dimension.low:g} to {dimension.high:g}, or fix {name}."
                )
            else:
                found[name] = dimension.around(value)
        return found

    def applies(self, name: str, so_far: Params) -> bool:
        """Whether a value belongs to a candidate whose other values are these."""
        kind = so_far.get("topology", self._own()["topology"])
        return {"sigma": kind in (_RING, _CHAIN), "shift": kind == _RING}.get(name, True)

    def first(self) -> dict[str, Any]:
        """The trial itself as a candidate."""
        own = self._own()
        return {name: own[name] for name in self.space() if name in own}

    def tried(self, params: Params) -> Any:
        """A candidate as it runs in the search, on data that are no test's."""
        return self.candidate(params)

    def tested(self, trial: Any) -> Any:
        """A trial as it runs in the test."""
        return trial

    def rivals(self, winner: Params) -> dict[str, Any]:
        """What the winner is tested against, by name."""
        return {"defaults": self.trial}

    def _topology(self, params: Params) -> Topology:
        given: Topology = self.trial.method.topology
        kind = params.get("topology", given.kind)
        if kind != given.kind:
            given = {one.kind: one for one in _KINDS}[kind]()
        changes = {name: params[name] for name in ("sigma", "shift") if name in params}
        return replace(given, **changes)


def _topology_room(covers: int) -> dict[str, Dimension]:
    return {
        "topology": tuple(one.kind for one in _KINDS),
        "sigma": Range(0.3, 10, log=True),
        "shift": Range(0, 4),
        "covers": Range(2, covers, whole=True),
    }


def _own_topology(topology: Topology) -> dict[str, Any]:
    found: dict[str, Any] = {"topology": topology.kind}
    if topology.kind in (_RING, _CHAIN):
        found["sigma"] = min(topology.sigma, 1e6)  # type: ignore[attr-defined]
    if topology.kind == _RING:
        found["shift"] = topology.shift  # type: ignore[attr-defined]
    return found


@dataclass(frozen=True)
class PerceptronSearch(_Search):
    """The M-cover of a ±1 perceptron: topology, covers, bank, redraws and length of the schedule.

    With the score "solved" the schedule stays as it is: a longer one always solves more.
    """

    kind: ClassVar[str] = "perceptron"

    trial: PerceptronTrial = field(default_factory=lambda: PerceptronTrial(1000, 1.58))
    """What is annealed; the search begins with it, and it is what the winner is tested against."""
    score: PerceptronScore = "tts-seconds"
    """Solved fraction, or cost until a solution is found with 99 % certainty (TTS99)."""

    def __post_init__(self) -> None:
        checks.check_choice("score", self.score, get_args(PerceptronScore))
        checks.check_instance("trial", self.trial, PerceptronTrial, "a PerceptronTrial(1000, 1.58)")
        if not isinstance(self.trial.method, MCover):
            raise McoverError(
                f"method is {self.trial.method.kind}, which has no routes to search; write mcover."
            )
        super().__post_init__()

    def _room(self) -> dict[str, Dimension]:
        room = _topology_room(9) | {
            "bank": Range(2, 16, whole=True, log=True),
            "redraw": ("never", "100", "10", "1"),
        }
        if self.score != "solved" and _temperatures(self.trial.schedule):
            room["temperatures"] = Range(100, 6000, whole=True, log=True)
        return room

    def _own(self) -> dict[str, Any]:
        method: Any = self.trial.method
        return _own_topology(method.topology) | {
            "covers": method.covers,
            "bank": method.bank,
            "redraw": str(method.redraw_every or "never"),
            "temperatures": _temperatures(self.trial.schedule),
        }

    def candidate(self, params: Params) -> PerceptronTrial:
        if params == self.first():
            return self.trial
        changes = {name: params[name] for name in ("covers", "bank") if name in params}
        if "redraw" in params:
            changes["redraw_every"] = None if params["redraw"] == "never" else int(params["redraw"])
        given: Any = self.trial.method
        method = replace(given, topology=self._topology(params), **changes)
        return replace(self.trial, method=method, schedule=self._schedule(params))

    def _schedule(self, params: Params) -> Schedule:
        given, count = self.trial.schedule, params.get("temperatures")
        if count is None or count == _temperatures(given):
            return given
        if isinstance(given, LinearSchedule):
            return replace(given, step=(given.start - given.stop) / (count - 1))
        return replace(given, count=count)

    def rivals(self, winner: Params) -> dict[str, Any]:
        """The defaults, and where the schedule was searched, the defaults with the winner's."""
        found, schedule = super().rivals(winner), self._schedule(winner)
        if schedule != self.trial.schedule:
            found["defaults, winner's schedule"] = replace(self.trial, schedule=schedule)
        return found

    def each(self, outcome: Outcome) -> float:
        """A score of one seed: unsolved, or the cost, ten times where it was spent in vain."""
        if self.score == "solved":
            return 1 - outcome["solved"]
        return outcome[self.cost] * (1 if outcome["solved"] else _PENALTY)

    def total(self, outcomes: Sequence[Outcome]) -> float:
        """What is minimised: the unsolved fraction, or TTS99.

        Of few seeds none or all may be solved, so half a trial more of each is counted in.
        """
        solved = [one["solved"] for one in outcomes]
        if self.score == "solved":
            return float(1 - np.mean(solved))
        p = (np.sum(solved) + 0.5) / (len(solved) + 1)
        restarts = max(1.0, float(np.log1p(-_SURE) / np.log1p(-p)))
        return float(np.mean([one[self.cost] for one in outcomes])) * restarts

    @property
    def cost(self) -> Cost:
        """The outcome that TTS99 counts."""
        return "proposals" if self.score == "tts-proposals" else "core_seconds"

    @property
    def label(self) -> str:
        """What is minimised, in words."""
        unit = "proposals" if self.score == "tts-proposals" else "core seconds"
        return "unsolved fraction" if self.score == "solved" else f"TTS99, {unit}"

    @property
    def each_label(self) -> str:
        """The score of one seed, in words."""
        if self.score == "solved":
            return "unsolved"
        return f"{self.cost.replace('_', ' ')}, ×{_PENALTY} where unsolved"


def _temperatures(schedule: Schedule) -> int | None:
    """How many there are, where another number of them makes sense."""
    if isinstance(schedule, LinearSchedule | GeometricSchedule | BetaSchedule):
        count = len(schedule.temperatures()) // schedule.sweeps
        return count if count > 1 else None
    return None


@dataclass(frozen=True)
class NetworkSearch(_Search):
    """The lift of a network: topology, covers, bank or blocks, noise, redraws and granularity.

    Candidates are judged by the error of the collapse on images held out of the training set.
    """

    kind: ClassVar[str] = "network"
    failed: ClassVar[Outcome] = {"error": 1.0, "failed": 1.0}  # such as a training that diverged

    trial: NetworkTrial = _ON_DIGITS
    """What is trained; the search begins with it, and it is what the winner is tested against."""

    def __post_init__(self) -> None:
        checks.check_instance("trial", self.trial, NetworkTrial, "a NetworkTrial()")
        if not isinstance(self.trial.method, Lifted):
            raise McoverError(
                f"method is {self.trial.method.kind}, which has no routes to search; write lifted."
            )
        if self.trial.validation is None:
            raise McoverError(
                "validation is None, and candidates are judged on held-out images only; write how "
                "many to hold out of the training set, e.g. 300 of digits, 5000 of mnist."
            )
        super().__post_init__()

    @property
    def _method(self) -> Lifted:
        return self.trial.method  # type: ignore[return-value]

    def _room(self) -> dict[str, Dimension]:
        room = _topology_room(8)
        if isinstance(self._method.routing, Directed):
            room["bank"] = Range(2, 16, whole=True, log=True)
            room["granularity"] = get_args(Granularity)
        else:
            room["blocks"] = Range(1, 32, whole=True, log=True)
        if self._method.start == "common":
            share = isinstance(self._method.noise, str)
            room["noise"] = Range(2, 300, log=True) if share else Range(0.005, 0.15, log=True)
        room["redraw"] = ("never", "epoch", "3", "1")
        return room

    def _own(self) -> dict[str, Any]:
        method, routing = self._method, self._method.routing
        noise = method.noise
        steps = "epoch" if method.redraw_each_epoch else str(routing.redraw_every or "never")
        found = _own_topology(method.topology) | {"covers": method.covers, "redraw": steps}
        found["noise"] = float(noise[:-1]) if isinstance(noise, str) else noise
        names = ("bank", "granularity") if isinstance(routing, Directed) else ("blocks",)
        return found | {name: getattr(routing, name) for name in names}

    def candidate(self, params: Params) -> NetworkTrial:
        return replace(self.trial, method=self._lifted(params), validation=None)

    def _lifted(self, params: Params) -> Lifted:
        if params == self.first():
            return self._method
        names = {"bank", "granularity", "blocks"} & set(params)
        routing = {name: params[name] for name in names}
        changes: dict[str, Any] = {"topology": self._topology(params)}
        if "covers" in params:
            changes["covers"] = params["covers"]
        if "noise" in params:
            share = isinstance(self._method.noise, str)
            changes["noise"] = f"{params['noise']:g}%" if share else params["noise"]
        if "redraw" in params:
            steps = params["redraw"]
            changes["redraw_each_epoch"] = steps == "epoch"
            routing["redraw_every"] = int(steps) if steps.isdigit() else None
        changes["routing"] = replace(self._method.routing, **routing)
        return replace(self._method, **changes)

    def tried(self, params: Params) -> Any:
        """With images held out, and evaluated once, after the last epoch."""
        return self.tested(replace(self.trial, method=self._lifted(params)))

    def tested(self, trial: Any) -> Any:
        """Evaluated once, after the last epoch."""
        training = replace(trial.training, evaluate_every=trial.training.epochs)
        return replace(trial, training=training)

    def rivals(self, winner: Params) -> dict[str, Any]:
        return {"defaults": replace(self.trial, validation=None)}

    def each(self, outcome: Outcome) -> float:
        """The error of one seed."""
        return outcome["error"]

    def total(self, outcomes: Sequence[Outcome]) -> float:
        """What is minimised: the mean error."""
        return float(np.mean([one["error"] for one in outcomes]))

    label: ClassVar[str] = "held-out error"
    each_label: ClassVar[str] = "test error"


Search = PerceptronSearch | NetworkSearch


def tidy(value: Any) -> Any:
    """A number of three digits: as much as a search can tell apart."""
    return float(f"{value:.3g}") if isinstance(value, float) else value
