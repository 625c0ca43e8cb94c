"""Each table and figure of the paper as a frozen study; runner, store, statistics, report."""

from mcover.studies.catalogue import STUDIES, find_study
from mcover.studies.plan import Plan
from mcover.studies.runner import run
from mcover.studies.store import Store
from mcover.studies.study import Study
from mcover.studies.summary import Summary, summarize
from mcover.studies.workers import Inline, Processes

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
