"""The command line: ``mcover demo``, ``mcover anneal`` and ``mcover solve``."""

from mcover.cli.main import main

__all__ = ["main"]
