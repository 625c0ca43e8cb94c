"""Malformed calls of everything public, generated from the signatures.

A **target** is a function, a class, or a method of an object from ``tests/public_api.txt``. It is
called with arguments that work, and then with one of them replaced by each value of a pool. The
annotation of the parameter defines its valid values. A call that accepts an invalid value is a
defect, and so is any exception that is not ours.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import inspect
import math
import re
import signal
import types
import typing
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import scipy.sparse
import torch
from numpy.random import SeedSequence

import fuzzing_examples as examples
import mcover

LIST = Path(__file__).with_name("public_api.txt")
WRONG = ("strange", "raw", "foreign", "hanging")
SECONDS = 20  # a call that takes longer counts as one that never ends


class RaisingLength(collections.abc.Sequence):
    """A sequence that cannot be read."""

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __getitem__(self, index: Any) -> Any:
        raise RuntimeError("no items")


class RaisingArray:
    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no array")


class RaisingNumber(float):
    def __float__(self) -> float:
        raise RuntimeError("no number")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class RaisingAttributes:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no attributes")


def _raise(*_: Any, **__: Any) -> None:
    raise ZeroDivisionError("raised by a function of the user's")


def _own_list() -> list[Any]:
    own: list[Any] = [1]
    own.append(own)
    return own


def _own_dict() -> dict[str, Any]:
    own: dict[str, Any] = {}
    own["own"] = own
    return own


POOL: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "-inf": lambda: -math.inf,
    "-1": lambda: -1,
    "0": lambda: 0,
    "2": lambda: 2,
    "0.5": lambda: 0.5,
    "1.9": lambda: 1.9,
    "-0.5": lambda: -0.5,
    "1e308": lambda: 1e308,
    "1e-320": lambda: 1e-320,
    "10**30": lambda: 10**30,
    "-10**30": lambda: -(10**30),
    "10**5000": lambda: 10**5000,
    "2**31": lambda: 2**31,
    "True": lambda: True,
    "numpy.True_": lambda: np.True_,
    "uint8(2)": lambda: np.uint8(2),
    "float32(nan)": lambda: np.float32("nan"),
    "array of no axes": lambda: np.array(2),
    "complex": lambda: 1 + 2j,
    "Fraction": lambda: Fraction(1, 2),
    "Decimal": lambda: Decimal("0.5"),
    "''": lambda: "",
    "'text'": lambda: "frobnicate",
    "'2'": lambda: "2",
    "'nan%'": lambda: "nan%",
    "'\\0'": lambda: "\0",
    "'/'": lambda: "/",
    "long text": lambda: "x" * 100_000,
    "surrogate": lambda: "\udcff",
    "bytes": lambda: b"\xff",
    "()": tuple,
    "[]": list,
    "[None]": lambda: [None],
    "[nan]": lambda: [math.nan],
    "['text']": lambda: ["text"],
    "[True]": lambda: [True],
    "[10**30]": lambda: [10**30],
    "ragged list": lambda: [[1], [1, 2]],
    "nested list": lambda: [[1, [2]]],
    "list in itself": _own_list,
    "(1, 2)": lambda: (1, 2),
    "{}": dict,
    "dict in itself": _own_dict,
    "{1: object}": lambda: {1: object()},
    "set": lambda: {1, 2},
    "generator": lambda: (k for k in range(3)),
    "range": lambda: range(3),
    "empty array": lambda: np.zeros((2, 0)),
    "array of nan": lambda: np.full((2, 2), np.nan),
    "ones (2, 2)": lambda: np.ones((2, 2)),
    "ones (3,)": lambda: np.ones(3),
    "masked array": lambda: np.ma.masked_array(np.ones((2, 2)), [[0, 1], [0, 0]]),
    "masked vector": lambda: np.ma.masked_array(np.ones(2, dtype=np.int64), [0, 1]),
    "array of objects": lambda: np.array([object(), 1], dtype=object),
    "array of text": lambda: np.array(["a", "b"]),
    "array of dates": lambda: np.array(["2020-01-01"], dtype="datetime64[D]"),
    "complex array": lambda: np.ones(2, dtype=complex),
    "records": lambda: np.zeros(2, dtype=[("a", int)]),
    "array of 8 TB": lambda: np.broadcast_to(np.float64(1), (10**6, 10**6)),
    "sparse matrix": lambda: scipy.sparse.csr_array(np.eye(2)),
    "tensor": lambda: torch.zeros(2),
    "tensor of no axes": lambda: torch.tensor(1.0),
    "tensor with gradient": lambda: torch.ones(2, 2, requires_grad=True),
    "meta tensor": lambda: torch.empty(2, 2, device="meta"),
    "sparse tensor": lambda: torch.eye(2).to_sparse(),
    "module": lambda: torch.nn.Linear(2, 2),
    "container": torch.nn.Sequential,
    "topology": mcover.Uniform,
    "method": mcover.Vanilla,
    "seed sequence": lambda: SeedSequence(0),
    "function": lambda: len,
    "raising function": lambda: _raise,
    "class": lambda: int,
    "object": object,
    "...": lambda: ...,
    "raising length": RaisingLength,
    "raising array": RaisingArray,
    "raising number": RaisingNumber,
    "raising attributes": RaisingAttributes,
    "missing file": lambda: Path("missing", "file"),
}


@dataclass(frozen=True)
class Target:
    """A public callable, with arguments that work."""

    name: str
    call: Callable[..., Any]
    given: Callable[[], dict[str, Any]]
    annotations: Mapping[str, Any]
    is_estimator: bool = False


def targets(integrations: bool = False) -> dict[str, Target]:
    """All callables on the list, of the library or of its integrations."""
    found: dict[str, Target] = {}
    for line in LIST.read_text().splitlines():
        name = line.partition("(")[0]
        of_others = name.split(".")[1] in examples.INTEGRATIONS
        if " = " in name or of_others != integrations:  # what is listed under another name, too
            continue
        for target in _targets(name):
            found.setdefault(target.name, target)
    return found


def _targets(name: str) -> Iterator[Target]:
    if name in examples.LEFT_OUT:
        return
    *path, last = name.split(".")
    try:
        value = _resolve(name)
    except (ModuleNotFoundError, AttributeError):  # not installed; a field without a default
        return
    owner = _resolve(".".join(path))
    if inspect.isclass(owner):
        if callable(value) and inspect.isroutine(value):
            yield _method(owner, last, value)
        return
    if inspect.isclass(value) and issubclass(value, examples.ESTIMATORS):
        yield from _estimator(name, value)
    elif inspect.isfunction(value):
        yield _function(name, value, value)
    elif inspect.isclass(value) and issubclass(value, Exception):
        return
    elif inspect.isclass(value) and value.__name__ not in examples.RETURNED:
        yield _function(name, value, value.__init__)
        # Members of integrations are not on the list, which is made without their packages.
    is_estimator = inspect.isclass(value) and issubclass(value, examples.ESTIMATORS)
    if inspect.isclass(value) and path[-1] in examples.INTEGRATIONS and not is_estimator:
        for member, function in vars(value).items():
            if inspect.isfunction(function) and not member.startswith("_"):
                yield _method(value, member, function)


def _resolve(name: str) -> Any:
    value: Any = mcover
    where = "mcover"
    for part in name.split(".")[1:]:
        where = f"{where}.{part}"
        if not hasattr(value, part) and isinstance(value, types.ModuleType):
            importlib.import_module(where)
        value = getattr(value, part)
    return value


def _function(name: str, function: Any, signed: Any) -> Target:
    parameters = list(inspect.signature(function).parameters.values())
    hints = _hints(parameters, signed, *[function] * inspect.isclass(function))
    return Target(name, _caller(function, parameters), _given(name, parameters), hints)


def _method(owner: type, name: str, function: Any) -> Target:
    full = f"{owner.__module__.split('.')[0]}.{owner.__name__}.{name}"
    is_bound = inspect.ismethod(function)
    parameters = list(inspect.signature(function).parameters.values())[0 if is_bound else 1 :]

    def call(**given: Any) -> Any:
        bound = function if is_bound else getattr(examples.RECEIVERS[owner.__name__](), name)
        return _caller(bound, parameters)(**given)

    given = _given(f"{owner.__name__}.{name}", parameters)
    return Target(full, call, given, _hints(parameters, function))


def _estimator(name: str, kind: type) -> Iterator[Target]:
    """Constructors check nothing, by scikit-learn's convention; fit does."""
    small = examples.SMALL[kind.__name__]

    def fit(**given: Any) -> Any:
        return kind(**small | given).fit(*examples.data())

    hints = _hints(list(inspect.signature(kind).parameters.values()), kind.__init__)
    yield Target(name, fit, dict, hints, is_estimator=True)
    for member in ("fit", "partial_fit", "predict", "predict_proba", "decision_function"):
        if not hasattr(kind, member):
            continue

        def run(member: str = member, **given: Any) -> Any:
            if member == "fit":
                return kind(**small).fit(**given)
            return getattr(examples.fitted(kind), member)(**given)

        names = list(inspect.signature(getattr(kind, member)).parameters)[1:]
        X, y = examples.data()
        data = {"X": X, "y": y, "sample_weight": np.ones(len(X)), "classes": np.unique(y)}
        given = {n: data[n] for n in names if n in data}
        hints = dict.fromkeys(given, Any)
        yield Target(f"{name}.{member}", run, given.copy, hints, is_estimator=True)


