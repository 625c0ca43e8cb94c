"""Atomic writes: a file is replaced completely or not changed."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from mcover import checks
from mcover.errors import McoverError


def write_atomic(path: str | Path, data: bytes | Callable[[BinaryIO], None]) -> Path:
    """Writes a file completely or not at all, and returns its path.

    A temporary file in the same folder is written, flushed to disk and renamed to the target. So a
    reader sees either the old or the new content, and the old file survives a crash or a full disk.
    Missing folders are created. The file has the usual permissions of a new file.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_atomic(folder / "new" / "a.txt", b"text").read_text()
    'text'

    Args:
        path: the path of the file. If it is a symbolic link, its target is written.
        data: the bytes, or a function that writes them to an open binary file; its exceptions are
            raised unchanged.
    """
    path = checks.check_path("path", path)
    try:
        target = Path(os.path.realpath(path))
        is_special = target.exists() and not target.is_file()
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error
    if is_special:
        what = "a folder" if target.is_dir() else "not a regular file"
        raise McoverError(f"cannot write {path}: it is {what}; write the path of a file.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # A file of ``tempfile`` would be readable by its owner only; this one follows the umask.
        temporary = target.with_name(f".{uuid4().hex[:12]}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
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
        temporary.replace(target)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise _unwritable(path, error) from error
        raise
    return path


def _unwritable(path: str | Path, error: Exception) -> McoverError:
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return McoverError(f"cannot write {path}: {why}; write a path where files can be created.")
