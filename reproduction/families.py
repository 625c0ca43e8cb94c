"""Families of patterns with structure, and the annealer settings that are compared on them.

Temperatures are in units of T₀, the temperature at which one copy accepts 12 % of its proposals,
measured on each instance. Otherwise all families have the same temperatures.
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
    """The text of a setting in tables."""
    method = one.method
    words = [f"M={method.covers}"] if method.covers > 1 else []
    words += [f"S={method.bank}"] if isinstance(method, MCover) else []
    words += [f"γ={method.coupling:g}"] if method.coupling else []
    words += [f"from {one.start:g}{' T₀' if one.automatic else ''}", f"{one.sweeps} sweeps"]
    return ", ".join(words)


# The candidates of each annealer, the same in all families. A pilot run excluded candidates that
# were far behind in all families: replicas with γ = 2 below 2 T₀, plain annealing from T₀, or for
# 1,000 or 16,000 sweeps.
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
            rsa(1.0, 1.4, covers=7),
            rsa(1.0, 1.4, sweeps=1000),
        ]
    ),
    "M-cover": _named(
        [
            *(cover(3, f) for f in (0.5, 0.7, 1.0)),
            *(cover(2, f) for f in (0.5, 0.7)),
            *(cover(3, f, covers=5) for f in (0.35, 0.5, 0.7)),
            cover(2, 0.5, covers=5),
            *(cover(3, f, covers=7) for f in (0.5, 0.7)),
            cover(3, 0.7, sweeps=1000),
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
            cover(2, 0.5, 0.3),
            *(cover(2, f, 0.3, covers=7) for f in (0.5, 0.7)),
            *(cover(3, f, 0.3, covers=5) for f in (0.5, 0.7)),
            cover(3, 0.5, 0.15, covers=5),
            cover(3, 0.7, 0.3, covers=7),
            cover(2, 0.7, 0.3, sweeps=1000),
            cover(2, 0.7, 0.3, covers=5, sweeps=1000),
        ]
    ),
}

# One setting for all families: it has the least geometric mean over families of TTS99 in core
# seconds, on the instances for choosing settings. A test compares it with
# `reproduction.one_setting`.
ONE: dict[str, Annealed] = {
    "vanilla": plain(0.5),
    "RSA": rsa(1.0, 1.4),
    "M-cover": cover(3, 0.5, covers=5),
    ATTRACTING: cover(3, 0.7, 0.3, covers=7),
}
"""With temperatures in units of T₀."""


# The same without T₀: all families start at the temperature for independent patterns.
_INDEPENDENT = 0.35
ONE_TEMPERATURE: dict[str, Annealed] = {
    series: replace(one, start=_INDEPENDENT * one.start, automatic=False)
    for series, one in ONE.items()
}

# The setting of attracting covers, the library's default, with other start temperatures.
STARTS = (0.35, 0.5, 0.7, 1.0, 1.4)
"""In units of T₀."""
FROM: dict[str, Annealed] = {
    f"{ATTRACTING}, from {start:g} T₀": replace(ONE[ATTRACTING], start=start) for start in STARTS
}