def _caller(function: Any, parameters: list[inspect.Parameter]) -> Callable[..., Any]:
    """Calls by keyword, except for positional parameters."""
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
    several = [p.name for p in parameters if p.kind is p.VAR_POSITIONAL]

    def call(**given: Any) -> Any:
        args = [given.pop(name) for name in positional if name in given]
        for name in several:
            varied = given.pop(name, ())
            args += varied if isinstance(varied, examples.Several) else [varied]
        result = function(*args, **given)
        if isinstance(result, contextlib.AbstractContextManager):
            with result:  # what it refuses it refuses when it is entered
                pass
        return result

    return call


def _given(name: str, parameters: list[inspect.Parameter]) -> Callable[[], dict[str, Any]]:
    """Examples for a target: specific ones, and by names of parameters without a default."""
    own = examples.of(name)
    needed = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    unknown = [one for one in needed if one not in own and one not in examples.BY_NAME]
    if unknown:
        problem = f"{name} needs an example of {unknown} in tests/fuzzing_examples.py"

        def missing() -> dict[str, Any]:
            raise AssertionError(problem)

        return missing
    by_name = {one: examples.BY_NAME[one] for one in needed if one not in own}
    return lambda: {one: make() for one, make in (by_name | own).items()}


def _hints(parameters: list[inspect.Parameter], *signed: Any) -> dict[str, Any]:
    """The annotation of each parameter that can be varied."""
    known: dict[str, Any] = {}
    for one in signed:
        with contextlib.suppress(Exception):  # a name that only type checkers import
            known |= typing.get_type_hints(one)
    hidden = [p.name for p in parameters if p.kind is p.VAR_POSITIONAL and known.get(p.name) is Any]
    varied = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name not in hidden]
    return {name: known.get(name, Any) for name in varied}


