"""Extends autodoc: documents dataclass fields from the source, and shortens type names."""

import ast
import dataclasses
import inspect
import re
import textwrap
from typing import Any, NamedTuple

from numpy.typing import ArrayLike
from sphinx.application import Sphinx
from sphinx.util.typing import stringify_annotation

from mcover.plain import Tagged


class _Field(NamedTuple):
    name: str
    text: str


def described_fields(cls: type) -> list[_Field]:
    """Fields of a class and its bases that have a comment or docstring in the source, in order."""
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if owner.__module__.partition(".")[0] != "mcover":
            continue
        lines = textwrap.dedent(inspect.getsource(owner)).splitlines()
        body = ast.parse("\n".join(lines)).body[0].body  # type: ignore[attr-defined]
        for statement, following in zip(body, [*body[1:], None], strict=True):
            if not isinstance(statement, ast.AnnAssign):
                continue
            target = statement.target.id  # type: ignore[union-attr]
            text = ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = inspect.cleandoc(str(following.value.value))
            elif comment := re.search(r"#\s*(.+)$", lines[statement.end_lineno - 1]):
                text = comment[1]
            if text:
                found[target] = " ".join(text.split())
    return [_Field(name, text) for name, text in found.items()]


def _append(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    is_tuple = isinstance(obj, type) and issubclass(obj, tuple)
    if what != "class" or not (dataclasses.is_dataclass(obj) or is_tuple):
        return
    word = "param" if issubclass(obj, Tagged) else "ivar"
    fields = [one for one in described_fields(obj) if not one.name.startswith("_")]
    if fields:
        lines.extend(["", *(f":{word} {one.name}: {one.text}" for one in fields), ""])


_ARRAY_LIKE = stringify_annotation(ArrayLike, "smart")
_NDARRAY = re.compile(r"~?numpy\.ndarray\[tuple\[[^\]]*\], ~?numpy\.dtype\[([^\[\]]+)\]\]")


def _shorten_types(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str, returns: str
) -> tuple[str | None, str | None]:
    """Writes type aliases by name instead of expanded, and hides defaults that are not Python."""
    texts = [text and text.replace(_ARRAY_LIKE, "ArrayLike") for text in (signature, returns)]
    texts = [text and _NDARRAY.sub(r"NDArray[\1]", text) for text in texts]
    # A default_factory has no text to show.
    return texts[0] and texts[0].replace("<factory>", "..."), texts[1]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _append)
    app.connect("autodoc-process-signature", _shorten_types)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
