"""Which method and how many sweeps each restart of :func:`mcover.solve` has.

Restarts come in rounds of one for each method, with schedules that grow by half from round to
round: the length that suits a problem is not known, and this wastes at most a factor of about three
on those that are too short. The first three rounds try all methods; later ones leave out the one
that came to the most errors, so that the time goes to what works on these data. A round is planned
by what all rounds but the one before it have found: workers need not wait for each other, and the
plan of a restart never depends on who was done first.

Measured on 8 instances each of 12 families with a ±1 teacher (one setting for all, geometric mean
of TTS99 in core seconds): covers that attract, M = 5, 0.22; covers alone, 0.30; RSA 0.31, and 0.27
against 1.2 on Fashion-MNIST, where it is the best. Plain annealing, 1.5, has no place. Where no ±1
weights fit (8 hidden units of an MNIST network), RSA and a polish leave the fewest errors.
"""

from __future__ import annotations

from collections.abc import Mapping

from mcover.annealing.options import RSA, AnnealOptions, MCover, Method
from mcover.annealing.schedules import AutoSchedule
from mcover.topology import GaussianRing

_RING = GaussianRing(1.5, shift=2)
PORTFOLIO: tuple[Method, ...] = (
    MCover(5, _RING, bank=2, coupling=0.3),
    RSA(9, coupling=1.0),
    MCover(9, _RING, bank=3),
)
_SWEEPS = 200
_GROWTH = 1.5
_TRIED = 3  # rounds with all methods
_MOST_SWEEPS = 10**6


class Plan:
    """The method of every restart, given what earlier ones came to."""

    def __init__(self, methods: tuple[Method, ...] = PORTFOLIO) -> None:
        self.methods = methods
        self.restarts: list[AnnealOptions] = []
        self.rounds: list[range] = []  # numbers of the restarts of each round

    def options_of(self, restart: int, errors: Mapping[int, int]) -> AnnealOptions | None:
        """The options of a restart; None while the results that they depend on are not known."""
        while restart >= len(self.restarts):
            known = [number for round_ in self.rounds[:-1] for number in round_]
            if any(number not in errors for number in known):
                return None
            self._add_round(known, errors)
        return self.restarts[restart]

    def _add_round(self, known: list[int], errors: Mapping[int, int]) -> None:
        methods = self.methods
        if len(self.rounds) >= _TRIED:
            best = {
                method: min(errors[n] for n in known if self.restarts[n].method == method)
                for method in methods
            }
            ordered = sorted(methods, key=lambda method: best[method])
            methods = tuple(ordered[: (len(methods) + 1) // 2])
        sweeps = min(round(_SWEEPS * _GROWTH ** len(self.rounds)), _MOST_SWEEPS)
        begin = len(self.restarts)
        for method in methods:
            options = AnnealOptions(method, AutoSchedule(sweeps), stop_at_zero=True)
            self.restarts.append(options)
        self.rounds.append(range(begin, len(self.restarts)))
