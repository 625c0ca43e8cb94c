"""Text of the commands: tables with aligned columns, and where pictures were written."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mcover.extras import install

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def say(text: str = "") -> None:
    """Prints a line at once, also where the output is a pipe."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column aligned to the left, the others to the right.

    >>> print(table(["method", "error"], [["RSA", "0.1"], ["M-cover", "0.05"]]))
    method   error
    -------  -----
    RSA        0.1
    M-cover   0.05
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for cells in (header, ["-" * width for width in widths], *rows):
        first, *others = (
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        lines.append("  ".join([first, *others]).rstrip())
    return "\n".join(lines)


def draw(path: Path, figure: Callable[[], Figure]) -> None:
    """Writes a picture and says where; without matplotlib, says which extra is needed."""
    if find_spec("matplotlib") is None:
        say(f"no {path.name}, which needs matplotlib: run {install('plot')}")
        return
    from mcover.figures import save

    say(f"picture: {save(figure(), path)}")