# --- what a value means -------------------------------------------------------------------------


def could_be_meant(annotation: Any, value: Any) -> bool:
    """Whether the value is valid for a parameter with this annotation."""
    if isinstance(value, RaisingLength | RaisingArray | RaisingNumber | RaisingAttributes):
        return annotation is Any
    if isinstance(value, np.ma.MaskedArray):
        return annotation is Any
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        # NumPy's ArrayLike is a union too, of what has a buffer, an __array__, and so on.
        arrays = any("_SupportsArray" in str(one) for one in inner)
        return (arrays and _is_array(value)) or any(could_be_meant(one, value) for one in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if annotation is Any or isinstance(annotation, typing.TypeVar):
        return True
    if annotation in (None, type(None)):
        return value is None
    if annotation is bool:
        return isinstance(value, bool | np.bool_)
    if annotation is int:
        return isinstance(value, int | np.integer) and not isinstance(value, bool)
    if annotation is float:
        is_number = isinstance(value, int | float | np.integer | np.floating | Fraction)
        if isinstance(value, torch.Tensor):  # torch takes them for learning rates
            return value.ndim == 0
        return is_number and not isinstance(value, bool) and value == value
    if origin is not None and origin is not np.ndarray:
        return _is_of(origin, inner, value)
    if inspect.isclass(annotation):
        if issubclass(annotation, Path):
            return isinstance(value, str | Path)
        return isinstance(value, annotation)
    # What is left are NumPy's unions for arrays.
    return _is_array(value)


def _is_of(origin: Any, inner: Any, value: Any) -> bool:
    if origin in (collections.abc.Callable, Callable):
        return callable(value)
    if origin is collections.abc.Sequence and inner[:1] == (Any,):
        return hasattr(value, "__len__") and not isinstance(value, str | bytes)
    numbers = inner and inner[0] in (int, float)
    if numbers and isinstance(value, np.ndarray) and value.dtype.kind in "iuf":
        return value.size < 1000 and bool(np.all(np.isfinite(value)))
    if origin is tuple and isinstance(value, list | range):  # as JSON has them
        value = tuple(value)
    if not isinstance(value, origin):
        return False
    if isinstance(value, str | bytes | Mapping) or not inner:
        return not isinstance(value, str | bytes)
    if isinstance(value, list | tuple | range):
        kinds = inner if len(inner) == len(value) and ... not in inner else inner[:1] * len(value)
        return all(map(could_be_meant, kinds, value))
    return True


def _is_array(value: Any) -> bool:
    if isinstance(value, str | bytes | Mapping) or value is None:
        return False
    try:
        return np.asarray(value).dtype.kind in "biuf"
    except Exception:
        return False


# --- outcomes -----------------------------------------------------------------------------------


class Hangs(BaseException):
    """Raised in a call that does not end."""


@dataclass(frozen=True)
class Outcome:
    """How a call ended.

    ``kind`` is refused (by us), validated (by scikit-learn's own checks, for an estimator), users
    (an exception of a function that the caller passed), accepted, strange (accepted, but invalid),
    raw (an exception of our code), foreign (of a dependency) or hanging.
    """

    kind: str
    text: str = ""


def outcome(target: Target, parameter: str, value: Any, seconds: float = SECONDS) -> Outcome:
    """Calls a target with one argument replaced."""

    def stop(*_: Any) -> None:
        raise Hangs

    given = target.given()
    annotation = target.annotations[parameter]
    before = signal.signal(signal.SIGALRM, stop)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            signal.setitimer(signal.ITIMER_REAL, seconds)
            try:
                target.call(**given | {parameter: value})
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    except Hangs:
        return Outcome("hanging")
    except BaseException as error:
        return _raised(error, target, annotation, value)
    finally:
        signal.signal(signal.SIGALRM, before)
    is_mask_lost = target.is_estimator and isinstance(value, np.ma.MaskedArray)
    fits = could_be_meant(annotation, value) and not is_mask_lost
    return Outcome("accepted" if fits else "strange")


def _raised(error: BaseException, target: Target, annotation: Any, value: Any) -> Outcome:
    # A function of the caller's may raise what it likes: it is called, and it is not ours.
    was_called = callable(value) and could_be_meant(annotation, value) and annotation is not Any
    text = f"{type(error).__name__}: {_text(error)}"
    files = []
    at = error.__traceback__
    while at is not None:
        files.append(at.tb_frame.f_code.co_filename)
        at = at.tb_next
    if isinstance(error, mcover.McoverError):
        wrong = not re.search(r"[.)'\]…]$", str(error).rstrip())
        return Outcome("raw", f"no sentence: {text}") if wrong else Outcome("refused", text)
    of_sklearn = any(re.search(r"/sklearn/(utils/|base)", file) for file in files)
    if target.is_estimator and of_sklearn and isinstance(error, ValueError | TypeError):
        return Outcome("validated", text)
    tests = str(Path(__file__).parent)
    if was_called or (files[-1].startswith(tests) and files[-1] != __file__):
        return Outcome("users", text)
    if isinstance(error, ZeroDivisionError) and files[-1] == __file__:
        return Outcome("users", text)
    ours = str(Path(mcover.__file__).parent)
    kind = "raw" if files[-1].startswith((ours, "<")) else "foreign"
    inside = [file for file in files if file.startswith(ours)]
    where = inside[-1].removeprefix(ours) if inside else "-"
    return Outcome(kind, f"{where}: {text}")


def _text(error: BaseException) -> str:
    try:
        return str(error).replace("\n", " ")[:150]
    except Exception:
        return "?"


def cases(known: Mapping[str, Target]) -> list[tuple[str, str, str]]:
    """Target, parameter and value of every malformed call."""
    return [
        (name, parameter, value)
        for name, target in known.items()
        for parameter in target.annotations
        for value in POOL
    ]


def run(case: tuple[str, str, str], known: Mapping[str, Target]) -> Outcome:
    name, parameter, value = case
    return outcome(known[name], parameter, POOL[value]())


def check_sample(name: str, known: Mapping[str, Target], every: int) -> None:
    """A valid call of a target, and one in so many of the malformed ones, the same in every run."""
    target = known[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        target.call(**target.given())
    ends = {call: run(call, known) for call in sample(name, known, every)}
    wrong = [f"{call}: {end}" for call, end in ends.items() if end.kind in WRONG]
    assert not wrong, "\n".join(wrong)


def sample(name: str, known: Mapping[str, Target], every: int) -> list[tuple[str, str, str]]:
    calls = cases({name: known[name]})
    return [call for call in calls if zlib.crc32(repr(call).encode()) % every == 0]
