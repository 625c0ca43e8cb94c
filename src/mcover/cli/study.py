"""``mcover study``: run the paper's tables and figures, and carry their rows in and out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table
from rich.text import Text

from mcover.errors import McoverError
from mcover.lab.studies import (
    STUDIES,
    Inline,
    Plan,
    Processes,
    Store,
    Summary,
    find_study,
    run,
    summarize,
)
from mcover.lab.studies.exchange import read_csv, write_csv
from mcover.lab.studies.live import watching
from mcover.lab.studies.plan import by_key
from mcover.lab.studies.rows import Row
from mcover.lab.studies.store import DEFAULT
from mcover.lab.studies.study import SCALES, Scale, Study
from mcover.lab.studies.tables import Table as Plain
from mcover.lab.studies.tables import markdown, outcome_table, tables
from mcover.progress import console, errors

Name = Annotated[str, tyro.conf.Positional]


@dataclass(frozen=True)
class List:
    """All studies, and how many of their trials are in the store."""

    store: Path = DEFAULT
    """File that keeps the trials."""

    def run(self) -> None:
        have = by_key(_rows(self.store))
        table = Table(show_edge=False)
        for name in ("study", "of the paper", "title", *SCALES):
            table.add_column(name, no_wrap=name == "study")
        for study in STUDIES.values():
            counts = []
            for scale in SCALES:
                plan = Plan(study.at(scale), study.choice(scale))
                total = plan.total(have)
                counts.append(f"{len(plan.jobs(have)) - len(plan.missing(have))}/{total}")
            table.add_row(study.name, study.source, study.title, *counts)
        console.print(table)
        console.print(f"trials done of those planned, in {self.store}", markup=False)


@dataclass(frozen=True)
class Show:
    """What a study computes, and what its rows say so far."""

    name: Name
    """Name of the study."""
    scale: Scale = "paper"
    """How large: seconds, minutes, or the paper's size."""
    store: Path = DEFAULT
    """File that keeps the trials."""
    figures: Path | None = None
    """Folder to draw its figure in, as PNG and PDF."""
    markdown: bool = False
    """Print its tables as Markdown, and nothing else."""
    outcome: str | None = None
    """Print the mean of this outcome of the trials instead, e.g. train_error."""

    def run(self) -> None:
        study = find_study(self.name)
        plan = Plan(study.at(self.scale), study.choice(self.scale))
        have = by_key(_rows(self.store))
        there = any(config in plan.configs() for config, _ in have)
        if not self.markdown:
            self._describe(study, plan)
        if not there:
            text = f"no trial of it at scale {self.scale} in {self.store} yet"
            console.print(text, markup=False)
            return
        summary = summarize(study, self.scale, plan, have)
        asked = tables(summary)
        if self.outcome is not None:
            asked = [outcome_table(summary, self.outcome)]
        if self.markdown:
            for table in asked:
                text = f"**{table.title}**\n\n{markdown(table)}\n"
                console.print(text, markup=False, soft_wrap=True)
        else:
            _print(summary, asked)
        if self.figures is not None:
            _draw(summary, self.figures)

    def _describe(self, study: Study, plan: Plan) -> None:
        console.print(f"{study.name}: {study.title} ({study.source})", markup=False)
        console.print(study.about, markup=False)
        console.print(_cells(plan))


@dataclass(frozen=True)
class Run:
    """Run what is missing of a study; stop it with Ctrl-C at any time, and go on later."""

    name: Name
    """Name of the study."""
    scale: Scale = "quick"
    """How large: seconds, minutes, or the paper's size."""
    trials: int | None = None
    """Trials of each cell (default: what the study says)."""
    only: str = ""
    """Only cells with this in their name."""
    workers: int | None = None
    """Processes of one core each (default: all cores); 0 runs in this process."""
    store: Path = DEFAULT
    """File that keeps the trials; several runs may share it."""
    figures: Path = Path("out/figures")
    """Folder to draw the figure in, as PNG and PDF."""
    retry_failed: bool = False
    """Run failed trials again."""

    def run(self) -> None:
        study = find_study(self.name)
        plan = Plan(study.at(self.scale, self.trials, self.only), study.choice(self.scale))
        with Store(self.store) as store:
            if self.retry_failed:
                store.forget_failed(plan.configs())
            engine = Inline() if self.workers == 0 else Processes(self.workers)
            with watching(plan) as view:
                ran = run(plan, store, engine, view)
            have = by_key(store.rows(plan.configs()))
        if ran.interrupted:
            console.print("stopped; what is finished is kept, the same command goes on")
        if not have:
            sys.exit(130)
        summary = summarize(study, self.scale, plan, have)
        _print(summary, tables(summary))
        _draw(summary, self.figures)
        if ran.interrupted:
            sys.exit(130)


