"""Inlines SVG figures into their page, so that its style sheet sets their colours and fonts."""

import re
from itertools import pairwise
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

_ROOT = re.compile(
    r'<svg(?P<attributes>[^>]*?) viewBox="0 0 (?P<width>\S+) (?P<height>\S+?)"(?P<more>[^>]*)>'
    r"(?P<drawing>.*)</svg>",
    re.DOTALL,
)


def divided(svg: str, name: str) -> str:
    """The parts of a figure as pictures, arranged in a row or, on a phone, in a column.

    The first part contains the whole drawing and shows a section of it; the others refer to it.
    """
    found = _ROOT.search(svg)
    assert found is not None, f"{name}: no drawing"
    width, height = float(found["width"]), float(found["height"])
    cuts = re.search(r'data-cuts="([^"]*)"', found["more"])
    label = re.search(r'aria-label="([^"]*)"', found["more"])
    edges = [0.0, *(float(cut) * width for cut in (cuts[1].split() if cuts else ())), width]
    parts = []
    for number, (left, right) in enumerate(pairwise(edges)):
        size = right - left
        use = f'<use href="#{name}-drawing"/>'
        drawing = use if number else f'<g id="{name}-drawing">{found["drawing"]}</g>'
        style = f"flex: {size:.0f} 1 {0.8 * size:.0f}px; max-width: {1.2 * size:.0f}px"
        parts.append(
            f'<svg viewBox="{left:g} 0 {size:g} {height:g}" style="{style}" aria-hidden="true">'
            f"{drawing}</svg>"
        )
    words = label[1] if label else name
    return f'<div class="drawn" role="img" aria-label="{words}">{"".join(parts)}</div>'


class InlineFigures(SphinxPostTransform):
    """Replaces each image ``figures/*.svg`` with the text of the file."""

    default_priority = 5  # before images are collected for copying
    formats = ("html",)

    def run(self) -> None:
        for image in list(self.document.findall(nodes.image)):
            file = Path(self.app.srcdir, image["uri"])
            if file.suffix == ".svg" and file.parent.name == "figures":
                self.env.note_dependency(image["uri"])
                svg = divided(file.read_text(encoding="utf-8"), file.stem)
                image.replace_self(nodes.raw("", svg, format="html"))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_post_transform(InlineFigures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
