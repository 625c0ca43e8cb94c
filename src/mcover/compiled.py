"""numba's ``njit`` with a checked cache on disk.

If the cache is missing, read-only, stale or damaged, functions are compiled again, without an
exception. numba's keys contain the signature, and the name and features of the CPU. But compiled
functions also inline functions from other files of their folder, which numba's keys ignore. So here
a change of any source file of the folder makes an entry stale.

numba itself runs any machine code that it finds in a cache file. Here every file starts with a
checksum of the rest, and an entry names the function and the key that it was compiled for, so a
damaged or renamed file is not used. This protects from accidents, not from someone who can write to
the folder, and who could change the Python files too.
"""

import contextlib
import hashlib
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

_DIGEST = hashlib.sha256().digest_size


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator that compiles a function without the GIL and caches it if that is possible."""

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(nogil=True, **options)(function)
        with contextlib.suppress(RuntimeError, OSError):  # no writable folder
            dispatcher._cache = _Cache(function)
        return dispatcher

    return decorate


class _CheckedFile(IndexDataCacheFile):  # type: ignore[misc]
    """numba's index and data files of one function, each behind a checksum."""

    def save(self, key: Any, data: Any) -> None:
        super().save(key, (self._name_of(key), data))

    def load(self, key: Any) -> Any:
        found = super().load(key)
        return None if found is None or found[0] != self._name_of(key) else found[1]

    def _name_of(self, key: Any) -> str:
        # The key alone is not enough: it hashes the bytecode, which does not contain constants.
        return repr((self._index_name, key))

    def _save_index(self, overloads: dict[Any, str]) -> None:
        self._write(self._index_path, (self._version, self._source_stamp, overloads))

    def _load_index(self) -> dict[Any, str]:
        found = self._read(self._index_path)
        if found is None or found[:2] != (self._version, self._source_stamp):
            return {}
        return found[2]

    def _save_data(self, name: str, data: Any) -> None:
        self._write(self._data_path(name), data)

    def _load_data(self, name: str) -> Any:
        return self._read(self._data_path(name))

    def _write(self, path: str, value: Any) -> None:
        content = self._dump(value)
        with self._open_for_write(path) as file:
            file.write(hashlib.sha256(content).digest() + content)

    def _read(self, path: str) -> Any:
        """The value in a file; None if the file does not exist or its checksum is wrong."""
        try:
            data = Path(path).read_bytes()
        except OSError:
            return None
        digest, content = data[:_DIGEST], data[_DIGEST:]
        if hashlib.sha256(content).digest() != digest:
            return None
        return pickle.loads(content)


class _Cache(FunctionCache):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stamp = _stamp(Path(function.__code__.co_filename).parent)
        self._cache_file = _CheckedFile(self._cache_path, self._impl.filename_base, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # an entry of another installation can raise any exception
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
