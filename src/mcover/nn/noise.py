"""The default noise that separates the covers at the start."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


def auto_noise(model: nn.Module, parameters: Sequence[str]) -> str:
    """The share of each tensor's own standard deviation that ``noise="auto"`` stands for."""
    return "10%"
