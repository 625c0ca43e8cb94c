"""Optimizers: replicas that are coupled by their weights, and flips of ±1 weights."""

from mcover.optim.bop import Bop
from mcover.optim.entropy import EntropySGD
from mcover.optim.replicas import ElasticSGD, ReplicatedSGD

__all__ = ["Bop", "ElasticSGD", "EntropySGD", "ReplicatedSGD"]
