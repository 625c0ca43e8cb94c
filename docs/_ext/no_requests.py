"""Fails the build if a page would fetch anything from elsewhere: scripts, styles, fonts, images."""

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import SphinxError

_REMOTE = r"(?:https?:)?//[^\s\"')>]+"
_FETCHES = re.compile(
    rf"<(?:script|img|iframe|source|video|audio|object|embed|image|use)\b[^>]*?"
    rf"\b(?:src|srcset|data|href)=[\"']?{_REMOTE}"
    # A link to read is a click of the reader's; a link that the page needs is a request.
    rf"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preload|preconnect|prefetch|icon))"
    rf"[^>]*\bhref=[\"']?{_REMOTE}"
    rf"|@import\s+(?:url\()?[\"']?{_REMOTE}"
    rf"|url\([\"']?{_REMOTE}",
    re.IGNORECASE,
)


def requests(folder: Path) -> list[str]:
    """What the pages and style sheets of a built site would fetch from elsewhere."""
    files = sorted([*folder.rglob("*.html"), *folder.rglob("*.css")])
    return [
        f"{file.relative_to(folder)}: {found[0][:120]}"
        for file in files
        for found in _FETCHES.finditer(file.read_text(encoding="utf-8"))
    ]


def _check(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and (found := requests(Path(app.outdir))):
        raise SphinxError("pages must not fetch anything from elsewhere:\n" + "\n".join(found))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", _check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
