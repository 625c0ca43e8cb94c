"""``mcover anneal``: anneal a perceptron or a committee machine and show how it went."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from rich.table import Table

from mcover import statistics
from mcover.annealing.annealer import anneal
from mcover.annealing.problems import Committee, Problem, Ties, teacher_student
from mcover.annealing.result import AnnealResult
from mcover.annealing.schedules import BetaSchedule, GeometricSchedule, LinearSchedule, Schedule
from mcover.annealing.settings import Energy, Method, Order, Rule
from mcover.errors import McoverError
from mcover.progress import console
from mcover.topology import GaussianRing


@dataclass(frozen=True)
class PerceptronTask:
    """A teacher–student perceptron."""

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

    file: Path
    """File with patterns (P, N) and labels (P,), all entries ±1; optionally teacher."""
    hidden: int = 1
    """Hidden units K; 1 is a perceptron."""

    def make(self, seed: int) -> Problem:
        try:
            with np.load(self.file, allow_pickle=False) as arrays:
                given = {name: arrays[name] for name in arrays.files}
        except (OSError, ValueError, EOFError) as error:
            raise McoverError(f"cannot read {self.file} as an .npz file: {error}") from error
        if not {"patterns", "labels"} <= set(given):
            raise McoverError(
                f"{self.file} holds the arrays {sorted(given)}; it needs 'patterns' and 'labels': "
                "np.savez(file, patterns=..., labels=...)."
            )
        return Committee(given["patterns"], given["labels"], self.hidden, given.get("teacher"))


@dataclass(frozen=True)
class Anneal:
    """Anneal ±1 weights: a live line, a summary and a picture of energy and overlaps."""

    task: (
        Annotated[PerceptronTask, tyro.conf.subcommand("perceptron")]
        | Annotated[CommitteeTask, tyro.conf.subcommand("committee")]
        | Annotated[DataTask, tyro.conf.subcommand("data")]
    )
    """What to learn."""
    method: Method = "mcover"
    """mcover, exact (all destinations), rsa (coupled replicas) or vanilla (one copy)."""
    covers: int | None = None
    """Number of covers M (default 3)."""
    sigma: float | None = None
    """Width of the Gaussian ring (default 1.5); inf is uniform."""
    shift: float | None = None
    """Shift of the Gaussian ring (default 2)."""
    bank: int | None = None
    """Destinations S that are kept (default 10)."""
    coupling: float | None = None
    """RSA: attraction γ between replicas (default 1)."""
    coupling_growth: float | None = None
    """RSA: relative growth of γ a sweep (default 0)."""
    redraw_every: int | None = None
    """Draw new routes after so many sweeps (default: never)."""
    energy: Energy = "linear"
    """What is minimised: linear margins or the number of errors."""
    rule: Rule = "glauber"
    """Acceptance rule."""
    order: Order = "random"
    """Order of the proposals in a sweep."""
    schedule: Literal["linear", "geometric", "beta"] = "linear"
    """How the temperature falls: linearly, geometrically, or linearly in 1/T."""
    t_start: float = 0.4
    """First temperature."""
    t_stop: float = 0.01
    """Last temperature."""
    temperatures: int = 3901
    """Number of temperatures."""
    sweeps: int = 1
    """Sweeps at each temperature."""
    reads: int = 10
    """Independent runs."""
    seed: int = 0
    """Seed of the instance and of the runs."""
    stop_at_zero: bool = False
    """End a read when its energy reaches zero."""
    workers: int | None = None
    """Threads (default: all cores)."""
    output: Path = Path("out/anneal")
    """Where to write: OUTPUT.png, the picture, and OUTPUT.npz, the result."""

    def run(self) -> None:
        problem = self.task.make(self.seed)
        console.print(str(problem), markup=False)
        result = anneal(
            problem,
            self.method,
            schedule=self._schedule(),
            num_reads=self.reads,
            seed=[self.seed, 1],
            progress=True,
            workers=self.workers,
            **self._options(),
        )
        if result.interrupted:
            console.print("interrupted: what follows is what was reached so far")
        console.print(_summary(result, problem))
        saved = result.save(self.output.with_name(self.output.name + ".npz"))

        from mcover.lab.figures.annealing import annealing_figure
        from mcover.lab.figures.style import save

        title = f"{problem}, {self.method}, {len(result.energy)} reads"
        picture = self.output.with_name(self.output.name + ".png")
        save(annealing_figure(result, title), picture)
        console.print(f"picture: {picture}\nresult:  {saved} (mcover.annealing.AnnealResult.load)")

    def _schedule(self) -> Schedule:
        if self.schedule == "geometric":
            return GeometricSchedule(self.t_start, self.t_stop, self.temperatures, self.sweeps)
        if self.schedule == "beta":
            return BetaSchedule(self.t_start, self.t_stop, self.temperatures, self.sweeps)
        step = (self.t_start - self.t_stop) / max(self.temperatures - 1, 1)
        if step <= 0:
            raise McoverError(
                f"the temperature goes from {self.t_start} to {self.t_stop}; write --t-start above "
                "--t-stop."
            )
        return LinearSchedule(self.t_start, self.t_stop, step, self.sweeps)

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "covers": self.covers,
            "bank": self.bank,
            "coupling": self.coupling,
            "coupling_growth": self.coupling_growth,
            "redraw_every": self.redraw_every,
            "energy": self.energy,
            "rule": self.rule,
            "order": self.order,
            "stop_at_zero": self.stop_at_zero,
        }
        if self.sigma is not None or self.shift is not None:
            sigma = 1.5 if self.sigma is None else self.sigma
            options["topology"] = GaussianRing(sigma, 2.0 if self.shift is None else self.shift)
        return options


def _summary(result: AnnealResult, problem: Problem) -> Table:
    settings = result.settings
    title = f"{settings['method']}, {settings['covers']} covers, {len(result.energy)} reads"
    table = Table(title=title, title_justify="left")
    table.add_column("figure")
    table.add_column("value [95 % interval]", justify="right")
    patterns = len(problem.patterns)
    energy = result.energy / (patterns * settings["covers"])
    table.add_row("energy per cover and pattern", f"{statistics.mean(energy):.5f}")
    table.add_row("solved (collapse to ±1)", f"{statistics.fraction(result.solved):.3f}")
    errors = statistics.mean(result.training_errors / patterns)
    table.add_row("training error of the collapse", f"{errors:.4f}")
    if problem.teacher is not None:
        table.add_row("teacher overlap R (mean)", f"{statistics.mean(result.overlap):.4f}")
        wrong = statistics.mean(result.generalization_error)
        table.add_row("generalization error (mean)", f"{wrong:.4f}")
    rate = result.proposals / result.seconds / 1e6
    table.add_row("million proposals a second, per core", f"{statistics.mean(rate):.2f}")
    table.add_row("seconds a read", f"{statistics.mean(result.seconds):.2f}")
    return table
