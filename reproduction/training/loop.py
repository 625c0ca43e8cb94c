"""An ordinary training loop, for plain modules and covered ones, for every method alike."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.random import SeedSequence
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from mcover import checks
from mcover.errors import McoverError
from mcover.logs import HistoryLog
from mcover.nn import binary
from mcover.optim import Bop, ElasticSGD, EntropySGD, ReplicatedSGD
from mcover.seeds import Seed, seed_sequence
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

Stopped = Literal["epochs", "loss", "errors", "interrupt"]
Floats = NDArray[np.float64]

_PAPER = Training()
_SHOW_SECONDS = 0.1


@dataclass(frozen=True)
class Status:
    """What a live line may show."""

    share: float
    epoch: int
    loss: float
    """Of the last gradient step, per cover."""
    collapse_error: float
    """When last evaluated; nan before."""


@dataclass(frozen=True, eq=False)
class History:
    """The course of a training; errors are shares of wrong labels of the test images.

    Shape:
        epoch, train_loss, collapse_error, distance, seconds, gradients: (evaluations,);
        cover_error and routed_error: (evaluations, covers), where a plain module has one cover.
    """

    epoch: Floats
    """Epochs done at each evaluation; a fraction where training was interrupted."""
    train_loss: Floats
    """Mean loss per cover over the gradient steps since the previous evaluation."""
    cover_error: Floats
    """Of each cover by itself, as a model of the base class."""
    routed_error: Floats | None
    """Of the virtual models along the routes; None where the model is not covered, and for
    committee machines, whose hard output is defined for single machines only."""
    collapse_error: Floats
    """Of the collapse, of an average of weights, or of the plain module."""
    distance: Floats | None
    """Mean squared distance of two covers over the mean squared norm of one: 0 where all are equal,
    2 where they have nothing in common; None for a plain module."""
    seconds: Floats
    """Spent in gradient steps and stopping rules, not in evaluations."""
    gradients: NDArray[np.int64]
    """Minibatch gradients of one model so far: a step of M covers takes M of them, times the
    destinations or streams of a forward; SAM takes twice as many."""
    stopped: Stopped
    """What ended it: the last epoch, the loss or the errors of the stopping rule, or Ctrl-C."""
    model: nn.Module = field(repr=False)
    """The collapse, the average of weights, or the plain module."""

    @property
    def interrupted(self) -> bool:
        return self.stopped == "interrupt"


def fit(
    model: nn.Module,
    data: Dataset,
    training: Training = _PAPER,
    method: BinaryMethod = options.PLAIN,
    *,
    seed: Seed = 0,
    progress: Callable[[Status], None] | None = None,
    objective: Objective | None = None,
    log: str | Path | None = None,
    tensorboard: bool = False,
) -> History:
    """Trains a module in place, as any training loop does, and follows it on the test images.

    A covered module is trained with :func:`mcover.cover_loss`; any other with the cross-entropy. A
    committee machine, or covers of one, bring their own loss and fast gradients. Ctrl-C ends the
    training and returns what was reached.

    Args:
        model: takes images (B, height, width), returns logits (B, classes) or (covers, B, classes).
        data: what to train and to evaluate on.
        training: epochs, batches, learning rate and stopping rule.
        method: what moves the weights. RSGD and Elastic, and Lifted, act on a covered model, along
            the routes it was lifted with; SGD() trains either.
        seed: orders the images, and draws dropout and noise.
        progress: called now and then.
        objective: what to minimise, of this very model; None is its own loss, as above.
        log: file for the history while it is made, one JSON object a line for each evaluation.
        tensorboard: whether TensorBoard events go to a folder beside it, of the same name.
    """
    if checks.check_bool("tensorboard", tensorboard) and log is None:
        raise McoverError("tensorboard is True and log is None; write log='out/run.jsonl' too.")
    checks.check_instance("model", model, nn.Module, "a torch.nn.Module")
    checks.check_instance(
        "data", data, Dataset, "a data set, e.g. reproduction.data.load('digits')"
    )
    checks.check_instance("training", training, Training, "Training(epochs=40)")
    options.check_optimizer(training, method)
    loop = _Loop(model, data, training, options.check_method(method), seed, progress, objective)
    loop.log = None if log is None else HistoryLog(log, tensorboard)
    with seeded(loop.torch_seed, loop.device):
        try:
            loop.run()
        except KeyboardInterrupt:
            loop.stopped = "interrupt"
            if loop.steps_since:
                loop.evaluate()
        finally:
            if loop.log is not None:
                loop.log.close()
    return loop.history()


class _Loop:
    """The state of a training between its gradient steps."""

    def __init__(
        self,
        model: nn.Module,
        data: Dataset,
        training: Training,
        method: BinaryMethod,
        seed: Seed,
        progress: Callable[[Status], None] | None,
        objective: Objective | None = None,
    ) -> None:
        self.parameters = [one for one in model.parameters() if one.requires_grad]
        if not self.parameters:
            raise McoverError("the model has no parameters to train; set requires_grad on some.")
        if not len(data.train_labels) or not len(data.test_labels):
            raise McoverError(f"{data.name} has no training or no test images; give some of each.")
        _check_covers(model, method)
        self.model, self.training, self.method, self.progress = model, training, method, progress
        self.objective = objective or objective_of(model)
        self.device = self.parameters[0].device
        self.images, self.labels = self.objective.tensors(data.train_images, data.train_labels)
        self.test = self.objective.tensors(data.test_images, data.test_labels)
        self.torch_seed, order, noise, walk = seed_sequence(seed).spawn(4)
        self.noise = generator(noise, self.device)
        self.each = isinstance(method, RSGD | Elastic)  # every cover has batches of its own
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
        self.parting: Any = None
        self.stopped: Stopped = "epochs"
        self.epochs = self.gradients = self.steps_since = 0
        self.loss = torch.zeros((), device=self.device)
        self.seconds = 0.0
        self.rows: list[dict[str, Any]] = []
        self.log: HistoryLog | None = None
        self.single = model
        self._shown = time.monotonic()

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
                options.require("pytorch_optimizer", "SAM", "rivals")
                import pytorch_optimizer

                return pytorch_optimizer.SAM(parameters, base, rho=rho, **common)
            case options.Flips(adaptivity, threshold):
                rest = base(binary.others(self.model), **common)
                binary.snap_latents(self.model)
                flips = binary.latents(self.model).values()
                return Bop(flips, adaptivity, threshold, rest=rest)
        return base(parameters, **common)

    def run(self) -> None:
        self.model.train()
        self.at_branches()
        every, over = self.training.evaluate_every, False
        while not over:
            begin = time.perf_counter()
            self.show(self.step())
            before, self.epochs = self.epochs, self.batches.taken // self.batches.length
            if self.epochs > before:
                self.end_epoch()
                over = self.over()
            over = over or self.batches.taken >= self.total
            self.seconds += time.perf_counter() - begin
            if over or self.epochs // every > before // every:
                self.evaluate()

    def step(self) -> Tensor:
        """Moves the weights once, as the method does; returns the loss per cover before."""
        match self.method:
            case RSGD(covers=covers):
                # The coupling takes its scale from the loss summed over the covers.
                loss: Tensor = self.optimizer.step(lambda: self.fresh() * covers) / covers
            case Entropy():  # as many batches as the walk has gradients
                loss = self.optimizer.step(self.fresh)
            case SAM():
                loss = self.fresh()
                try:
                    self.optimizer.step(self.again)
                except BaseException:
                    with torch.no_grad():  # an interrupt must not leave the weights uphill
                        for weight, state in self.optimizer.state.items():
                            if "old_p" in state:
                                weight.copy_(state.pop("old_p"))
                    raise
            case _:
                loss = self.fresh()
                self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        if isinstance(self.method, EMA) and self.average is not None:
            self.average.update_parameters(self.model)
        self.objective.settle()
        self.loss += loss
        self.steps_since += 1
        return loss

    def fresh(self) -> Tensor:
        """Puts gradients on the next batch in place; returns the loss per cover."""
        if self.batches.taken % self.batches.length == 0:
            self.objective.begin(self.age(self.batches.taken // self.batches.length))
        self.batch = self.batches.next()
        return self.again()

    def again(self) -> Tensor:
        """The same on the batch of before."""
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

    def age(self, epoch: int) -> int:
        """Epochs that the model has behind it: a branch goes on where its trunk ended."""
        trunk, each = self.split or (epoch, 1)
        return min(epoch, trunk + (epoch - trunk) % each)

    def at_branches(self) -> None:
        """Keeps the end of the trunk, averages the ends of branches, and starts the next there."""
        if self.split is None or self.age(self.epochs) != self.split[0]:
            return
        if self.parting is None:
            now = self.model.state_dict(), self.optimizer.state_dict()
            self.parting = copy.deepcopy(now)
            return
        self.average = self.average or AveragedModel(self.model)
        self.average.update_parameters(self.model)
        if self.epochs < self.training.epochs:
            self.model.load_state_dict(self.parting[0])
            self.optimizer.load_state_dict(copy.deepcopy(self.parting[1]))

    @contextmanager
    def source(self) -> Iterator[nn.Module]:
        """Inside, the module whose collapse is the outcome."""
        if isinstance(self.method, Elastic):
            with self.optimizer.at_centre():
                yield self.model
        else:
            yield self.model if self.average is None else self.average.module

    def over(self) -> bool:
        """Whether the stopping rule is met.

        SWA has nothing to judge before it averages, and a soup before all branches have ended.
        """
        rule = self.training
        early = isinstance(self.method, SWA) and self.average is None
        early |= isinstance(self.method, Soup) and self.epochs < rule.epochs
        if (rule.stop_loss is None and rule.stop_error is None) or early:
            return False
        with self.source() as source:
            losses, wrong = self.objective.judge(source, self.images, self.labels, rule.judge)
        if rule.stop_loss is not None and losses.max() < rule.stop_loss:
            self.stopped = "loss"
        elif rule.stop_error is not None and wrong.max() <= rule.stop_error:
            self.stopped = "errors"
        return self.stopped != "epochs"

    def evaluate(self) -> None:
        loss = float(self.loss) / self.steps_since
        if not np.isfinite(loss):
            raise McoverError(
                f"training diverged: the loss is {loss} after {self.batches.passes:.4g} epochs; "
                f"write a smaller lr (it is {self.training.lr}) or less noise."
            )
        self.single = self.collapsed()
        judge = self.objective.judge
        self.rows.append(
            {
                "epoch": self.batches.passes,
                "train_loss": loss,
                "cover_error": judge(self.model, *self.test, "covers")[1],
                "routed_error": self.objective.routed_errors(self.model, *self.test),
                "collapse_error": judge(self.single, *self.test, "covers")[1][0],
                "distance": distance(self.model),
                "seconds": self.seconds,
                "gradients": self.gradients,
            }
        )
        if self.log is not None:
            self.log.write(self.batches.taken, self.rows[-1])
        self.loss.zero_()
        self.steps_since = 0

    def collapsed(self) -> nn.Module:
        """The collapse of the covers, an average of weights, or the module itself."""
        with self.source() as source:
            if source is self.model:
                return self.objective.recalibrated(self.objective.collapse(source), self.images)
            source = copy.deepcopy(source)
        update_bn(self.images.split(self.training.batch), source)
        return self.objective.recalibrated(self.objective.collapse(source), self.images)

    def show(self, loss: Tensor) -> None:
        now = time.monotonic()
        if self.progress is None or now - self._shown < _SHOW_SECONDS:
            return
        self._shown = now
        done, error = self.batches.taken, self.rows[-1]["collapse_error"] if self.rows else np.nan
        epoch = -(-done // self.batches.length)
        self.progress(Status(min(done / self.total, 1.0), epoch, float(loss), error))

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
