"""Reads the pages of the documentation: their code blocks, and the output of the blocks."""

import doctest
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
NOTEBOOK = "docs/story.ipynb"
_DOCS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
MARKDOWN = ["README.md", *(page for page in _DOCS if not page.startswith("docs/_build"))]

# Pages whose code needs another framework: make test-ecosystem runs them.
FRAMEWORKS = (
    "docs/tutorials/hugging_face.md",
    "docs/tutorials/scikit_learn.md",
    "docs/howto/export.md",
    "docs/howto/lightning.md",
    "docs/howto/tune.md",
)

# Warnings that frameworks raise about themselves and one another.
_FRAMEWORK_WARNINGS = (
    "ignore:`isinstance(treespec, LeafSpec)` is deprecated:FutureWarning",
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning",
)

# Pages about libraries of the zoo, which raise many warnings: make test-zoo runs them.
QUANTIZERS = ("docs/howto/quantizers.md",)

_BETWEEN = "\x1e"

# reproduction is not installed: it is imported from the clone.
_PATH = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
_ENVIRONMENT = {
    "MPLBACKEND": "Agg",
    "OMP_NUM_THREADS": "1",
    "PYTHONIOENCODING": "utf-8",
    "PYTHONPATH": _PATH,
}


class Block(NamedTuple):
    """A fenced block, and the line on which its text begins, counted from 1."""

    language: str
    line: int
    text: str


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, or the code cells of a notebook."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if page.endswith(".ipynb"):
        cells = [c["source"] for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
        return [Block("python", 0, "".join(cell) + "\n") for cell in cells]
    found = re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [Block(m[1], text.count("\n", 0, m.start(2)) + 1, m[2]) for m in found]


def printed(page: str, folder: Path) -> list[tuple[Block, str]]:
    """Runs the Python blocks of a page in order in a new interpreter; returns their outputs."""
    code, line = "", 1
    runs = [block for block in blocks(page) if block.language == "python"]
    for block in runs:
        # Blank lines make the line numbers of a traceback those of the page.
        code += "\n" * max(0, block.line - 1 - line) + f"print({_BETWEEN!r})\n" + block.text
        line = code.count("\n") + 1
    script = folder / "page.py"
    script.write_text(code, encoding="utf-8")
    filters = ("error", *(_FRAMEWORK_WARNINGS if page in FRAMEWORKS else ()))
    filters = ("ignore",) if page in QUANTIZERS else filters
    options = [option for one in filters for option in ("-W", one)]
    done = subprocess.run(
        [sys.executable, *options, script.name],
        cwd=folder, capture_output=True, text=True, encoding="utf-8",
        env=os.environ | _ENVIRONMENT,
    )  # fmt: skip
    if done.returncode:
        raise AssertionError(f"{page} does not run:\n{done.stderr}")
    return list(zip(runs, done.stdout.split(_BETWEEN + "\n")[1:], strict=True))


def assert_prints_what_it_shows(page: str, folder: Path) -> None:
    """The code of a page runs, and the outputs that the page shows are those of the code."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    said, ran = shown(page), printed(page, folder)
    assert ran
    for block, got in ran:
        want = said.get(block.line, got)
        assert doctest.OutputChecker().check_output(want, got, flags), f"{want}\n!=\n{got}"


def shown(page: str) -> dict[int, str]:
    """The output that a page shows for a block, by the line of the block: the next text block."""
    pairs = itertools.pairwise(blocks(page))
    return {a.line: b.text for a, b in pairs if (a.language, b.language) == ("python", "text")}
