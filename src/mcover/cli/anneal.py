"""``mcover anneal``: anneal a perceptron or a committee machine and show how it went."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from rich.table import Table

from mcover import anneal, checks, statistics, teacher_student
from mcover.annealing import AnnealOptions, AnnealResult, Problem, Ties, load_problem
from mcover.lab.figures.annealing import annealing_figure
from mcover.lab.figures.style import save
from mcover.progress import console


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
            console.print(_summary(result, problem))
        result.save(result_file)
        title = f"{problem}, {options.method.kind}, {len(result.energy)} reads"
        save(annealing_figure(result, title), picture)
        console.print(f"picture: {picture}")
        console.print(f"result:  {result_file} (mcover.annealing.AnnealResult.load)")
        if result.interrupted:
            raise KeyboardInterrupt


def _summary(result: AnnealResult, problem: Problem) -> Table:
    """Figures of the reads that came to their end."""
    method, done = result.options.method, result.finished
    title = f"{method.kind}, {method.covers} covers, {done.sum()} reads"
    table = Table(title=title, title_justify="left")
    table.add_column("figure")
    table.add_column("value [95 % interval]", justify="right")

    def add(name: str, values: Any, spec: str) -> None:
        table.add_row(name, f"{statistics.mean(values[done]):{spec}}")

    patterns = len(problem.patterns)
    add("energy per cover and pattern", result.energy / (patterns * method.covers), ".5f")
    table.add_row("solved (collapse to ±1)", f"{statistics.fraction(result.solved[done]):.3f}")
    add("training error of the collapse", result.training_errors / patterns, ".4f")
    if problem.teacher is not None:
        add("teacher overlap R (mean)", result.overlap, ".4f")
        add("generalization error (mean)", result.generalization_error, ".4f")
    rate = result.proposals[done] / result.seconds[done] / 1e6
    table.add_row("million proposals per second and core", f"{statistics.mean(rate):.2f}")
    add("seconds per read", result.seconds, ".2f")
    return table
