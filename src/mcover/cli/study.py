"""``mcover study``: run the paper's tables and figures, and carry their rows in and out.

Also ``mcover report``: all of them on one page.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import rich.table
import tyro
from rich.text import Text

from mcover.checks import check_writable
from mcover.errors import McoverError
from mcover.lab.engines import EngineOptions
from mcover.lab.figures.studies import study_figure
from mcover.lab.figures.style import save
from mcover.lab.studies.catalogue import STUDIES, find_study
from mcover.lab.studies.report import write_report
from mcover.lab.studies.rows import Row, by_key, read_csv, write_csv
from mcover.lab.studies.runner import run
from mcover.lab.studies.store import DEFAULT, Store
from mcover.lab.studies.study import SCALES, Plan, Rows, Scale
from mcover.lab.studies.summary import Summary, Table, outcome_table, summarize
from mcover.progress import announced, console, errors, live_line

say = partial(console.print, markup=False)
warn = partial(errors.print, markup=False)
Name = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY")]


@dataclass(frozen=True, kw_only=True)
class _Stored:
    store: Path = DEFAULT
    """File that keeps the trials; several runs may share it."""

    def rows(self, needed: bool = True) -> list[Row]:
        """All rows of the store; of a damaged one those that can be trusted, with a warning."""
        if not needed and not self.store.exists():
            return []
        with Store(self.store, create=False) as store:
            for line in store.damage:
                warn(f"{self.store} is damaged: {line}")
            return store.rows()


@dataclass(frozen=True)
class _Scaled(_Stored):
    name: Name
    """Name of the study."""
    scale: Scale = "quick"
    """How large: seconds, minutes, or the paper's size."""

    def summarize(self, plan: Plan, have: Rows) -> Summary:
        with announced(f"summarizing {self.name}"):
            return summarize(find_study(self.name), self.scale, plan, have)


@dataclass(frozen=True)
class List(_Stored):
    """All studies, and how many of their trials are in the store."""

    def run(self) -> None:
        have = by_key(self.rows(needed=False))
        lines = []
        for study in STUDIES.values():
            counts = ("{}/{}".format(*study.plan(scale).progress(have)) for scale in SCALES)
            lines.append((study.name, study.source, study.title, *counts))
        _print(Table.of("", ("study", "of the paper", "title", *SCALES), lines))
        say(f"trials done of those planned, in {self.store}")


@dataclass(frozen=True)
class Show(_Scaled):
    """What a study computes, and what its rows say so far."""

    figures: Path | None = None
    """Folder to draw its figure in, as PNG and PDF."""
    markdown: bool = False
    """Print its tables as Markdown, and nothing else."""
    outcome: str | None = None
    """Print the mean of this outcome of the trials instead, e.g. train_error."""

    def run(self) -> None:
        study = find_study(self.name)
        plan = study.plan(self.scale)
        if self.figures is not None:
            check_writable(self.figures / f"{study.name}.png")
        have = by_key(self.rows(needed=False))
        if not self.markdown:
            say(f"{study.name}: {study.title} ({study.source})\n{study.about}")
            _print(_cells(plan))
        counts = {scale: study.plan(scale).progress(have)[0] for scale in SCALES}
        some = ", ".join(f"--scale {scale} has {n:,}" for scale, n in counts.items() if n)
        if not any(config in plan.configs() for config, _ in have):
            say(f"no trial of it at scale {self.scale} in {self.store} yet")
            if some:
                say(f"trials by scale: {some}")
            return
        summary = self.summarize(plan, have)
        asked = summary.tables
        if self.outcome is not None:
            asked = (outcome_table(summary, self.outcome),)
        if self.markdown:
            for table in asked:
                say(f"**{table.title}**\n\n{table.markdown()}\n", soft_wrap=True)
        else:
            _print_summary(summary, asked)
            say(f"trials by scale: {some}")
        if self.figures is not None:
            _draw(summary, self.figures)


@dataclass(frozen=True)
class Run(_Scaled, EngineOptions):
    """Run what is missing of a study; stop it with Ctrl-C at any time, and go on later."""

    trials: int | None = None
    """Trials of each cell (default: what the study says)."""
    only: str = ""
    """Only cells with this in their name."""
    figures: Path = Path("out/figures")
    """Folder to draw the figure in, as PNG and PDF."""
    retry_failed: bool = False
    """Run failed trials again."""

    def run(self) -> None:
        plan = find_study(self.name).plan(self.scale, self.trials, self.only)
        engine = self.make_engine()
        check_writable(self.figures / f"{self.name}.png")
        with Store(self.store) as store:
            if self.retry_failed:
                store.forget_failed(plan.configs())
            with live_line() as line:
                ran = run(plan, store, engine, line)
            have = by_key(store.rows(plan.configs()))
        if ran.interrupted:
            say("stopped; what is finished is kept, the same command goes on")
        if have:
            summary = self.summarize(plan, have)
            _print_summary(summary, summary.tables)
            _draw(summary, self.figures)
        if ran.interrupted:
            sys.exit(130)


