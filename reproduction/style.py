"""What all pictures share: colours, and how they reach the disk or a page."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from mcover.errors import McoverError
from mcover.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette: distinct with any colour vision.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
FORMATS = ("png", "pdf", "svg")

POINT, LINE = "point-", "line-"
"""What names of artists (gid) begin with that a page can style and reach."""


def save(figure: Figure, path: str | Path) -> Path:
    """Writes a figure (the ending says the format) and makes its folder if need be."""
    target = Path(path)
    ending = target.suffix.lstrip(".").lower()
    if ending not in FORMATS:
        raise McoverError(f"cannot write {target}; end the name in one of .png, .pdf or .svg.")
    # Without the time of day, the same rows make the same file.
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(ending)
    draw = partial(figure.savefig, format=ending, dpi=150, metadata=metadata)
    return write_atomic(target, draw)


def inline_svg(figure: Figure, name: str, label: str, tips: Sequence[str]) -> str:
    """A figure as SVG inside a page, whose style sheet sets colours and fonts.

    Args:
        figure: what to draw. Artists named ``point-0``, ``point-1``, … are what a reader can point
            at or reach by keyboard; ``line-0``, … the lines in the colours of the palette.
        name: of the figure, unique on the page: identifiers begin with it.
        label: what the figure shows, in words.
        tips: what each point says.
    """
    from matplotlib import rc_context

    file = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(file, format="svg", transparent=True)
    text = file.getvalue()
    for number, colour in enumerate(COLOURS):
        text = text.replace(colour.lower(), f"var(--s{number})")
    text = re.sub(r"#([0-9a-f]{2})\1\1\b", _grey, text)
    text = re.sub(r"font: ([^;\"]*?)\d+px [^;\"]*", _font, text)
    root = ElementTree.fromstring(re.sub(r">\s+<", "><", text))
    used = set(re.findall(r"#([\w-]+)", text))
    for parent in root.iter():
        parent.tag = parent.tag.rpartition("}")[2]
        parent.attrib = {key.rpartition("}")[2]: of for key, of in parent.attrib.items()}
        for child in list(parent):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                parent.remove(child)  # a style sheet in here would be one of the whole page
        _adapt(parent, name, used, tips)
    size = {"viewBox": root.attrib["viewBox"]}
    root.attrib = size | {"class": "plot", "role": "group", "aria-label": label}
    return ElementTree.tostring(root, encoding="unicode", method="html")


def _adapt(element: ElementTree.Element, name: str, used: set[str], tips: Sequence[str]) -> None:
    """Identifiers that are needed become unique; named artists become what the page knows."""
    own = element.attrib.pop("id", "")
    if own.startswith(POINT):
        tip = tips[int(own.removeprefix(POINT))]
        element.attrib |= {"class": "point", "tabindex": "0", "role": "img"}
        element.attrib |= {"aria-label": tip, "data-tip": tip}
        for part in element.iter():
            part.attrib.pop("style", None)
    elif own.startswith(LINE):
        element.attrib["class"] = f"line s{own.removeprefix(LINE)}"
    elif own in used:
        element.attrib["id"] = f"{name}-{own}"
    for key, value in element.attrib.items():
        if key in ("href", "clip-path"):
            element.attrib[key] = value.replace("#", f"#{name}-")
        elif key in ("d", "x", "y", "transform"):  # hundredths of a point: half the size
            element.attrib[key] = re.sub(r"(\.\d\d)\d+", r"\1", value)


def _grey(found: re.Match[str]) -> str:
    return "var(--ink)" if int(found[1], 16) < 128 else "var(--rule)"


def _font(found: re.Match[str]) -> str:
    size = re.search(r"\d+px", found[0])
    italic = "; font-style: italic" if "italic" in found[1] else ""
    return f"font-size: {size[0] if size else 'inherit'}{italic}"
