"""``mcover anneal``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from reproduction.perceptron import PerceptronTrial
from reproduction.style import save
from reproduction.tune import read

from mcover import anneal, checks, statistics, teacher_student
from mcover.annealing import AnnealOptions, AnnealResult, Problem, Ties, load_problem
from mcover.cli.tables import figures_table
from mcover.errors import McoverError
from mcover.figures import annealing_figure
from mcover.progress import console
from mcover.statistics import Estimate


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
        return cls(task, trial.options, config=file)

    def __post_init__(self) -> None:
        checks.check_count_fields(self, "reads")
        checks.check_count_fields(self, "workers", optional=True)
        checks.check_int("seed", self.seed, 0)
        checks.check_writable(self.output)

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
            console.print(figures_table(title, _reads(result, problem)))
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
