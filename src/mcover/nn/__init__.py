"""Covers of torch modules: lift, train, collapse."""

from mcover.nn.covered import Covered
from mcover.nn.lift import lift
from mcover.nn.loading import load
from mcover.nn.losses import cover_loss
from mcover.nn.saving import save
from mcover.nn.settings import Settings

__all__ = ["Covered", "Settings", "cover_loss", "lift", "load", "save"]
