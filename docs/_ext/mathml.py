"""Renders formulas as MathML, which browsers lay out without scripts, fonts or requests."""

from html import escape
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx


def _inline(writer: Any, node: nodes.Element) -> None:
    writer.body.append(_convert(node, "inline"))
    raise nodes.SkipNode


def _block(writer: Any, node: nodes.Element) -> None:
    anchor = f' id="{escape(node["ids"][0])}"' if node["ids"] else ""
    number = f'<span class="eqno">({node["number"]})</span>' if node["number"] else ""
    writer.body.append(
        f'<div class="math"{anchor}><div>{_convert(node, "block")}</div>{number}</div>\n'
    )
    raise nodes.SkipNode


def _convert(node: nodes.Element, display: str) -> str:
    # MathML Core has no mathvariant: write double-struck and script letters as ℙ, ℒ.
    made = convert(node.astext(), display=display)
    return made.replace(
        "<mo>&#x02202;</mo>", "<mi>&#x02202;</mi>"
    )  # ∂a is a set, so no operator spacing


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
