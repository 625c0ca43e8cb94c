"""The command line: one frozen dataclass a verb, its fields the options, its ``run`` the work."""

from mcover.cli.main import main

__all__ = ["main"]
