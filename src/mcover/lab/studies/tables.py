"""Tables of text, for the terminal, the report and Markdown alike."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mcover.statistics import Estimate

NOTHING = "–"
CHOSEN = "✓"


@dataclass(frozen=True)
class Table:
    """Lines of text under a header."""

    title: str
    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, title: str, header: Sequence[str], lines: Sequence[Sequence[str | None]]) -> Table:
        """A table without the columns that are None in every line."""
        kept = [n for n in range(len(header)) if any(line[n] is not None for line in lines)]
        texts = tuple(tuple(line[n] or "" for n in kept) for line in lines)
        return cls(title, tuple(header[n] for n in kept), texts)

    def markdown(self) -> str:
        """The table for a Markdown page."""
        lines = [self.header, ["---"] * len(self.header), *self.lines]
        return "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
        )


def text(value: Estimate | None, spec: str) -> str:
    """An estimate with its interval; thousands in full rather than as powers of ten."""
    if value is None:
        return NOTHING
    plain = re.sub(r"[\d.]+e\+\d+", lambda found: f"{float(found[0]):,.0f}", f"{value:{spec}}")
    return plain.replace("-", "−")


def p_text(p: float) -> str:
    """A p-value in two digits."""
    if math.isnan(p):
        return NOTHING
    return f"{p:.2g}" if p >= 1e-3 else f"{p:.0e}".replace("e-0", "e-").replace("-", "−")


def place(x: float | None) -> str | None:
    """What is swept, where something is."""
    return None if x is None else f"{x:g}"
