"""Writes ``README.md``, ``frontier.md`` and ``sweeps.md`` here: prose, and tables of the rows.

    python results/page.py           # writes the pages
    python results/page.py --check   # says whether they are what the rows give

The prose is in the files that end in ``.md.j2``. In there, ``{{ table(study, title) }}`` is a table
that ``mcover study show STUDY --scale paper --markdown`` prints of the rows in STUDY.csv,
``{{ sweep(title) }}`` one of ``sweeps.py`` and ``{{ amp }}`` that of ``amp.py``.
"""

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import sweeps
from jinja2 import Environment, StrictUndefined

from reproduction.rows import by_key, read_csv
from reproduction.studies import find_study, summarize
from reproduction.summary import Table

HERE = Path(__file__).parent
OTHER_FILES = {"table-1": ("perceptron-variants", "committee-errors", "mlp-errors")}


def pages() -> dict[Path, str]:
    """What each page holds."""
    swept = sweeps.tables()
    # Markdown, not HTML: nothing is to be escaped.
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    given = {
        "table": table,
        "sweep": lambda title: _one(swept, title).markdown(),
        "amp": (HERE / "amp.md").read_text(encoding="utf-8").strip(),
    }
    more = "\n".join(f"**{one.title}**\n\n{one.markdown()}\n" for one in swept)
    filled = {HERE / "sweeps.md": more}
    for template in sorted(HERE.glob("*.md.j2")):
        prose = environment.from_string(template.read_text(encoding="utf-8"))
        filled[template.with_suffix("")] = prose.render(given)
    return filled


def table(name: str, title: str, without: tuple[str, ...] = (), exact: bool = False) -> str:
    """A table of a study; lines that have one of some words in them may be left out."""
    found = _one([one for one in tables(name) if not exact or one.title == title], title)
    lines = [line for line in found.lines if not any(word in str(line) for word in without)]
    return Table(title, found.header, tuple(lines)).markdown()


@cache
def tables(name: str) -> tuple[Table, ...]:
    """All tables of a study at the paper's scale."""
    files = OTHER_FILES.get(name, (name,))
    rows = by_key(row for file in files for row in read_csv(HERE / f"{file}.csv"))
    study = find_study(name)
    return summarize(study, "paper", study.plan("paper"), rows).tables


def _one(found: Sequence[Table], title: str) -> Table:
    fitting = [one for one in found if one.title.startswith(title)]
    if len(fitting) != 1:
        names = "; ".join(one.title for one in found)
        raise SystemExit(f"{len(fitting)} tables begin with {title!r}; there are: {names}")
    return fitting[0]


def main() -> None:
    for path, text in pages().items():
        if "--check" not in sys.argv[1:]:
            path.write_text(text, encoding="utf-8")
        elif text != path.read_text(encoding="utf-8"):
            raise SystemExit(f"{path} is not what the rows give; run 'python results/page.py'.")


if __name__ == "__main__":
    main()