@dataclass(frozen=True)
class Export(_Stored):
    """Write the rows of a study to a CSV file, its choices of strengths included."""

    name: Name
    """Name of the study."""
    csv: Path
    """File to write."""
    scale: Scale | None = None
    """Only rows of this scale (default: all)."""

    def run(self) -> None:
        study = find_study(self.name)
        check_writable(self.csv)
        scales = SCALES if self.scale is None else (self.scale,)
        configs = {config for scale in scales for config in study.plan(scale).configs()}
        rows = [row for row in self.rows() if row.config in configs]
        if not rows:
            raise McoverError(f"{self.store} has no trial of {self.name}; nothing was written.")
        say(f"{write_csv(rows, self.csv)} trials written to {self.csv}")


@dataclass(frozen=True)
class Import(_Stored):
    """Read rows that 'mcover study export' wrote; what is in the store already stays."""

    csv: Path
    """File to read."""

    def run(self) -> None:
        rows = read_csv(self.csv)
        with Store(self.store) as store:
            new = store.put(rows, strict=True)
        say(f"{new} trials imported, {len(rows) - new} were there already")


@dataclass(frozen=True)
class StudyVerb:
    """Tables and figures of the paper: run them, look at them, carry their rows in and out."""

    action: (
        Annotated[List, tyro.conf.subcommand("list")]
        | Annotated[Show, tyro.conf.subcommand("show")]
        | Annotated[Run, tyro.conf.subcommand("run")]
        | Annotated[Export, tyro.conf.subcommand("export")]
        | Annotated[Import, tyro.conf.subcommand("import")]
    )

    def run(self) -> None:
        self.action.run()


@dataclass(frozen=True)
class Report(_Stored):
    """Write one HTML page with all studies: tables, figures, the paper's numbers beside ours."""

    output: Path = Path("out/report.html")
    """Where to write the page."""
    scale: Scale | None = None
    """Show this scale only (default: the largest that is half done, study by study)."""

    def run(self) -> None:
        check_writable(self.output)
        rows = self.rows()
        if not rows:
            raise McoverError(
                f"{self.store} has no trials yet; 'mcover study run NAME' makes some."
            )
        with live_line() as line:
            path = write_report(rows, self.output, self.scale, line)
        say(f"report: {path} ({len(rows):,} trials)")


def _cells(plan: Plan) -> Table:
    lines = [
        (
            *(cell.label, cell.kind, str(cell.trials), ", ".join(cell.choices) or None),
            "chosen" if cell.choices else cell.config,
        )
        for cell in plan.cells
    ]
    return Table.of("", ("cell", "kind", "trials", "candidates", "config"), lines)


def _print(plain: Table) -> None:
    table = rich.table.Table(title=Text(plain.title), title_justify="left", show_edge=False)
    for name, *column in zip(plain.header, *plain.lines, strict=True):
        is_number = all(text[:1] in "0123456789−–" for text in column)
        is_word = not any(" " in text for text in column)  # a name stays whole
        justify: Any = "right" if is_number else "left"
        table.add_column(Text(name), justify=justify, no_wrap=is_word)
    for line in plain.lines:
        table.add_row(*(Text(cell.replace(" [", "\n[")) for cell in line))
    say(table)


def _print_summary(summary: Summary, asked: Sequence[Table]) -> None:
    for table in asked:
        _print(table)
    failed = f", {summary.failed} failed" if summary.failed else ""
    say(
        f"{summary.study.name}, scale {summary.scale}: {summary.done} of {summary.total} trials"
        f"{failed}; intervals are 95 %, p by paired permutation tests, corrected by Holm's rule"
    )
    for message in sorted({row.message for point in summary.points for row in point.failures}):
        warn(f"failed: {message}")


def _draw(summary: Summary, folder: Path) -> None:
    if summary.drawn:
        figure = study_figure(summary)
        for ending in ("png", "pdf"):
            say(f"figure: {save(figure, folder / f'{summary.study.name}.{ending}')}")
