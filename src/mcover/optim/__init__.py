"""Replica optimizers: what couples models by their weights, where a topology routes messages."""

from mcover.optim.elastic import ElasticSGD
from mcover.optim.entropy import EntropySGD
from mcover.optim.replicated import ReplicatedSGD

__all__ = ["ElasticSGD", "EntropySGD", "ReplicatedSGD"]
