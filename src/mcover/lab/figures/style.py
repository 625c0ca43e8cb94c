"""What all pictures share: colours, and how they reach the disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mcover.errors import McoverError
from mcover.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart with any colour vision.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")


def save(figure: Figure, path: str | Path) -> Path:
    """Writes a figure (the ending says the format) and makes its folder if need be."""
    target = Path(path)
    known = figure.canvas.get_supported_filetypes()
    ending = target.suffix.lstrip(".").lower()
    if ending not in known:
        raise McoverError(f"cannot write {target}; end the name in one of .png, .pdf or .svg.")
    # Without the time of day, the same rows make the same file.
    metadata = {"CreationDate": None} if ending == "pdf" else None
    return write_atomic(
        target, lambda file: figure.savefig(file, format=ending, dpi=150, metadata=metadata)
    )
