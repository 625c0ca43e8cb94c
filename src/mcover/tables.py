"""Small tables as text, with aligned columns, and as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

Row = Sequence[str]


def table(header: Row, rows: Sequence[Row], left: int = 1) -> str:
    """A table with the first ``left`` columns aligned to the left, the others to the right.

    >>> print(table(["method", "error"], [["RSA", "0.1"], ["M-cover", "0.05"]]))
    method   error
    -------  -----
    RSA        0.1
    M-cover   0.05
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for cells in (header, ["-" * width for width in widths], *rows):
        aligned = (
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)


def facts(title: str, rows: Sequence[Row]) -> str:
    """A title, and indented lines with a name and a value.

    >>> print(facts("Run", [["reads", "3"], ["energy", "0.5"]]))
    Run
      reads   3
      energy  0.5
    """
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join([title, *(f"  {name.ljust(width)}  {text}".rstrip() for name, text in rows)])


def html_table(title: str, header: Row, rows: Sequence[Row]) -> str:
    """An HTML table with a title; an empty header is left out.

    >>> html_table("Run", [], [["reads", "<3>"]])
    '<table><caption>Run</caption><tr><th>reads</th><td>&lt;3&gt;</td></tr></table>'
    """
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    lines = [f"<tr>{head}</tr>"] if head else []
    for first, *others in rows:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in others)
        lines.append(f"<tr><th>{escape(first)}</th>{cells}</tr>")
    return f"<table><caption>{escape(title)}</caption>{''.join(lines)}</table>"
