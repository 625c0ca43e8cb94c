"""What studies of the ±1 perceptron are put together from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcover.topology import GaussianRing, Topology

PAPER_SCHEDULE = {"start": 0.4, "stop": 0.01, "step": 1e-4}
SMOKE_SCHEDULE = {"start": 0.4, "stop": 0.01, "step": 0.01}

PAPER_N, PAPER_ALPHA = 1000, 1.58
SMOKE_N, SMOKE_ALPHA = 51, 3.0

RING = GaussianRing(sigma=1.5, shift=2)
"""The paper's default topology."""
TABLE_1_RING = GaussianRing(sigma=3, shift=2)

Options = dict[str, Any]


def vanilla() -> Options:
    return {"method": "vanilla"}


def rsa(covers: int = 3) -> Options:
    return {"method": "rsa", "covers": covers, "coupling": 1.0}


def routed(covers: int, topology: Topology = RING, bank: int = 10) -> Options:
    return {
        "method": "mcover",
        "covers": covers,
        "topology": topology.to_dict(),
        "bank": bank,
    }


def perceptron(
    options: Mapping[str, Any],
    *,
    smoke: bool = False,
    n: int | None = None,
    alpha: float = PAPER_ALPHA,
    ties: str = "redraw",
    slower: int = 1,
    reads: int = 1,
) -> Options:
    """Settings of a ±1 perceptron; ``slower`` divides the temperature step."""
    schedule = dict(SMOKE_SCHEDULE if smoke else PAPER_SCHEDULE)
    schedule["step"] /= slower
    return {
        "n": n or (SMOKE_N if smoke else PAPER_N),
        "alpha": alpha,
        "ties": ties,
        "schedule": schedule,
        "anneal": dict(options),
    } | ({"reads": reads} if reads > 1 else {})
