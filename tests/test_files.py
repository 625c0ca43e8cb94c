"""Files are either written completely or unchanged."""

import errno
import os

import pytest

from mcover import McoverError
from mcover.files import write_atomic


def test_a_file_and_its_folders_are_written_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "a" / "b" / "c.bin"
    assert write_atomic(path, b"first") == path
    write_atomic(str(path), lambda file: file.write(b"second") and None)
    assert path.read_bytes() == b"second"
    assert [each.name for each in path.parent.iterdir()] == ["c.bin"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_atomic(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")])
def test_an_interrupted_write_leaves_what_was_there(tmp_path, error):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fails(file):
        file.write(b"half of the n")
        raise error

    kind = McoverError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(kind, match="file: No space left" if kind is McoverError else None):
        write_atomic(path, fails)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_what_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    for path, why in (
        (tmp_path, "it is a folder"),
        (tmp_path / "file" / "below", "(File exists|Not a directory)"),
        (tmp_path / ("x" * 300), "too long"),
        (tmp_path / "pipe", "not a regular file"),
    ):
        with pytest.raises(McoverError, match=f"cannot write .*{why}"):
            write_atomic(path, b"")
    for path in ("", 3, None, b"bytes", "nul\0byte"):
        with pytest.raises(McoverError, match="write a path as text"):
            write_atomic(path, b"")
