"""``mcover train``: train a model by any method, and show covers and collapse side by side."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from mcover import __version__, checks, statistics
from mcover.errors import McoverError
from mcover.lab.figures.style import save
from mcover.lab.figures.training import training_figure
from mcover.lab.training import SGD, CommitteeTrial, Lifted, NetworkTrial
from mcover.plain import to_plain
from mcover.progress import Line, console, errors, live_line

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
    output: Path = Path("out/train")
    """Where to write: OUTPUT.png, and OUTPUT.safetensors with OUTPUT.json, the model."""

    def __post_init__(self) -> None:
        checks.whole("seeds", self.seeds, 1)
        checks.flag("compare", self.compare)
        if self.compare and isinstance(self.trial.method, SGD):
            raise McoverError("compare is True, and the model is trained plain; leave it out.")
        checks.whole("seed", self.seed, 0)
        if not self.output.name:
            raise McoverError(f"output is {str(self.output)!r}; write a path without an ending.")

    def run(self) -> None:
        trial = self.trial
        picture = checks.writable(self.output.parent / f"{self.output.name}.png")
        with live_line() as line:
            line.wait(f"loading torch and {trial.data}")
            trial.prepare()
            data = trial.images_of(self.seed)
            kind = trial.architecture(data)
            console.print(f"{data}\n{describe(trial, kind)}", markup=False)
            line.wait("lifting and compiling" if trial.covers > 1 else "first gradient steps")
            plain = self._train(line, replace(trial, method=SGD())) if self.compare else []
            histories = self._train(line, trial)
        if not histories:
            raise KeyboardInterrupt
        interrupted = histories[-1].interrupted
        if interrupted:
            console.print("interrupted: what follows is what was reached so far")
        console.print(summary(histories, plain))
        for number, one in enumerate(histories):
            console.print(f"model: {self._save(one, kind, number)} (mcover.lab.models.load)")
        title = f"{trial.data}, {describe(trial, kind)}"
        console.print(f"picture: {save(training_figure(histories, title, plain), picture)}")
        if interrupted:
            raise KeyboardInterrupt

    def _train(self, line: Line, trial: Trial) -> list[History]:
        histories: list[History] = []
        for number in range(self.seeds):
            one = trial.train(self.seed + number, self._show(line, number, trial))
            if len(one.epoch):
                histories.append(one)
            if one.interrupted and trial is not self.trial:
                raise KeyboardInterrupt  # plain models alone are not what was asked for
            if one.interrupted:
                break
        return histories

    def _save(self, history: History, kind: Architecture, number: int) -> Path:
        """Writes the model, at worst somewhere else: a training is not to be lost."""
        from mcover.lab import models

        name = self.output.name + (f"-{self.seed + number}" if self.seeds > 1 else "")
        facts = {"trial": to_plain(self.trial), "seed": self.seed + number}
        facts |= {"history": course(history), "version": __version__}
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


def describe(trial: Trial, kind: Architecture) -> str:
    """The model and how it is trained, in a few words."""
    method, how = trial.method, trial.method.kind
    if trial.covers == 1:
        return f"{kind}, {'plain' if how in ('sgd', 'lifted') else how}"
    if isinstance(method, Lifted):
        how = f"{method.topology!r}, {method.routing.kind}"
    return f"{kind}, {trial.covers} covers, {how}"


def summary(histories: Sequence[History], plain: Sequence[History] = ()) -> Table:
    """The last evaluation in figures, with intervals over seeds; beside plain models, if given."""
    epochs = [one.epoch[-1] for one in histories]
    span = f"{min(epochs):.6g}" + (f" to {max(epochs):.6g}" if min(epochs) < max(epochs) else "")
    ends = {_ENDS.get(one.stopped, "") for one in histories}
    end = ends.pop() if len(ends) == 1 else ""
    table = Table(title=f"after {span} epochs{end}", title_justify="left")
    table.add_column("figure")
    table.add_column("value [95 % interval]", justify="right")
    seeds = f"{len(histories)} seeds" if len(histories) > 1 else "one seed, so no interval"
    table.caption = f"intervals: over seeds ({seeds})"

    covers = histories[0].cover_error.shape[1]
    several = [one for one in histories if covers > 1]
    routed = [one.routed_error[-1].mean() for one in histories if one.routed_error is not None]
    alone = f"test error of a cover by itself, mean of {covers}"
    for name, values, spec in (
        ("test error of the plain model", [one.collapse_error[-1] for one in plain], ".4f"),
        (
            "test error of the collapse" if several else "test error",
            [one.collapse_error[-1] for one in histories],
            ".4f",
        ),
        (alone, [one.cover_error[-1].mean() for one in several], ".4f"),
        ("test error along the routes, mean", routed, ".4f"),
        ("training loss per cover", [one.train_loss[-1] for one in histories], ".4g"),
        ("minibatch gradients", [float(one.gradients[-1]) for one in histories], ",.0f"),
        ("seconds of training", [one.seconds[-1] for one in histories], ".4g"),
    ):
        if len(values) == 1:
            table.add_row(name, f"{values[0]:{spec}} [–]")
        elif values:
            table.add_row(name, f"{statistics.mean(np.array(values)):{spec}}")
    return table


def course(history: History) -> dict[str, Any]:
    """A history as plain lists, for JSON."""
    given = {one.name: getattr(history, one.name) for one in fields(history)}
    kept = {name: of.tolist() for name, of in given.items() if isinstance(of, np.ndarray)}
    return kept | {"stopped": history.stopped}
