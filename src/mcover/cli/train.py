"""``mcover train``."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

import mcover
from mcover import checks, statistics
from mcover.cli.tables import figures_table
from mcover.errors import McoverError
from mcover.lab.figures.runs import training_figure
from mcover.lab.figures.style import save
from mcover.lab.perceptron import PerceptronTrial
from mcover.lab.training import SGD, CommitteeTrial, Lifted, NetworkTrial
from mcover.lab.tune import read
from mcover.logs import check_tensorboard
from mcover.plain import to_plain
from mcover.progress import Line, console, errors, live_line
from mcover.statistics import Estimate

if TYPE_CHECKING:
    from mcover.lab.models import Architecture
    from mcover.lab.training.loop import History, Status

Trial = NetworkTrial | CommitteeTrial

_DEFAULT = NetworkTrial()
_ENDS = {
    "loss": ", where the loss fell below its limit",
    "errors": ", where the training images were right",
}


@dataclass(frozen=True)
class Train:
    """Train a model: a live line, a summary, a picture, and the trained model on disk."""

    trial: Trial = _DEFAULT
    """What is learned, by what model and how."""
    seeds: int = 1
    """Independent trainings."""
    seed: int = 0
    """First seed: it draws the weights, the routes, the images of a subset and their order."""
    compare: bool = False
    """Train the plain model too, with the same seeds and images."""
    tensorboard: bool = False
    """Write TensorBoard events too, in the folder OUTPUT."""
    output: Path = Path("out/train")
    """Where to write: OUTPUT.png; OUTPUT.jsonl, the history while it is made; and the model,
    OUTPUT.safetensors with OUTPUT.json."""
    config: Path | None = None
    """File of 'mcover tune network', or OUTPUT.json of a training, to take the options from; those
    written here go before."""

    @classmethod
    def configured(cls, file: Path) -> Train:
        """With the options of a file."""
        trial = read(file).trial
        if isinstance(trial, PerceptronTrial):
            raise McoverError(f"{file} holds a perceptron; write mcover anneal --config {file}.")
        return cls(trial, config=file)

    def __post_init__(self) -> None:
        checks.check_count_fields(self, "seeds")
        if self.compare and isinstance(self.trial.method, SGD):
            raise McoverError("compare is True, and the model is trained plain; leave it out.")
        checks.check_int("seed", self.seed, 0)
        check_tensorboard(self.tensorboard)
        if self.config is not None and (kind := read(self.config).trial.kind) != self.trial.kind:
            raise McoverError(f"{self.config} holds a {kind}; write train {kind}, or nothing.")
        if not self.output.name:
            raise McoverError(f"output is {str(self.output)!r}; write a path without an ending.")

    def run(self) -> None:
        trial = self.trial
        picture = checks.check_writable(self.output.parent / f"{self.output.name}.png")
        with live_line() as line:
            line.wait(f"loading torch and {trial.data}")
            trial.prepare()
            data = trial.images_of(self.seed)
            kind = trial.architecture(data)
            what = _described(trial, kind)
            console.print(f"{data}\n{what}", markup=False)
            line.wait("lifting and compiling" if trial.covers > 1 else "first gradient steps")
            plain = self._train(line, replace(trial, method=SGD())) if self.compare else []
            histories = self._train(line, trial)
        if not histories:
            raise KeyboardInterrupt
        interrupted = histories[-1].interrupted
        if interrupted:
            console.print("interrupted: what follows is what was reached so far")
        console.print(_trainings(histories, plain))
        for number, one in enumerate(histories):
            console.print(f"history: {self.output.with_name(self._name(number))}.jsonl")
            console.print(f"model: {self._save(one, kind, number)} (mcover.lab.models.load)")
        figure = training_figure(histories, f"{trial.data}, {what}", plain)
        console.print(f"picture: {save(figure, picture)}")
        if interrupted:
            raise KeyboardInterrupt

    def _train(self, line: Line, trial: Trial) -> list[History]:
        histories: list[History] = []
        for number in range(self.seeds):
            name = self._name(number) + ("-plain" if trial is not self.trial else "")
            one = trial.train(
                self.seed + number,
                self._show(line, number, trial),
                log=self.output.with_name(f"{name}.jsonl"),
                tensorboard=self.tensorboard,
            )
            if len(one.epoch):
                histories.append(one)
            if one.interrupted and trial is not self.trial:
                raise KeyboardInterrupt  # plain models alone are not what was asked for
            if one.interrupted:
                break
        return histories

    def _name(self, number: int) -> str:
        """Of the files of one training."""
        return self.output.name + (f"-{self.seed + number}" if self.seeds > 1 else "")

    def _save(self, history: History, kind: Architecture, number: int) -> Path:
        """Writes the model, at worst somewhere else: a training is not to be lost."""
        from mcover.lab import models

        name = self._name(number)
        given = {one.name: getattr(history, one.name) for one in fields(history)}
        course = {name: of.tolist() for name, of in given.items() if isinstance(of, np.ndarray)}
        facts = {"trial": to_plain(self.trial), "seed": self.seed + number}
        facts |= {"history": course | {"stopped": history.stopped}, "version": mcover.__version__}
        try:
            return models.save(history.model, kind, self.output.with_name(name), **facts)[0]
        except (McoverError, OSError) as error:
            errors.print(f"mcover train: {error}", markup=False)
            elsewhere = Path(tempfile.mkdtemp(prefix="mcover-")) / name
            return models.save(history.model, kind, elsewhere, **facts)[0]

    def _show(self, line: Line, number: int, trial: Trial) -> Callable[[Status], None]:
        def show(status: Status) -> None:
            text = f"epoch {status.epoch}/{trial.training.epochs} loss {status.loss:.2g}"
            if self.seeds > 1:
                text = f"seed {number + 1}/{self.seeds} epoch {status.epoch}"
            if status.collapse_error >= 0:  # not before the first evaluation
                text += f" error {status.collapse_error:.1%}"
            share = (number + status.share) / self.seeds
            if self.compare:  # the plain model comes first, and takes about one cover's time
                is_plain, part = trial is not self.trial, 1 / (1 + self.trial.covers)
                share = part * share if is_plain else part + (1 - part) * share
                text = f"{'plain' if is_plain else trial.method.kind} {text}"
            line(share, text)

        return show


def _described(trial: Trial, kind: Architecture) -> str:
    """The model and how it is trained, in a few words."""
    method, how = trial.method, trial.method.kind
    if trial.covers == 1:
        return f"{kind}, {'plain' if how in ('sgd', 'lifted') else how}"
    if isinstance(method, Lifted):
        how = f"{method.topology!r}, {method.routing.kind}"
    return f"{kind}, {trial.covers} covers, {how}"


def _trainings(histories: Sequence[History], plain: Sequence[History]) -> Table:
    """The last evaluation in figures, with intervals over seeds; beside plain models, if given."""
    epochs = [one.epoch[-1] for one in histories]
    span = f"{min(epochs):.6g}" + (f" to {max(epochs):.6g}" if min(epochs) < max(epochs) else "")
    ends = {_ENDS.get(one.stopped, "") for one in histories}
    end = ends.pop() if len(ends) == 1 else ""
    seeds = f"{len(histories)} seeds" if len(histories) > 1 else "one seed, so no interval"

    def last(name: str, of: Sequence[History] = histories) -> Estimate:
        return statistics.mean([float(np.mean(getattr(one, name)[-1])) for one in of])

    covers = histories[0].cover_error.shape[1]
    figures = []
    if plain:
        figures.append(("test error of the plain model", last("collapse_error", plain), ".4f"))
    name = "test error of the collapse" if covers > 1 else "test error"
    figures.append((name, last("collapse_error"), ".4f"))
    if covers > 1:
        name = f"test error of a cover by itself, mean of {covers}"
        figures.append((name, last("cover_error"), ".4f"))
    if histories[0].routed_error is not None:
        figures.append(("test error along the routes, mean", last("routed_error"), ".4f"))
    figures.append(("training loss per cover", last("train_loss"), ".4g"))
    figures.append(("minibatch gradients", last("gradients"), ",.0f"))
    figures.append(("seconds of training", last("seconds"), ".4g"))
    table = figures_table(f"after {span} epochs{end}", figures)
    table.caption = f"intervals: over seeds ({seeds})"
    return table
