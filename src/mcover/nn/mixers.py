"""Mixers Q̂ as tensors: sampled, exact, or the single routes of streams."""

from __future__ import annotations

import torch
from numpy.random import SeedSequence
from torch import Tensor

from mcover.nn.settings import Settings
from mcover.routing import draw_mixers


def mixer_shape(settings: Settings, units: int, inputs: int) -> tuple[int, ...]:
    """(units, blocks, M, M); with streams (S, units, blocks, M, M); exact (1, 1, M, M)."""
    square = (settings.covers, settings.covers)
    if settings.mixer == "exact":
        return (1, 1, *square)
    blocks = min(settings.blocks or inputs, inputs)
    lead = () if settings.streams is None else (settings.streams,)
    return (*lead, units, blocks, *square)


def draw_mixer(settings: Settings, units: int, inputs: int, seed: SeedSequence) -> Tensor:
    """One layer's mixer in float64: multiples of 1/draws, so that any dtype rounds them once."""
    covers, topology = settings.covers, settings.topology
    shape = mixer_shape(settings, units, inputs)
    if settings.mixer == "exact":
        return torch.from_numpy(topology.matrix(covers)).reshape(shape)
    blocks = shape[-3]
    if settings.streams is not None:  # a stream follows one route: a mixer of a single draw
        drawn = draw_mixers(topology, covers, settings.streams * units, blocks, 1, seed)
        return torch.from_numpy(drawn).double().reshape(shape)
    drawn = draw_mixers(topology, covers, units, blocks, settings.draws, seed)
    return torch.from_numpy(drawn).double().mul_(settings.draws).round_().div_(settings.draws)
