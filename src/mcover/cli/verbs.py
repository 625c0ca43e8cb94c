"""The verbs of one run: ``mcover topology``, ``anneal``, ``train`` and ``demo``."""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from rich.table import Table

import mcover
from mcover import GaussianRing, anneal, checks, statistics, teacher_student
from mcover.annealing import AnnealOptions, AnnealResult, Method, Problem, Ties, load_problem
from mcover.errors import McoverError
from mcover.lab.figures.runs import annealing_figure, topology_figure, training_figure
from mcover.lab.figures.style import save
from mcover.lab.perceptron import Outcome, PerceptronTrial, join, run_paired, summarize
from mcover.lab.training import SGD, CommitteeTrial, Lifted, NetworkTrial, Training
from mcover.lab.tune import read
from mcover.logs import check_tensorboard
from mcover.plain import to_plain
from mcover.progress import Line, console, errors, live_line
from mcover.statistics import Estimate
from mcover.topology import Topology

if TYPE_CHECKING:
    from mcover.lab.models import Architecture
    from mcover.lab.training.loop import History, Status

Trial = NetworkTrial | CommitteeTrial

_DEFAULT = NetworkTrial()
_ENDS = {
    "loss": ", where the loss fell below its limit",
    "errors": ", where the training images were right",
}
_COMPARED: dict[str, Method] = {
    "vanilla": mcover.Vanilla(),
    "RSA": mcover.RSA(3, coupling=1.0),
    "M-cover": mcover.MCover(3, GaussianRing(3, shift=2), bank=10),
}


@dataclass(frozen=True)
class ShowTopology:
    """Print the facts of a topology and draw it: kernel, marginals, routes, spectrum."""

    topology: Topology
    """Which topology."""
    covers: int | None = None
    """Number of covers M; 12 unless the topology itself fixes it."""
    seed: int = 0
    """Seed of the routes that are drawn."""
    output: Path = Path("out/topology.png")
    """Picture to write (.png, .pdf or .svg)."""

    def run(self) -> None:
        covers = self.covers if self.covers is not None else _own_covers(self.topology)
        facts = self.topology.facts(covers)
        table = Table(title=f"{self.topology!r}, {covers} covers", title_justify="left")
        for name in ("fact", "value", "meaning"):
            table.add_column(name, justify="right" if name == "value" else "left")
        table.add_row("spectral gap", f"{facts.spectral_gap:.4f}", "how fast covers mix; 0 never")
        table.add_row("drift", f"{facts.drift:.4f}", "covers a message moves along per read")
        table.add_row("effective width", f"{facts.effective_width:.4f}", "covers that are read")
        console.print(table)
        path = save(topology_figure(self.topology, covers, self.seed), self.output)
        console.print(f"picture: {path}")


def _own_covers(topology: Topology) -> int:
    match topology:
        case mcover.Torus(rows=rows, cols=cols):
            return rows * cols
        case mcover.Custom(values=values):
            return len(values)
        case mcover.Blocks(count=count):
            return count * max(1, round(12 / count))
        case _:
            return 12


@dataclass(frozen=True)
class PerceptronTask:
    """A teacher–student perceptron."""

    kind: ClassVar[str] = "perceptron"

    n: int = 1000
    """Inputs N."""
    alpha: float = 1.58
    """Patterns per input, P/N."""
    ties: Ties = "redraw"
    """Patterns on which the teacher is undecided: draw them again, or label them +1."""

    def make(self, seed: int) -> Problem:
        return teacher_student(self.n, self.alpha, seed=[seed, 0], ties=self.ties)


@dataclass(frozen=True)
class CommitteeTask:
    """A teacher–student committee machine."""

    kind: ClassVar[str] = "committee"

    n: int = 201
    """Inputs N."""
    hidden: int = 5
    """Hidden units K."""
    alpha: float = 2.0
    """Patterns per weight, P/(K·N)."""

    def make(self, seed: int) -> Problem:
        return teacher_student(self.n, self.alpha, seed=[seed, 0], hidden=self.hidden)


