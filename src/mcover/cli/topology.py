"""``mcover topology``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

import mcover
from mcover.lab.figures.runs import topology_figure
from mcover.lab.figures.style import save
from mcover.progress import console
from mcover.topology import Topology


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
