"""Covers of torch modules: lift, train, collapse."""

from mcover.extras import require

with require("mcover.nn", "torch", "torch"):
    from mcover.nn.covered import Covered, NextRoutes
    from mcover.nn.layers import Shape, register
    from mcover.nn.lift import lift, load
    from mcover.nn.loss import cover_loss

__all__ = ["Covered", "NextRoutes", "Shape", "cover_loss", "lift", "load", "register"]
