"""Tables of one run."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from mcover.statistics import Estimate


def figures_table(title: str, figures: Iterable[tuple[str, Estimate, str]]) -> Table:
    """A table of names and estimates, each in a format of its own."""
    table = Table(title=title, title_justify="left")
    table.add_column("figure")
    table.add_column("value [95 % interval]", justify="right")
    for name, value, spec in figures:
        table.add_row(name, f"{value:{spec}}")
    return table
