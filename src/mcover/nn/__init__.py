"""Covers of torch modules: lift, train, collapse."""

from mcover.nn.covered import Covered
from mcover.nn.files import load
from mcover.nn.layers import register
from mcover.nn.lift import lift
from mcover.nn.meetings import Shape
from mcover.nn.training import cover_loss

__all__ = ["Covered", "Shape", "cover_loss", "lift", "load", "register"]
