"""How a network is trained: one frozen value for Python, the command line and result tables."""

from __future__ import annotations

from dataclasses import dataclass

from mcover.errors import McoverError


@dataclass(frozen=True)
class Training:
    """How to train; the defaults are the paper's."""

    epochs: int = 40
    """Passes over the training images."""
    batch: int = 256
    """Images in a step."""
    lr: float = 0.05
    """Learning rate of SGD, kept constant."""
    momentum: float = 0.9
    """Nesterov momentum; 0 is plain SGD."""
    weight_decay: float = 0.0
    """Decay of the weights (L2)."""
    weight_noise: float = 0.0
    """Gaussian noise of this standard deviation on all weights, drawn anew in each step."""
    swa_from: float | None = None
    """Average the weights at the end of each epoch (SWA) after this share of the epochs."""
    evaluate_every: int = 1
    """Epochs between evaluations; the last epoch is always evaluated."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "evaluate_every"):
            if getattr(self, name) < 1:
                raise McoverError(f"{name} is {getattr(self, name)}; write at least 1.")
        if not self.lr > 0:
            raise McoverError(f"lr is {self.lr}; write a positive learning rate, e.g. 0.05.")
        for name in ("momentum", "weight_decay", "weight_noise"):
            if not getattr(self, name) >= 0:
                raise McoverError(f"{name} is {getattr(self, name)}; write 0 or more.")
        if self.swa_from is not None and not 0 <= self.swa_from < 1:
            raise McoverError(f"swa_from is {self.swa_from}; write a share from 0 to below 1.")
