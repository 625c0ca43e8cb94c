"""Each table and figure of the paper as a frozen study; runner, store, statistics, report."""

from mcover.lab.studies.catalogue import STUDIES, find_study
from mcover.lab.studies.runner import Inline, Processes, run
from mcover.lab.studies.store import Store
from mcover.lab.studies.study import Plan, Study
from mcover.lab.studies.summary import Summary, summarize

__all__ = [
    "STUDIES",
    "Inline",
    "Plan",
    "Processes",
    "Store",
    "Study",
    "Summary",
    "find_study",
    "run",
    "summarize",
]
