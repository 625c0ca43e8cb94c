"""The method and the number of sweeps of each restart of :func:`mcover.solve`.

Restarts come in rounds with one restart for each method. The length that a problem needs is not
known, so the rounds follow Luby's sequence 1, 1, 2, 1, 1, 2, 4, …: every length gets the same share
of the time, and the search takes at most a logarithmic factor longer than one that knows the best
length (Luby, Sinclair and Zuckerman, 1993). On four hard instances of the study ``structured``,
1,000 to 16,000 sweeps found no more solutions per sweep than 250 did, which is why the lengths do
not simply grow. The first three rounds try all methods. Later rounds leave out the method with the
most errors, so that the time goes to methods that work on these data. A round depends on the errors
of all rounds except the one before it. So workers rarely wait for each other, and the plan does not
depend on which restart finished first.

Measured on 24 instances each of 12 families with a ±1 teacher (the study ``structured``; one
setting for all, geometric mean of TTS99 in core seconds): covers 0.18 with M = 5, S = 3, and 0.20
with M = 9; RSA with M = 9 0.23. On Fashion-MNIST RSA is the best, with 0.25 against 1.26 and 0.46.
Attracting covers reach 0.20. If no ±1 weights fit (``bench/readouts.py``, n =
32 each), RSA finds the student with the fewest errors for 29 of 32 units of a network; with flipped
labels each method does so on about a third of the instances.
"""

from __future__ import annotations

from collections.abc import Mapping

from mcover.annealing.options import RSA, AnnealOptions, MCover, Method
from mcover.annealing.schedules import AutoSchedule
from mcover.topology import GaussianRing

_RING = GaussianRing(1.5, shift=2)
PORTFOLIO: tuple[Method, ...] = (
    MCover(5, _RING, bank=3),
    RSA(9, coupling=1.0),
    MCover(9, _RING, bank=3),
)
_SWEEPS = 250  # of the shortest restarts
_TRIED = 3  # rounds with all methods


class Plan:
    """The options of every restart, given the errors of earlier ones."""

    def __init__(self, methods: tuple[Method, ...] = PORTFOLIO) -> None:
        self.methods = methods
        self.restarts: list[AnnealOptions] = []
        self.rounds: list[range] = []  # numbers of the restarts of each round

    def options_of(self, restart: int, errors: Mapping[int, int]) -> AnnealOptions | None:
        """The options of a restart; None as long as errors that it depends on are unknown."""
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
        sweeps = _SWEEPS * luby(len(self.rounds) + 1)
        begin = len(self.restarts)
        for method in methods:
            options = AnnealOptions(method, AutoSchedule(sweeps), stop_at_zero=True)
            self.restarts.append(options)
        self.rounds.append(range(begin, len(self.restarts)))


def luby(term: int) -> int:
    """A term of Luby's sequence, from 1: 2^(k−1) at term 2^k − 1, and repeated from there on.

    >>> [luby(term) for term in range(1, 16)]
    [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]
    """
    while term & (term + 1):  # until it is 2^k − 1
        term -= (1 << term.bit_length() - 1) - 1
    return (term + 1) // 2
