"""IDX files: where those of a data set are, and how one is read.

They are in a folder you name, in the cache, or at a published address. A file counts only if the
SHA-256 of its decompressed content is the published one, wherever it came from, so a mirror that
compresses anew is as good as the original.

The format: two zero bytes, a type byte, the number of dimensions, the dimensions, the data, all
big-endian and in row-major order. No more is inflated than the header says, and than memory allows.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import os
import sys
import urllib.request
import zlib
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from mcover import checks
from mcover.errors import McoverError
from mcover.files import write_atomic

VARIABLE = "MCOVER_DATA"
TIMEOUT = 30.0  # seconds without an answer
DOWNLOAD_BYTES = 1 << 26  # more than any of the files

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_DIMENSIONS = 64  # NumPy's arrays have no more
_CHUNK = 1 << 20

ADDRESSES = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    "fashion-mnist": (
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
}

FILES = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
# SHA-256 of the decompressed files, in that order.
CHECKSUMS = {
    "mnist": (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    "fashion-mnist": (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
}


def content(dataset: str, file: str) -> bytes:
    """The decompressed content of one file of a data set, found or fetched, and verified."""
    folders = [folder / dataset for folder in (_named_folder(), cache_folder()) if folder]
    for path in (folder / name for folder in folders for name in (f"{file}.gz", file)):
        if path.is_file():
            return _verified(read_bytes(path), dataset, file, str(path))
    return _fetch(dataset, file, folders)


def read_idx(path: str | Path) -> NDArray[np.generic]:
    """The array in an IDX file, plain or gzip-compressed (decided by its content, not its name)."""
    checks.instance("path", path, (str, Path), "the path of an IDX file")
    return parse_idx(read_bytes(path), str(path))


def read_bytes(path: str | Path) -> bytes:
    """The content of an IDX file, decompressed if it is a gzip file."""
    try:
        if not Path(path).is_file():
            raise McoverError(f"there is no file {str(path)!r}; write the path of an IDX file.")
        with Path(path).open("rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            return _inflate(file, str(path)) if compressed else _bounded(file, str(path))
    except McoverError:
        raise
    except (OSError, ValueError) as error:
        raise McoverError(f"cannot read {str(path)!r}: {error}; write another path.") from error


def _inflate(file: IO[bytes], name: str) -> bytes:
    try:
        with gzip.GzipFile(fileobj=file) as stream:
            return _bounded(cast(IO[bytes], stream), name)
    except (OSError, EOFError, zlib.error) as error:
        raise McoverError(
            f"{name} is a damaged gzip file ({error}); delete it and get it again."
        ) from error


def _bounded(stream: IO[bytes], name: str) -> bytes:
    """As much as the header says and one byte, which is enough to see that there is more."""
    found = stream.read(4)
    if not _is_idx(found):
        return found
    found += stream.read(4 * found[3])
    wanted = _layout(found)[2]
    limit, parts, held = checks.memory_limit() // 2, [found], len(found)
    while held <= wanted and (part := stream.read(min(_CHUNK, wanted + 1 - held))):
        parts.append(part)
        held += len(part)
        if held > limit:
            checks.memory(2 * max(wanted, held), f"{name}, decompressed,", "take a smaller file")
    return b"".join(parts)


def _is_idx(head: bytes) -> bool:
    begins = len(head) == 4 and head[:2] == b"\0\0" and head[2] in _TYPES
    return begins and 0 < head[3] <= _DIMENSIONS


def _layout(content: bytes) -> tuple[np.dtype[Any], list[int], int]:
    """Elements, shape (as much of it as is there) and bytes of a file, by its header."""
    dtype, start = np.dtype(_TYPES[content[2]]), 4 + 4 * content[3]
    shape = np.frombuffer(content[4 : min(start, len(content) // 4 * 4)], ">u4").tolist()
    return dtype, shape, start + math.prod(shape) * dtype.itemsize


def parse_idx(content: bytes, name: str) -> NDArray[np.generic]:
    """The array in the bytes of an (uncompressed) IDX file; ``name`` is for messages.

    >>> parse_idx(bytes([0, 0, 8, 2, 0, 0, 0, 1, 0, 0, 0, 3, 7, 8, 9]), "three pixels")
    array([[7, 8, 9]], dtype=uint8)
    """
    if not _is_idx(content[:4]):
        raise McoverError(
            f"{name} is not an IDX file: it begins with {content[:4].hex(' ') or 'nothing'}; "
            "images begin with 00 00 08 03 and labels with 00 00 08 01."
        )
    dtype, shape, wanted = _layout(content)
    if len(shape) < content[3]:
        raise McoverError(
            f"{name} is cut off: {len(content)} bytes, less than its header; get the file again."
        )
    if len(content) != wanted:
        fault = "is cut off" if len(content) < wanted else "has bytes left over"
        raise McoverError(
            f"{name} {fault}: its header says {' x '.join(map(str, shape))} of {dtype.name}, "
            f"{wanted} bytes in all; get the file again."
        )
    if math.prod(filter(None, shape)) > sys.maxsize // dtype.itemsize:
        raise McoverError(f"{name} is empty, with sides that no array has; get the file again.")
    # A copy in the machine's byte order, so that it can be written to and given to torch.
    flat = np.frombuffer(content, dtype, offset=4 + 4 * len(shape))
    return flat.reshape(shape).astype(dtype.newbyteorder("="))


def cache_folder() -> Path:
    """Where fetched files are kept: the platform's cache folder, in ``mcover``."""
    home = Path.home()
    usual = {
        "win32": Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local")),
        "darwin": home / "Library" / "Caches",
    }
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else usual.get(sys.platform, home / ".cache")) / "mcover"


