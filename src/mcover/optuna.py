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
choices.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from mcover import checks
from mcover.annealing import RSA, LinearSchedule, MCover, Vanilla
from mcover.errors import McoverError
from mcover.extras import require
from mcover.lifting import Directed, Messages
from mcover.topology import Chain, GaussianRing, Identity, Topology, Uniform

with require("mcover.optuna", "optuna", "optuna"):
    from optuna.trial import BaseTrial

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
    kinds: Topology | Word = _KINDS,
    sigma: Number = _SIGMA,
    shift: Number | None = None,
) -> Topology:
    """A topology for this number of covers; the trial's parameters are topology, sigma and shift.

    Args:
        trial: what ``study.optimize`` passes to the objective, or a ``FixedTrial``.
        covers: the number of covers M.
        kinds: of "ring", "chain", "uniform" and "identity"; or a topology to use.
        sigma: width of a ring or a chain, in covers; searched on a logarithmic scale.
        shift: of a ring; None searches from 0 to M/2, which covers all rings: a shift wraps at M,
            and a negative one is the mirror image of a positive one.
    """
    covers = checks.check_int("covers", covers, 1)
    return _Options(trial).topology(kinds, sigma, shift)(covers)


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
) -> dict[str, Any]:
    """Keyword arguments for :func:`mcover.lift`: covers, topology, routing and noise.

    The trial's parameters have the names of the arguments.

    Args:
        trial: what ``study.optimize`` passes to the objective, or a ``FixedTrial``.
        covers: the number of covers M.
        topology: kinds as in :func:`suggest_topology`, or a topology to use.
        sigma: as in :func:`suggest_topology`.
        shift: as in :func:`suggest_topology`.
        routing: of "directed" and "messages".
        bank: of the directed lift; searched on a logarithmic scale.
        granularity: of the directed lift.
        blocks: of the message lift; searched on a logarithmic scale.
        redraw_every: training forwards between redraws of the routes; None is never.
        noise_percent: noise between covers in percent of each tensor's own standard deviation;
            searched on a logarithmic scale.
    """
    options = _Options(trial)
    count, kernel = options.integer("covers", covers), options.topology(topology, sigma, shift)
    kind = options.choice("routing", routing, ("directed", "messages"))
    size = options.integer("bank", bank, log=True)
    unit = options.choice("granularity", granularity, ("weight", "unit", "tensor"))
    parts = options.integer("blocks", blocks, log=True)
    redraw = options.choice("redraw_every", redraw_every)
    noise = options.number("noise_percent", noise_percent, log=True)
    found: dict[str, Any] = {"covers": count()}
    found["topology"] = kernel(found["covers"])
    if kind() == "directed":
        found["routing"] = Directed(granularity=unit(), bank=size(), redraw_every=redraw())
    else:
        found["routing"] = Messages(parts(), redraw_every=redraw())
    return found | {"noise": f"{noise():g}%"}


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
) -> dict[str, Any]:
    """Keyword arguments for :func:`mcover.anneal`: method and schedule.

    The trial's parameters have the names of the arguments. Longer schedules solve more, so score a
    candidate by its time to solution, or fix ``sweeps``.

    Args:
        trial: what ``study.optimize`` passes to the objective, or a ``FixedTrial``.
        method: of "mcover", "rsa" and "vanilla".
        covers: covers of an M-cover, or replicas of RSA.
        topology: of an M-cover: kinds as in :func:`suggest_topology`, or a topology to use.
        sigma: as in :func:`suggest_topology`.
        shift: as in :func:`suggest_topology`.
        bank: of an M-cover; searched on a logarithmic scale.
        redraw_every: sweeps between redraws of the routes of an M-cover; None is never.
        coupling: attraction between replicas of RSA; searched on a logarithmic scale.
        start: the first temperature; searched on a logarithmic scale.
        stop: the last temperature; searched on a logarithmic scale.
        sweeps: of a linear schedule, two or more; searched on a logarithmic scale.
    """
    options = _Options(trial)
    kind = options.choice("method", method, ("mcover", "rsa", "vanilla"))()
    count, kernel = options.integer("covers", covers), options.topology(topology, sigma, shift)
    size = options.integer("bank", bank, log=True)
    redraw = options.choice("redraw_every", redraw_every)
    pull = options.number("coupling", coupling, log=True)
    first, last = options.number("start", start, log=True), options.number("stop", stop, log=True)
    steps = options.integer("sweeps", sweeps, log=True, least=2)
    chosen: MCover | RSA | Vanilla = Vanilla()
    if kind == "mcover":
        replicas = count()
        chosen = MCover(replicas, kernel(replicas), size(), redraw())
    elif kind == "rsa":
        chosen = RSA(count(), pull())
    high, low = first(), last()
    if low >= high:
        raise McoverError(
            f"stop is {low:g} and start is {high:g}; temperatures fall: write start > stop."
        )
    return {"method": chosen, "schedule": LinearSchedule(high, low, (high - low) / (steps() - 1))}


