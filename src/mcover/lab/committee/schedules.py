"""How the soft committee sharpens into the hard one: β and γ, one pair an epoch."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

from mcover.errors import McoverError

# Past it tanh(βF/√N) is a sign for every field that single precision tells from zero, and
# further growth would only leave the range of the numbers.
LIMIT = 1e15


@dataclass(frozen=True)
class Sharpening:
    """β_t = beta (1 + beta_growth)^t and γ_t likewise, t the epoch, from 0.

    β is the gain of the hidden units and γ that of the loss; see the module surrogate.

    >>> Sharpening(0.5, 1e-3, 0.5, 1e-3).at(0)
    (0.5, 0.5)
    """

    beta: float = 0.5
    beta_growth: float = 1e-3
    gamma: float = 0.5
    gamma_growth: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("beta", "gamma"):
            value = getattr(self, name)
            if not 0 < value <= LIMIT:
                raise McoverError(f"{name} is {value}; write a positive number, e.g. 0.5.")
        for name in ("beta_growth", "gamma_growth"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise McoverError(f"{name} is {value}; write 0 or more, e.g. 1e-3 an epoch.")

    def at(self, epoch: float) -> tuple[float, float]:
        """β and γ in an epoch."""
        return (
            _grown(self.beta, self.beta_growth, epoch),
            _grown(self.gamma, self.gamma_growth, epoch),
        )

    def __str__(self) -> str:
        for name, known in PRESETS.items():
            if self == known:
                return name
        return ",".join(f"{value:g}" for value in astuple(self))


SLOW = Sharpening(0.5, 1e-3, 0.5, 1e-3)
"""β and γ from 0.5, each growing by 1e-3 an epoch.

The numbers are from memory of the works that the paper cites, and unverified.
"""

FAST = Sharpening(2.0, 1e-4, 5.0, 1e-4)
"""β from 2 and γ from 5, each growing by 1e-4 an epoch.

The numbers are from memory of the works that the paper cites, and unverified.
"""

PRESETS = {"slow": SLOW, "fast": FAST}


def sharpening(given: str | Sharpening) -> Sharpening:
    """A schedule by name, by its four numbers, or as it is.

    >>> sharpening("slow") == sharpening("0.5,1e-3,0.5,1e-3")
    True
    """
    if isinstance(given, Sharpening):
        return given
    if isinstance(given, str) and given in PRESETS:
        return PRESETS[given]
    try:
        return Sharpening(*(float(word) for word in given.split(",")))
    except (AttributeError, ValueError, TypeError) as error:
        if isinstance(error, McoverError):
            raise
        raise McoverError(
            f"schedule is {given!r}; write 'slow', 'fast', or the first β, its growth, the first γ "
            "and its growth: '0.5,1e-3,0.5,1e-3'."
        ) from error


def _grown(start: float, growth: float, epoch: float) -> float:
    rate = math.log1p(growth) * epoch
    return min(start * math.exp(min(rate, 100.0)), LIMIT)
