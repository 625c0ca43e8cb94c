"""What the zoo knows about one configuration of a model."""

from __future__ import annotations

import copy
import logging
import random
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

ROUTINGS = ("messages", "directed")

Batch = dict[str, Any] | tuple[Any, ...]
Mixes = Literal["most", "little", "unknown"]


@dataclass(frozen=True)
class Refusal:
    """The error that a user gets if a routing cannot work.

    Attributes:
        pattern: found in the message of the McoverError.
        sure: whether it has to fail; otherwise it may work, or fail with just this message.
    """

    pattern: str
    sure: bool = True


@dataclass(frozen=True)
class Entry:
    """One configuration.

    Attributes:
        name: unique in the zoo.
        package: where the model comes from; "torch" for layers of torch, "awkward" for our own.
        build: makes the model and one batch; called under a fixed seed.
        loss: a scalar of one model's output.
        mixes: whether at least half of the lifted parameters should mix in "messages".
        refuses: by routing, the error that a user gets if it cannot work.
        tolerance: relative, of outputs and gradients against the base's.
        random: whether training draws random numbers (dropout, layerdrop), so that outputs in
            training mode are not comparable.
        keeps: whether the model keeps state in attributes that no ``state_dict`` holds.
        loads: whether the model's own loading code can fill stacks; if not, it raises an error.
        smooth: whether gradients are derivatives; quantisers with straight-through gradients are
            not, nor are models that stop gradients or that cannot run in float64.
    """

    name: str
    package: str
    build: Callable[[], tuple[nn.Module, Batch]]
    loss: Callable[[Any], Tensor]
    mixes: Mixes = "most"
    refuses: Mapping[str, Refusal] = field(default_factory=dict)
    tolerance: float = 1e-4
    random: bool = False
    keeps: bool = False
    smooth: bool = True
    loads: bool = True

    def make(self, dtype: torch.dtype | None = None) -> tuple[nn.Module, Batch]:
        """A fresh model and batch, the same at every call; other floats are cast to ``dtype``."""
        logging.getLogger("transformers").setLevel(logging.ERROR)
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            random.seed(0)
            np.random.seed(0)  # noqa: NPY002  third-party code draws from it
            torch.manual_seed(0)
            model, batch = self.build()
        if not self.random:
            without_dropout(model)
        if dtype is not None:
            model = model.to(dtype)
            batch = cast(batch, dtype)
        return model, batch


ZOO: dict[str, Entry] = {}


def add(package: str, name: str, loss: Callable[[Any], Tensor], **rest: Any) -> Callable:
    """Decorates a function that builds a model and its batch: puts it in the zoo."""

    def register(build: Callable[[], tuple[nn.Module, Batch]]) -> Callable:
        assert name not in ZOO, name
        ZOO[name] = Entry(name, package, build, loss, **rest)
        return build

    return register


def call(model: nn.Module, batch: Batch) -> Any:
    """The model on a copy of the batch: some models write to their inputs."""
    batch = copy.deepcopy(batch)
    return model(**batch) if isinstance(batch, dict) else model(*batch)


def cast(batch: Any, dtype: torch.dtype) -> Any:
    """Floating-point tensors of a batch in another precision."""
    if isinstance(batch, dict):
        return {name: cast(value, dtype) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(cast(value, dtype) for value in batch)
    if isinstance(batch, Tensor) and batch.is_floating_point():
        return batch.to(dtype)
    return batch


DROPOUTS = (
    "p", "dropout", "attention_dropout", "activation_dropout", "hidden_dropout", "dropout_p",
    "dropout_rate", "drop_prob", "resid_dropout", "attn_dropout", "dropout_prob", "input_dropout",
    "dropout_proba", "proj_drop",
)  # fmt: skip


def without_dropout(model: nn.Module) -> None:
    """Switches dropout off where modules keep its rate as a number."""
    for module in model.modules():
        if (
            isinstance(module, nn.MultiheadAttention | nn.RNNBase)
            or "Drop" in type(module).__name__
        ):
            names = ("p", "dropout", "drop_prob")
        else:
            names = DROPOUTS[1:]
        for name in names:
            if isinstance(vars(module).get(name), float):
                setattr(module, name, 0.0)


def hf_loss(output: Any) -> Tensor:
    """The loss that a Hugging Face model computes from its labels."""
    return output.loss


def square(output: Any) -> Tensor:
    """Mean square of a tensor: a loss for anything that returns one."""
    return output.square().mean()


def first_square(output: Any) -> Tensor:
    """Mean square of the first of several outputs."""
    return output[0].square().mean()


def hidden_square(output: Any) -> Tensor:
    """Distance of the last hidden state from one; its mean square is fixed by the layer norm."""
    hidden = output.last_hidden_state
    return (hidden - torch.linspace(-1, 1, hidden.shape[-1], dtype=hidden.dtype)).square().mean()


def sample_square(output: Any) -> Tensor:
    """Mean square of ``output.sample``, as the models of diffusers name it."""
    return output.sample.square().mean()
