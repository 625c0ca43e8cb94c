"""Arguments that ``mcover anneal`` and ``mcover solve`` share: patterns, seed and output."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from mcover import McoverError, checks, teacher_student
from mcover.annealing import Problem, Ties, load_problem

# Options of each source of patterns and their defaults; None is the default of the function.
_SOURCES: dict[str, dict[str, Any]] = {
    "perceptron": {"n": 1000, "alpha": 1.58, "ties": None},
    "committee": {"n": 201, "alpha": 2.0, "hidden": 5},
    "FILE": {"hidden": 1},
}


def add_source(parser: Any) -> None:
    """Adds the source of the patterns and its options."""
    parser.add_argument(
        "source",
        metavar="perceptron|committee|FILE",
        help="a perceptron or a committee machine that learns from a random teacher, or your own "
        "patterns of two values: an .npz file with patterns (P, N), labels (P,) and optionally "
        "teacher, or an .npy or .csv file with the labels in the last column",
    )
    group = parser.add_argument_group("problem")

    def shown(name: str) -> str:
        defaults = [f"{of[name]} of a {kind}" for kind, of in _SOURCES.items() if of.get(name)]
        return ", ".join(defaults).replace("a FILE", "a file")

    def add(name: str, of: type[int] | type[float], text: str) -> None:
        group.add_argument(
            f"--{name}",
            type=of,
            default=argparse.SUPPRESS,
            metavar="X" if of is float else "N",
            help=f"{text} ({shown(name)})",
        )

    add("n", int, "inputs N")
    add("alpha", float, "patterns per weight, P/(K·N)")
    add("hidden", int, "hidden units K; 1 is a perceptron")
    group.add_argument(
        "--ties",
        choices=get_args(Ties),
        default=argparse.SUPPRESS,
        help="redraw patterns on which the teacher of a perceptron is undecided, or label them +1 "
        f"({get_args(Ties)[0]})",
    )


def problem_of(given: argparse.Namespace) -> Problem:
    """The problem given by the arguments: a teacher's patterns, or patterns from a file."""
    source, written = given.source, vars(given)
    kind = source if source in _SOURCES else "FILE"
    every = dict.fromkeys(name for of in _SOURCES.values() for name in of)
    if foreign := [name for name in every if name in written and name not in _SOURCES[kind]]:
        remedy = "write committee" if foreign[0] == "hidden" else "leave it out"
        raise McoverError(f"{source} has no --{foreign[0]}; {remedy}.")
    chosen = {name: written.get(name, of) for name, of in _SOURCES[kind].items()}
    chosen = {name: of for name, of in chosen.items() if of is not None}
    if kind == "FILE":
        if not Path(source).suffix and not Path(source).exists():
            near = get_close_matches(source, _SOURCES, 1)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise McoverError(
                f"there is no file {source!r}; write perceptron, committee, or a file that ends in "
                f".npz, .npy or .csv{hint}"
            )
        return load_problem(source, **chosen)
    return teacher_student(**chosen, seed=[given.seed, 0])


def add_run(group: Any, what: str, output: str, files: str) -> None:
    """Adds seed, workers and output; the seed also draws a random teacher and its patterns."""
    group.add_argument(
        "--seed", type=int, default=0, help=f"seed of the problem and of the {what} (%(default)s)"
    )
    group.add_argument("--workers", type=int, help="threads (one for each CPU)")
    group.add_argument(
        "--output", type=Path, default=Path(output), help=f"writes {files} (%(default)s)"
    )


def output_of(given: argparse.Namespace) -> Path:
    """The .npz file to write; refuses a path that cannot be written."""
    checks.check_writable(given.output)
    return checks.check_writable(Path(str(given.output).removesuffix(".npz") + ".npz"))


def or_none(of: type[int] | type[float]) -> Callable[[str], float | None]:
    """A type of argparse: a number, or the word none."""

    def read(text: str) -> float | None:
        return None if text == "none" else of(text)

    # argparse shows this name in its error.
    read.__name__ = f"{'integer' if of is int else 'number'} or none"
    return read
