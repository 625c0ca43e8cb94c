"""``mcover report``: all studies on one page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mcover.errors import McoverError
from mcover.lab.studies.report import write_report
from mcover.lab.studies.store import DEFAULT, Store
from mcover.lab.studies.study import Scale
from mcover.progress import console


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
        with Store(self.store, create=False) as store:
            rows = store.rows()
        if not rows:
            raise McoverError(
                f"{self.store} has no trials yet; 'mcover study run NAME' makes some."
            )
        path = write_report(rows, self.output, self.scale)
        console.print(f"report: {path} ({len(rows):,} trials)", markup=False)
