"""Checks of arguments, with the same wording throughout the package.

Each check returns the value as a plain Python type, so that callers never see narrow NumPy integers
or 0-d arrays.
"""

import contextlib
import math
import numbers
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mcover.errors import McoverError, TooLargeError

MEMORY_VARIABLE = "MCOVER_MEMORY_LIMIT"
# Limits of a container, in cgroups version 2 and version 1. The operating system reports the memory
# and CPUs of the whole machine.
_MEMORY_FILES = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_CPU_FILES = (
    ("/sys/fs/cgroup/cpu.max",),
    ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
)

_LONGEST_PATH = 4096  # characters; Linux allows no more bytes

T = TypeVar("T")


def shown(value: Any) -> str:
    """A value as text for an error message: its repr, shortened; a repr may fail.

    >>> shown(np.zeros((3, 40)))
    'an ndarray of shape (3, 40)'
    """
    if isinstance(value, int) and abs(value) >= 10**20:
        return "an integer of more than 20 digits"
    kind = type(value).__name__
    article = "an" if kind[:1].lower() in "aeiou" or kind == "ndarray" else "a"
    try:
        text = repr(value.item() if isinstance(value, np.generic) else value)
        if len(text) <= 80:
            return text
        shape = getattr(value, "shape", None)  # of an array, a tensor or a table
        return f"{article} {kind} of shape {tuple(shape)}" if shape else f"{text[:60]}… ({kind})"
    except Exception:
        return f"{article} {kind}"


def check_int(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """An integer in [least, most] that fits in 64 bits.

    >>> check_int("bank", np.uint8(10), 1)
    10
    >>> check_int("bank", 2.5, 1)
    Traceback (most recent call last):
    mcover.errors.McoverError: bank is 2.5; write a whole number of at least 1.
    """
    fits = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    low, high = (-math.inf if least is None else least), (math.inf if most is None else most)
    if not fits or not low <= value <= high or abs(int(value)) >= 2**63:
        raise McoverError(f"{name} is {shown(value)}; write a whole number{_range(low, high)}.")
    return int(value)


def check_float(
    name: str,
    value: Any,
    least: float = -math.inf,
    most: float = math.inf,
    *,
    above: float = -math.inf,
    below: float = math.inf,
    infinite: bool = False,
) -> float:
    """A real number in [least, most] and in (above, below), finite unless ``infinite``.

    >>> check_float("share", 0.5, 0, below=1)
    0.5
    >>> check_float("lr", float("nan"), above=0)
    Traceback (most recent call last):
    mcover.errors.McoverError: lr is nan; write a finite number above 0.
    """
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)
    try:
        number = float(value) if is_number else math.nan
    except Exception:  # an integer beyond the range of floats, or a user's number type
        number = math.nan
    fits = least <= number <= most and (above == -math.inf or number > above)
    fits = fits and (below == math.inf or number < below)
    if not fits or (math.isinf(number) and not infinite):
        kind = "number" if infinite else "finite number"
        limits = _range(least, most, above, below)
        raise McoverError(f"{name} is {shown(value)}; write a {kind}{limits}.")
    return number


def check_count_fields(
    of: Any, *names: str, optional: bool = False, most: int | None = None
) -> None:
    """Checks fields of a frozen dataclass: integers of at least 1, or None if optional."""
    _check_fields(of, names, optional, check_int, least=1, most=most)


def check_float_fields(of: Any, *names: str, optional: bool = False, **limits: Any) -> None:
    """Checks fields of a frozen dataclass: real numbers within limits, or None if optional."""
    _check_fields(of, names, optional, check_float, **limits)


def check_bool_fields(of: Any, *names: str) -> None:
    """Checks fields of a frozen dataclass that are True or False."""
    _check_fields(of, names, False, check_bool)


def _check_fields(of: Any, names: Iterable[str], optional: bool, check: Any, **limits: Any) -> None:
    for name in names:
        value = getattr(of, name)
        if not (optional and value is None):
            object.__setattr__(of, name, check(name, value, **limits))


def check_choice(name: str, value: Any, choices: Sequence[str]) -> Any:
    """One of a few words."""
    if not isinstance(value, str) or value not in choices:
        allowed = " or ".join([", ".join(map(repr, choices[:-1])), repr(choices[-1])][-2:])
        raise McoverError(f"{name} is {shown(value)}; write {allowed.removeprefix(' or ')}.")
    return value


def check_bool(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool | np.bool_):
        raise McoverError(f"{name} is {shown(value)}; write True or False.")
    return bool(value)


def check_floats(
    name: str, values: Any, *, ndim: int | None = None, finite: bool = True
) -> NDArray[np.float64]:
    """A list or array of real numbers that is not empty, as a new array of floats.

    >>> check_floats("values", [1, 2.5])
    array([1. , 2.5])
    >>> check_floats("values", [1, "two"])
    Traceback (most recent call last):
    mcover.errors.McoverError: values is [1, 'two']; write a list or array of numbers.
    """
    given = as_array(name, values)
    is_right = given.size > 0 and given.dtype.kind in "iuf" and ndim in (None, given.ndim)
    if not is_right or (finite and not np.all(np.isfinite(given))):
        what = "finite numbers" if finite and is_right else "numbers"
        raise McoverError(f"{name} is {shown(values)}; write a list or array of {what}.")
    return given.astype(np.float64)


