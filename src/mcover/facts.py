"""What a topology does to messages, read off its balanced matrix."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Facts:
    """Three numbers that say how a topology mixes.

    Attributes:
        spectral_gap: 1 − |λ₂|: how fast differences between covers fade under mixing; 0 never.
        drift: circular mean of β − α, in covers: how far a message moves along the ring per read.
        effective_width: exp of the mean row entropy: from how many covers a source is read.
    """

    spectral_gap: float
    drift: float
    effective_width: float


def facts(matrix: NDArray[np.float64]) -> Facts:
    """Spectral gap, drift and effective width of a balanced matrix."""
    covers = len(matrix)
    moduli = np.sort(np.abs(np.linalg.eigvals(matrix)))
    second = moduli[-2] if covers > 1 else 0.0
    index = np.arange(covers)
    displacement = index[None, :] - index[:, None]
    turn = np.sum(matrix * np.exp(2j * np.pi * displacement / covers)) / covers
    drift = np.angle(turn) * covers / (2 * np.pi) if abs(turn) > 1e-9 else 0.0
    entropy = -np.sum(matrix * np.log(matrix, where=matrix > 0, out=np.zeros_like(matrix)))
    return Facts(float(max(1 - second, 0.0)), float(drift), float(np.exp(entropy / covers)))
