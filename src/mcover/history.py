"""What a training says while it runs, and what it hands back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Status:
    """What the live line may show."""

    share: float
    epoch: int
    loss: float
    """Of the last step, per cover."""
    cover_error: float
    """Mean over the covers when last evaluated; nan before."""
    collapse_error: float


@dataclass(frozen=True, eq=False)
class History:
    """The course of a training; test errors are shares of wrong labels.

    Shape:
        epoch, train_loss, collapse_error, seconds: (evaluations,); cover_error:
        (evaluations, covers), where a plain module has one cover.
    """

    epoch: NDArray[np.float64]
    """Epochs done at each evaluation; a fraction where training was interrupted."""
    train_loss: NDArray[np.float64]
    """Mean loss per cover over the steps since the evaluation before."""
    cover_error: NDArray[np.float64]
    collapse_error: NDArray[np.float64]
    """Of the one model: the collapse, the SWA average, or the plain module itself."""
    seconds: NDArray[np.float64]
    """Spent in training steps, evaluations left out."""
    interrupted: bool
    model: nn.Module = field(repr=False)
    """The one model."""
