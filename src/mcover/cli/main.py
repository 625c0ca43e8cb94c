"""Entry point of ``mcover``: arguments, and exit codes for errors and Ctrl-C."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Sequence

import mcover
from mcover import McoverError
from mcover.cli import anneal, demo, solve


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command; exits with 2 on bad input and with 130 on Ctrl-C."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # e.g. Greek letters on an ASCII terminal
            stream.reconfigure(errors="replace")
    written = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            given = _parser().parse_args(written)
            given.run(given)
        finally:
            sys.stdout.flush()  # raises BrokenPipeError here, also for --help
    except BrokenPipeError:  # e.g. mcover demo | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except (McoverError, OSError) as error:
        _exit(2, _as_option(str(error), written))
    except KeyboardInterrupt:
        _exit(130, "interrupted")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mcover",
        description="Train one model as M routed copies (the M-cover transform).",
        epilog="'mcover COMMAND --help' explains a command.",
    )
    parser.add_argument("--version", action="version", version=f"mcover {mcover.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    demo.add_command(commands)
    anneal.add_command(commands)
    solve.add_command(commands)
    return parser


def _exit(code: int, message: str) -> None:
    sys.stderr.write(f"mcover: {message}\n")
    sys.exit(code)


def _as_option(message: str, written: Sequence[str]) -> str:
    """Replaces the name of a field by that of the option in a message about its value."""
    field = re.match(r"(\w+)(?: of \w+)? is ", message)
    option = "--" + field[1].replace("_", "-").removeprefix("num-") if field else ""
    if field is None or not any(word.partition("=")[0] == option for word in written):
        return message
    return f"{option} is {message[field.end() :]}"
