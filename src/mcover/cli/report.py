"""``mcover report``: all studies on one page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mcover.checks import writable
from mcover.cli.study import read_rows
from mcover.errors import McoverError
from mcover.lab.studies.report import write_report
from mcover.lab.studies.store import DEFAULT
from mcover.lab.studies.study import Scale
from mcover.progress import console, live_line


@dataclass(frozen=True)
class Report:
    """Write one HTML page with all studies: tables, figures, the paper's numbers beside ours."""

    store: Path = DEFAULT
    """File that keeps the trials."""
    output: Path = Path("out/report.html")
    """Where to write the page."""
    scale: Scale | None = None
    """Show this scale only (default: the largest that is half done, study by study)."""

    def run(self) -> None:
        writable(self.output)
        rows = read_rows(self.store)
        if not rows:
            raise McoverError(
                f"{self.store} has no trials yet; 'mcover study run NAME' makes some."
            )
        with live_line() as line:
            path = write_report(rows, self.output, self.scale, line)
        console.print(f"report: {path} ({len(rows):,} trials)", markup=False)
