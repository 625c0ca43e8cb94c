"""How the soft committee sharpens into the hard one: β and γ, one pair an epoch."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

from mcover import checks

# Past it tanh(βF/√N) is a sign for every field that single precision distinguishes from zero, and
# further growth would only leave the range of the numbers.
LIMIT = 1e15


@dataclass(frozen=True)
class Sharpening:
    """β_t = beta (1 + beta_growth)^t and γ_t likewise, t the epoch, from 0.

    β is the gain of the hidden units and γ that of the loss; see the module machine.

    >>> Sharpening(0.5, 1e-3, 0.5, 1e-3).at(0)
    (0.5, 0.5)
    """

    beta: float = 0.5
    """First gain of the hidden units."""
    beta_growth: float = 1e-3
    """Its relative growth an epoch."""
    gamma: float = 0.5
    """First gain of the loss."""
    gamma_growth: float = 1e-3
    """Its relative growth an epoch."""

    def __post_init__(self) -> None:
        checks.numbers_of(self, "beta", "gamma", above=0, most=LIMIT)
        checks.numbers_of(self, "beta_growth", "gamma_growth", least=0)

    def at(self, epoch: float) -> tuple[float, float]:
        """β and γ in an epoch."""

        def grown(start: float, growth: float) -> float:
            return min(start * math.exp(min(math.log1p(growth) * epoch, 100.0)), LIMIT)

        return grown(self.beta, self.beta_growth), grown(self.gamma, self.gamma_growth)

    def __str__(self) -> str:
        numbers = ",".join(f"{value:g}" for value in astuple(self))
        return {SLOW: "slow", FAST: "fast"}.get(self, numbers)


# The numbers of both are from memory of the works that the paper cites, and unverified.
SLOW = Sharpening()
FAST = Sharpening(2.0, 1e-4, 5.0, 1e-4)