@dataclass(frozen=True)
class DataTask:
    """Your own ±1 patterns and labels, from an .npz file with the arrays of these names."""

    kind: ClassVar[str] = "data"

    file: Path
    """File with patterns (P, N) and labels (P,), all entries ±1; optionally teacher."""
    hidden: int = 1
    """Hidden units K; 1 is a perceptron."""

    def make(self, seed: int) -> Problem:
        return load_problem(self.file, self.hidden)


@dataclass(frozen=True)
class Anneal:
    """Anneal ±1 weights: a live line, a summary and a picture of energy and overlaps.

    For example: mcover anneal perceptron --n 1000 mcover --covers 3 ring --sigma 3 --shift 2
    """

    task: PerceptronTask | CommitteeTask | DataTask
    """What to learn."""
    annealing: AnnealOptions = field(default_factory=AnnealOptions)
    """How each read is annealed."""
    reads: int = 10
    """Independent runs."""
    seed: int = 0
    """Seed of the instance and of the runs."""
    workers: int | None = None
    """Threads; one for each CPU by default."""
    output: Path = Path("out/anneal")
    """Where to write: OUTPUT.png, the picture, and OUTPUT.npz, the result."""
    config: Path | None = None
    """File of 'mcover tune perceptron' to take the options from; those written here go before."""

    @classmethod
    def configured(cls, file: Path) -> Anneal:
        """With the options of a file."""
        trial = read(file).trial
        if not isinstance(trial, PerceptronTrial):
            raise McoverError(f"{file} holds a {trial.kind}; write mcover train --config {file}.")
        task = PerceptronTask(trial.n, trial.alpha, trial.ties)
        return cls(task, AnnealOptions(trial.method, trial.schedule), config=file)

    def __post_init__(self) -> None:
        checks.counts(self, "reads")
        checks.counts(self, "workers", optional=True)
        checks.whole("seed", self.seed, 0)
        checks.writable(self.output)

    def run(self) -> None:
        problem, options = self.task.make(self.seed), self.annealing
        picture, result_file = (Path(f"{self.output}{end}") for end in (".png", ".npz"))
        console.print(str(problem), markup=False)
        result = anneal(
            problem,
            **vars(options),
            num_reads=self.reads,
            seed=[self.seed, 1],
            progress=True,
            workers=self.workers,
        )
        done = int(result.finished.sum())
        if result.interrupted:
            console.print(f"interrupted: {done} of {self.reads} reads were finished")
        if done:
            title = f"{options.method.kind}, {options.method.covers} covers, {done} reads"
            console.print(_figures(title, _reads(result, problem)))
        result.save(result_file)
        title = f"{problem}, {options.method.kind}, {len(result.energy)} reads"
        save(annealing_figure({"": result.trajectory}, title), picture)
        console.print(f"picture: {picture}")
        console.print(f"result:  {result_file} (mcover.annealing.AnnealResult.load)")
        if result.interrupted:
            raise KeyboardInterrupt


def _reads(result: AnnealResult, problem: Problem) -> Iterable[tuple[str, Estimate, str]]:
    """Figures of the reads that came to their end."""
    done, patterns = result.finished, len(problem.patterns)

    def mean(values: Any) -> Estimate:
        return statistics.mean(values[done])

    energy = result.energy / (patterns * result.options.method.covers)
    yield "energy per cover and pattern", mean(energy), ".5f"
    yield "solved (collapse to ±1)", statistics.fraction(result.solved[done]), ".3f"
    yield "training error of the collapse", mean(result.training_errors / patterns), ".4f"
    if problem.teacher is not None:
        yield "teacher overlap R (mean)", mean(result.overlap), ".4f"
        yield "generalization error (mean)", mean(result.generalization_error), ".4f"
    rate = result.proposals[done] / result.seconds[done] / 1e6
    yield "million proposals per second and core", statistics.mean(rate), ".2f"
    yield "seconds per read", mean(result.seconds), ".2f"


