"""What a training says while it runs, and what it hands back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import nn

Stopped = Literal["epochs", "loss", "errors", "interrupt"]


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
        epoch, train_loss, collapse_error, seconds, gradients: (evaluations,); cover_error:
        (evaluations, covers), where a plain module has one cover.
    """

    epoch: NDArray[np.float64]
    """Epochs done at each evaluation; a fraction where training was interrupted."""
    train_loss: NDArray[np.float64]
    """Mean loss per cover over the steps since the evaluation before."""
    cover_error: NDArray[np.float64]
    collapse_error: NDArray[np.float64]
    """Of the one model: the collapse, an average of weights, or the plain module itself."""
    seconds: NDArray[np.float64]
    """Spent in training steps and stopping rules, evaluations left out."""
    gradients: NDArray[np.int64]
    """Gradients of a single model on a minibatch so far: a step of M covers takes M of them, times
    the destinations or streams of a forward; SAM takes twice as many."""
    stopped: Stopped
    """What ended it: the last epoch, the loss or the errors of the stopping rule, or Ctrl-C."""
    model: nn.Module = field(repr=False)
    """The one model."""

    @property
    def interrupted(self) -> bool:
        return self.stopped == "interrupt"
