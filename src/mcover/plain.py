"""Converts frozen dataclasses to plain JSON and back, for files and tables of results.

A value is written as its ``kind``, if its class has one, and the fields that differ from their
defaults. So stored values remain valid when a class gets a new field whose default changes nothing.
They also remain valid when a default changes, if the metadata of the field keep the old default,
which an omitted field means: ``field(default=10, metadata={OMITTED: None})``. The ``kind``
distinguishes the members of a union and the subclasses of a base class.
"""

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, ClassVar, Literal, get_args, get_origin

from mcover import checks
from mcover.errors import McoverError

OMITTED = "omitted"
"""Key of a field's metadata: the value that an omitted field means, if not the default."""


class Tagged:
    """A value whose class has a name in files and commands: ``class X(Tagged, kind="x")``.

    A base class has no kind.
    """

    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str = "") -> None:
        if kind:
            cls.kind = kind


def to_plain(value: Any, *, defaults: bool = False) -> Any:
    """A frozen dataclass as dicts, lists, text, numbers and None; all fields with ``defaults``.

    >>> from mcover import GaussianRing
    >>> to_plain(GaussianRing(1.5, shift=2))
    {'kind': 'ring', 'shift': 2.0}
    >>> to_plain(GaussianRing(1.5, shift=2), defaults=True)
    {'kind': 'ring', 'sigma': 1.5, 'shift': 2.0}
    """
    defaults = checks.check_bool("defaults", defaults)
    try:
        return _plain(value, defaults)
    except RecursionError:
        raise McoverError("value contains itself; write one without cycles.") from None


def _plain(value: Any, defaults: bool) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        kind = {"kind": value.kind} if hasattr(value, "kind") else {}
        given = {one: getattr(value, one.name) for one in fields(value) if one.init}
        written = {o: v for o, v in given.items() if defaults or not _same(v, _default(o))}
        return kind | {one.name: _plain(of, defaults) for one, of in written.items()}
    if isinstance(value, Mapping):
        return {str(name): _plain(of, defaults) for name, of in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(of, defaults) for of in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity
    return value


def brief(value: Any) -> str:
    """A short repr: the fields of a frozen dataclass except those that are None, False or zero.

    >>> from mcover import MCover, GaussianRing
    >>> brief(MCover(3, GaussianRing(3, shift=2)))
    'MCover(covers=3, topology=GaussianRing(sigma=3, shift=2), bank=10)'
    """
    if is_dataclass(value) and not isinstance(value, type):
        named = [(one.name, getattr(value, one.name)) for one in fields(value) if one.init]
        shown = [f"{name}={brief(of)}" for name, of in named if of not in (None, 0, False)]
        return f"{type(value).__name__}({', '.join(shown)})"
    return f"{value:.6g}" if isinstance(value, float) else checks.shown(value)


def from_plain(annotation: Any, plain: Any, name: str = "value") -> Any:
    """Converts the result of :func:`to_plain` back; errors name the wrong field.

    >>> from mcover.topology import Topology
    >>> from_plain(Topology, {"kind": "ring", "shift": 2})
    GaussianRing(sigma=1.5, shift=2.0)
    """
    checks.check_instance("name", name, str, "a word for messages")
    if get_origin(annotation) in (typing.Union, types.UnionType):
        return _from_union(get_args(annotation), plain, name)
    if get_origin(annotation) is Literal:
        if plain not in get_args(annotation):
            raise McoverError(
                f"{name} is {checks.shown(plain)}; write one of {get_args(annotation)}."
            )
        return plain
    if get_origin(annotation) is tuple:
        inner, *rest = get_args(annotation)
        if not isinstance(plain, list | tuple):
            raise McoverError(f"{name} is {checks.shown(plain)}; write a list.")
        of = [inner] * len(plain) if rest == [...] else [inner, *rest]
        if len(of) != len(plain):
            raise McoverError(f"{name} has {len(plain)} entries; write {len(of)}.")
        pairs = zip(of, plain, strict=True)
        return tuple(from_plain(a, p, f"{name}[{i}]") for i, (a, p) in enumerate(pairs))
    if isinstance(annotation, type) and is_dataclass(annotation):
        return _from_fields(annotation, plain, name)
    return _from_scalar(annotation, plain, name)


def _from_union(members: tuple[Any, ...], plain: Any, name: str) -> Any:
    if plain is None and type(None) in members:
        return None
    if isinstance(plain, Mapping):
        members = tuple(one for one in members if is_dataclass(one))
        named = [one for one in members if _kind_of(plain) in _kinds(one)]
        members = tuple(named) or members
    for member in members[:-1]:
        try:
            return from_plain(member, plain, name)
        except McoverError:
            continue
    if not members:
        raise McoverError(
            f"{name} is {checks.shown(plain)}; it has none of the types that are allowed here."
        )
    return from_plain(members[-1], plain, name)


def _from_fields(base: Any, plain: Any, name: str) -> Any:
    if not isinstance(plain, Mapping):
        raise McoverError(
            f"{name} is {checks.shown(plain)}; write a table of the fields of {base.__name__}."
        )
    kinds = _kinds(base)
    if kinds and _kind_of(plain) not in kinds:
        raise McoverError(
            f"{name} is of kind {checks.shown(plain.get('kind'))}; write one of {sorted(kinds)}."
        )
    cls = kinds[plain["kind"]] if kinds else base
    given = {field: of for field, of in plain.items() if field != "kind" or not kinds}
    inits = {one.name: _default(one) for one in fields(cls) if one.init}
    if foreign := sorted(set(given) - set(inits)):
        raise McoverError(
            f"{name} has no {', '.join(foreign)}; its fields are {', '.join(sorted(inits))}."
        )
    if missing := sorted(one for one in inits if inits[one] is MISSING and one not in given):
        raise McoverError(f"{name} needs {', '.join(missing)}.")
    given = {o.name: o.metadata[OMITTED] for o in fields(cls) if OMITTED in o.metadata} | given
    hints = _hints(cls)
    return cls(**{field: from_plain(hints[field], of, field) for field, of in given.items()})


def _from_scalar(annotation: Any, plain: Any, name: str) -> Any:
    if annotation is not Any and not isinstance(annotation, type):
        seen = checks.shown(annotation)
        raise McoverError(f"annotation is {seen}; write a type, a union or a frozen dataclass.")
    is_bool = isinstance(plain, bool)
    if annotation is float and not is_bool:
        if isinstance(plain, int | float) or plain in ("inf", "-inf"):
            try:
                return float(plain)
            except OverflowError:
                raise McoverError(f"{name} is too large for a number; write a float.") from None
    elif annotation is Any or (is_bool == (annotation is bool) and isinstance(plain, annotation)):
        return plain
    raise McoverError(
        f"{name} is {checks.shown(plain)}; write {getattr(annotation, '__name__', annotation)}."
    )


def _kind_of(plain: Mapping[str, Any]) -> str:
    """The kind in a table; "" if it is missing or not text."""
    kind = plain.get("kind")
    return kind if isinstance(kind, str) else ""


def _default(field: Any) -> Any:
    """The value that an omitted field means."""
    if OMITTED in field.metadata:
        return field.metadata[OMITTED]
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _same(value: Any, default: Any) -> bool:
    return isinstance(value, bool) == isinstance(default, bool) and bool(value == default)


@cache
def _kinds(base: Any) -> dict[str, Any]:
    """A class and its subclasses by kind."""
    found = {base.kind: base} if isinstance(getattr(base, "kind", None), str) else {}
    for child in base.__subclasses__():
        found |= _kinds(child)
    return found


_hints = cache(typing.get_type_hints)
