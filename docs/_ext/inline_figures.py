"""Inlines SVG figures into their page, so that its style sheet sets their colours and fonts."""

from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform


class InlineFigures(SphinxPostTransform):
    """Replaces each image ``figures/*.svg`` with the text of the file."""

    default_priority = 5  # before images are collected for copying
    formats = ("html",)

    def run(self) -> None:
        for image in list(self.document.findall(nodes.image)):
            file = Path(self.app.srcdir, image["uri"])
            if file.suffix == ".svg" and file.parent.name == "figures":
                self.env.note_dependency(image["uri"])
                svg = f'<div class="drawn">{file.read_text(encoding="utf-8")}</div>'
                image.replace_self(nodes.raw("", svg, format="html"))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_post_transform(InlineFigures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
