"""The command line: ``mcover demo`` and ``mcover anneal``."""

from mcover.cli.main import main

__all__ = ["main"]
