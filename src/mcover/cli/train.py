"""``mcover train``: train a model by any method, and show covers and collapse side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mcover import __version__
from mcover.cli.training_table import course, summary
from mcover.errors import McoverError
from mcover.lab.training.experiment import COMMITTEE_TRAINING, Experiment
from mcover.lab.training.history import History, Status
from mcover.lab.training.settings import Training
from mcover.progress import Line, console, live_line

if TYPE_CHECKING:
    from mcover.lab.data import Dataset
    from mcover.lab.models import Kind

COMMITTEE_IMAGES = 500  # the paper's number, or all where there are fewer


@dataclass(frozen=True)
class Train:
    """Train a model: a live line, a summary, a picture, and the one model that it comes to."""

    experiment: Experiment
    """What is learned, by what and how."""
    seeds: int = 1
    """Independent trainings."""
    seed: int = 0
    """First seed: it draws the weights, the routes, the images of a subset and their order."""
    output: Path = Path("out/train")
    """Where to write: OUTPUT.png, and OUTPUT.safetensors with OUTPUT.json, the one model."""

    def run(self) -> None:
        if self.seeds < 1:
            raise McoverError(f"seeds is {self.seeds}; write at least 1.")
        _require_torch()
        from mcover.lab.figures.style import save
        from mcover.lab.figures.training import training_figure
        from mcover.lab.training import trial

        whole = trial.dataset(self.experiment)
        experiment = _with_images(self.experiment, whole)
        kind = trial.kind_of(experiment, whole)
        histories: list[History] = []
        with live_line() as line:
            for number in range(self.seeds):
                seed = self.seed + number
                if not number:
                    shown = trial.images_of(experiment, seed, whole)
                    console.print(f"{shown}\n{describe(experiment, kind)}", markup=False)
                    if experiment.training.method == "mcover":
                        line.wait("compiling, or loading what was compiled before")
                one = trial.train(experiment, seed, self._show(line, number), whole)
                if len(one.epoch):
                    histories.append(one)
                if one.interrupted:
                    break
        if not histories:
            raise KeyboardInterrupt
        if histories[-1].interrupted:
            console.print("interrupted: what follows is what was reached so far")
        console.print(summary(histories, len(shown.test_labels)))

        title = f"{experiment.data}, {describe(experiment, kind)}"
        picture = self.output.with_name(self.output.name + ".png")
        console.print(f"picture: {save(training_figure(histories, title), picture)}")
        for number, one in enumerate(histories):
            weights, _ = self._save(one, kind, experiment, number)
            console.print(f"model: {weights} (mcover.lab.models.load)", soft_wrap=True)

    def _save(
        self, history: History, kind: Kind, experiment: Experiment, number: int
    ) -> tuple[Path, Path]:
        from mcover.lab import models

        ending = f"-{self.seed + number}" if self.seeds > 1 else ""
        return models.save(
            history.model,
            kind,
            self.output.with_name(self.output.name + ending),
            settings=asdict(experiment) | {"seed": self.seed + number},
            history=course(history),
            version=__version__,
        )

    def _show(self, line: Line, number: int) -> Any:
        def show(status: Status) -> None:
            errors = f"covers {status.cover_error:.2%}  collapse {status.collapse_error:.2%}"
            which = f"seed {number + 1}/{self.seeds}  " if self.seeds > 1 else ""
            epochs = self.experiment.training.epochs
            line(
                (number + status.share) / self.seeds,
                f"{which}epoch {status.epoch}/{epochs}  loss {status.loss:.4f}  "
                f"{errors if np.isfinite(status.cover_error) else ''}",
            )

        return show


def defaults(arguments: Sequence[str]) -> Train:
    """What the command line begins with: the defaults of the model that it names.

    The method is M-cover, unless another is named.
    """
    words = [word for argument in arguments for word in argument.split("=", 1)]
    named = dict(pairwise(words))
    if named.get("--model") == "committee":
        training = replace(COMMITTEE_TRAINING, method="mcover")
        return Train(Experiment(training, "digits:3,8", "committee", subset_seed=0))
    return Train(Experiment(Training(method="mcover")))


def describe(experiment: Experiment, kind: Kind) -> str:
    """The model and how it is trained, in a few words."""
    method = experiment.training.method
    if experiment.count == 1:
        return f"{kind}, {'plain' if method in ('sgd', 'mcover') else method}"
    routed = f"{experiment.topology_value()!r}, routed {experiment.kind_of_routing}"
    return f"{kind}, {experiment.count} covers, {routed if method == 'mcover' else method}"


def _with_images(experiment: Experiment, whole: Dataset) -> Experiment:
    """The committee's number of images, where none is given: 500, or all that can be balanced."""
    if not experiment.committee or experiment.images is not None:
        return experiment
    fewest = int(np.bincount(whole.train_labels, minlength=whole.classes).min())
    left = fewest * whole.classes - (experiment.validation or 0)
    return replace(experiment, images=max(1, min(COMMITTEE_IMAGES, left)))


def _require_torch() -> None:
    # Threads that spin while they wait are several times slower on a machine that others use too.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is first imported
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise McoverError(
            "'mcover train' needs torch, which is not installed: pip install 'mcover[torch,data]'."
        ) from error
