"""What moves the weights: one step of each method, and the model that it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from numpy.random import SeedSequence
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mcover.errors import McoverError
from mcover.lab.training import options
from mcover.lab.training.objectives import covers_of, is_covered
from mcover.lab.training.options import EMA, RSGD, SAM, SWA, Elastic, Entropy, Method, Training
from mcover.optim import ElasticSGD, EntropySGD, ReplicatedSGD

Gradient = Callable[[], Tensor]


class Mover:
    """SGD on the model as it is, routed covers included, and what a method adds to that.

    Attributes:
        each: whether every cover sees batches of its own.
    """

    def __init__(
        self, model: nn.Module, training: Training, method: Method, steps: int, seed: SeedSequence
    ) -> None:
        _check_covers(model, method)
        self.model, self.training, self.method = model, training, method
        self.each = isinstance(method, RSGD | Elastic)
        self.optimizer = _optimizer(model, training, method, steps, seed)
        self.average: AveragedModel | None = None
        if isinstance(method, EMA):
            decay = get_ema_multi_avg_fn(method.decay)
            self.average = AveragedModel(model, multi_avg_fn=decay)

    @property
    def ready(self) -> bool:
        """Whether there is what the method is about, for a stopping rule to look at."""
        return self.average is not None or not isinstance(self.method, SWA)

    def step(self, fresh: Gradient, again: Gradient) -> Tensor:
        """Moves the weights once, and returns the loss per cover before.

        Args:
            fresh: puts gradients on the next batch in place, and returns the loss per cover.
            again: the same on the batch of before.
        """
        match self.method:
            case RSGD():
                # The coupling takes its scale from the loss summed over the covers.
                covers = covers_of(self.model)
                return cast(Tensor, self.optimizer.step(lambda: fresh() * covers)) / covers
            case Entropy():  # as many batches as the walk has gradients
                return cast(Tensor, self.optimizer.step(fresh))
            case SAM():
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
        loss = fresh()
        self.optimizer.step()
        if isinstance(self.method, EMA) and self.average is not None:
            self.average.update_parameters(self.model)
        return loss

    def end_epoch(self, epoch: int) -> None:
        """Called when ``epoch`` passes are done."""
        match self.method:
            case options.Lifted(redraw_each_epoch=True):
                cast(Any, self.model).redraw()
            case SWA(average_from) if epoch > average_from * self.training.epochs:
                self.average = self.average or AveragedModel(self.model)
                self.average.update_parameters(self.model)

    @contextmanager
    def source(self) -> Iterator[nn.Module]:
        """Inside, the module whose collapse is the outcome."""
        if isinstance(self.method, Elastic):
            with self.optimizer.at_centre():
                yield self.model
        else:
            yield self.model if self.average is None else self.average.module


def _optimizer(
    model: nn.Module, training: Training, method: Method, steps: int, seed: SeedSequence
) -> Any:
    parameters = [one for one in model.parameters() if one.requires_grad]
    common: dict[str, Any] = {
        "lr": training.lr,
        "momentum": training.momentum,
        "nesterov": training.momentum > 0,
        "weight_decay": training.weight_decay,
    }
    match method:
        case RSGD(coupling=coupling, growth=growth):
            groups = _groups(model, parameters)
            return ReplicatedSGD(groups, coupling=coupling, growth=growth, steps=steps, **common)
        case Elastic(coupling=coupling, period=period):
            groups = _groups(model, parameters)
            return ElasticSGD(groups, coupling=coupling, period=period, **common)
        case Entropy():
            walk = {"inner_steps": method.inner_steps, "inner_lr": training.lr, "seed": seed}
            pull = {"scope": method.scope, "scoping": method.scoping, "noise": method.langevin}
            return EntropySGD(parameters, **common | walk | pull | {"lr": method.outer_lr})
        case SAM(rho):
            options.require("pytorch_optimizer", "SAM", "rivals")
            import pytorch_optimizer

            return pytorch_optimizer.SAM(parameters, torch.optim.SGD, rho=rho, **common)
    return torch.optim.SGD(parameters, **common)


def _check_covers(model: nn.Module, method: Method) -> None:
    if not isinstance(method, options.ON_COVERS):
        return
    name, covers = type(method).__name__, covers_of(model)
    if not is_covered(model):
        raise McoverError(
            f"{name} acts on covers, and the model is a plain {type(model).__name__}; "
            f"write mcover.lift(model, covers={method.covers}, topology=...)."
        )
    if covers != method.covers:
        raise McoverError(
            f"the model has {covers} covers, and {name} has {method.covers}; write "
            f"{name}(covers={covers})."
        )


def _groups(model: nn.Module, parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
    """Stacked parameters, and apart from them those that all covers share."""
    stacked = {id(one) for one in cast(Any, model).stacks().values()}
    covers = [one for one in parameters if id(one) in stacked]
    shared = [one for one in parameters if id(one) not in stacked]
    return [{"params": covers}] + ([{"params": shared, "replicas": False}] if shared else [])
