"""The pages of results: prose with tables computed from the committed rows.

``python -m reproduction pages`` writes ``README.md`` (the conclusions) and a page for each study to
``docs/results``, for readers of the repository and of the site. Their prose is in
``reproduction/prose``, with a placeholder on a separate line for each table:

- ``{tables}``: all tables of the study with at most 40 lines, except candidates;
- ``{table: TITLE}``, ``{table: STUDY: TITLE}``: one table; ``; without A, B`` drops the lines that
  contain one of these words;
- ``{sweep: TITLE}``: a table of ``sweeps.py``; ``{amp}``: the table of ``amp.py``; ``{studies}``:
  links to all pages.

Titles may be shortened. Tables that the page of a study does not show become CSV files in
``reproduction/results/tables``. The end of the page lists them and the rows. Figures and rows are
in ``reproduction/results``; prose names them without the folder.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from mcover.errors import McoverError
from reproduction import amp, sweeps
from reproduction.rows import by_key, read_csv
from reproduction.studies import STUDIES, find_study
from reproduction.summary import CANDIDATES, FOOTNOTE, OUTDATED, Table, summarize

RESULTS = Path(__file__).parent / "results"
PROSE = Path(__file__).parent / "prose"
PAGES = Path(__file__).parent.parent / "docs" / "results"
_TO_RESULTS = "../../reproduction/results"
# Studies whose rows are in the files of other studies.
_OTHER_FILES = {"table-1": ("perceptron-variants", "committee-errors", "mlp-errors")}
_LONG = 40  # lines of a table that is not shown among all tables of a study


def write_pages() -> list[Path]:
    """Writes all pages and tables, removes tables without a page, and returns the paths."""
    pages = render_pages()
    for path in set((RESULTS / "tables").glob("*.csv")) - set(pages):
        path.unlink()
    for path, text in pages.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(pages)


def check_pages() -> list[Path]:
    """The pages and tables that differ from those of the committed rows; empty if none does."""
    return [
        path
        for path, text in render_pages().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]


def render_pages() -> dict[Path, str]:
    """The text of each page and table, by its path."""
    found: dict[Path, str] = {}
    for file in sorted(PROSE.glob("*.md")):
        found |= _Page(file).render()
    return found


class _Page:
    """One page, and the tables of its study that it has shown so far."""

    def __init__(self, file: Path) -> None:
        self.file, self.name = file, file.stem
        self.tables = tables_of(self.name) if self.name in STUDIES else ()
        self.shown: list[Table] = []

    def render(self) -> dict[Path, str]:
        prose = self.file.read_text(encoding="utf-8").strip()
        text = re.sub(r"^\{([a-z]+)(?:: (.+))?\}$", self._fill, prose, flags=re.MULTILINE)
        if left := re.search(r"\{[a-z]+(: [^}\n]*)?\}", text):
            raise McoverError(f"{self.file}: {left[0]} is no placeholder; see reproduction.pages.")
        others = [one for one in self.tables if one not in self.shown]
        files = {RESULTS / "tables" / f"{self._slug(one)}.csv": _csv(one) for one in others}
        if self.tables:
            text += f"\n\n## Rows\n\n{self._sources(others)}"
        # A mark follows a count; elsewhere the prose may mention the sign.
        marked = re.search(rf"\d{OUTDATED}", text) or any(OUTDATED in one for one in files.values())
        text += f"\n\n{FOOTNOTE}" if marked and self.tables else ""
        text = re.sub(r"\]\(([\w/-]+\.(?:png|csv|json))\)", rf"]({_TO_RESULTS}/\1)", text)
        return {PAGES / self.file.name: f"{text}\n"} | files

    def _fill(self, found: re.Match[str]) -> str:
        what, argument = found[1], found[2] or ""
        match what:
            case "tables":
                some = [one for one in self.tables if _is_short(one)]
                return "\n\n".join(map(self._shown, some))
            case "table":
                title, _, words = argument.partition("; without ")
                name, _, rest = title.partition(": ")
                tables = tables_of(name) if name in STUDIES else self.tables
                one = _find(tables, rest if name in STUDIES else title)
                before = found.string[: found.start()].rstrip().rpartition("\n\n")[2]
                return self._shown(one, words.split(", ") if words else (), "**" not in before[:2])
            case "sweep":
                return _find(_sweeps(), argument).markdown()
            case "amp":
                return amp.table()
            case "studies":
                return _list_of_pages()
        return found[0]

    def _shown(self, table: Table, without: Sequence[str] = (), titled: bool = True) -> str:
        if not without:
            self.shown.append(table)
        lines = [line for line in table.lines if not any(word in str(line) for word in without)]
        text = Table(table.title, table.header, tuple(lines)).markdown()
        return f"**{table.title}**\n\n{text}" if titled else text

    def _slug(self, table: Table) -> str:
        return re.sub(r"\W+", "-", f"{self.name} {table.title}".lower())

    def _sources(self, others: Sequence[Table]) -> str:
        files = [f"{name}.csv" for name in _OTHER_FILES.get(self.name, (self.name,))]
        rows = ", ".join(f"[{file}]({file})" for file in files)
        tables = [
            f"  - [{one.title}](tables/{self._slug(one)}.csv), {len(one.lines)} lines"
            for one in others
        ]
        more = "\n".join(("\n- Tables that are not shown above:", *tables))
        how = f"`python -m reproduction show {self.name} --scale paper` prints all tables."
        return f"- Every trial: {rows}. {how}{more if tables else ''}"


def _is_short(table: Table) -> bool:
    return len(table.lines) <= _LONG and not table.title.startswith(CANDIDATES)


def _list_of_pages() -> str:
    """Links to all pages but the first."""
    titles = {
        file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# "): file.name
        for file in PROSE.glob("*.md")
        if file.stem != "README"
    }
    return " ·\n".join(f"[{title}]({titles[title]})" for title in sorted(titles))


@cache
def _sweeps() -> tuple[Table, ...]:
    return tuple(sweeps.tables())


@cache
def _rows(name: str) -> dict:  # type: ignore[type-arg]
    files = _OTHER_FILES.get(name, (name,))
    return by_key(row for file in files for row in read_csv(RESULTS / f"{file}.csv"))


@cache
def tables_of(name: str) -> tuple[Table, ...]:
    """All tables of a study at the paper's scale."""
    study = find_study(name)
    return summarize(study, "paper", study.plan("paper"), _rows(name)).tables


def _find(tables: Sequence[Table], title: str) -> Table:
    exact = [one for one in tables if one.title == title]
    fitting = exact or [one for one in tables if one.title.startswith(title)]
    if len(fitting) != 1:
        names = "; ".join(one.title for one in tables)
        raise McoverError(f"{len(fitting)} tables begin with {title!r}; write one of: {names}.")
    return fitting[0]


def _csv(table: Table) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([table.header, *table.lines])
    return text.getvalue()
