"""An ordinary training loop for plain and covered modules, for all methods."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.random import SeedSequence
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from mcover import McoverError
from mcover.nn import binary
from mcover.optim import Bop, ElasticSGD, EntropySGD, ReplicatedSGD
from reproduction.data import Dataset
from reproduction.models import seeded
from reproduction.training import options
from reproduction.training.draws import Batches, dropped, generator, noisy
from reproduction.training.objectives import (
    Objective,
    covers_of,
    distance,
    is_covered,
    objective_of,
)
from reproduction.training.options import (
    EMA,
    RSGD,
    SAM,
    SWA,
    BinaryMethod,
    Elastic,
    Entropy,
    Soup,
    Training,
)

Stopped = Literal["epochs", "loss", "errors"]
Floats = NDArray[np.float64]

_PAPER = Training()


@dataclass(frozen=True, eq=False)
class History:
    """The history of a training; errors are shares of wrong labels on the test images.

    Shape:
        epoch, train_loss, collapse_error, distance, gradients: (evaluations,);
        cover_error and routed_error: (evaluations, covers); a plain module has one cover.
    """

    epoch: Floats
    """Epochs done at each evaluation."""
    train_loss: Floats
    """Mean loss per cover over the gradient steps since the previous evaluation."""
    cover_error: Floats
    """The errors of single covers, as models of the base class."""
    routed_error: Floats | None
    """Of the virtual models along the routes; None if the model is not covered, and for committee
    machines, whose hard output is defined for single machines only."""
    collapse_error: Floats
    """Of the collapse, of an average of weights, or of the plain module."""
    distance: Floats | None
    """Mean squared distance of two covers over the mean squared norm of one: 0 if all are equal,
    2 if they are orthogonal; None for a plain module."""
    gradients: NDArray[np.int64]
    """Minibatch gradients of one model so far: a step of M covers uses M of them, times the
    destinations or streams of a forward pass; SAM uses twice as many."""
    stopped: Stopped
    """What ended the training: the last epoch, or the loss or error of the stopping rule."""
    model: nn.Module = field(repr=False)
    """The collapse, the average of weights, or the plain module."""


def fit(
    model: nn.Module,
    data: Dataset,
    training: Training = _PAPER,
    method: BinaryMethod = options.PLAIN,
    *,
    seed: int | Sequence[int] = 0,
    objective: Objective | None = None,
) -> History:
    """Trains a module in place, and evaluates it on the test images.

    A covered module is trained with :func:`mcover.cover_loss`, any other with the cross-entropy.
    Committee machines and their covers have a special loss and fused gradients.

    Args:
        model: takes images (B, height, width), returns logits (B, classes) or (covers, B, classes).
        data: training and test images.
        training: epochs, batches, learning rate and stopping rule.
        method: how weights are updated. RSGD, Elastic and Lifted need a covered model, which
            already has its routes; SGD() trains plain and covered models.
        seed: draws the order of the images, dropout and noise.
        objective: the loss of this model; None for the default described above.
    """
    options.check_method(training, method)
    loop = Loop(model, data, training, method, seed, objective)
    with seeded(loop.torch_seed, loop.device):
        loop.run()
    return loop.history()


class Loop:
    """The state of a training between its gradient steps."""

    def __init__(
        self,
        model: nn.Module,
        data: Dataset,
        training: Training,
        method: BinaryMethod,
        seed: int | Sequence[int],
        objective: Objective | None = None,
    ) -> None:
        self.parameters = [one for one in model.parameters() if one.requires_grad]
        if not self.parameters:
            raise McoverError("the model has no parameters to train; set requires_grad on some.")
        _check_covers(model, method)
        self.model, self.training, self.method = model, training, method
        self.objective = objective or objective_of(model)
        self.device = self.parameters[0].device
        self.images, self.labels = self.objective.tensors(data.train_images, data.train_labels)
        self.test = self.objective.tensors(data.test_images, data.test_labels)
        self.torch_seed, order, noise, walk = SeedSequence(seed).spawn(4)
        self.noise = generator(noise, self.device)
        self.each = isinstance(method, RSGD | Elastic)  # every cover has its own batches
        covers = self.objective.covers if self.each else None
        self.batches = Batches(self.images, self.labels, training.batch, order, covers)
        self.total = training.epochs * self.batches.length
        self.optimizer = self.make_optimizer(walk)
        self.schedule: CosineAnnealingLR | None = None
        if training.lr_schedule == "cosine":
            self.schedule = CosineAnnealingLR(self.optimizer, self.total)
        self.average: AveragedModel | None = None
        if isinstance(method, EMA):
            decay = get_ema_multi_avg_fn(method.decay)
            self.average = AveragedModel(model, multi_avg_fn=decay)
        self.split = method.split(training.epochs) if isinstance(method, Soup) else None
        self.trunk_end: Any = None
        self.stopped: Stopped = "epochs"
        self.epochs = self.gradients = self.steps_since_record = 0
        self.loss = torch.zeros((), device=self.device)
        self.rows: list[dict[str, Any]] = []
        self.single = model

    def make_optimizer(self, seed: SeedSequence) -> Any:
        given, method, parameters = self.training, self.method, self.parameters
        common: dict[str, Any] = {"lr": given.lr, "weight_decay": given.weight_decay}
        base: Any = torch.optim.SGD
        if given.optimizer == "adam":
            base = torch.optim.Adam
            common |= {"betas": (given.momentum, 0.999)}
        else:
            common |= {"momentum": given.momentum, "nesterov": given.momentum > 0}
        match method:
            case RSGD(coupling=coupling, growth=growth, growth_epochs=epochs):
                steps = self.total if epochs is None else epochs * self.batches.length
                common |= {"coupling": coupling, "growth": growth, "steps": steps}
                return ReplicatedSGD(_groups(self.model, parameters), base=base, **common)
            case Elastic(coupling=coupling, period=period):
                common |= {"coupling": coupling, "period": period}
                return ElasticSGD(_groups(self.model, parameters), base=base, **common)
            case Entropy():
                common |= {"lr": method.outer_lr, "inner_lr": given.lr, "seed": seed}
                common |= {"scope": method.scope, "scoping": method.scoping}
                common |= {"noise": method.langevin, "inner_steps": method.inner_steps}
                return EntropySGD(parameters, **common)
            case SAM(rho):
                import pytorch_optimizer

                return pytorch_optimizer.SAM(parameters, base, rho=rho, **common)
            case options.Flips(adaptivity, threshold):
                rest = base(binary.other_parameters(self.model), **common)
                binary.snap_latents(self.model)
                flips = binary.latents(self.model).values()
                return Bop(flips, adaptivity, threshold, rest=rest)
        return base(parameters, **common)

    def run(self) -> None:
        self.model.train()
        self.at_branches()
        every, stop = self.training.evaluate_every, False
        while not stop:
            self.step()
            before, self.epochs = self.epochs, self.batches.taken // self.batches.length
            if self.epochs > before:
                self.end_epoch()
                stop = self.should_stop()
            stop = stop or self.batches.taken >= self.total
            if stop or self.epochs // every > before // every:
                self.record()

    def step(self) -> None:
        """Updates the weights once."""
        match self.method:
            case RSGD(covers=covers):
                # The loss summed over the covers sets the scale of the coupling.
                summed = self.optimizer.step(lambda: self.backward_next_batch() * covers)
                loss: Tensor = summed / covers
            case Entropy():  # one batch for each gradient of the walk
                loss = self.optimizer.step(self.backward_next_batch)
            case SAM():
                loss = self.backward_next_batch()
                self.optimizer.step(self.backward_same_batch)
            case _:
                loss = self.backward_next_batch()
                self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        if isinstance(self.method, EMA) and self.average is not None:
            self.average.update_parameters(self.model)
        self.objective.after_step()
        self.loss += loss
        self.steps_since_record += 1

    def backward_next_batch(self) -> Tensor:
        """Sets the gradients of the next batch; returns the loss per cover."""
        if self.batches.taken % self.batches.length == 0:
            epoch = self.batches.taken // self.batches.length
            self.objective.begin_epoch(self.schedule_epoch(epoch))
        self.batch = self.batches.next()
        return self.backward_same_batch()

    def backward_same_batch(self) -> Tensor:
        """Sets the gradients of the current batch; returns the loss per cover."""
        given, weights = self.training, self.parameters
        with (
            noisy(weights, given.weight_noise, self.noise),
            dropped(weights, given.drop_connect, self.noise),
        ):
            loss = self.objective.gradient(*self.batch, self.each)
        self.gradients += self.objective.width
        return loss

    def end_epoch(self) -> None:
        match self.method:
            case options.Lifted(redraw_each_epoch=True):
                cast(Any, self.model).redraw()
            case SWA(average_from) if self.epochs > average_from * self.training.epochs:
                self.average = self.average or AveragedModel(self.model)
                self.average.update_parameters(self.model)
            case Soup():
                self.at_branches()

    def schedule_epoch(self, epoch: int) -> int:
        """The epoch for schedules: each branch of a soup continues where the trunk ended."""
        trunk, each = self.split or (epoch, 1)
        return min(epoch, trunk + (epoch - trunk) % each)

    def at_branches(self) -> None:
        """Stores the end of the trunk; averages each branch's end and returns to the trunk."""
        if self.split is None or self.schedule_epoch(self.epochs) != self.split[0]:
            return
        if self.trunk_end is None:
            now = self.model.state_dict(), self.optimizer.state_dict()
            self.trunk_end = copy.deepcopy(now)
            return
        self.average = self.average or AveragedModel(self.model)
        self.average.update_parameters(self.model)
        if self.epochs < self.training.epochs:
            self.model.load_state_dict(self.trunk_end[0])
            self.optimizer.load_state_dict(copy.deepcopy(self.trunk_end[1]))

    @contextmanager
    def source(self) -> Iterator[nn.Module]:
        """The module whose collapse is the outcome, valid inside the block."""
        if isinstance(self.method, Elastic):
            with self.optimizer.at_centre():
                yield self.model
        else:
            yield self.model if self.average is None else self.average.module

    def should_stop(self) -> bool:
        """Whether the stopping rule is met.

        SWA has no average before its averaging starts, and a soup has none before its last branch.
        """
        rule = self.training
        early = isinstance(self.method, SWA) and self.average is None
        early |= isinstance(self.method, Soup) and self.epochs < rule.epochs
        if (rule.stop_loss is None and rule.stop_error is None) or early:
            return False
        with self.source() as source:
            losses, wrong = self.objective.evaluate(source, self.images, self.labels, "collapse")
        if rule.stop_loss is not None and losses.max() < rule.stop_loss:
            self.stopped = "loss"
        elif rule.stop_error is not None and wrong.max() <= rule.stop_error:
            self.stopped = "errors"
        return self.stopped != "epochs"

    def record(self) -> None:
        """Evaluates the model on the test images and adds a row to the history."""
        loss = float(self.loss) / self.steps_since_record
        if not np.isfinite(loss):
            raise McoverError(
                f"training diverged: the loss is {loss} after {self.batches.passes:.4g} epochs; "
                f"write a smaller lr (it is {self.training.lr}) or less noise."
            )
        self.single = self.collapsed()
        evaluate = self.objective.evaluate
        self.rows.append(
            {
                "epoch": self.batches.passes,
                "train_loss": loss,
                "cover_error": evaluate(self.model, *self.test, "covers")[1],
                "routed_error": self.objective.routed_errors(self.model, *self.test),
                "collapse_error": evaluate(self.single, *self.test, "covers")[1][0],
                "distance": distance(self.model),
                "gradients": self.gradients,
            }
        )
        self.loss.zero_()
        self.steps_since_record = 0

    def collapsed(self) -> nn.Module:
        """The collapse of the covers, an average of weights, or the module itself."""
        with self.source() as source:
            if source is self.model:
                return self.objective.recalibrated(self.objective.collapse(source), self.images)
            source = copy.deepcopy(source)
        # No weights of an average were trained with its batch norms.
        update_bn(self.images.split(self.training.batch), source)
        return self.objective.recalibrated(self.objective.collapse(source), self.images)

    def history(self) -> History:
        names = [one.name for one in fields(History) if one.name not in ("stopped", "model")]
        columns: dict[str, Any] = {n: np.array([row[n] for row in self.rows]) for n in names}
        for name in ("routed_error", "distance"):
            if columns[name].dtype == object:  # of None
                columns[name] = None
        return History(**columns, stopped=self.stopped, model=self.single)


def _check_covers(model: nn.Module, method: BinaryMethod) -> None:
    if not isinstance(method, options.ON_COVERS):
        return
    name, covers = type(method).__name__, covers_of(model)
    if not is_covered(model):
        raise McoverError(
            f"{name} needs covers, and the model is a plain {type(model).__name__}; "
            f"write mcover.lift(model, covers={method.covers}, topology=...)."
        )
    if covers != method.covers:
        raise McoverError(
            f"the model has {covers} covers, and {name} has {method.covers}; write "
            f"{name}(covers={covers})."
        )


def _groups(model: nn.Module, parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
    """A group of stacked parameters, and a group of parameters that all covers share."""
    stacked = {id(one) for one in cast(Any, model).stacks().values()}
    covers = [one for one in parameters if id(one) in stacked]
    shared = [one for one in parameters if id(one) not in stacked]
    return [{"params": covers}] + ([{"params": shared, "replicas": False}] if shared else [])
