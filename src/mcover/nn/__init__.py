"""Covers of torch modules: lift, train, collapse."""

from mcover.nn.covered import Covered, Routes
from mcover.nn.layers import register
from mcover.nn.lift import lift, load
from mcover.nn.loss import cover_loss
from mcover.nn.meetings import Shape

__all__ = ["Covered", "Routes", "Shape", "cover_loss", "lift", "load", "register"]
