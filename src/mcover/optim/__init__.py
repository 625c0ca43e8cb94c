"""Replica optimizers: what couples models by their weights, where a topology routes messages."""

from mcover.optim.entropy import EntropySGD
from mcover.optim.replicas import ElasticSGD, ReplicatedSGD

__all__ = ["ElasticSGD", "EntropySGD", "ReplicatedSGD"]
