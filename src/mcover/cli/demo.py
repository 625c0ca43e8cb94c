"""``mcover demo``."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from reproduction.perceptron import Outcome, PerceptronTrial, join, run_paired, summarize
from reproduction.style import save
from reproduction.training import NetworkTrial, Training
from rich.table import Table

import mcover
from mcover import GaussianRing
from mcover.annealing import Method
from mcover.cli.topology import ShowTopology
from mcover.cli.train import Train
from mcover.figures import annealing_figure
from mcover.progress import console, live_line
from mcover.statistics import Estimate

_COMPARED: dict[str, Method] = {
    "vanilla": mcover.Vanilla(),
    "RSA": mcover.RSA(3, coupling=1.0),
    "M-cover": mcover.MCover(3, GaussianRing(3, shift=2), bank=10),
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
