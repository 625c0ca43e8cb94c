"""What moves the weights: one small class for each method that does more than SGD.

A mover is given two ways to take gradients: ``fresh()`` on the next batch and ``again()`` on the
same one; both put gradients in place and return the loss per cover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, cast

import torch
from numpy.random import SeedSequence
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mcover.errors import McoverError
from mcover.lab.training.objectives import covers_of, is_covered
from mcover.lab.training.options import (
    EMA,
    ON_COVERS,
    RSGD,
    SAM,
    SWA,
    Elastic,
    Entropy,
    Lifted,
    Method,
    Training,
)
from mcover.optim import ElasticSGD, EntropySGD, ReplicatedSGD

Gradient = Callable[[], Tensor]
M = TypeVar("M", bound=Method)


class Mover(Generic[M]):
    """SGD on the model as it is, routed covers included; the base of the others.

    Attributes:
        each: whether every cover sees batches of its own.
        ready: whether the collapse is what the method is about: a stopping rule may look at it.
    """

    each = False

    def __init__(
        self, model: nn.Module, training: Training, method: M, steps: int, seed: SeedSequence
    ) -> None:
        self.model, self.training, self.method = model, training, method
        self.ready = True
        parameters = [one for one in model.parameters() if one.requires_grad]
        self.optimizer = self.make(parameters, steps, seed)

    def make(self, parameters: list[nn.Parameter], steps: int, seed: SeedSequence) -> Any:
        return torch.optim.SGD(parameters, **self.common)

    @property
    def common(self) -> dict[str, Any]:
        """What all of them give to SGD."""
        momentum = self.training.momentum
        return {
            "lr": self.training.lr,
            "momentum": momentum,
            "nesterov": momentum > 0,
            "weight_decay": self.training.weight_decay,
        }

    def step(self, fresh: Gradient, again: Gradient) -> Tensor:
        """Moves the weights once, and returns the loss per cover before."""
        loss = fresh()
        self.optimizer.step()
        return loss

    def end_epoch(self, epoch: int) -> None:
        """Called when ``epoch`` passes are done."""

    @contextmanager
    def source(self) -> Iterator[nn.Module]:
        """Inside, the module whose collapse is the outcome."""
        yield self.model


class _Routed(Mover[Lifted]):
    def end_epoch(self, epoch: int) -> None:
        if self.method.redraw_each_epoch:
            cast(Any, self.model).redraw()


class _Replicated(Mover[RSGD]):
    each = True

    def make(self, parameters: list[nn.Parameter], steps: int, seed: SeedSequence) -> Any:
        return ReplicatedSGD(
            _groups(self.model, parameters),
            coupling=self.method.coupling,
            growth=self.method.growth,
            steps=steps,
            **self.common,
        )

    def step(self, fresh: Gradient, again: Gradient) -> Tensor:
        # The coupling takes its scale from the loss summed over the covers.
        covers = covers_of(self.model)
        total: Tensor = self.optimizer.step(lambda: fresh() * covers)
        return total / covers


class _Elastic(Mover[Elastic]):
    each = True

    def make(self, parameters: list[nn.Parameter], steps: int, seed: SeedSequence) -> Any:
        return ElasticSGD(
            _groups(self.model, parameters),
            coupling=self.method.coupling,
            period=self.method.period,
            **self.common,
        )

    @contextmanager
    def source(self) -> Iterator[nn.Module]:
        with self.optimizer.at_centre():
            yield self.model


class _Entropic(Mover[Entropy]):
    """A step takes as many batches as its walk has gradients."""

    def make(self, parameters: list[nn.Parameter], steps: int, seed: SeedSequence) -> Any:
        how = self.method
        return EntropySGD(
            parameters,
            **self.common
            | {"lr": how.outer_lr, "inner_lr": self.training.lr, "noise": how.langevin},
            inner_steps=how.inner_steps,
            scope=how.scope,
            scoping=how.scoping,
            seed=seed,
        )

    def step(self, fresh: Gradient, again: Gradient) -> Tensor:
        return cast(Tensor, self.optimizer.step(fresh))


class _Averaged(Mover[SWA]):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.average: AveragedModel | None = None
        self.ready = False

    def end_epoch(self, epoch: int) -> None:
        if epoch > self.method.average_from * self.training.epochs:
            self.average = self.average or AveragedModel(self.model)
            self.average.update_parameters(self.model)
            self.ready = True

    @contextmanager
    def source(self) -> Iterator[nn.Module]:
        yield self.model if self.average is None else self.average.module


class _MovingAverage(Mover[EMA]):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        decay = get_ema_multi_avg_fn(self.method.decay)
        self.average = AveragedModel(self.model, multi_avg_fn=decay)

    def step(self, fresh: Gradient, again: Gradient) -> Tensor:
        loss = super().step(fresh, again)
        self.average.update_parameters(self.model)
        return loss

    @contextmanager
    def source(self) -> Iterator[nn.Module]:
        yield self.average.module


class _SharpnessAware(Mover[SAM]):
    def make(self, parameters: list[nn.Parameter], steps: int, seed: SeedSequence) -> Any:
        try:
            import pytorch_optimizer
        except ImportError as error:
            raise McoverError(
                "SAM needs pytorch_optimizer, which is not installed: pip install 'mcover[rivals]'."
            ) from error
        return pytorch_optimizer.SAM(
            parameters, torch.optim.SGD, rho=self.method.rho, **self.common
        )

    def step(self, fresh: Gradient, again: Gradient) -> Tensor:
        loss = fresh()
        try:
            self.optimizer.step(again)
        except BaseException:
            with torch.no_grad():  # an interrupt must not leave the weights uphill
                for weight, state in self.optimizer.state.items():
                    if "old_p" in state:
                        weight.copy_(state.pop("old_p"))
            raise
        return loss


_MOVERS: dict[type, type[Mover[Any]]] = {
    Lifted: _Routed,
    RSGD: _Replicated,
    Elastic: _Elastic,
    Entropy: _Entropic,
    SWA: _Averaged,
    EMA: _MovingAverage,
    SAM: _SharpnessAware,
}


def mover_of(
    model: nn.Module, training: Training, method: Method, steps: int, seed: SeedSequence
) -> Mover[Any]:
    """The mover of a method; refuses a model that the method cannot act on."""
    if isinstance(method, ON_COVERS):
        name = type(method).__name__
        if not is_covered(model):
            raise McoverError(
                f"{name} acts on covers, and the model is a plain {type(model).__name__}; "
                f"write mcover.lift(model, covers={method.covers}, topology=...)."
            )
        if covers_of(model) != method.covers:
            raise McoverError(
                f"the model has {covers_of(model)} covers, and {name} has {method.covers}; write "
                f"{name}(covers={covers_of(model)})."
            )
    return _MOVERS.get(type(method), Mover)(model, training, method, steps, seed)


def _groups(model: nn.Module, parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
    """Stacked parameters, and apart from them those that all covers share."""
    stacked = {id(one) for one in cast(Any, model).stacks().values()}
    covers = [one for one in parameters if id(one) in stacked]
    shared = [one for one in parameters if id(one) not in stacked]
    return [{"params": covers}] + ([{"params": shared, "replicas": False}] if shared else [])
