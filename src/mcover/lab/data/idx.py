"""The IDX format: two zero bytes, a type byte, the number of dimensions, the dimensions, the data.

Everything is big-endian; the data are in row-major order.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mcover.errors import McoverError

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP = b"\x1f\x8b"


def read_idx(path: str | Path) -> NDArray[np.generic]:
    """The array in an IDX file, plain or gzip-compressed (told by its content, not its name)."""
    return parse_idx(read_bytes(path), str(path))


def read_bytes(path: str | Path) -> bytes:
    """The content of a file, decompressed if it is a gzip file."""
    content = Path(path).read_bytes()
    if not content.startswith(_GZIP):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise McoverError(
            f"{path} is a damaged gzip file ({error}); delete it and get it again."
        ) from error


def parse_idx(content: bytes, name: str) -> NDArray[np.generic]:
    """The array in the bytes of an (uncompressed) IDX file; ``name`` is for messages.

    >>> parse_idx(bytes([0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 3, 7, 8, 9]), "three pixels")
    array([[7, 8, 9]], dtype=uint8)
    """
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _TYPES or not content[3]:
        raise McoverError(
            f"{name} is not an IDX file: it begins with {content[:4].hex(' ') or 'nothing'}; "
            "images begin with 00 00 08 03 and labels with 00 00 08 01."
        )
    dtype, start = np.dtype(_TYPES[content[2]]), 4 + 4 * content[3]
    if len(content) < start:
        raise McoverError(
            f"{name} is cut off: {len(content)} bytes, less than its header of {start}; "
            "get the file again."
        )
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], dtype=">u4"))
    wanted = start + math.prod(shape) * dtype.itemsize
    if len(content) != wanted:
        fault = "is cut off" if len(content) < wanted else "has bytes left over"
        raise McoverError(
            f"{name} {fault}: its header says {' x '.join(map(str, shape))} of {dtype.name}, "
            f"{wanted} bytes in all, and it holds {len(content)}; get the file again."
        )
    # A copy in the machine's byte order, so that it can be written to and given to torch.
    return (
        np.frombuffer(content, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))
    )
