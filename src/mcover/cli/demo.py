"""``mcover demo``: the paper's perceptrons and a network on the digits, in about a minute."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from mcover import RSA, GaussianRing, MCover, Vanilla
from mcover.annealing import Method
from mcover.cli.topology import ShowTopology
from mcover.cli.train import Train
from mcover.lab.perceptron import Outcome, PerceptronTrial, join, run_paired, summarize
from mcover.lab.training import NetworkTrial, Training
from mcover.progress import console, live_line
from mcover.statistics import Estimate

METHODS: dict[str, Method] = {
    "vanilla": Vanilla(),
    "RSA": RSA(3, coupling=1.0),
    "M-cover": MCover(3, GaussianRing(3, shift=2), bank=10),
}


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

        names = ", ".join(METHODS)
        console.print(
            f"\n±1 perceptrons, N = {self.n}, α = {self.alpha}: {names} on the same "
            f"{self.trials} teachers"
        )
        trials = {
            name: PerceptronTrial(self.n, self.alpha, method=method)
            for name, method in METHODS.items()
        }
        rows: dict[str, list[Outcome]] = {name: [] for name in METHODS}
        courses: dict[str, list[Any]] = {name: [] for name in METHODS}
        begin = time.perf_counter()
        with live_line() as line:
            line.wait("compiling, or loading what was compiled before")
            for name, outcome, course in run_paired(trials, range(self.trials)):
                rows[name].append(outcome)
                courses[name].append(course)
                done = sum(map(len, rows.values())) / (self.trials * len(METHODS))
                solved = {name: sum(int(one["solved"]) for one in of) for name, of in rows.items()}
                text = "  ".join(f"{name} {solved[name]}/{len(rows[name])}" for name in METHODS)
                line(done, f"solved: {text}")
        console.print(summary_table({name: summarize(of) for name, of in rows.items()}))
        console.print(
            f"{time.perf_counter() - begin:.0f} s in all; intervals are 95 %. RSA: replicated "
            "simulated annealing, copies that attract each other. TTS99: proposals, or seconds of "
            "one core, until a solution is found with 99 % certainty. Thin lines in the picture "
            "are single trials, thick ones their mean."
        )

        from mcover.lab.figures.annealing import comparison_figure
        from mcover.lab.figures.style import save

        figure = comparison_figure(
            {name: join(of) for name, of in courses.items()},
            f"±1 perceptron, N = {self.n}, α = {self.alpha}, {self.trials} paired teachers",
            {name: _errors(of) for name, of in rows.items()},
        )
        console.print(f"picture: {save(figure, self.output / 'annealing.png')}")
        self._train()

    def _train(self) -> None:
        """The same idea with gradients: a network on the digits."""
        if find_spec("torch") is None or find_spec("sklearn") is None:
            text = "\nno network is trained: pip install 'mcover[torch,data]' adds it"
            console.print(text, markup=False)
            return
        console.print()
        trial = NetworkTrial(training=Training(epochs=self.epochs, batch=64))
        Train(trial, compare=True, output=self.output / "training").run()


def summary_table(summaries: dict[str, dict[str, Estimate]]) -> Table:
    """The comparison as a table: a line a method."""
    table = Table(title="generalization error is that of the collapsed (mean) student")
    for name in (
        "method",
        "generalization\nerror",
        "solved",
        "TTS99,\nproposals",
        "TTS99,\ncore s",
    ):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for name, one in summaries.items():
        cells = (
            f"{one['generalization_error']:.4f}",
            f"{one['solved']:.2f}",
            f"{one['tts_proposals']:.1e}",
            f"{one['tts_seconds']:.1f}",
        )
        table.add_row(name, *(cell.replace(" [", "\n[") for cell in cells))
    table.caption = f"n = {one['solved'].n} trials each"
    return table


def _errors(outcomes: list[Outcome]) -> Any:
    return np.array([one["generalization_error"] for one in outcomes])
