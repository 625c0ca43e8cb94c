"""Search for a topology and a lift on held-out data; the winner as a file that others read.

``mcover tune`` is its command line. Optuna is loaded when a search begins.
"""

from mcover.lab.tune.config import ConfigFile, read
from mcover.lab.tune.search import Candidate, Tuning
from mcover.lab.tune.spaces import NetworkSearch, PerceptronSearch, Search

__all__ = [
    "Candidate",
    "ConfigFile",
    "NetworkSearch",
    "PerceptronSearch",
    "Search",
    "Tuning",
    "read",
]
