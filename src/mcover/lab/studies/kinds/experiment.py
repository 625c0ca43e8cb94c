"""One training: a network or a committee machine, by any method, with one seed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np

from mcover.errors import McoverError
from mcover.lab.studies.cells import Plain
from mcover.lab.training.experiment import Experiment
from mcover.lab.training.settings import Training

if TYPE_CHECKING:
    from mcover.lab.data import Dataset

_SEVERAL = {"ensemble", "restarts"}
_FAR = 100_000

# Threads that spin while they wait are slow on a machine that others use too.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is first imported


def prepare(settings: Plain) -> None:
    """Refuses at once what no trial could do without: torch, a package, the data."""
    require_torch()
    experiment = experiment_of(settings)
    if experiment.training.method == "sam" and find_spec("pytorch_optimizer") is None:
        raise McoverError("this study compares with SAM: pip install 'mcover[rivals]'.")
    _images(_where(experiment))


def run(settings: Plain, seed: int) -> dict[str, float]:
    """Trains with one seed and tests the one model that comes out.

    Trials are paired as ``run_trial`` says. ``ensemble`` trains so many
    models apart and lets them vote, which is no longer one model; of so many ``restarts`` the one
    of least training loss counts.
    """
    from mcover.lab.training.trial import run_trial

    experiment = experiment_of(settings)
    whole = _images(_where(experiment))
    begin = time.process_time()
    with one_thread():
        if _SEVERAL & set(settings):
            outcome = _several(experiment, seed, whole, settings)
        else:
            found = run_trial(experiment, seed, whole=whole)
            outcome = {
                "error": found.error,
                "cover_error": found.cover_error,
                "train_error": found.train_error,
                "loss": found.loss,
                "epochs": found.epochs,
                "gradients": found.gradients,
            }
    return outcome | {"core_seconds": round(time.process_time() - begin, 3)}


def experiment_of(settings: Plain) -> Experiment:
    """The experiment that plain settings spell."""
    rest = {name: value for name, value in settings.items() if name not in _SEVERAL}
    return Experiment(**{**rest, "training": Training(**settings["training"])})


def require_torch() -> None:
    """Says what to install where torch is missing."""
    if find_spec("torch") is None:
        raise McoverError(
            "this study trains networks and needs torch: pip install 'mcover[torch,data]'."
        )


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums in one order, so that outcomes do not depend on how many cores there are."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _where(experiment: Experiment) -> Experiment:
    """All that decides which images are loaded, so that they are loaded once for many cells."""
    return Experiment(
        Training(), data=experiment.data, model=experiment.model, pixels=experiment.pixels
    )


@lru_cache(maxsize=2)
def _images(experiment: Experiment) -> Dataset:
    from mcover.lab.training.trial import dataset

    return dataset(experiment)


def _several(
    experiment: Experiment, seed: int, whole: Dataset, settings: Plain
) -> dict[str, float]:
    """Plain models of their own weights and order of images, on the images of one trial."""
    import torch

    from mcover.lab.training.trial import images_of, train

    data = images_of(experiment, seed, whole)
    fixed = replace(experiment, images=None, validation=None)
    votes = "ensemble" in settings
    histories = []
    for member in range(settings["ensemble" if votes else "restarts"]):
        # Seeds of the members lie far from those of any trial; the first is the plain trial.
        histories.append(train(fixed, seed + _FAR * member, whole=data))
        if histories[-1].interrupted:
            raise KeyboardInterrupt
    errors = [float(history.collapse_error[-1]) for history in histories]
    if votes:
        images, labels = torch.from_numpy(data.test_images), torch.from_numpy(data.test_labels)
        with torch.no_grad():
            answers = [history.model.eval()(images).softmax(dim=-1) for history in histories]
        guess = torch.stack(answers).mean(dim=0).argmax(dim=-1)
        error = float((guess != labels).double().mean())
    else:
        error = errors[int(np.argmin([history.train_loss[-1] for history in histories]))]
    return {
        "error": error,
        "cover_error": float(np.mean(errors)),
        "epochs": float(histories[0].epoch[-1]),
        "gradients": float(sum(history.gradients[-1] for history in histories)),
    }
