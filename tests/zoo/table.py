"""Runs the whole zoo and writes its table: ``python tests/zoo/table.py [docs/zoo.md]``."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from checks import CHECKS, COVERS, check, check_base, lift, mixed_share
from entry import call
from models import ROUTINGS, ZOO

from mcover.errors import McoverError

PACKAGES = {
    "transformers": "transformers", "monai": "monai", "torch_geometric": "torch-geometric",
    "diffusers": "diffusers", "x_transformers": "x-transformers", "brevitas": "brevitas",
    "torchao": "torchao", "peft": "peft", "lightning": "lightning", "torch": "torch",
    "awkward": None,
}  # fmt: skip
INTRODUCTION = """\
# The zoo: which models lift

Written by `python tests/zoo/table.py`; `make test-zoo` runs the same checks. Every model is tiny
and has random weights; {covers} covers. *Works* means, for each routing: without noise every
cover has the base's outputs and gradients in training and evaluation mode, and collapses to the
base with its buffers; with noise it trains, its gradients are derivatives, covers depend on one
another, frozen parameters stay; it collapses to the base's class and keys, saves, loads, pickles
and copies (if the base does). *Mixed* is the share of the lifted parameters whose block
messages cross in the message lift. *Refuses* is the error message if a routing cannot work.
"""
LONGEST = 240  # characters of an error in the table


class Row(NamedTuple):
    """One line of the table; ``outcomes`` has the kind and the text of each routing."""

    name: str
    package: str
    parameters: int
    share: str
    outcomes: list[tuple[str, str]]


def outcome(name: str, routing: str) -> tuple[str, str]:
    """All checks of one configuration: "works", "refuses" as the zoo expects, or "fails"."""
    refused = None
    for what in CHECKS:
        try:
            with tempfile.TemporaryDirectory() as folder:
                refused = check(what, ZOO[name], routing, Path(folder)) or refused
        except Exception as error:  # whatever a user would get
            kind = "" if isinstance(error, McoverError) else f"{type(error).__name__}: "
            return "fails", _cell(f"{what}: {kind}{error}")
    return ("refuses", _cell(refused)) if refused else ("works", "")


def row(name: str) -> Row:
    """A configuration alone and in all routings."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    entry = ZOO[name]
    try:
        check_base(entry)
        model, batch = entry.make()
    except Exception:
        sys.stderr.write(traceback.format_exc())
        return Row(name, entry.package, 0, "–", [("fails", "the base itself")] * 2)
    try:
        covered = lift(model, "messages").eval()
        with torch.no_grad():
            call(covered, batch)
        share = f"{mixed_share(covered):.0%}"
    except Exception:
        share = "–"
    size = sum(p.numel() for p in model.parameters())
    return Row(name, entry.package, size, share, [outcome(name, how) for how in ROUTINGS])


def page(rows: list[Row]) -> str:
    """The tables of packages and of configurations, as Markdown."""
    lines = [
        INTRODUCTION.format(covers=COVERS),
        "| package | version | configurations | messages | directed |",
        "|---|---|---|---|---|",
    ]
    for package, distribution in PACKAGES.items():
        if own := [r for r in rows if r.package == package]:
            found = version(distribution) if distribution else ""
            lines.append(f"| {package} | {found} | {len(own)} | {_counts(own)} |")
    lines += [
        f"| all | | {len(rows)} | {_counts(rows)} |",
        "",
        "| configuration | package | parameters | mixed | messages | directed |",
        "|---|---|---|---|---|---|",
    ]
    for r in rows:
        cells = [r.name, r.package, f"{r.parameters:,}", r.share]
        cells += [f"{kind}: {text}" if text else kind for kind, text in r.outcomes]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _counts(rows: list[Row]) -> str:
    """Numbers of configurations that work, refuse and fail, with a cell per routing."""
    cells = []
    for index in range(len(ROUTINGS)):
        kinds = Counter(r.outcomes[index][0] for r in rows)
        words = {kind: kind[:-1] if n != 1 else kind for kind, n in kinds.items()}
        known = ("works", "refuses", "fails")
        cells.append(", ".join(f"{kinds[kind]} {words[kind]}" for kind in known if kinds[kind]))
    return " | ".join(cells)


def _cell(text: str) -> str:
    """A text on one line, without Markdown's syntax of cells and tags."""
    text = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def main() -> None:
    """Writes the table, with progress to stderr; ends with 1 if something fails."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/zoo.md")
    rows = []
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        for done in pool.map(row, ZOO):
            rows.append(done)
            kinds = ", ".join(kind for kind, _ in done.outcomes)
            sys.stderr.write(f"{len(rows)}/{len(ZOO)} {done.name}: {kinds}\n")
    target.write_text(page(rows), encoding="utf-8")
    sys.exit(any(kind == "fails" for r in rows for kind, _ in r.outcomes))


if __name__ == "__main__":
    main()
