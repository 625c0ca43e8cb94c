"""Optimizers: replicas coupled through their weights, Entropy-SGD, and Bop for ±1 weights."""

from mcover.extras import missing

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise missing("mcover.optim", "torch", "torch") from error

from mcover.optim.bop import Bop
from mcover.optim.entropy import EntropySGD
from mcover.optim.replicas import ElasticSGD, ReplicatedSGD

__all__ = ["Bop", "ElasticSGD", "EntropySGD", "ReplicatedSGD"]
