"""Text of the commands: lines that appear at once, and where pictures were written."""

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
    """Prints a line at once, also where the output is a pipe."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def draw(path: Path, figure: Callable[[], Figure]) -> None:
    """Writes a picture and says where; without matplotlib, says which extra is needed."""
    if find_spec("matplotlib") is None:
        say(f"no {path.name}, which needs matplotlib: run {install('plot')}")
        return
    from mcover.figures import save

    say(f"picture: {save(figure(), path)}")
