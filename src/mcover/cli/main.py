"""Entry point of ``mcover``: a verb is a frozen dataclass, its fields are the options.

Where an option may be one of several dataclasses, each of them is a subcommand named by its kind,
with its fields as options. So the command line has no list of options of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
import sys
from dataclasses import is_dataclass
from functools import reduce
from itertools import pairwise
from operator import or_
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructTypeInfo,
)

import mcover
from mcover import Custom, McoverError
from mcover.annealing import Schedule
from mcover.cli.anneal import Anneal
from mcover.cli.demo import Demo
from mcover.cli.study import Report, StudyVerb
from mcover.cli.topology import ShowTopology
from mcover.cli.train import Train
from mcover.cli.tune import Tune
from mcover.progress import console, errors
from mcover.topology import Topology

Verb = (
    Annotated[ShowTopology, tyro.conf.subcommand("topology")]
    | Annotated[Anneal, tyro.conf.subcommand("anneal")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Tune, tyro.conf.subcommand("tune")]
    | Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[StudyVerb, tyro.conf.subcommand("study")]
    | Annotated[Report, tyro.conf.subcommand("report")]
)
_CONFIG = (
    tyro.conf.OmitArgPrefixes,
    tyro.conf.OmitSubcommandPrefixes,
    tyro.conf.CascadeSubcommandArgs,
)
_ABOUT = (
    "Train one model as M routed copies (the M-cover transform). "
    "'mcover VERB --help' explains a verb, 'mcover --version' prints the version."
)


def main(arguments: list[str] | None = None) -> None:
    """Runs a verb; exits with 2 on bad input and with 130 on Ctrl-C."""
    given = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a letter it does not know must not end the work
            stream.reconfigure(errors="replace")
    if given == ["--version"]:
        console.print(f"mcover {mcover.__version__}")
        return
    words = [word for word in given if not word.startswith("-")]
    try:
        parse(given).run()
        sys.stdout.flush()
    except BrokenPipeError:  # e.g. `mcover study show … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except (McoverError, OSError) as error:
        errors.print(f"mcover {words[0]}: {_as_option(str(error), given)}", markup=False)
        sys.exit(2)
    except KeyboardInterrupt:
        errors.print("mcover: interrupted")
        sys.exit(130)


def parse(arguments: list[str]) -> Any:
    """The verb that the arguments spell; McoverError where a value refuses its fields."""
    registry = ConstructorRegistry()
    registry.struct_rule(_choices)
    registry.primitive_rule(_optional)
    how: Any = {"prog": "mcover", "description": _ABOUT, "config": _CONFIG, "registry": registry}
    if (configured := _configured(arguments)) is not None:
        how["default"] = configured
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(Verb, args=arguments, **how)
    except SystemExit as stop:
        cause: BaseException | None = stop
        while cause is not None:  # tyro wraps what a dataclass raises in messages of its own
            if isinstance(cause, McoverError):
                raise cause from None
            cause = cause.__context__
        sys.stderr.write(said.getvalue())
        raise


def _configured(arguments: list[str]) -> Any:
    """A verb with the defaults of its --config FILE, if it has one; other options go before it."""
    verbs: dict[str, Any] = {"anneal": Anneal, "train": Train}
    if not arguments or arguments[0] not in verbs:
        return None
    words = [word for given in arguments for word in given.split("=", 1)]
    files = [after for word, after in pairwise(words) if word == "--config"]
    return verbs[arguments[0]].configured(Path(files[-1])) if files else None


def _as_option(message: str, arguments: list[str]) -> str:
    """A message about a field, as one about the option that was written."""
    field = re.match(r"(\w+)(?: of \w+)? is ", message)
    if field is None:
        return message
    option = "--" + field[1].replace("_", "-")
    written = any(word.partition("=")[0].replace("_", "-") == option for word in arguments)
    return f"{option} is {message[field.end() :]}" if written else message


def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """A rule of tyro's: ``int | None`` is written as an INT or as "none"."""
    members = get_args(info.type)
    if get_origin(info.type) not in (Union, UnionType) or NoneType not in members:
        return None
    inner: Any = reduce(or_, (one for one in members if one is not NoneType))
    spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(inner, info.markers))
    if not isinstance(spec, PrimitiveConstructorSpec) or spec.nargs != 1:
        return None
    read, spell, fits = spec.instance_from_str, spec.str_from_instance, spec.is_instance
    return dataclasses.replace(
        spec,
        instance_from_str=lambda texts: None if texts[0].lower() == "none" else read(texts),
        is_instance=lambda value: value is None or fits(value),
        str_from_instance=lambda value: ["none"] if value is None else spell(value),
        choices=None if spec.choices is None else (*spec.choices, "none"),
    )


