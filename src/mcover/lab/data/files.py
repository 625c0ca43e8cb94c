"""Where the IDX files of a data set are: a folder you name, the cache, or a published address.

A file counts only if the SHA-256 of its decompressed content is the published one, wherever it
came from, so a mirror that compresses anew is as good as the original.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from mcover.errors import McoverError
from mcover.lab.data.idx import read_bytes

VARIABLE = "MCOVER_DATA"
TIMEOUT = 30.0  # seconds without an answer

ADDRESSES = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    "fashion-mnist": (
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
}

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
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
    for folder in folders:
        for path in (folder / f"{file}.gz", folder / file):
            if path.is_file():
                found = read_bytes(path)
                _verify(found, dataset, file, str(path))
                return found
    return _fetch(dataset, file, folders)


def cache_folder() -> Path:
    """Where fetched files are kept: the platform's cache folder, in ``mcover``."""
    given = os.environ.get("XDG_CACHE_HOME")
    if given:
        return Path(given) / "mcover"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "mcover"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "mcover"
    return Path.home() / ".cache" / "mcover"


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


def _verify(found: bytes, dataset: str, file: str, where: str) -> None:
    seen, wanted = hashlib.sha256(found).hexdigest(), CHECKSUMS[dataset][FILES.index(file)]
    if seen != wanted:
        raise McoverError(
            f"{where} is not the published {dataset} file: the SHA-256 of its decompressed content "
            f"is {seen}, not {wanted}; delete it and get it again."
        )


def _fetch(dataset: str, file: str, looked: list[Path]) -> bytes:
    """Fetches, verifies, then renames into the cache: a file there is always a whole one."""
    target = cache_folder() / dataset / f"{file}.gz"
    failures = []
    for address in ADDRESSES[dataset]:
        try:
            with urllib.request.urlopen(f"{address}{file}.gz", timeout=TIMEOUT) as answer:
                compressed = answer.read()
        except OSError as error:  # urllib's errors and timeouts are all OSErrors
            failures.append(f"{address}: {getattr(error, 'reason', error)}")
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            partial = Path(folder) / target.name
            partial.write_bytes(compressed)
            try:
                found = read_bytes(partial)
                _verify(found, dataset, file, f"what {address} sent")
            except McoverError as error:
                failures.append(str(error))
                continue
            partial.replace(target)
        return found
    raise McoverError(
        f"{dataset} is not on this machine and could not be fetched. Looked for {file}.gz in "
        f"{', '.join(map(str, looked))}; tried {'; '.join(failures)}. Without a network, put the "
        f"files {', '.join(f'{name}.gz' for name in FILES)} in a folder "
        f"FOLDER/{dataset}/ and set {VARIABLE}=FOLDER; or use 'digits', which needs no download."
    )