class _Options:
    """Options by name: tuples are searched, anything else is fixed.

    Each method checks an option and returns a function that asks the trial for its value. So all
    options are checked, and those that a candidate uses are parameters of its trial.
    """

    def __init__(self, trial: BaseTrial) -> None:
        example = "the trial that study.optimize passes, or optuna.trial.FixedTrial(params)"
        self.trial: Any = checks.check_instance("trial", trial, BaseTrial, example)

    def number(self, name: str, given: Any, *, log: bool = False) -> Callable[[], float]:
        if not isinstance(given, tuple):
            fixed = checks.check_float(name, given, infinite=name == "sigma")
            return lambda: fixed
        low, high = _ends(name, given)
        low = checks.check_float(name, low, above=0.0 if log else -math.inf)
        high = checks.check_float(name, high, low)
        return lambda: float(self.trial.suggest_float(name, low, high, log=log))

    def integer(
        self, name: str, given: Any, *, log: bool = False, least: int = 1
    ) -> Callable[[], int]:
        low, high = _ends(name, given) if isinstance(given, tuple) else (given, given)
        low = checks.check_int(name, low, least)
        high = checks.check_int(name, high, low)
        if not isinstance(given, tuple):
            return lambda: low
        return lambda: int(self.trial.suggest_int(name, low, high, log=log))

    def choice(self, name: str, given: Any, known: Sequence[str] = ()) -> Callable[[], Any]:
        """One of some words; without any, a positive integer or None."""
        listed = given if isinstance(given, tuple) else (given,)
        if not listed:
            raise McoverError(f"{name} is (), which leaves no choice; write one or more.")
        for one in listed:
            if known:
                checks.check_choice(name, one, known)
            elif one is not None:
                checks.check_int(name, one, 1)
        if not isinstance(given, tuple):
            return lambda: given
        return lambda: self.trial.suggest_categorical(name, given)

    def topology(self, given: Any, sigma: Any, shift: Any) -> Callable[[int], Topology]:
        """As the others, but the function takes the number of covers."""
        width = self.number("sigma", sigma, log=True)
        centre = None if shift is None else self.number("shift", shift)
        if isinstance(given, Topology):
            return lambda covers: given
        kind = self.choice("topology", given, (*_KINDS, "identity"))

        def drawn(covers: int) -> Topology:
            name = kind()
            if name == "ring":
                around = centre or self.number("shift", (0.0, covers / 2))
                return GaussianRing(width(), around())
            if name == "chain":
                return Chain(width())
            return Uniform() if name == "uniform" else Identity()

        return drawn


def _ends(name: str, given: tuple[Any, ...]) -> tuple[Any, Any]:
    if len(given) != 2:
        raise McoverError(f"{name} is {given!r}; write a range, (low, high), or a number.")
    return given[0], given[1]
