"""The pages of results: prose with tables computed from the committed rows.

``python -m reproduction pages`` writes ``README.md``, ``frontier.md`` and ``sweeps.md`` to
``reproduction/results``. The prose is in the files that end in ``.md.j2``. In them,
``{{ table(study, title) }}`` is a table of the rows in STUDY.csv, ``{{ sweep(title) }}`` one of
``sweeps.py`` and ``{{ amp }}`` that of ``amp.py``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from mcover.errors import McoverError
from reproduction import sweeps
from reproduction.rows import by_key, read_csv
from reproduction.studies import find_study
from reproduction.summary import FOOTNOTE, OUTDATED, Table, summarize

RESULTS = Path(__file__).parent / "results"
# Studies whose rows are in the files of other studies.
_OTHER_FILES = {"table-1": ("perceptron-variants", "committee-errors", "mlp-errors")}


def write_pages() -> list[Path]:
    """Writes every page and returns their paths."""
    pages = render_pages()
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    return list(pages)


def check_pages() -> list[Path]:
    """The pages that differ from what the committed rows give; empty if none does."""
    return [
        path
        for path, text in render_pages().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]


def render_pages() -> dict[Path, str]:
    """The text of each page, by its path."""
    swept = sweeps.tables()
    # Markdown, not HTML: nothing is escaped.
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    given = {
        "table": _table,
        "sweep": lambda title: _find(swept, title).markdown(),
        "amp": (RESULTS / "amp.md").read_text(encoding="utf-8").strip(),
    }
    pages = {
        RESULTS / "sweeps.md": "\n".join(f"**{one.title}**\n\n{one.markdown()}\n" for one in swept)
    }
    for template in sorted(RESULTS.glob("*.md.j2")):
        prose = environment.from_string(template.read_text(encoding="utf-8"))
        pages[template.with_suffix("")] = prose.render(given)
    return {path: _with_footnote(text) for path, text in pages.items()}


def _with_footnote(text: str) -> str:
    # A mark follows a count; the prose may name the sign without using it.
    return f"{text}\n{FOOTNOTE}\n" if re.search(rf"\d{OUTDATED}", text) else text


def _table(name: str, title: str, without: tuple[str, ...] = (), exact: bool = False) -> str:
    """A table of a study; lines that contain one of the words in ``without`` are left out."""
    found = _find([one for one in _tables(name) if not exact or one.title == title], title)
    lines = [line for line in found.lines if not any(word in str(line) for word in without)]
    return Table(title, found.header, tuple(lines)).markdown()


@cache
def _tables(name: str) -> tuple[Table, ...]:
    """All tables of a study at the paper's scale."""
    files = _OTHER_FILES.get(name, (name,))
    rows = by_key(row for file in files for row in read_csv(RESULTS / f"{file}.csv"))
    study = find_study(name)
    return summarize(study, "paper", study.plan("paper"), rows).tables


def _find(tables: Sequence[Table], title: str) -> Table:
    fitting = [one for one in tables if one.title.startswith(title)]
    if len(fitting) != 1:
        names = "; ".join(one.title for one in tables)
        raise McoverError(f"{len(fitting)} tables begin with {title!r}; write one of: {names}.")
    return fitting[0]