def check_bools(name: str, values: Any) -> NDArray[np.bool_]:
    """A list or array of True and False that is not empty."""
    given = as_array(name, values)
    if not given.size or given.dtype != bool:
        raise McoverError(f"{name} is {shown(values)}; write a list or array of True and False.")
    return given


def as_array(name: str, values: Any) -> NDArray[Any]:
    """Anything that NumPy reads as an array; the caller checks the entries.

    >>> as_array("values", np.ma.masked_array([1.0, 2.0], [True, False]))
    Traceback (most recent call last):
    mcover.errors.McoverError: values is a masked array, and its mask would be ignored; write \
values.filled(number), or values.compressed() without the masked entries.
    """
    check_unmasked(name, values)
    try:
        given = np.asarray(values)
    except Exception as error:  # ragged lists, and users' objects, which may raise anything
        raise McoverError(
            f"{name} is {shown(values)}, which NumPy cannot read as an array of numbers "
            f"({type(error).__name__}); write a list or an array, with rows of one length."
        ) from error
    # A broadcast view may be much smaller than its copies.
    check_memory(9 * given.size, f"{name} of shape {given.shape}", "write fewer numbers")
    return given


def check_unmasked(name: str, values: Any) -> None:
    """Refuses masked arrays, also as rows of a list, because their masks would be ignored."""
    rows = values if isinstance(values, list | tuple) else [values]
    if any(isinstance(row, np.ma.MaskedArray) for row in rows):
        raise McoverError(
            f"{name} is a masked array, and its mask would be ignored; write {name}.filled(number),"
            f" or {name}.compressed() without the masked entries."
        )


def check_instance(name: str, value: Any, kinds: type[T] | tuple[type[T], ...], example: str) -> T:
    """A value of one of the given types; ``example`` says what to write."""
    if not isinstance(value, kinds):
        raise McoverError(f"{name} is {shown(value)}; write {example}.")
    return value


def check_callable(name: str, value: Any, example: str) -> Any:
    """A function, or anything else that can be called; ``example`` says what to write."""
    if not callable(value):
        raise McoverError(f"{name} is {shown(value)}; write {example}.")
    return value


def check_path(name: str, value: Any) -> Path:
    """The path of a file or folder, as text or as a ``Path``; it need not exist.

    >>> check_path("path", b"file")
    Traceback (most recent call last):
    mcover.errors.McoverError: path is b'file'; write a path as text or pathlib.Path.
    """
    if isinstance(value, str | os.PathLike):
        with contextlib.suppress(Exception):  # the __fspath__ of a user's class
            text = os.fspath(value)
            if isinstance(text, str) and text and "\0" not in text and len(text) < _LONGEST_PATH:
                return Path(text)
    raise McoverError(f"{name} is {shown(value)}; write a path as text or pathlib.Path.")


def memory_limit() -> int:
    """The bytes that one request may take: ``$MCOVER_MEMORY_LIMIT``, or half of the memory."""
    text = os.environ.get(MEMORY_VARIABLE)
    if text is not None:
        if not text.isdecimal() or int(text) == 0:
            raise McoverError(f"{MEMORY_VARIABLE} is {text!r}; write a positive number of bytes.")
        return int(text)
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf: no limit
        total = 2**63 - 1
    for file in _MEMORY_FILES:
        with contextlib.suppress(OSError, ValueError):  # no such file, or the word "max"
            total = min(total, int(Path(file).read_text()))
    return total // 2


def check_memory(needed: int, what: str, remedy: str) -> None:
    """Refuses a request of ``needed`` bytes that exceeds :func:`memory_limit`."""
    limit = memory_limit()
    if needed > limit:
        raise TooLargeError(
            f"{what} would take {readable_bytes(needed)}, more than the limit of "
            f"{readable_bytes(limit)}: {remedy}, or raise the limit with {MEMORY_VARIABLE} (bytes)."
        )


def cpus() -> int:
    """The number of CPUs that this process may use, by its affinity and its container's quota."""
    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS and Windows
    count = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    for files in _CPU_FILES:
        with contextlib.suppress(OSError, ValueError):  # no such file, or the word "max"
            quota, period = " ".join(Path(file).read_text() for file in files).split()
            if int(quota) > 0:  # version 1 writes -1 for no quota
                count = min(count, math.ceil(int(quota) / int(period)))
    return max(count, 1)


def readable_bytes(count: float) -> str:
    """A number of bytes with its unit, such as 3 MiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def _range(least: float, most: float, above: float = -math.inf, below: float = math.inf) -> str:
    if math.isfinite(least) and math.isfinite(most):
        return f" from {least:g} to {most:g}"
    limits = {"of at least": least, "above": above, "of at most": most, "below": below}
    return " and".join(f" {word} {of:g}" for word, of in limits.items() if math.isfinite(of))


def check_writable(path: Any) -> Path:
    """A path where a file can be written, for a check before a long run."""
    target = check_path("output", path)
    if not target.name or target.is_dir():
        raise McoverError(f"output is {shown(str(path))}; write the path of a file.")
    folder = target.parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        # Permissions are not sufficient, e.g. for a read-only file system or /proc.
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = error.strerror or str(error)
        raise McoverError(
            f"cannot write {target}: {folder} is not a folder that can be written ({why})."
        ) from error
    return target
