"""Families of patterns with structure, and the settings of the annealers that are compared there.

Temperatures are in units of T₀, at which one copy accepts 12 % of its proposals, measured on each
instance; where they are not, the same temperatures serve all families.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mcover import RSA, GaussianRing, MCover, Vanilla
from reproduction.patterns import Patterns
from reproduction.planted import (
    Annealed,
)

_RING = GaussianRing(1.5, shift=2)
ATTRACTING = "M-cover that attracts"

FAMILIES: dict[str, Patterns] = {
    "iid, N = 501": Patterns("iid", 501, 1.54),
    "iid, N = 1001": Patterns("iid", 1001, 1.58),
    "biased, mean 0.2": Patterns("biased", 501, 1.6, 0.2),
    "biased, mean 0.5": Patterns("biased", 501, 1.8, 0.5),
    "AR(1), ρ = 0.3": Patterns("ar1", 501, 1.55, 0.3),
    "AR(1), ρ = 0.6": Patterns("ar1", 501, 1.75, 0.6),
    "AR(1), ρ = 0.9": Patterns("ar1", 501, 2.5, 0.9),
    "low rank 5": Patterns("low-rank", 501, 1.9, 5),
    "low rank 20": Patterns("low-rank", 501, 1.75, 20),
    "MNIST pixels": Patterns("mnist", 301, 5),
    "Fashion-MNIST pixels": Patterns("fashion-mnist", 301, 14),
    "committee, K = 3": Patterns("iid", 101, 14, hidden=3),
}
SMOKE: dict[str, Patterns] = {
    "iid": Patterns("iid", 51, 3.0),
    "digits": Patterns("digits", 41, 6),
}


def plain(start: float, sweeps: int = 4000) -> Annealed:
    return Annealed(Vanilla(), start, sweeps=sweeps)


def rsa(coupling: float, start: float, covers: int = 9, sweeps: int = 500) -> Annealed:
    return Annealed(RSA(covers, coupling), start, sweeps=sweeps)


def cover(
    bank: int, start: float, coupling: float = 0.0, covers: int = 9, sweeps: int = 500
) -> Annealed:
    return Annealed(MCover(covers, _RING, bank, coupling=coupling), start, sweeps=sweeps)


def _named(settings: Iterable[Annealed]) -> dict[str, Annealed]:
    return {label_of(one): one for one in settings}


def label_of(one: Annealed) -> str:
    """A setting in words, as tables show it."""
    method = one.method
    words = [f"M={method.covers}"] if method.covers > 1 else []
    words += [f"S={method.bank}"] if isinstance(method, MCover) else []
    words += [f"γ={method.coupling:g}"] if method.coupling else []
    words += [f"from {one.start:g}{' T₀' if one.automatic else ''}", f"{one.sweeps} sweeps"]
    return ", ".join(words)


# What each annealer is chosen among; the same in all families. A pilot left out what was far behind
# in all of them: replicas with γ = 2 below 2 T₀, plain annealing from T₀, or for 1,000 or 16,000
# sweeps.
SETTINGS: dict[str, dict[str, Annealed]] = {
    "vanilla": _named(plain(f) for f in (0.35, 0.5, 0.7)),
    "RSA": _named(
        [
            rsa(0.25, 0.5),
            *(rsa(0.5, f) for f in (0.7, 1.0)),
            *(rsa(1.0, f) for f in (1.0, 1.4, 2.0)),
            rsa(2.0, 2.8),
            rsa(0.5, 0.7, covers=5),
            *(rsa(1.0, f, covers=5) for f in (1.0, 1.4)),
        ]
    ),
    "M-cover": _named(
        [
            *(cover(3, f) for f in (0.5, 0.7, 1.0)),
            *(cover(2, f) for f in (0.5, 0.7)),
            *(cover(3, f, covers=5) for f in (0.5, 0.7)),
            cover(2, 0.5, covers=5),
        ]
    ),
    ATTRACTING: _named(
        [
            cover(2, 0.7, 0.1),
            *(cover(2, f, 0.2) for f in (0.5, 0.7)),
            cover(2, 0.7, 0.3),
            *(cover(2, f, 0.5) for f in (0.7, 1.0)),
            *(cover(2, f, 0.7) for f in (1.0, 1.4)),
            cover(2, 0.7, 0.2, covers=5),
            *(cover(2, f, 0.3, covers=5) for f in (0.5, 0.7)),
            *(cover(2, f, 0.5, covers=5) for f in (0.7, 1.0)),
            cover(2, 0.7, 0.3, covers=5, sweeps=1000),
        ]
    ),
}

# One setting for all families: the least geometric mean over them of TTS99 in core seconds, on the
# instances that settings are chosen by. `reproduction.one_setting` computes both; a test compares.
ONE: dict[str, Annealed] = {
    "vanilla": plain(0.5),
    "RSA": rsa(1.0, 1.0, covers=5),
    "M-cover": cover(3, 0.5, covers=5),
    ATTRACTING: cover(2, 0.7, 0.3, covers=5),
}
"""With temperatures in units of T₀."""


def _absolute(one: Annealed, temperature: float) -> Annealed:
    return replace(one, start=temperature, automatic=False)


# The same without T₀: from one temperature in all families, chosen on three of those instances.
TEMPERATURES_SEEDS = range(1000, 1003)
TEMPERATURES: dict[str, dict[str, Annealed]] = {
    series: _named(_absolute(ONE[series], one) for one in temperatures)
    for series, temperatures in {
        "vanilla": (0.18, 0.25, 0.35),
        "RSA": (0.35, 0.5, 0.7),
        "M-cover": (0.18, 0.25, 0.35),
        ATTRACTING: (0.25, 0.35, 0.5),
    }.items()
}
ONE_TEMPERATURE: dict[str, Annealed] = {
    "vanilla": _absolute(ONE["vanilla"], 0.25),
    "RSA": _absolute(ONE["RSA"], 0.5),
    "M-cover": _absolute(ONE["M-cover"], 0.25),
    ATTRACTING: _absolute(ONE[ATTRACTING], 0.25),
}
