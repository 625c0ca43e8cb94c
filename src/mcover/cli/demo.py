"""``mcover demo``: the paper's perceptrons and a network on the digits, in about a minute."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.table import Table

from mcover.cli.topology import ShowTopology
from mcover.cli.train import Train
from mcover.lab.training import NetworkTrial, Training
from mcover.lab.trials import Summary, Trial, join, run_trials, summarize
from mcover.progress import console, live_line
from mcover.topology import GaussianRing

METHODS: dict[str, dict[str, Any]] = {
    "vanilla": {"method": "vanilla"},
    "RSA": {"method": "rsa", "covers": 3, "coupling": 1.0},
    "M-cover": {
        "method": "mcover",
        "covers": 3,
        "topology": GaussianRing(sigma=3, shift=2),
        "bank": 10,
    },
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
        ShowTopology(topology, covers=12, output=self.output / "topology.png").run()

        names = ", ".join(METHODS)
        console.print(
            f"\n±1 perceptrons, N = {self.n}, α = {self.alpha}: {names} on the same "
            f"{self.trials} teachers"
        )
        rows: dict[str, list[Trial]] = {name: [] for name in METHODS}
        courses: dict[str, list[Any]] = {name: [] for name in METHODS}
        begin = time.perf_counter()
        with live_line() as line:
            line.wait("compiling, or loading what was compiled before")
            for row, result in run_trials(METHODS, self.n, self.alpha, range(self.trials)):
                rows[row.method].append(row)
                courses[row.method].append(result.trajectory)
                done = sum(map(len, rows.values())) / (self.trials * len(METHODS))
                solved = {name: sum(r.solved for r in of) for name, of in rows.items()}
                text = "  ".join(f"{name} {solved[name]}/{len(rows[name])}" for name in METHODS)
                line(done, f"solved: {text}")
        console.print(summary_table([summarize(name, of) for name, of in rows.items()]))
        console.print(f"{time.perf_counter() - begin:.0f} s in all; intervals are 95 %")

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
        Train(trial, output=self.output / "training").run()


def summary_table(summaries: list[Summary]) -> Table:
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
    for one in summaries:
        cells = (
            f"{one.generalization_error:.4f}",
            f"{one.solved:.2f}",
            f"{one.tts_proposals:.1e}",
            f"{one.tts_seconds:.1f}",
        )
        table.add_row(one.method, *(cell.replace(" [", "\n[") for cell in cells))
    table.caption = f"n = {summaries[0].solved.n} trials each"
    return table


def _errors(rows: list[Trial]) -> Any:
    import numpy as np

    return np.array([row.generalization_error for row in rows])