@dataclass(frozen=True)
class Export:
    """Write the rows of a study to a CSV file, its choices of strengths included."""

    name: Name
    """Name of the study."""
    csv: Path
    """File to write."""
    scale: Scale | None = None
    """Only rows of this scale (default: all)."""
    store: Path = DEFAULT
    """File that keeps the trials."""

    def run(self) -> None:
        study = find_study(self.name)
        with Store(self.store, create=False) as store:
            rows = store.rows(_configs(study, self.scale))
        if not rows:
            raise McoverError(f"{self.store} has no trial of {self.name}; nothing was written.")
        count = write_csv(rows, self.csv)
        console.print(f"{count} trials written to {self.csv}", markup=False)


@dataclass(frozen=True)
class Import:
    """Read rows that 'mcover study export' wrote; what is in the store already stays."""

    csv: Path
    """File to read."""
    store: Path = DEFAULT
    """File that keeps the trials."""

    def run(self) -> None:
        rows = read_csv(self.csv)
        with Store(self.store) as store:
            new = store.put(rows)
        console.print(f"{new} trials imported, {len(rows) - new} were there already", markup=False)


Action = (
    Annotated[List, tyro.conf.subcommand("list")]
    | Annotated[Show, tyro.conf.subcommand("show")]
    | Annotated[Run, tyro.conf.subcommand("run")]
    | Annotated[Export, tyro.conf.subcommand("export")]
    | Annotated[Import, tyro.conf.subcommand("import")]
)


@dataclass(frozen=True)
class StudyVerb:
    """Tables and figures of the paper: run them, look at them, carry their rows in and out."""

    action: Action

    def run(self) -> None:
        self.action.run()


def _rows(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with Store(path, create=False) as store:
        return store.rows()


def _configs(study: Study, scale: Scale | None) -> set[str]:
    scales = SCALES if scale is None else (scale,)
    plans = [Plan(study.at(one), study.choice(one)) for one in scales]
    return {config for plan in plans for config in plan.configs()}


def _cells(plan: Plan) -> Table:
    table = Table(show_edge=False)
    for name in ("cell", "kind", "trials", "candidates", "config"):
        table.add_column(name, justify="right" if name == "trials" else "left")
    for cell in plan.cells:
        candidates = ", ".join(choice.label for choice in cell.choices)
        config = "chosen" if cell.choices else cell.config
        table.add_row(Text(cell.label), cell.kind, str(cell.trials), Text(candidates), config)
    return table


def _print(summary: Summary, asked: Sequence[Plain]) -> None:
    for plain in asked:
        table = Table(title=Text(plain.title), title_justify="left", show_edge=False)
        for number, name in enumerate(plain.header):
            table.add_column(Text(name), justify="left" if number == 0 else "right")
        for line in plain.lines:
            table.add_row(*(Text(cell.replace(" [", "\n[")) for cell in line))
        console.print(table)
    failed = f", {summary.failed} failed" if summary.failed else ""
    console.print(
        f"{summary.study.name}, scale {summary.scale}: {summary.done} of {summary.total} trials"
        f"{failed}; intervals are 95 %, p by paired permutation tests, corrected by Holm's rule",
        markup=False,
    )
    for message in sorted({row.message for point in summary.points for row in point.failures}):
        errors.print(f"failed: {message}", markup=False)


def _draw(summary: Summary, folder: Path) -> None:
    from mcover.lab.figures.studies import study_figure
    from mcover.lab.figures.style import save

    if all(point.value is None for point in summary.points):
        return
    figure = study_figure(summary)
    for ending in ("png", "pdf"):
        path = save(figure, folder / f"{summary.study.name}.{ending}")
        console.print(f"figure: {path}", markup=False)