def _choices(info: StructTypeInfo) -> StructConstructorSpec | None:
    """A rule of tyro's: fields of a dataclass that are a choice become subcommands."""
    if not is_dataclass(info.type) or info.type in _inside:
        return None
    _inside.append(info.type)
    try:
        spec = ConstructorRegistry.get_struct_spec(info)
    finally:
        _inside.pop()
    if not isinstance(spec, StructConstructorSpec):
        return None
    fields = (dataclasses.replace(one, type=_as_choice(one.type)) for one in spec.fields)
    return dataclasses.replace(spec, fields=tuple(fields))


_inside: list[Any] = []
"""What the other rules of tyro's are being asked about."""


def _as_choice(kind: Any) -> Any:
    """The type of a field as tyro is to see it."""
    if kind is Topology:
        return _ANY_TOPOLOGY
    if kind == Schedule:
        return Annotated[kind, _SCHEDULE_WORD]
    members = get_args(kind)
    if get_origin(kind) in (Union, UnionType) and all(
        is_dataclass(one) and isinstance(getattr(one, "kind", None), str) for one in members
    ):
        return Union[tuple(map(_subcommand, members))]  # noqa: UP007
    return kind


def _subcommand(cls: Any) -> Any:
    summary = (cls.__doc__ or "").partition("\n")[0].replace("``", "")
    return Annotated[cls, tyro.conf.subcommand(cls.kind, description=summary)]


def custom_topology(matrix: Path) -> Custom:
    """A kernel of your own, from a text file.

    Args:
        matrix: M lines of M numbers, with spaces or commas between.
    """
    try:
        text = matrix.read_text().replace(",", " ")
        rows = [[float(word) for word in line.split()] for line in text.splitlines() if line]
    except (OSError, ValueError) as error:
        raise McoverError(f"cannot read a matrix from {matrix}: {error}.") from error
    return Custom(rows)


def read_schedule(text: str) -> Schedule:
    """A schedule from its kind and fields, with colons between.

    >>> read_schedule("geometric:0.4:0.01:100")
    GeometricSchedule(start=0.4, stop=0.01, count=100, sweeps=1)
    """
    kind, *words = text.split(":")
    try:
        cls = {one.kind: one for one in get_args(Schedule)}[kind]
        if kind == "custom":
            return cls(tuple(map(float, words)))
        read = [int if one.type == "int" else float for one in dataclasses.fields(cls)]
        return cls(*(read[n](word) for n, word in enumerate(words)))
    except McoverError:
        raise
    except (IndexError, KeyError, ValueError, TypeError) as error:
        raise McoverError(
            f"schedule is {text!r}; write linear:START:STOP:STEP, geometric:START:STOP:COUNT "
            "or beta:START:STOP:COUNT, with :SWEEPS behind it for several at each temperature."
        ) from error


def spell_schedule(schedule: Schedule) -> str:
    """What :func:`read_schedule` reads back."""
    values = [getattr(schedule, one.name) for one in dataclasses.fields(schedule)]
    flat = values[0] if schedule.kind == "custom" else values
    return ":".join([schedule.kind, *(f"{value:g}" for value in flat)])


_NAMED = ("GaussianRing", "Uniform", "Identity", "Band", "Chain", "Blocks", "Torus")
_FROM_FILE = Annotated[Custom, tyro.conf.subcommand("custom", constructor=custom_topology)]
_ANY_TOPOLOGY: Any = Union[(*(_subcommand(getattr(mcover, one)) for one in _NAMED), _FROM_FILE)]
_SCHEDULE_WORD = PrimitiveConstructorSpec(
    nargs=1,
    metavar="KIND:START:STOP:STEP",
    instance_from_str=lambda texts: read_schedule(texts[0]),
    is_instance=lambda value: isinstance(value, get_args(Schedule)),
    str_from_instance=lambda value: [spell_schedule(value)],
)
