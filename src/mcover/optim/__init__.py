"""Optimizers: replicas coupled through their weights, Entropy-SGD, and Bop for ±1 weights."""

from mcover.extras import require

with require("mcover.optim", "torch", "torch"):
    from mcover.optim.bop import Bop
    from mcover.optim.entropy import EntropySGD
    from mcover.optim.replicas import ElasticSGD, ReplicatedSGD

__all__ = ["Bop", "ElasticSGD", "EntropySGD", "ReplicatedSGD"]
