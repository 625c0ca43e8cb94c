"""Covers of torch modules: lift, train, collapse."""

from mcover.nn.covered import Covered
from mcover.nn.lift import lift
from mcover.nn.losses import cover_loss
from mcover.nn.settings import Settings
from mcover.nn.storage import load, save

__all__ = ["Covered", "Settings", "cover_loss", "lift", "load", "save"]