def _named_folder() -> Path | None:
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    if not Path(text).is_dir():
        raise McoverError(
            f"{VARIABLE} is {text!r}, which is not a folder; name the folder that holds "
            f"{' and '.join(f'{name}/' for name in CHECKSUMS)}, or unset it."
        )
    return Path(text)


def _verified(found: bytes, dataset: str, file: str, where: str) -> bytes:
    seen, wanted = hashlib.sha256(found).hexdigest(), CHECKSUMS[dataset][FILES.index(file)]
    if seen != wanted:
        raise McoverError(
            f"{where} is not the published {dataset} file: the SHA-256 of its decompressed content "
            f"is {seen}, not {wanted}; delete it and get it again."
        )
    return found


def _fetch(dataset: str, file: str, looked: list[Path]) -> bytes:
    """Fetches, verifies, then puts the file into the cache: a file there is always a whole one."""
    failures = []
    for address in ADDRESSES[dataset]:
        try:
            compressed, sent = _download(f"{address}{file}.gz"), f"what {address} sent"
            found = _verified(_inflate(io.BytesIO(compressed), sent), dataset, file, sent)
        except (OSError, McoverError) as error:  # urllib's errors and timeouts are all OSErrors
            failures.append(f"{address}: {getattr(error, 'reason', error)}")
            continue
        write_atomic(cache_folder() / dataset / f"{file}.gz", compressed)
        return found
    raise McoverError(
        f"{dataset} is not on this machine and could not be fetched. Looked for {file}.gz in "
        f"{', '.join(map(str, looked))}; tried {'; '.join(failures)}. Without a network, put the "
        f"files {', '.join(f'{name}.gz' for name in FILES)} in a folder "
        f"FOLDER/{dataset}/ and set {VARIABLE}=FOLDER; or use 'digits', which needs no download."
    )


def _download(address: str) -> bytes:
    """What is at an https address, which may not lead elsewhere; not more than our files have."""
    _require_https(address)
    with _open(address) as answer:
        found: bytes = answer.read(DOWNLOAD_BYTES + 1)
    if len(found) > DOWNLOAD_BYTES:
        raise McoverError(f"more than {checks.readable_bytes(DOWNLOAD_BYTES)}, which no file has.")
    return found


def _open(address: str) -> Any:
    return urllib.request.build_opener(_HttpsOnly()).open(address, timeout=TIMEOUT)


class _HttpsOnly(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *given: Any, **kwargs: Any) -> urllib.request.Request | None:
        request = super().redirect_request(*given, **kwargs)
        if request is not None:
            _require_https(request.full_url)
        return request


def _require_https(address: str) -> None:
    if not address.startswith("https://"):
        raise McoverError(f"{address} is not https, and is not fetched from.")
