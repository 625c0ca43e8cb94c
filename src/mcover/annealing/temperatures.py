"""Measures the temperature at which one copy starts to freeze.

The energy is a sum over patterns, so its scale differs between problems, but the acceptance of
proposals is comparable. T₀ is the temperature at which one copy accepts 12 % of them. The same
multiples of T₀ suit random patterns and pixels, few and many patterns, perceptrons and committee
machines. With one start temperature for all problems, no method of the study of structured patterns
solved any of ten instances of pixels or of the committee machine. The multiples of each method were
chosen together with the 12 %, so a change of one requires new values of the others.

The measurement has its own fixed seed: T₀ is a property of the data, the same for every read and
every restart, so reads do not depend on their number.
"""

import math
from dataclasses import replace

import numpy as np

from mcover.annealing.bits import Words
from mcover.annealing.chain import State, generator
from mcover.annealing.kernels import advance, change_of
from mcover.annealing.options import RSA, AnnealOptions
from mcover.annealing.problems import Problem, Size
from mcover.annealing.schedules import AutoSchedule
from mcover.annealing.states import random_weights, single
from mcover.compiled import njit

ACCEPTED = 0.12
_SEED = 0x7E3
_COOLING = 0.8
_PROPOSALS = 8000  # counted at each temperature, at least; T₀ then varies by 2 % with the seed
_FREE = 0.2
_STEPS = 60  # 0.8⁶⁰ is about a millionth


@njit()
def _changes(state: State) -> float:
    """Σ ΔE² over all flips, in units."""
    result = 0.0
    for q in range(state.weights.shape[1]):
        change = np.float64(change_of(state, q, q, np.int64(state.weights[0, q])))
        result += change * change
    return result


def freezing_temperature(columns: Words, size: Size, energy: str) -> float:
    """T₀ of a problem, by cooling one copy until it freezes.

    Cooling starts at the typical change of energy, where almost half of the proposals are accepted.
    A copy that finds a solution may never freeze, because some flips cost no energy there. Then T₀
    is the temperature at which the energy reached zero, but at least a fifth of the typical change,
    where random patterns freeze.
    """
    sites, rng = size[1] * size[2], generator(np.random.SeedSequence(_SEED))
    state = single(columns, size, random_weights(rng, 1, sites)[0], energy)
    typical = state.unit * max(math.sqrt(_changes(state) / sites), 1.0)
    temperature = typical
    sweeps = max(2, math.ceil(_PROPOSALS / sites))
    before = 0.5
    for _ in range(_STEPS):
        advance(state, np.full(sweeps // 2, temperature), 0.0, "glauber", "random", rng)
        done = advance(state, np.full(sweeps, temperature), 0.0, "glauber", "random", rng)
        accepted = float(done.accepted.sum() / done.proposals.sum())
        if accepted <= ACCEPTED:
            # Interpolate between two temperatures; acceptance is taken as linear in log T.
            share = (ACCEPTED - accepted) / (before - accepted)
            return float(temperature / _COOLING**share)
        if state.energy[0] == 0:
            break
        before, temperature = accepted, temperature * _COOLING
    return float(max(temperature, _FREE * typical))


def resolve(options: AnnealOptions, problem: Problem, columns: Words) -> AnnealOptions:
    """Replaces an :class:`AutoSchedule` by the schedule for the measured T₀."""
    hot = 1.0  # descent uses only the number of sweeps
    if isinstance(options.schedule, AutoSchedule) and options.rule != "descent":
        hot = freezing_temperature(columns, problem.size, options.energy)
    return with_temperature(options, hot)


def with_temperature(options: AnnealOptions, hot: float) -> AnnealOptions:
    """Replaces an :class:`AutoSchedule` of options by the schedule for T₀ = ``hot``."""
    if not isinstance(options.schedule, AutoSchedule):
        return options
    factor = 0.5
    if options.method.covers > 1 and options.method.coupling:
        # Copies that attract each other start to agree at higher temperatures.
        factor = 1.4 if isinstance(options.method, RSA) else 0.7
    if options.rule == "repair":
        factor *= 0.5
    return replace(options, schedule=options.schedule.from_temperature(hot, factor))
