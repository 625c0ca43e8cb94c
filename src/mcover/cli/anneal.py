"""``mcover anneal``: ±1 weights for a teacher's patterns or for patterns from a file."""

from __future__ import annotations

import argparse
import dataclasses
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from mcover import (
    RSA,
    GaussianRing,
    MCover,
    McoverError,
    Uniform,
    Vanilla,
    anneal,
    checks,
    teacher_student,
)
from mcover.annealing import (
    AnnealOptions,
    AutoSchedule,
    Method,
    Problem,
    Schedule,
    Ties,
    load_problem,
)
from mcover.cli.output import draw, say

_METHODS: dict[str, type[Method]] = {one.kind: one for one in (MCover, RSA, Vanilla)}
_TOPOLOGIES = {one.kind: one for one in (GaussianRing, Uniform)}
_RING = ("sigma", "shift")

# Texts only: names, types, choices and defaults are those of the dataclass fields.
_METHOD_HELP = {
    "covers": "copies M (mcover, rsa)",
    "bank": "destinations S that are kept, or none for all (mcover)",
    "redraw_every": "sweeps after which routes are redrawn, or none for never (mcover)",
    "coupling": "attraction between covers or replicas (mcover, rsa)",
    "coupling_growth": "growth of the coupling per sweep (mcover, rsa)",
}
_RING_HELP = {
    "sigma": "width of the ring's kernel (mcover)",
    "shift": "covers that the ring's kernel is displaced by (mcover)",
}
_OPTIONS_HELP = {
    "rule": "which flips are accepted",
    "energy": "what is minimised: the sum of negative margins, or the number of errors",
    "order": "proposals of a sweep",
    "stop_at_zero": "end a read as soon as it has found a solution",
    "improvement": "which flip descent takes",
}


# Options of each source of patterns, with their defaults; None is that of the function called.
_SOURCES: dict[str, dict[str, Any]] = {
    "perceptron": {"n": 1000, "alpha": 1.58, "ties": None},
    "committee": {"n": 201, "alpha": 2.0, "hidden": 5},
    "FILE": {"hidden": 1},
}


def add_command(commands: Any) -> None:
    """Adds ``anneal``."""
    parser = commands.add_parser(
        "anneal",
        help="anneal ±1 weights",
        description="Anneal ±1 weights. Prints a summary, writes the result and a picture.",
        epilog="Examples: mcover anneal perceptron --n 1001 --covers 3 --sigma 3 --shift 2; "
        "mcover anneal votes.csv --reads 20",
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "source",
        metavar="perceptron|committee|FILE",
        help="a perceptron or a committee machine that learns from a random teacher, or your own "
        "patterns of two values: an .npz file with patterns (P, N), labels (P,) and optionally "
        "teacher, or an .npy or .csv file with the labels in the last column",
    )
    _add_source_options(parser.add_argument_group("problem"))
    _add_method_options(parser.add_argument_group("method"))
    annealing = parser.add_argument_group("annealing")
    annealing.add_argument(
        "--schedule",
        default=spell_schedule(AnnealOptions().schedule),
        metavar="KIND:…",
        help="auto:SWEEPS:FACTOR:SPAN, temperatures from the data; linear:START:STOP:STEP, "
        "geometric:START:STOP:COUNT or beta:START:STOP:COUNT, each with :SWEEPS at the end for "
        "several sweeps at a temperature; or custom:T1:T2:… "
        "(%(default)s)",
    )
    _add_fields(annealing, AnnealOptions, _OPTIONS_HELP)
    running = parser.add_argument_group("run")
    running.add_argument("--reads", type=int, default=10, help="independent runs (%(default)s)")
    running.add_argument(
        "--seed", type=int, default=0, help="seed of the problem and of the reads (%(default)s)"
    )
    running.add_argument("--workers", type=int, help="threads (one for each CPU)")
    running.add_argument(
        "--output",
        type=Path,
        default=Path("out/anneal"),
        help="writes OUTPUT.npz, the result, and OUTPUT.png, the picture (%(default)s)",
    )


def _add_source_options(group: Any) -> None:
    def shown(name: str) -> str:
        defaults = [f"{of[name]} of a {kind}" for kind, of in _SOURCES.items() if of.get(name)]
        return ", ".join(defaults).replace("a FILE", "a file")

    def add(name: str, of: type, text: str) -> None:
        how = {"type": of, "default": argparse.SUPPRESS, "metavar": "X" if of is float else "N"}
        group.add_argument(f"--{name}", help=f"{text} ({shown(name)})", **how)

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
    """The problem that the arguments name: a teacher's patterns, or those of a file."""
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


def _add_method_options(group: Any) -> None:
    default = AnnealOptions().method
    group.add_argument(
        "--method",
        choices=list(_METHODS),
        default=default.kind,
        help="routed covers, replicas that attract each other, or one copy (%(default)s)",
    )
    _add_fields(group, MCover, _METHOD_HELP, default)
    group.add_argument(
        "--topology",
        choices=list(_TOPOLOGIES),
        default=argparse.SUPPRESS,
        help=f"kernel that routes are drawn from (mcover) ({MCover.topology.kind})",
    )
    _add_fields(group, GaussianRing, _RING_HELP, MCover.topology)
    _add_fields(group, RSA, _METHOD_HELP, skip=[one.name for one in dataclasses.fields(MCover)])


