"""numba's ``njit`` with a cache on disk that may be missing, read-only, stale or damaged.

A cache that cannot be used costs a compilation and never raises an exception. numba's keys hold its
version, the signature, and the CPU's name and features. Compiled functions also inline functions of
other files in their folder, which numba does not see: so an entry is stale as soon as any source
file of the folder has changed.
"""

import contextlib
import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator that compiles a function without the GIL and caches it if that is possible."""

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(nogil=True, **options)(function)
        with contextlib.suppress(RuntimeError, OSError):  # no folder that can be written
            dispatcher._cache = _Cache(function)
        return dispatcher

    return decorate


class _Cache(FunctionCache):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file._source_stamp = _stamp(Path(function.__code__.co_filename).parent)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # a damaged file can raise any exception
            with contextlib.suppress(Exception):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(Exception):  # a full disk, or a folder that became read-only
            super().save_overload(sig, data)


@cache
def _stamp(folder: Path) -> str:
    """A digest of all source files of a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
