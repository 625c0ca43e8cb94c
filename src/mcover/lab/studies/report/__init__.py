"""One HTML page that holds everything: what ran, tables, figures, versions, commands."""

from mcover.lab.studies.report.page import write_report

__all__ = ["write_report"]
