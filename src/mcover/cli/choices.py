"""How values are spelled at a shell: a choice between frozen values is one between subcommands.

Where an option may be one of several dataclasses, each of them is a subcommand named by its kind,
with its fields as options. So the command line has no list of options of its own.
"""

from __future__ import annotations

import dataclasses
from dataclasses import is_dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    StructConstructorSpec,
    StructTypeInfo,
)

from mcover import Band, Blocks, Chain, Custom, GaussianRing, Identity, McoverError, Torus, Uniform
from mcover.annealing import Schedule
from mcover.topology import Topology


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


def _subcommand(cls: Any) -> Any:
    summary = (cls.__doc__ or "").partition("\n")[0].replace("``", "")
    return Annotated[cls, tyro.conf.subcommand(cls.kind, description=summary)]


_NAMED = map(_subcommand, (GaussianRing, Uniform, Identity, Band, Chain, Blocks, Torus))
_FROM_FILE = Annotated[Custom, tyro.conf.subcommand("custom", constructor=custom_topology)]
_ANY_TOPOLOGY: Any = Union[(*_NAMED, _FROM_FILE)]


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


_SCHEDULE_WORD = PrimitiveConstructorSpec(
    nargs=1,
    metavar="KIND:START:STOP:STEP",
    instance_from_str=lambda texts: read_schedule(texts[0]),
    is_instance=lambda value: isinstance(value, get_args(Schedule)),
    str_from_instance=lambda value: [spell_schedule(value)],
)


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


def choices(info: StructTypeInfo) -> StructConstructorSpec | None:
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
