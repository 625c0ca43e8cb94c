"""One experiment with one seed: data, model, covers and training put together."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import nn

from mcover.errors import McoverError, McoverWarning
from mcover.lab.data import Dataset, holdout, load, subset
from mcover.lab.models import Committee, Conv, Kind, paper_mlp, small_mlp
from mcover.lab.training.experiment import COVERED, Experiment
from mcover.lab.training.history import History, Status
from mcover.lab.training.loop import fit
from mcover.lab.training.objective_of import objective_of


@dataclass(frozen=True)
class Outcome:
    """What a trial found, in plain numbers; the one model is the collapse of the covers."""

    error: float
    """Share of wrong test images, or validation images, of the one model."""
    cover_error: float
    """The same of a cover, mean over all."""
    train_error: float
    """Share of wrong training images of the one model."""
    loss: float
    """Mean loss of the one model on the training images."""
    epochs: float
    gradients: int
    """Gradients of a single model on a minibatch."""
    seconds: float
    """Spent in training."""
    stopped: str
    """What ended it: epochs, loss or errors."""
    history: History = field(repr=False, compare=False)


def run_trial(
    experiment: Experiment,
    seed: int,
    progress: Callable[[Status], None] | None = None,
    whole: Dataset | None = None,
) -> Outcome:
    """Runs an experiment with one seed.

    Trials are paired: with the same seed, whatever the method, the images, the weights of the first
    cover and the order of its batches are the same.

    Args:
        experiment: all but the seed.
        seed: draws weights, routes, batches and noise; and the images, unless ``subset_seed`` does.
        progress: called now and then.
        whole: what ``dataset(experiment)`` returned, to load it once for many trials.

    Raises:
        KeyboardInterrupt: on Ctrl-C; a part of a trial is no outcome.
    """
    history = train(experiment, seed, progress, whole)
    if history.interrupted:
        raise KeyboardInterrupt
    return outcome(history, images_of(experiment, seed, whole))


def train(
    experiment: Experiment,
    seed: int,
    progress: Callable[[Status], None] | None = None,
    whole: Dataset | None = None,
) -> History:
    """The training of a trial; one that Ctrl-C ended is returned as far as it went."""
    data = images_of(experiment, seed, whole)
    model = model_of(experiment, data, seed)
    how = experiment.training
    if experiment.count == 1 and how.method == "mcover":
        how = replace(how, method="sgd")  # one cover is the model itself
    return fit(model, data, how, seed=[seed, 2], progress=progress)


def outcome(history: History, data: Dataset) -> Outcome:
    """The last evaluation, and the one model on its training images."""
    model = history.model
    objective = objective_of(model)
    like = next(model.parameters())
    images = objective.images(data.train_images, like)
    labels = objective.labels(data.train_labels, like)
    loss, wrong = objective.judge(model, images, labels, "collapse")
    return Outcome(
        error=float(history.collapse_error[-1]),
        cover_error=float(history.cover_error[-1].mean()),
        train_error=float(wrong[0]),
        loss=float(loss[0]),
        epochs=float(history.epoch[-1]),
        gradients=int(history.gradients[-1]),
        seconds=float(history.seconds[-1]),
        stopped=history.stopped,
        history=history,
    )


def dataset(experiment: Experiment) -> Dataset:
    """The data set before images are held out or left out."""
    median = (experiment.pixels or ("median" if experiment.committee else "normalized")) == "median"
    found = load(experiment.data, normalize=not median, binarize="median" if median else None)
    if experiment.committee and found.classes != 2:
        raise McoverError(
            f"a committee machine tells two classes apart, {found.name} has {found.classes}; "
            f"name two: --data {found.name.partition(':')[0]}:3,8."
        )
    return found


def images_of(experiment: Experiment, seed: int, whole: Dataset | None = None) -> Dataset:
    """The images of a trial."""
    found = dataset(experiment) if whole is None else whole
    drawn = seed if experiment.subset_seed is None else experiment.subset_seed
    if experiment.validation is not None:
        found = holdout(found, experiment.validation, drawn)
    return found if experiment.images is None else subset(found, experiment.images, drawn)


def kind_of(experiment: Experiment, data: Dataset) -> Kind:
    """The model that is trained, without its weights."""
    if experiment.model == "conv":
        height, width = data.train_images.shape[1:]
        return Conv((height, width), classes=data.classes, dropout=experiment.dropout)
    if not experiment.committee:
        make = paper_mlp if experiment.model == "mlp" else small_mlp
        return make(data.inputs, data.classes, experiment.dropout)
    hidden = 9 if experiment.hidden is None else experiment.hidden
    return Committee(data.inputs, hidden, experiment.schedule or "slow", not experiment.free_norms)


def model_of(experiment: Experiment, data: Dataset, seed: int) -> nn.Module:
    """The model of a trial on its images, covered where its method acts on covers."""
    kind = kind_of(experiment, data)
    base = kind.build([seed, 0])
    method = experiment.training.method
    if method not in COVERED or (method == "mcover" and experiment.count == 1):
        return base
    from mcover.nn import lift

    covers: int | list[nn.Module] = experiment.count
    if not experiment.common_start:
        others = range(1, experiment.count)
        covers = [base, *(kind.build([seed, 0, other]) for other in others)]
    steps = -(-len(data.train_labels) // experiment.training.batch)
    with warnings.catch_warnings():
        # The paper's noise, and ours for few images, are meant as they are: training starts here.
        warnings.filterwarnings("ignore", "noise=", McoverWarning)
        return lift(base, covers, seed=[seed, 1], **experiment.lift_options(steps))