def _add_fields(
    group: Any, cls: Any, texts: dict[str, str], default: Any = None, skip: Any = ()
) -> None:
    """An option for each field of a dataclass that has a text.

    An option that was not written is absent from the namespace, so that a field has its own
    default and an option of another method is noticed.
    """
    hints, default = get_type_hints(cls), cls() if default is None else default
    for field in dataclasses.fields(cls):
        if field.name not in texts or field.name in skip:
            continue
        hint, value = hints[field.name], getattr(default, field.name)
        how: dict[str, Any] = {"default": argparse.SUPPRESS}
        if hint is bool:
            how |= {"action": "store_true", "help": texts[field.name]}
        else:
            shown = "none" if value is None else value
            how["help"] = f"{texts[field.name]} ({shown})"
            if get_origin(hint) is Literal:
                how["choices"] = get_args(hint)
            else:
                how["type"] = _optional_int if type(None) in get_args(hint) else hint
                how["metavar"] = "X" if hint is float else "N"
        group.add_argument("--" + field.name.replace("_", "-"), **how)


def _optional_int(text: str) -> int | None:
    return None if text == "none" else int(text)


_optional_int.__name__ = "integer or none"  # argparse shows it where the text is neither


def options_of(given: argparse.Namespace) -> AnnealOptions:
    """The options that the arguments spell; those not written have the dataclass's defaults."""
    written = vars(given)
    cls = _METHODS[given.method]
    fields = {one.name for one in dataclasses.fields(cls)}
    of_topology = [name for name in ("topology", *_RING) if name in written]
    foreign = [name for name in _METHOD_HELP if name in written and name not in fields]
    foreign += [name for name in of_topology if "topology" not in fields]
    if foreign:
        option = "--" + foreign[0].replace("_", "-")
        raise McoverError(f"--method {given.method} has no {option}; leave it out.")
    chosen = {name: written[name] for name in _METHOD_HELP if name in written}
    if of_topology:
        ring = {name: written[name] for name in _RING if name in written}
        kind = written.get("topology", MCover.topology.kind)
        if kind != GaussianRing.kind and ring:
            raise McoverError(f"--topology {kind} has no --{next(iter(ring))}; leave it out.")
        base = MCover.topology if kind == MCover.topology.kind else _TOPOLOGIES[kind]()
        chosen["topology"] = dataclasses.replace(base, **ring)
    others = {name: written[name] for name in _OPTIONS_HELP if name in written}
    default = AnnealOptions().method
    method = dataclasses.replace(default if isinstance(default, cls) else cls(), **chosen)
    return AnnealOptions(method, read_schedule(given.schedule), **others)


def read_schedule(text: str) -> Schedule:
    """A schedule from its kind and fields, separated by colons; fields may be left out at the end.

    >>> read_schedule("geometric:0.4:0.01:100")
    GeometricSchedule(start=0.4, stop=0.01, count=100, sweeps=1)
    >>> read_schedule("auto:300")
    AutoSchedule(sweeps=300, factor=None, span=8.0)
    """
    kind, *words = text.split(":")
    try:
        cls = {one.kind: one for one in get_args(Schedule)}[kind]
        if kind == "custom":
            return cls(tuple(map(float, words)))
        hints = get_type_hints(cls)
        types = [_number(hints[one.name]) for one in dataclasses.fields(cls)]
        return cls(*(types[place](word) for place, word in enumerate(words)))
    except McoverError:
        raise
    except (IndexError, KeyError, ValueError, TypeError) as error:
        raise McoverError(
            f"schedule is {text!r}; write auto:SWEEPS, linear:START:STOP:STEP, "
            "geometric:START:STOP:COUNT or beta:START:STOP:COUNT, the last three with :SWEEPS at "
            "the end for several sweeps at a temperature."
        ) from error


def _number(hint: Any) -> type[int] | type[float]:
    return int if hint is int else float


def spell_schedule(schedule: Schedule) -> str:
    """The text that :func:`read_schedule` reads as this schedule."""
    values = [getattr(schedule, one.name) for one in dataclasses.fields(schedule)]
    if isinstance(schedule, AutoSchedule) and schedule.factor is None:
        values = values[:1]
    flat = values[0] if schedule.kind == "custom" else values
    return ":".join([schedule.kind, *(f"{value:g}" for value in flat)])


def run(given: argparse.Namespace) -> None:
    """Anneals, prints a summary, writes the result and the picture.

    Ctrl-C ends the reads. The result of what was reached is written all the same, unless no read
    was finished and there is an older file.
    """
    checks.check_int("seed", given.seed, 0)
    checks.check_int("reads", given.reads, 1)
    checks.check_writable(given.output)
    options, problem = options_of(given), problem_of(given)
    say(str(problem))
    result = anneal(
        problem,
        **vars(options),
        num_reads=given.reads,
        seed=[given.seed, 1],
        progress=True,
        workers=given.workers,
    )
    done, target = int(result.finished.sum()), Path(f"{given.output}.npz")
    if result.interrupted:
        say(f"interrupted: {done} of {given.reads} reads were finished")
    if done:
        say(f"\n{result.summary()}\n")
    elif target.exists():
        say(f"{target} was left as it was")
        raise KeyboardInterrupt
    say(f"result:  {result.save(target)} (mcover.annealing.AnnealResult.load)")
    title = f"{problem}, {options.method.kind}, {options.method.covers} covers"
    draw(target.with_name(f"{given.output.name}.png"), lambda: result.plot(title))
    if result.interrupted:
        raise KeyboardInterrupt
