"""Entry point of ``mcover``: a verb is a frozen dataclass, its fields are the options."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from dataclasses import replace
from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from mcover import McoverError, __version__
from mcover.cli.anneal import Anneal
from mcover.cli.choices import choices
from mcover.cli.demo import Demo, ShowTopology
from mcover.cli.study import Report, StudyVerb
from mcover.cli.train import Train
from mcover.progress import console, errors

Verb = (
    Annotated[ShowTopology, tyro.conf.subcommand("topology")]
    | Annotated[Anneal, tyro.conf.subcommand("anneal")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[StudyVerb, tyro.conf.subcommand("study")]
    | Annotated[Report, tyro.conf.subcommand("report")]
)
_CONFIG = (
    tyro.conf.OmitArgPrefixes,
    tyro.conf.OmitSubcommandPrefixes,
    tyro.conf.CascadeSubcommandArgs,
)
ABOUT = (
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
        console.print(f"mcover {__version__}")
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
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            how: Any = {"prog": "mcover", "description": ABOUT, "config": _CONFIG}
            return tyro.cli(Verb, args=arguments, registry=_registry(), **how)
    except SystemExit as stop:
        cause: BaseException | None = stop
        while cause is not None:  # tyro wraps what a dataclass raises in messages of its own
            if isinstance(cause, McoverError):
                raise cause from None
            cause = cause.__context__
        sys.stderr.write(said.getvalue())
        raise


def _registry() -> ConstructorRegistry:
    registry = ConstructorRegistry()
    registry.struct_rule(choices)

    @registry.primitive_rule
    def optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        """``int | None`` is written as an INT or as "none"."""
        members = get_args(info.type)
        if get_origin(info.type) not in (Union, UnionType) or NoneType not in members:
            return None
        inner: Any = reduce(or_, (one for one in members if one is not NoneType))
        spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(inner, info.markers))
        if not isinstance(spec, PrimitiveConstructorSpec) or spec.nargs != 1:
            return None
        read, spell, fits = spec.instance_from_str, spec.str_from_instance, spec.is_instance
        return replace(
            spec,
            instance_from_str=lambda texts: None if texts[0].lower() == "none" else read(texts),
            is_instance=lambda value: value is None or fits(value),
            str_from_instance=lambda value: ["none"] if value is None else spell(value),
            choices=None if spec.choices is None else (*spec.choices, "none"),
        )

    return registry


def _as_option(message: str, arguments: list[str]) -> str:
    """A message about a field, as one about the option that was written."""
    field = re.match(r"(\w+)(?: of \w+)? is ", message)
    if field is None:
        return message
    option = "--" + field[1].replace("_", "-")
    written = any(word.partition("=")[0].replace("_", "-") == option for word in arguments)
    return f"{option} is {message[field.end() :]}" if written else message
