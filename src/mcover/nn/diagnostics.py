"""How far apart the covers are, and what lies between a cover and the collapse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from mcover.errors import McoverError
from mcover.nn.collapse import rebuild
from mcover.nn.covers import Covers


@dataclass(frozen=True)
class Diagnostics:
    """Geometry of the covers in weight space, over all lifted parameters.

    Attributes:
        overlaps: cosine between covers, shape (M, M).
        distances: distance of each cover from the mean over covers, shape (M,).
        relative: the same, over the norm of the mean.
    """

    overlaps: NDArray[np.float64]
    distances: NDArray[np.float64]
    relative: NDArray[np.float64]


def diagnose(covered: Covers) -> Diagnostics:
    """Overlaps and distances, one tensor at a time."""
    covers = covered.covers
    gram = torch.zeros(covers, covers, dtype=torch.float64)
    for stack in covered.stacks().values():
        rows = stack.detach().flatten(1).double().cpu()
        gram += rows @ rows.T
    norms = gram.diagonal().clamp_min(1e-300).sqrt()
    mean = gram.mean()
    # |w_α − w̄|² from inner products alone: no second pass over the weights.
    squared = gram.diagonal() - 2 * gram.mean(1) + mean
    distances = squared.clamp_min(0).sqrt()
    overlaps = gram / norms[:, None] / norms[None, :]
    relative = distances / mean.clamp_min(1e-300).sqrt()
    return Diagnostics(overlaps.numpy(), distances.numpy(), relative.numpy())


def path_loss(
    covered: Covers, loss: Callable[[nn.Module], float], index: int, points: int = 11
) -> NDArray[np.float64]:
    """``loss(model)`` at evenly spaced models from cover ``index`` (first) to the mean (last)."""
    if points < 2:
        raise McoverError(f"points is {points}; write at least 2, the two ends of the path.")
    if not 0 <= index < covered.covers:
        raise McoverError(f"there is no cover {index!r}; write 0 to {covered.covers - 1}.")
    stacks = {**covered.stacks(), **covered.state_stacks()}
    values = []
    for share in np.linspace(0, 1, points):
        tensors = {}
        for name, stack in stacks.items():
            here = stack.detach()[index]
            if stack.is_floating_point():
                here = torch.lerp(here, stack.detach().mean(0), float(share))
            tensors[name] = here
        values.append(float(loss(rebuild(covered, tensors).eval())))
    return np.array(values)
