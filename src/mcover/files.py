"""Files that are either written whole or left as they were."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from mcover.errors import McoverError


def write_atomic(path: str | Path, data: bytes | Callable[[BinaryIO], None]) -> Path:
    """Writes a file whole or not at all, and returns its path.

    A temporary file in the same folder is written, flushed to disk and put in the place of what
    was there. So a reader sees the old content or the new one, and a crash or a full disk leaves
    the old one. Missing folders are made; permissions are those of any new file.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_atomic(folder / "new" / "a.txt", b"text").read_text()
    'text'

    Args:
        path: of the file. Behind a symbolic link, the file that it points to is written.
        data: the bytes, or a function that writes them to an open binary file; what it raises
            comes out as it is.
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise McoverError(f"path is {path!r}; write the path of a file.")
    try:
        target = Path(os.path.realpath(path))
        odd = target.exists() and not target.is_file()
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error
    if odd:
        what = "a folder" if target.is_dir() else "no ordinary file"
        raise McoverError(f"cannot write {path}: it is {what}; write the path of a file.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Opened like this, and not by ``tempfile``, it has the permissions of any new file.
        beside = target.with_name(f".{uuid4().hex[:12]}.tmp")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            if callable(data):
                data(file)
            else:
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    except BaseException as error:
        with suppress(OSError):
            beside.unlink()
        if isinstance(error, OSError):
            raise _unwritable(path, error) from error
        raise
    return Path(path)


def _unwritable(path: str | Path, error: Exception) -> McoverError:
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return McoverError(f"cannot write {path}: {why}; write a path where files can be made.")
