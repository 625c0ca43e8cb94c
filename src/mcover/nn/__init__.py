"""Covers of torch modules: lift, train, collapse."""

from mcover.nn.covered import Covered, NextRoutes
from mcover.nn.layers import register
from mcover.nn.lift import lift, load
from mcover.nn.loss import cover_loss
from mcover.nn.meetings import Shape

__all__ = ["Covered", "NextRoutes", "Shape", "cover_loss", "lift", "load", "register"]
