"""What a trial does: builds its model, trains it, and reads off the outcome."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from mcover import lift
from mcover.errors import McoverWarning
from mcover.lab.data import Dataset
from mcover.lab.models import Architecture
from mcover.lab.training.loop import History, Status, fit
from mcover.lab.training.objectives import objective_of
from mcover.lab.training.options import ON_COVERS, SGD, Lifted, Method, Training
from mcover.topology import Identity


def train(
    kind: Architecture,
    data: Dataset,
    training: Training,
    method: Method,
    seed: int,
    progress: Callable[[Status], None] | None = None,
) -> History:
    """Builds a model, covers it where the method acts on covers, and trains it.

    Weights, lift and batches have the seeds (seed, 0), (seed, 1) and (seed, 2).
    """
    if isinstance(method, Lifted) and method.covers == 1:
        method = SGD()  # one cover is the model itself
    model = build(kind, method, seed)
    return fit(model, data, training, method, seed=[seed, 2], progress=progress)


def build(kind: Architecture, method: Method, seed: int) -> nn.Module:
    """A model with fresh weights, covered where the method acts on covers."""
    base = kind.build([seed, 0])
    if not isinstance(method, ON_COVERS):
        return base
    covers: int | list[nn.Module] = method.covers
    if method.start == "independent":
        covers = [base, *(kind.build([seed, 0, other]) for other in range(1, method.covers))]
    how: tuple[Any, ...] = (Identity(),)  # replicas have no routes
    if isinstance(method, Lifted):
        how = method.topology, method.routing
    with warnings.catch_warnings():
        # The paper's noise, and ours for few images, are meant as they are: training starts here.
        warnings.filterwarnings("ignore", "noise=", McoverWarning)
        return lift(base, covers, *how, noise=method.noise, seed=[seed, 1])


def outcome(history: History, data: Dataset) -> dict[str, float]:
    """The last evaluation in plain numbers, and the collapse on the training images."""
    if history.interrupted:
        raise KeyboardInterrupt
    objective = objective_of(history.model)
    images, labels = objective.tensors(data.train_images, data.train_labels)
    loss, wrong = objective.judge(history.model, images, labels, "collapse")
    found = {
        "error": float(history.collapse_error[-1]),
        "cover_error": float(history.cover_error[-1].mean()),
        "train_error": float(wrong[0]),
        "loss": float(loss[0]),
        "epochs": float(history.epoch[-1]),
        "gradients": float(history.gradients[-1]),
    }
    if history.routed_error is not None:
        found["routed_error"] = float(history.routed_error[-1].mean())
    return found


def combined(trainings: Iterable[History], data: Dataset, vote: bool) -> dict[str, float]:
    """Several trainings on the same images: the one of least training loss, or their vote."""
    histories = []
    for history in trainings:
        if history.interrupted:
            raise KeyboardInterrupt
        histories.append(history)
    errors = [float(history.collapse_error[-1]) for history in histories]
    error = errors[int(np.argmin([history.train_loss[-1] for history in histories]))]
    if vote:
        images, labels = torch.from_numpy(data.test_images), torch.from_numpy(data.test_labels)
        with torch.no_grad():
            answers = [history.model.eval()(images).softmax(dim=-1) for history in histories]
        guess = torch.stack(answers).mean(dim=0).argmax(dim=-1)
        error = float((guess != labels).double().mean())
    return {
        "error": error,
        "cover_error": float(np.mean(errors)),
        "epochs": float(histories[0].epoch[-1]),
        "gradients": float(sum(history.gradients[-1] for history in histories)),
    }


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums in one order, so that outcomes do not depend on how many CPUs there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
