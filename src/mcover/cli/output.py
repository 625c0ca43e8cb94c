"""Output of the commands: text and pictures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mcover.extras import install

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def say(text: str = "") -> None:
    """Prints a line and flushes it, also into a pipe."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def draw(path: Path, figure: Callable[[], Figure]) -> None:
    """Writes a picture and prints its path; without matplotlib, prints the extra it needs."""
    if find_spec("matplotlib") is None:
        say(f"no {path.name}, which needs matplotlib: run {install('plot')}")
        return
    from mcover.figures import save

    say(f"picture: {save(figure(), path)}")