def _figures(title: str, figures: Iterable[tuple[str, Estimate, str]]) -> Table:
    """A table of names and estimates, each in a format of its own."""
    table = Table(title=title, title_justify="left")
    table.add_column("figure")
    table.add_column("value [95 % interval]", justify="right")
    for name, value, spec in figures:
        table.add_row(name, f"{value:{spec}}")
    return table


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
        checks.counts(self, "seeds")
        if self.compare and isinstance(self.trial.method, SGD):
            raise McoverError("compare is True, and the model is trained plain; leave it out.")
        checks.whole("seed", self.seed, 0)
        check_tensorboard(self.tensorboard)
        if self.config is not None and (kind := read(self.config).trial.kind) != self.trial.kind:
            raise McoverError(f"{self.config} holds a {kind}; write train {kind}, or nothing.")
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
    table = _figures(f"after {span} epochs{end}", figures)
    table.caption = f"intervals: over seeds ({seeds})"
    return table


@dataclass(frozen=True)
class Demo:
    """Show a topology, compare M-cover with its rivals on perceptrons, train a network."""

    n: int = 1000
    """Inputs of the perceptron; the paper's size."""
    alpha: float = 1.58
    """Patterns per input; the paper's load."""
    trials: int = 40
    """Instances, the same for each method."""
    epochs: int = 15
    """Epochs of the network on the digits."""
    output: Path = Path("out")
    """Folder for the pictures."""

    def run(self) -> None:
        topology = GaussianRing(sigma=1.5, shift=2)
        ShowTopology(topology, 12, output=self.output / "topology.png").run()
        self._anneal()
        if find_spec("torch") is None or find_spec("sklearn") is None:
            text = "\nno network is trained: pip install 'mcover[torch,data]' adds it"
            console.print(text, markup=False)
            return
        console.print()
        trial = NetworkTrial(training=Training(epochs=self.epochs, batch=64))
        Train(trial, compare=True, output=self.output / "training").run()

    def _anneal(self) -> None:
        """The paper's perceptrons."""
        task = f"N = {self.n}, α = {self.alpha}"
        names = ", ".join(_COMPARED)
        console.print(f"\n±1 perceptrons, {task}: {names} on the same {self.trials} teachers")
        trials = {n: PerceptronTrial(self.n, self.alpha, method=m) for n, m in _COMPARED.items()}
        rows: dict[str, list[Outcome]] = {name: [] for name in _COMPARED}
        courses = defaultdict[str, list[Any]](list)
        begin = time.perf_counter()
        with live_line() as line:
            line.wait("compiling, or loading what was compiled before")
            for name, outcome, course in run_paired(trials, range(self.trials)):
                rows[name].append(outcome)
                courses[name].append(course)
                done = sum(map(len, rows.values())) / (self.trials * len(_COMPARED))
                solved = {name: sum(int(one["solved"]) for one in of) for name, of in rows.items()}
                counts = (f"{name} {solved[name]}/{len(of)}" for name, of in rows.items())
                line(done, f"solved: {'  '.join(counts)}")
        console.print(_comparison({name: summarize(of) for name, of in rows.items()}))
        console.print(
            f"{time.perf_counter() - begin:.0f} s in all; intervals are 95 %. RSA: replicated "
            "simulated annealing, copies that attract each other. TTS99: proposals, or seconds of "
            "one core, until a solution is found with 99 % certainty. Thin lines in the picture "
            "are single trials, thick ones their mean."
        )
        figure = annealing_figure(
            {name: join(of) for name, of in courses.items()},
            f"±1 perceptron, {task}, {self.trials} paired teachers",
            {n: np.array([one["generalization_error"] for one in of]) for n, of in rows.items()},
        )
        console.print(f"picture: {save(figure, self.output / 'annealing.png')}")


def _comparison(summaries: dict[str, dict[str, Estimate]]) -> Table:
    """A line a method."""
    columns = {
        "generalization\nerror": ("generalization_error", ".4f"),
        "solved": ("solved", ".2f"),
        "TTS99,\nproposals": ("tts_proposals", ".1e"),
        "TTS99,\ncore s": ("tts_seconds", ".1f"),
    }
    table = Table(title="generalization error is that of the collapsed (mean) student")
    table.add_column("method", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for method, found in summaries.items():
        cells = (f"{found[name]:{spec}}" for name, spec in columns.values())
        table.add_row(method, *(cell.replace(" [", "\n[") for cell in cells))
        table.caption = f"n = {found['solved'].n} trials each"
    return table
