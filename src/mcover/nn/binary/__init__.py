"""±1 and ternary weights of any layer, trained through latent weights (straight-through).

A binarized model is an ordinary module, which is lifted, trained and collapsed like any other.
"""

from mcover.nn.binary.folding import Folded, fold
from mcover.nn.binary.policies import collapse
from mcover.nn.binary.signs import (
    Sign,
    bake,
    binarize,
    clip_latents,
    latents,
    other_parameters,
    snap_latents,
)

__all__ = [
    "Folded",
    "Sign",
    "bake",
    "binarize",
    "clip_latents",
    "collapse",
    "fold",
    "latents",
    "other_parameters",
    "snap_latents",
]
