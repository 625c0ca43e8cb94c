"""Files of published data sets: found on disk or downloaded, and verified.

A file is read from the folder $MCOVER_DATA or from the cache, or else downloaded. In all cases its
decompressed content must have the published SHA-256, so a mirror may use other compression
settings.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import sys
import tempfile
import urllib.request
import zlib
from pathlib import Path
from typing import Any

from mcover import McoverError

VARIABLE = "MCOVER_DATA"
TIMEOUT = 30.0  # seconds without an answer
MOST_BYTES = 1 << 26  # more than any of the files, compressed or not

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
    """The verified, decompressed content of one file of a data set."""
    named = os.environ.get(VARIABLE)
    if named and not Path(named).is_dir():
        raise McoverError(
            f"{VARIABLE} is {named!r}, which is not a folder; name the folder that holds "
            f"{' and '.join(f'{name}/' for name in CHECKSUMS)}, or unset it."
        )
    folders = [Path(folder) / dataset for folder in (named, _cache_folder()) if folder]
    for path in (folder / name for folder in folders for name in (f"{file}.gz", file)):
        if path.is_file():
            return _verified(path.read_bytes(), dataset, file, str(path))
    return _fetch(dataset, file, folders)


def _cache_folder() -> Path:
    """Where downloaded files are kept: ``mcover`` in the platform's cache folder."""
    home = Path.home()
    usual = {
        "win32": Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local")),
        "darwin": home / "Library" / "Caches",
    }
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else usual.get(sys.platform, home / ".cache")) / "mcover"


def _verified(found: bytes, dataset: str, file: str, where: str) -> bytes:
    """The content, decompressed if it is a gzip file; raises unless it is the published content."""
    if found.startswith(b"\x1f\x8b"):
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(found)) as stream:
                found = stream.read(MOST_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise McoverError(
                f"{where} is a damaged gzip file ({error}); delete it and get it again."
            ) from error
    seen, wanted = hashlib.sha256(found).hexdigest(), CHECKSUMS[dataset][FILES.index(file)]
    if seen != wanted:
        raise McoverError(
            f"{where} is not the published {dataset} file: the SHA-256 of its decompressed content "
            f"is {seen}, not {wanted}; delete it and get it again."
        )
    return found


def _fetch(dataset: str, file: str, looked: list[Path]) -> bytes:
    """Downloads and verifies a file, then moves it into the cache in one step."""
    failures = []
    for address in ADDRESSES[dataset]:
        try:
            sent = _download(f"{address}{file}.gz")
            found = _verified(sent, dataset, file, f"what {address} sent")
        except (OSError, McoverError) as error:  # urllib's errors and timeouts are all OSErrors
            failures.append(f"{address}: {getattr(error, 'reason', error)}")
            continue
        _write(_cache_folder() / dataset / f"{file}.gz", sent)
        return found
    raise McoverError(
        f"{dataset} is not on this machine and could not be downloaded. Looked for {file}.gz in "
        f"{', '.join(map(str, looked))}; tried {'; '.join(failures)}. Without a network, put the "
        f"files {', '.join(f'{name}.gz' for name in FILES)} in a folder "
        f"FOLDER/{dataset}/ and set {VARIABLE}=FOLDER; or use 'digits', which needs no download."
    )


def _write(path: Path, content: bytes) -> None:
    """Renames a temporary file, so that no other process reads an incomplete file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)


def _download(address: str) -> bytes:
    """The content at an https address, at most MOST_BYTES; redirects must be https too."""
    _require_https(address)
    with _open(address) as answer:
        found: bytes = answer.read(MOST_BYTES + 1)
    if len(found) > MOST_BYTES:
        raise McoverError(f"more than {MOST_BYTES:,} bytes; the published files are smaller.")
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
        raise McoverError(f"{address} is not an https address; only https is downloaded from.")
