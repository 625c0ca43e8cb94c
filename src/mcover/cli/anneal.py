"""``mcover anneal``: anneals ±1 weights on a teacher's patterns or on patterns from a file."""

from __future__ import annotations

import argparse
import dataclasses
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
)
from mcover.annealing import (
    AnnealOptions,
    AutoSchedule,
    Method,
    Schedule,
)
from mcover.cli.output import draw, say
from mcover.cli.sources import add_run, add_source, or_none, output_of, problem_of

_METHODS: dict[str, type[Method]] = {one.kind: one for one in (MCover, RSA, Vanilla)}
_TOPOLOGIES = {one.kind: one for one in (GaussianRing, Uniform)}
_RING = ("sigma", "shift")

# Only texts: names, types, choices and defaults come from the dataclass fields.
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
    add_source(parser)
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
    files = "OUTPUT.npz, the result, and OUTPUT.png, the picture"
    add_run(running, "reads", "out/anneal", files)


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

    An option that was not given is absent from the namespace, so that the field keeps its default
    and an option of another method is detected.
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
                how["type"] = or_none(int) if type(None) in get_args(hint) else hint
                how["metavar"] = "X" if hint is float else "N"
        group.add_argument("--" + field.name.replace("_", "-"), **how)


def options_of(given: argparse.Namespace) -> AnnealOptions:
    """The options from the arguments; options that were not given have the dataclass's defaults."""
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

    Ctrl-C ends the reads. The current state is still written, unless no read was finished and there
    is an older file.
    """
    checks.check_int("seed", given.seed, 0)
    checks.check_int("reads", given.reads, 1)
    target = output_of(given)
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
    done = int(result.finished.sum())
    if result.interrupted:
        say(f"interrupted: {done} of {given.reads} reads were finished")
    if done:
        say(f"\n{result.summary()}\n")
    elif target.exists():
        say(f"{target} was left as it was")
        raise KeyboardInterrupt
    say(f"result:  {result.save(target)} (mcover.annealing.AnnealResult.load)")
    title = f"{problem}, {options.method.kind}, {options.method.covers} covers"
    draw(target.with_suffix(".png"), lambda: result.plot(title))
    if result.interrupted:
        raise KeyboardInterrupt
