"""The command line: one frozen dataclass a verb, its fields the options, its ``run`` the work."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import tyro

from mcover import __version__
from mcover.cli.anneal import Anneal
from mcover.cli.demo import Demo
from mcover.cli.report import Report
from mcover.cli.study import StudyVerb
from mcover.cli.topology import ShowTopology
from mcover.cli.train import Train
from mcover.errors import McoverError
from mcover.progress import console, errors


def verbs(arguments: list[str]) -> Any:
    """All verbs; the defaults of training depend on the model that the arguments name."""
    return (
        Annotated[ShowTopology, tyro.conf.subcommand("topology")]
        | Annotated[Anneal, tyro.conf.subcommand("anneal")]
        | Annotated[Train, tyro.conf.subcommand("train")]
        | Annotated[Demo, tyro.conf.subcommand("demo")]
        | Annotated[StudyVerb, tyro.conf.subcommand("study")]
        | Annotated[Report, tyro.conf.subcommand("report")]
    )


def main(arguments: list[str] | None = None) -> None:
    """Entry point of ``mcover``."""
    given = sys.argv[1:] if arguments is None else arguments
    if given == ["--version"]:
        console.print(f"mcover {__version__}")
        return
    try:
        verb = tyro.cli(
            verbs(given),
            args=given,
            prog="mcover",
            description=(
                "Train one model as M routed copies (the M-cover transform). "
                "'mcover VERB --help' explains a verb, 'mcover --version' prints the version."
            ),
            config=(
                tyro.conf.OmitArgPrefixes,
                tyro.conf.OmitSubcommandPrefixes,
                tyro.conf.CascadeSubcommandArgs,
            ),
        )
        verb.run()
    except (McoverError, OSError) as error:
        errors.print(f"mcover: {error}", markup=False)
        sys.exit(2)
    except KeyboardInterrupt:
        errors.print("mcover: interrupted")
        sys.exit(130)
