"""Runs the whole zoo and writes its table: ``python tests/zoo/table.py [docs/zoo.md]``."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from checks import CHECKS, check, check_base
from entry import call
from models import ROUTINGS, ZOO
from probes import COVERS, lift, mixed_share

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
and copies (where the base does). *Mixed* is the share of the lifted parameters whose block
messages cross in the message lift. *Refuses* is what a user is told where a routing cannot work.
"""
LONGEST = 240  # characters of an error in the table


@dataclass(frozen=True)
class Outcome:
    """What became of a configuration in one routing.

    Attributes:
        kind: "works", "refuses" (as the zoo expects) or "fails".
        text: the error that a user gets.
    """

    kind: str
    text: str = ""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    package: str
    parameters: int
    share: str
    outcomes: tuple[Outcome, ...]


def outcome(name: str, routing: str) -> Outcome:
    """All checks of one configuration in one routing."""
    refused = None
    for what in CHECKS:
        try:
            with tempfile.TemporaryDirectory() as folder:
                refused = check(what, ZOO[name], routing, Path(folder)) or refused
        except Exception as error:  # whatever a user would get
            return Outcome("fails", f"{what}: {_brief(error)}")
    return Outcome("refuses", _cell(refused)) if refused else Outcome("works")


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
        return Row(name, entry.package, 0, "–", (Outcome("fails", "the base itself"),) * 2)
    try:
        covered = lift(model, "messages").eval()
        with torch.no_grad():
            call(covered, batch)
        share = f"{mixed_share(covered):.0%}"
    except Exception:
        share = "–"
    size = sum(p.numel() for p in model.parameters())
    outcomes = tuple(outcome(name, routing) for routing in ROUTINGS)
    return Row(name, entry.package, size, share, outcomes)


def page(rows: list[Row]) -> str:
    """The table as Markdown."""
    lines = [
        INTRODUCTION.format(covers=COVERS),
        "| package | version | configurations | messages | directed |",
        "|---|---|---|---|---|",
    ]  # fmt: skip
    for package, distribution in PACKAGES.items():
        own = [r for r in rows if r.package == package]
        if own:
            found = version(distribution) if distribution else ""
            counts = [_count([r.outcomes[k] for r in own]) for k in range(len(ROUTINGS))]
            lines.append(f"| {package} | {found} | {len(own)} | {' | '.join(counts)} |")
    counts = [_count([r.outcomes[k] for r in rows]) for k in range(len(ROUTINGS))]
    lines.append(f"| all | | {len(rows)} | {' | '.join(counts)} |")
    lines += [
        "",
        "| configuration | package | parameters | mixed | messages | directed |",
        "|---|---|---|---|---|---|",
    ]
    for r in rows:
        cells = [f"{o.kind}: {o.text}" if o.text else o.kind for o in r.outcomes]
        lines.append(
            f"| {r.name} | {r.package} | {r.parameters:,} | {r.share} | {' | '.join(cells)} |"
        )
    return "\n".join(lines) + "\n"


def _count(outcomes: list[Outcome]) -> str:
    kinds = Counter(o.kind for o in outcomes)
    return ", ".join(f"{kinds[kind]} {kind[:-1] if kinds[kind] != 1 else kind}"
                     for kind in ("works", "refuses", "fails") if kinds[kind])  # fmt: skip


def _brief(error: Exception) -> str:
    kind = "" if isinstance(error, McoverError) else f"{type(error).__name__}: "
    return _cell(kind + str(error))


def _cell(text: str) -> str:
    """A text on one line, without what Markdown would take for a cell or a tag."""
    text = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def main() -> None:
    """Writes the table, with progress to stderr; ends with 1 if something fails."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/zoo.md")
    rows = []
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        for done in pool.map(row, ZOO):
            rows.append(done)
            kinds = ", ".join(o.kind for o in done.outcomes)
            sys.stderr.write(f"{len(rows)}/{len(ZOO)} {done.name}: {kinds}\n")
    target.write_text(page(rows), encoding="utf-8")
    sys.exit(any(o.kind == "fails" for r in rows for o in r.outcomes))


if __name__ == "__main__":
    main()
