"""``mcover solve``: fits ±1 weights to a teacher's patterns or to patterns from a file."""

from __future__ import annotations

import argparse
from inspect import signature
from typing import Any

import numpy as np

from mcover import checks, solve
from mcover.cli.output import say
from mcover.cli.sources import add_run, add_source, or_none, output_of, problem_of
from mcover.files import write_atomic


def add_command(commands: Any) -> None:
    """Adds ``solve``."""
    parser = commands.add_parser(
        "solve",
        help="find ±1 weights that fit all patterns",
        description="Find ±1 weights that fit all patterns, or the best ones within the time "
        "limit. Prints a summary and writes the weights.",
        epilog="Examples: mcover solve votes.csv --time-limit 10; "
        "mcover solve perceptron --n 501 --alpha 1.6",
    )
    parser.set_defaults(run=run)
    add_source(parser)
    default = {name: of.default for name, of in signature(solve).parameters.items()}
    searching = parser.add_argument_group("search")
    searching.add_argument(
        "--time-limit",
        type=or_none(float),
        default=default["time_limit"],
        metavar="SECONDS",
        help="time limit, or none to search until all patterns are fitted (%(default)g)",
    )
    searching.add_argument(
        "--restarts",
        type=int,
        default=default["restarts"],
        metavar="N",
        help="largest number of restarts (limited by the time only)",
    )
    searching.add_argument(
        "--bits",
        type=int,
        default=default["bits"],
        metavar="N",
        help="bits per weight: 1 for ±1, 2 for ±1 and ±3, and so on (%(default)s)",
    )
    running = parser.add_argument_group("run")
    add_run(running, "search", "out/solve", "OUTPUT.npz, with the weights (K, N) and the classes")


def run(given: argparse.Namespace) -> None:
    """Searches, prints the solution, and writes the weights.

    Ctrl-C ends the search. The best student so far is still written, unless no restart was finished
    and there is an older file.
    """
    checks.check_int("seed", given.seed, 0)
    target, problem = output_of(given), problem_of(given)
    say(str(problem))
    found = solve(
        problem,
        time_limit=given.time_limit,
        restarts=given.restarts,
        bits=given.bits,
        seed=[given.seed, 1],
        workers=given.workers,
        progress=True,
    )
    say(f"\n{found}\n")
    if found.interrupted and not found.restarts and target.exists():
        say(f"{target} was left as it was")
        raise KeyboardInterrupt
    units, classes = found.weights.reshape(problem.hidden, -1), np.array(found.classes)
    arrays: dict[str, Any] = {"weights": units, "classes": classes, "errors": found.errors}
    write_atomic(target, lambda file: np.savez_compressed(file, **arrays))
    say(f"weights: {target} (numpy.load: weights, classes, errors)")
    if found.interrupted:
        raise KeyboardInterrupt
