"""What studies are put together from: whole settings, every choice written out."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from mcover.lab.training.settings import Training
from mcover.topology import GaussianRing, Topology, Uniform

RING = GaussianRing(sigma=1.5, shift=2)
"""The paper's default topology."""

Options = dict[str, Any]

_TRAINING = {field.name for field in fields(Training)}


def trained(
    *, data: str, images: int | None, model: str, epochs: int, batch: int, **more: Any
) -> Options:
    """Settings of a network trained by SGD with Nesterov momentum, as in the paper.

    Args:
        data: what to learn.
        images: how many of them.
        model: what learns it.
        epochs: passes over the images.
        batch: images in a step.
        **more: fields of Training or of Experiment that differ from their defaults.
    """
    own = {name: more.pop(name) for name in list(more) if name in _TRAINING}
    training = {"epochs": epochs, "batch": batch, "lr": 0.05, "momentum": 0.9}
    return {
        "data": data,
        "model": model,
        "images": images,
        "training": training | {"evaluate_every": epochs, "method": "sgd"} | own,
    } | more


def messages(covers: int, topology: Topology = RING, **more: Any) -> Options:
    """The paper's lift of a network."""
    return {
        "method": "mcover",
        "routing": "messages",
        "covers": covers,
        "blocks": 8,
        **_named(topology),
        **more,
    }


def directed(
    noise: float = 0.05, covers: int = 4, topology: Topology | None = None, **more: Any
) -> Options:
    """The lift in which each weight has a route of its own."""
    return {
        "method": "mcover",
        "routing": "weights",
        "covers": covers,
        "bank": 8,
        "noise": noise,
        **_named(topology or Uniform()),
        **more,
    }


def _named(topology: Topology) -> Options:
    """A topology as the fields of an Experiment."""
    plain = topology.to_dict()
    return {"topology": plain.pop("kind")} | {
        name: value for name, value in plain.items() if name in ("sigma", "shift")
    }
