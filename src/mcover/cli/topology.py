"""``mcover topology``: the facts and the picture of a topology."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from rich.table import Table

from mcover.errors import McoverError
from mcover.progress import console
from mcover.topology import (
    Band,
    Blocks,
    Chain,
    Custom,
    GaussianRing,
    Identity,
    Topology,
    Torus,
    Uniform,
)


@dataclass(frozen=True)
class FromFile:
    """A kernel of your own from a text file: M lines of M numbers, spaces or commas between."""

    matrix: Path
    """File to read."""

    def load(self) -> Custom:
        try:
            text = self.matrix.read_text().replace(",", " ")
            rows = [[float(word) for word in line.split()] for line in text.splitlines() if line]
        except (OSError, ValueError) as error:
            raise McoverError(f"cannot read a matrix from {self.matrix}: {error}.") from error
        if len({len(row) for row in rows} | {len(rows)}) != 1:
            raise McoverError(f"{self.matrix} does not hold M lines of M numbers.")
        return Custom(np.array(rows))


def _verb(name: str, description: str) -> object:
    return tyro.conf.subcommand(name, description=description)


AnyTopology = (
    Annotated[GaussianRing, _verb("ring", "Gaussian ring, the paper's kernel.")]
    | Annotated[Uniform, _verb("uniform", "Every cover is read equally.")]
    | Annotated[Identity, _verb("identity", "Each cover reads itself: M independent models.")]
    | Annotated[Band, _verb("band", "Equal reads within some steps on the ring.")]
    | Annotated[Chain, _verb("chain", "Gaussian ring cut open.")]
    | Annotated[Blocks, _verb("blocks", "Ring over equal blocks of covers.")]
    | Annotated[Torus, _verb("torus", "Covers on a torus, rows × cols.")]
    | Annotated[FromFile, _verb("custom", "Your own matrix, from a text file.")]
)


@dataclass(frozen=True)
class ShowTopology:
    """Print the facts of a topology and draw it: kernel, marginals, routes, spectrum."""

    kind: AnyTopology
    """Which topology."""
    covers: int | None = None
    """Number of covers M; 12 unless the topology itself fixes it."""
    seed: int = 0
    """Seed of the routes that are drawn."""
    output: Path = Path("out/topology.png")
    """Picture to write (.png, .pdf or .svg)."""

    def run(self) -> None:
        topology = self.kind.load() if isinstance(self.kind, FromFile) else self.kind
        covers = self.covers if self.covers is not None else _own_covers(topology)
        facts = topology.facts(covers)
        table = Table(title=f"{topology!r}, {covers} covers", title_justify="left")
        table.add_column("fact")
        table.add_column("value", justify="right")
        table.add_column("meaning")
        table.add_row("spectral gap", f"{facts.spectral_gap:.4f}", "how fast covers mix; 0 never")
        table.add_row("drift", f"{facts.drift:.4f}", "covers a message moves along per read")
        table.add_row("effective width", f"{facts.effective_width:.4f}", "covers that are read")
        console.print(table)

        from mcover.lab.figures.style import save
        from mcover.lab.figures.topology import topology_figure

        path = save(topology_figure(topology, covers, self.seed), self.output)
        console.print(f"picture: {path}")


def _own_covers(topology: Topology) -> int:
    match topology:
        case Torus(rows=rows, cols=cols):
            return rows * cols
        case Custom(values=values):
            return len(values)
        case Blocks(count=count):
            return count * max(1, round(12 / count))
        case _:
            return 12
