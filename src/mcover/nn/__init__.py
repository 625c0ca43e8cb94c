"""Covers of torch modules: lift, train, collapse."""

from mcover.nn.covered import Covered
from mcover.nn.lift import lift
from mcover.nn.loading import load
from mcover.nn.losses import cover_loss

__all__ = ["Covered", "cover_loss", "lift", "load"]
