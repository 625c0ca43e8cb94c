"""Fails the build if a page would fetch a script, style sheet, font or image from another site."""

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import SphinxError

_REMOTE = r"(?:https?:)?//[^\s\"')>]+"
_FETCHES = re.compile(
    rf"<(?:script|img|iframe|source|video|audio|object|embed|image|use)\b[^>]*?"
    rf"\b(?:src|srcset|data|href)=[\"']?{_REMOTE}"
    # <a href> is fetched only when a reader clicks; these <link> elements are fetched at once.
    rf"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preload|preconnect|prefetch|icon))"
    rf"[^>]*\bhref=[\"']?{_REMOTE}"
    rf"|@import\s+(?:url\()?[\"']?{_REMOTE}"
    rf"|url\([\"']?{_REMOTE}",
    re.IGNORECASE,
)


def requests(folder: Path) -> list[str]:
    """Requests to other sites in the pages and style sheets of a built site."""
    files = sorted([*folder.rglob("*.html"), *folder.rglob("*.css")])
    return [
        f"{file.relative_to(folder)}: {found[0][:120]}"
        for file in files
        for found in _FETCHES.finditer(file.read_text(encoding="utf-8"))
    ]


def _check(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and (found := requests(Path(app.outdir))):
        raise SphinxError(
            "pages must not fetch anything from other sites, found:\n" + "\n".join(found)
        )


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", _check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
