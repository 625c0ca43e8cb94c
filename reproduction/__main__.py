"""Command line of the reproduction: ``python -m reproduction list | run NAME | show NAME | pages``.

``run`` starts from the committed rows in ``reproduction/results`` and stores new rows in a file.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from mcover import McoverError
from reproduction.executors import ENGINES, make_executor
from reproduction.rows import Key, Row, by_key, read_csv, revision_of, write_csv
from reproduction.runner import run
from reproduction.store import DEFAULT, Store
from reproduction.studies import STUDIES, find_study
from reproduction.study import SCALES, Plan

RESULTS = Path(__file__).parent / "results"


def committed_rows() -> dict[Key, Row]:
    """The rows of all committed studies; amp.csv has a different format."""
    files = sorted(path for path in RESULTS.glob("*.csv") if path.name != "amp.csv")
    return by_key(row for path in files for row in read_csv(path))


def known_rows(store: Path) -> dict[Key, Row]:
    """Committed and stored rows; for equal keys, the row of the newest revision."""
    rows = committed_rows()
    if store.exists():
        with Store(store) as opened:
            rows = by_key((*rows.values(), *opened.rows()))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.command(options)
    except McoverError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return status


def _list(options: argparse.Namespace) -> int:
    rows = known_rows(options.store)
    for study in STUDIES.values():
        counts = []
        for scale in SCALES:
            done, total = study.plan(scale).progress(rows)
            counts.append(f"{scale} {done}/{total}")
        _print(f"{study.name:24}{study.title}\n{'':24}rows: {', '.join(counts)}")
    return 0


def _run(options: argparse.Namespace) -> int:
    study = find_study(options.name)
    plan = study.plan(options.scale, options.trials, options.only)
    workers = options.workers
    with (
        Store(options.store) as store,
        make_executor(options.engine, workers, options.address) as executor,
    ):
        ran = run(plan, store, executor, workers, committed_rows(), renew=options.renew)
    _print(f"{ran.new} new rows in {options.store}, {ran.failed} of them failed.")
    if ran.interrupted:
        _print("Interrupted. All finished rows are kept; run the same command to continue.")
        return 130
    _print(f"Show them: python -m reproduction show {study.name} --scale {options.scale}")
    return 0


def _show(options: argparse.Namespace) -> int:
    from reproduction.summary import outcome_table, summarize

    study = find_study(options.name)
    plan = study.plan(options.scale)
    found = by_key(read_csv(options.rows)) if options.rows else known_rows(options.store)
    ids = plan.trials()
    rows = {key: row for key, row in found.items() if row.trial_id in ids}
    summary = summarize(study, options.scale, plan, rows)
    _print(f"{study.title}: {summary.done} of {summary.total} rows at scale {options.scale}")
    if old := _older(plan, rows):
        _print(f"{old} rows are of an older revision; 'run {study.name} --renew' computes them.")
    tables = [outcome_table(summary, options.outcome)] if options.outcome else summary.tables
    for table in tables:
        text = table.markdown() if options.markdown else table.text()
        _print(f"\n{table.title}\n\n{text}")
    if options.csv:
        _print(f"{write_csv(rows.values(), options.csv)} rows written to {options.csv}")
    if options.output:
        from reproduction.figures import save, study_figure

        _print(f"figure written to {save(study_figure(summary), options.output)}")
    return 0


def _older(plan: Plan, rows: dict[Key, Row]) -> int:
    """Number of rows of the plan whose revision is older than that of their kind of trial."""
    current = {(cell.trial_id, seed): revision_of(cell.trial) for cell, seed in plan.pending(rows)}
    return sum(key in rows and rows[key].revision < now for key, now in current.items())


def _pages(options: argparse.Namespace) -> int:
    from reproduction import pages

    if not options.check:
        pages.write_pages()
    elif stale := pages.check_pages():
        names = ", ".join(path.name for path in stale)
        raise McoverError(f"{names}: outdated; run 'python -m reproduction pages'.")
    return 0


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m reproduction", description="Studies of the paper and their results pages."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("list", help="list all studies and the number of their rows")
    _add_store(one)
    one.set_defaults(command=_list)

    one = commands.add_parser("run", help="compute the missing rows of a study")
    _add_study(one)
    _add_store(one)
    one.add_argument("--trials", type=int, metavar="N", help="number of seeds of each cell")
    one.add_argument("--only", default="", metavar="TEXT", help="cells whose label has this text")
    one.add_argument("--engine", choices=ENGINES, default="local", help="where trials run")
    one.add_argument("--address", help="of a running Dask or Ray cluster; for slurm: local")
    one.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="trials at a time; 0: no processes"
    )
    one.add_argument("--renew", action="store_true", help="compute rows of older revisions again")
    one.set_defaults(command=_run)

    one = commands.add_parser("show", help="print the tables of a study")
    _add_study(one)
    _add_store(one)
    one.add_argument("--rows", type=Path, metavar="FILE", help="CSV file to read instead")
    one.add_argument("--csv", type=Path, metavar="FILE", help="write the rows of the study here")
    one.add_argument("--outcome", metavar="NAME", help="only the mean of this outcome of trials")
    one.add_argument("--markdown", action="store_true", help="print tables as Markdown")
    one.add_argument("--output", type=Path, metavar="FILE", help="draw the figure here (png, pdf)")
    one.set_defaults(command=_show)

    one = commands.add_parser("pages", help="write the pages of results from the committed rows")
    one.add_argument("--check", action="store_true", help="only check that they are up to date")
    one.set_defaults(command=_pages)
    return parser


def _add_study(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a study, see list")
    parser.add_argument("--scale", choices=SCALES, default="smoke", help="size (smoke)")


def _add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", type=Path, default=DEFAULT, metavar="FILE", help=f"({DEFAULT})")


if __name__ == "__main__":
    sys.exit(main())
