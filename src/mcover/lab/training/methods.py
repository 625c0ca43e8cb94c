"""What moves the weights, by name: one small class a method.

A method is given two ways to take gradients: ``fresh()`` on the next batch and ``again()`` on the
same one; both put gradients in place and return the loss per cover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from numpy.random import SeedSequence
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mcover.errors import McoverError
from mcover.lab.training.objectives import covers_of, is_covered
from mcover.lab.training.settings import Training

Gradient = Callable[[], Tensor]


class Plain:
    """SGD on the model as it is, routed covers included.

    Attributes:
        each: whether every cover sees batches of its own.
        ready: whether the one model is what the method is about: a stopping rule may look at it.
    """

    each = False

    def __init__(
        self, model: nn.Module, settings: Training, steps: int, seed: SeedSequence
    ) -> None:
        self.model, self.settings, self.steps, self.seed = model, settings, steps, seed
        self.ready = True
        self.optimizer = self.make([one for one in model.parameters() if one.requires_grad])

    def make(self, parameters: list[nn.Parameter]) -> Any:
        return torch.optim.SGD(parameters, **self.common)

    @property
    def common(self) -> dict[str, Any]:
        """What all of them give to SGD."""
        momentum = self.settings.momentum
        return {
            "lr": self.settings.lr,
            "momentum": momentum,
            "nesterov": momentum > 0,
            "weight_decay": self.settings.weight_decay,
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
        """Inside, the module whose collapse is the one model."""
        yield self.model


class Routed(Plain):
    """SGD on routed covers; the same as plain SGD, and refuses to be called so without covers."""

    def make(self, parameters: list[nn.Parameter]) -> Any:
        require_covers(self.model, "mcover")
        return super().make(parameters)


class Replicated(Plain):
    """Covers that attract each other, ever more strongly."""

    each = True

    def make(self, parameters: list[nn.Parameter]) -> Any:
        from mcover.optim import ReplicatedSGD

        coupling = self.settings.coupling
        return ReplicatedSGD(
            groups(self.model, parameters, "rsgd"),
            coupling="auto" if coupling is None else coupling,
            growth=self.settings.option("growth"),
            steps=self.steps,
            **self.common,
        )

    def step(self, fresh: Gradient, again: Gradient) -> Tensor:
        # The coupling takes its scale from the loss summed over the covers.
        covers = covers_of(self.model)
        total: Tensor = self.optimizer.step(lambda: fresh() * covers)
        return total / covers


class Elastic(Plain):
    """Covers tied to a centre that follows them; the centre is the one model."""

    each = True

    def make(self, parameters: list[nn.Parameter]) -> Any:
        from mcover.optim import ElasticSGD

        coupling = self.settings.coupling
        return ElasticSGD(
            groups(self.model, parameters, "elastic"),
            coupling="auto" if coupling is None else coupling,
            period=self.settings.option("period"),
            **self.common,
        )

    @contextmanager
    def source(self) -> Iterator[nn.Module]:
        with self.optimizer.at_centre():
            yield self.model


class Entropic(Plain):
    """Entropy-SGD; a step takes as many batches as its walk has gradients."""

    def make(self, parameters: list[nn.Parameter]) -> Any:
        from mcover.optim import EntropySGD

        option = self.settings.option
        return EntropySGD(
            parameters,
            **self.common
            | {"lr": option("outer_lr"), "inner_lr": self.settings.lr, "noise": option("langevin")},
            **{name: option(name) for name in ("inner_steps", "scope", "scoping")},
            seed=self.seed,
        )

    def step(self, fresh: Gradient, again: Gradient) -> Tensor:
        return cast(Tensor, self.optimizer.step(fresh))


class Averaged(Plain):
    """SWA: the mean of the weights at the end of each epoch after a share of them."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.average: AveragedModel | None = None
        self.ready = False

    def end_epoch(self, epoch: int) -> None:
        if epoch > self.settings.option("average_from") * self.settings.epochs:
            self.average = self.average or AveragedModel(self.model)
            self.average.update_parameters(self.model)
            self.ready = True

    @contextmanager
    def source(self) -> Iterator[nn.Module]:
        yield self.model if self.average is None else self.average.module


class Ema(Averaged):
    """The exponential moving average of the weights over all steps."""

    average: AveragedModel

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        decay = get_ema_multi_avg_fn(self.settings.option("decay"))
        self.average = AveragedModel(self.model, multi_avg_fn=decay)
        self.ready = True

    def step(self, fresh: Gradient, again: Gradient) -> Tensor:
        loss = super().step(fresh, again)
        self.average.update_parameters(self.model)
        return loss

    def end_epoch(self, epoch: int) -> None:
        """Nothing: every step counts."""


class SharpnessAware(Plain):
    """SAM: the gradient is taken a little uphill."""

    def make(self, parameters: list[nn.Parameter]) -> Any:
        try:
            from pytorch_optimizer import SAM
        except ImportError as error:
            raise McoverError(
                "method 'sam' needs pytorch_optimizer, which is not installed: "
                "pip install 'mcover[rivals]'."
            ) from error
        return SAM(parameters, torch.optim.SGD, rho=self.settings.option("rho"), **self.common)

    def step(self, fresh: Gradient, again: Gradient) -> Tensor:
        loss = fresh()
        try:
            self.optimizer.step(again)
        except BaseException:
            with torch.no_grad():  # uphill is no place to be left at
                for weight, state in self.optimizer.state.items():
                    if "old_p" in state:
                        weight.copy_(state.pop("old_p"))
            raise
        return loss


METHODS: dict[str, type[Plain]] = {
    "sgd": Plain,
    "mcover": Routed,
    "rsgd": Replicated,
    "elastic": Elastic,
    "entropy": Entropic,
    "swa": Averaged,
    "ema": Ema,
    "sam": SharpnessAware,
}


def require_covers(model: nn.Module, method: str) -> None:
    if not is_covered(model):
        raise McoverError(
            f"method {method!r} acts on covers, and the model is a plain "
            f"{type(model).__name__}; write mcover.lift(model, covers=4, topology=...)."
        )


def groups(model: nn.Module, parameters: list[nn.Parameter], method: str) -> list[dict[str, Any]]:
    """Stacked parameters, and apart from them those that all covers share."""
    require_covers(model, method)
    stacked = {id(one) for one in cast(Any, model).stacks().values()}
    covers = [one for one in parameters if id(one) in stacked]
    shared = [one for one in parameters if id(one) not in stacked]
    return [{"params": covers}] + ([{"params": shared, "replicas": False}] if shared else [])
