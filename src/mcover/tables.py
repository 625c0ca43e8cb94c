"""Small tables as text, with aligned columns, and as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

Row = Sequence[str]


def table(header: Row, rows: Sequence[Row]) -> str:
    """A table with the first column aligned to the left, and the others to the right.

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
