"""Writes ``README.md`` and ``sweeps.md`` beside this file: prose, and tables filled from the rows.

    python results/page.py           # writes the pages
    python results/page.py --check   # says whether they are what the rows give

The prose is in ``README.md.j2``. In there, ``{{ table(study, title) }}`` is a table that
``mcover study show STUDY --scale paper --markdown`` prints of the rows in STUDY.csv,
``{{ sweep(title) }}`` one of ``sweeps.py`` and ``{{ amp }}`` that of ``amp.py``.
"""

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import sweeps
from jinja2 import Environment, StrictUndefined

from mcover.lab.studies import Summary, find_study, summarize
from mcover.lab.studies.rows import by_key, read_csv
from mcover.lab.studies.tables import Table

HERE = Path(__file__).parent
TEMPLATE = HERE / "README.md.j2"
OTHER_FILES = {"table-1": ("perceptron-variants", "committee-errors", "mlp-errors")}


def pages() -> dict[Path, str]:
    """What each page holds."""
    return {HERE / "README.md": _readme(), HERE / "sweeps.md": sweeps.page()}


def _readme() -> str:
    @cache
    def summary(name: str) -> Summary:
        files = OTHER_FILES.get(name, (name,))
        rows = by_key(row for file in files for row in read_csv(HERE / f"{file}.csv"))
        study = find_study(name)
        return summarize(study, "paper", study.plan("paper"), rows)

    def table(name: str, title: str, without: tuple[str, ...] = ()) -> str:
        """A table of a study; lines that have one of some words in them may be left out."""
        found = _one(summary(name).tables, title)
        lines = tuple(
            line
            for line in found.lines
            if not any(word in cell for word in without for cell in line)
        )
        return Table(title, found.header, lines).markdown()

    @cache
    def swept() -> list[Table]:
        return [*sweeps.loading(), *sweeps.topology(), *sweeps.covers()]

    # Markdown, not HTML: nothing is to be escaped.
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        table=table,
        sweep=lambda title: _one(swept(), title).markdown(),
        amp=(HERE / "amp.md").read_text(encoding="utf-8").strip(),
    )


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
