"""Topologies, lifts and annealing options from Optuna trials, for your own studies.

Each function asks a trial for values and returns arguments for mcover. ::

    def objective(trial):
        covered = mcover.lift(model, **suggest_lift(trial))
        ...  # train
        return error(covered.collapse())

    study = optuna.create_study(storage="sqlite:///lift.db")
    study.optimize(objective, n_trials=50)

The same call with the best parameters gives the same value::

    options = suggest_lift(optuna.trial.FixedTrial(study.best_params))

Every option is either searched or fixed: a tuple is searched, any other value is fixed. For numbers
a tuple is a range, ``(low, high)``, both included; for words and ``redraw_every`` it lists the
choices. ``prefix`` precedes the names of the trial's parameters, so that one trial can hold several
such values.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from mcover import checks
from mcover.annealing import RSA, LinearSchedule, MCover, Vanilla
from mcover.errors import McoverError
from mcover.extras import missing
from mcover.lifting import Directed, Messages
from mcover.topology import Chain, GaussianRing, Identity, Topology, Uniform

try:
    from optuna.trial import BaseTrial
except ModuleNotFoundError as error:
    raise missing("mcover.optuna", error.name, "optuna") from error

__all__ = ["suggest_annealing", "suggest_lift", "suggest_topology"]

Number: TypeAlias = float | tuple[float, float]
"""A number to use, or the range to search."""
Word: TypeAlias = str | tuple[str, ...]
"""A word to use, or the words to search."""
Redraw: TypeAlias = int | tuple[int | None, ...] | None
"""A value of ``redraw_every`` to use, or the values to search."""

_KINDS = ("ring", "chain", "uniform")
_SIGMA = (0.3, 10.0)
_REDRAW = (None, 100, 10, 1)


def suggest_topology(
    trial: BaseTrial,
    covers: int,
    *,
    kinds: Word = _KINDS,
    sigma: Number = _SIGMA,
    shift: Number | None = None,
    prefix: str = "",
) -> Topology:
    """A topology for this number of covers; the trial's parameters are topology, sigma and shift.

    Args:
        trial: what ``study.optimize`` passes to the objective, or a ``FixedTrial``.
        covers: the number of covers M.
        kinds: of "ring", "chain", "uniform" and "identity".
        sigma: width of a ring or a chain, in covers; searched on a logarithmic scale.
        shift: of a ring; None searches from 0 to M/2, which covers all rings: a shift wraps at M,
            and a negative one is the mirror image of a positive one.
        prefix: of the names of the trial's parameters.
    """
    values = _Values(trial, prefix)
    values.ring(sigma, shift)
    covers = checks.check_int("covers", covers, 1)
    kind = values.word("topology", kinds, (*_KINDS, "identity"))
    if kind == "ring":
        shift = (0.0, covers / 2) if shift is None else shift
        return GaussianRing(values.number("sigma", sigma, log=True), values.number("shift", shift))
    if kind == "chain":
        return Chain(values.number("sigma", sigma, log=True))
    return Uniform() if kind == "uniform" else Identity()


def suggest_lift(
    trial: BaseTrial,
    *,
    covers: Number = (2, 8),
    topology: Topology | Word = _KINDS,
    sigma: Number = _SIGMA,
    shift: Number | None = None,
    routing: Word = "directed",
    bank: Number = (2, 16),
    granularity: Word = ("weight", "unit", "tensor"),
    blocks: Number = (1, 32),
    redraw_every: Redraw = _REDRAW,
    noise_percent: Number = (2.0, 300.0),
    prefix: str = "",
) -> dict[str, Any]:
    """Keyword arguments for :func:`mcover.lift`: covers, topology, routing and noise.

    The trial's parameters have the names of the arguments.

    Args:
        trial: what ``study.optimize`` passes to the objective, or a ``FixedTrial``.
        covers: the number of covers M.
        topology: a topology to use, or kinds as in :func:`suggest_topology`.
        sigma: as in :func:`suggest_topology`.
        shift: as in :func:`suggest_topology`.
        routing: of "directed" and "messages".
        bank: of the directed lift; searched on a logarithmic scale.
        granularity: of the directed lift.
        blocks: of the message lift; searched on a logarithmic scale.
        redraw_every: training forwards between redraws of the routes; None is never.
        noise_percent: noise between covers in percent of each tensor's own standard deviation;
            searched on a logarithmic scale.
        prefix: of the names of the trial's parameters.
    """
    values = _Values(trial, prefix)
    for name, size in {"bank": bank, "blocks": blocks}.items():  # also of the other routing
        values.integers(name, size)
    values.ring(sigma, shift)
    count = values.integer("covers", covers)
    if not isinstance(topology, Topology):
        given: dict[str, Any] = {"kinds": topology, "sigma": sigma, "shift": shift}
        topology = suggest_topology(trial, count, **given, prefix=prefix)
    route: Directed | Messages
    if values.word("routing", routing, ("directed", "messages")) == "directed":
        kind = values.word("granularity", granularity, ("weight", "unit", "tensor"))
        size = values.integer("bank", bank, log=True)
        redraw = values.redraw(redraw_every)
        route = Directed(size, granularity=kind, redraw_every=redraw)
    else:
        size = values.integer("blocks", blocks, log=True)
        route = Messages(size, redraw_every=values.redraw(redraw_every))
    noise = f"{values.number('noise_percent', noise_percent, log=True):g}%"
    return {"covers": count, "topology": topology, "routing": route, "noise": noise}


def suggest_annealing(
    trial: BaseTrial,
    *,
    method: Word = "mcover",
    covers: Number = (2, 9),
    topology: Topology | Word = _KINDS,
    sigma: Number = _SIGMA,
    shift: Number | None = None,
    bank: Number = (2, 16),
    redraw_every: Redraw = _REDRAW,
    coupling: Number = (0.1, 3.0),
    start: Number = 0.4,
    stop: Number = 0.01,
    sweeps: Number = (100, 6000),
    prefix: str = "",
) -> dict[str, Any]:
    """Keyword arguments for :func:`mcover.anneal`: method and schedule.

    The trial's parameters have the names of the arguments. Longer schedules solve more, so score a
    candidate by its time to solution, or fix ``sweeps``.

    Args:
        trial: what ``study.optimize`` passes to the objective, or a ``FixedTrial``.
        method: of "mcover", "rsa" and "vanilla".
        covers: covers of an M-cover, or replicas of RSA.
        topology: of an M-cover: a topology to use, or kinds as in :func:`suggest_topology`.
        sigma: as in :func:`suggest_topology`.
        shift: as in :func:`suggest_topology`.
        bank: of an M-cover; searched on a logarithmic scale.
        redraw_every: sweeps between redraws of the routes of an M-cover; None is never.
        coupling: attraction between replicas of RSA; searched on a logarithmic scale.
        start: the first temperature; searched on a logarithmic scale.
        stop: the last temperature; searched on a logarithmic scale.
        sweeps: of a linear schedule, two or more; searched on a logarithmic scale.
        prefix: of the names of the trial's parameters.
    """
    values = _Values(trial, prefix)
    values.integers("covers", covers), values.integers("bank", bank)  # also of other methods
    values.floats("coupling", coupling, log=True)
    values.ring(sigma, shift)
    kind = values.word("method", method, ("mcover", "rsa", "vanilla"))
    count = 1 if kind == "vanilla" else values.integer("covers", covers)
    chosen: MCover | RSA | Vanilla = Vanilla()
    if kind == "mcover":
        if not isinstance(topology, Topology):
            given: dict[str, Any] = {"kinds": topology, "sigma": sigma, "shift": shift}
            topology = suggest_topology(trial, count, **given, prefix=prefix)
        size = values.integer("bank", bank, log=True)
        chosen = MCover(count, topology, size, values.redraw(redraw_every))
    elif kind == "rsa":
        chosen = RSA(count, values.number("coupling", coupling, log=True))
    high, low = values.number("start", start, log=True), values.number("stop", stop, log=True)
    steps = values.integer("sweeps", sweeps, log=True, least=2) - 1
    if low >= high:
        raise McoverError(
            f"stop is {low:g} and start is {high:g}; temperatures fall: write start > stop."
        )
    return {"method": chosen, "schedule": LinearSchedule(high, low, (high - low) / steps)}


class _Values:
    """Values of a trial by name: tuples are searched, anything else is fixed."""

    def __init__(self, trial: BaseTrial, prefix: str) -> None:
        example = "the trial that study.optimize passes, or optuna.trial.FixedTrial(params)"
        self.trial: Any = checks.check_instance("trial", trial, BaseTrial, example)
        self.prefix = checks.check_instance("prefix", prefix, str, "a text, e.g. 'lift_'")

    def number(self, name: str, given: Any, *, log: bool = False) -> float:
        low, high = self.floats(name, given, log=log)
        if not isinstance(given, tuple):
            return low
        return float(self.trial.suggest_float(self.prefix + name, low, high, log=log))

    def floats(self, name: str, given: Any, *, log: bool = False) -> tuple[float, float]:
        """The checked range of a number, without a call of the trial."""
        if not isinstance(given, tuple):
            return (checks.check_float(name, given, infinite=name == "sigma"),) * 2
        low, high = self._range(name, given)
        low = checks.check_float(name, low, above=0.0 if log else -math.inf)
        return low, checks.check_float(name, high, low)

    def ring(self, sigma: Any, shift: Any) -> None:
        """Checks the options of a ring, which the other topologies do not read."""
        self.floats("sigma", sigma, log=True)
        if shift is not None:
            self.floats("shift", shift)

    def integer(self, name: str, given: Any, *, log: bool = False, least: int = 1) -> int:
        low, high = self.integers(name, given, least=least)
        if not isinstance(given, tuple):
            return low
        return int(self.trial.suggest_int(self.prefix + name, low, high, log=log))

    def integers(self, name: str, given: Any, *, least: int = 1) -> tuple[int, int]:
        """The checked range of an integer, without a call of the trial."""
        low, high = self._range(name, given) if isinstance(given, tuple) else (given, given)
        low = checks.check_int(name, low, least)
        return low, checks.check_int(name, high, low)

    def word(self, name: str, given: Any, known: Sequence[str]) -> Any:
        for one in self._choices(name, given):
            checks.check_choice(name, one, known)
        return self._choice(name, given)

    def redraw(self, given: Any) -> int | None:
        for one in self._choices("redraw_every", given):
            if one is not None:
                checks.check_int("redraw_every", one, 1)
        found: int | None = self._choice("redraw_every", given)
        return found

    def _choice(self, name: str, given: Any) -> Any:
        if not isinstance(given, tuple):
            return given
        return self.trial.suggest_categorical(self.prefix + name, given)

    def _choices(self, name: str, given: Any) -> tuple[Any, ...]:
        if isinstance(given, tuple) and not given:
            raise McoverError(f"{name} is (), which leaves no choice; write one or more.")
        return given if isinstance(given, tuple) else (given,)

    def _range(self, name: str, given: tuple[Any, ...]) -> tuple[Any, Any]:
        if len(given) != 2:
            raise McoverError(f"{name} is {given!r}; write a range, (low, high), or a number.")
        return given
