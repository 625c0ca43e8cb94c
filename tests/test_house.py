"""The plan of the house: who may import whom. Data flows one way, and the laboratory uses the
library as any user would.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import mcover

SOURCE = Path(mcover.__file__).parent

# A room imports from its own row and from rows above it.
ROWS = (
    ("errors",),
    ("checks", "compiled", "files", "plain", "progress", "seeds"),
    ("logs",),
    ("topology",),
    ("permutations", "permutation_kernels"),
    ("routing",),
    ("factor_graph", "statistics"),
    ("annealing", "lifting"),
    ("nn", "optim"),
    ("",),  # the package itself: what a user imports
    (
        "distributed",
        "hf",
        "lightning",
        "sklearn",
    ),  # doors to neighbours: imported when used, none by another
    ("lab",),
    ("cli", "__main__"),
)
ROW = {room: number for number, row in enumerate(ROWS) for room in row}
PUBLIC = ("mcover.nn.binary",)  # a room inside a room, with a page of its own
UPSTAIRS = ("hf", "lightning", "sklearn", "lab", "cli", "__main__")


def module_of(path: Path) -> str:
    parts = ("mcover", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


@cache
def imports(module: str) -> tuple[tuple[str, str | None], ...]:
    """All imports of mcover in a module, also those inside functions: (module, name or None)."""
    return tuple(_imports(ast.parse(FILES[module].read_text())))


def _imports(tree: ast.AST) -> Iterator[tuple[str, str | None]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where things are"
            if (node.module or "").partition(".")[0] == "mcover":
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    yield (full, None) if full in FILES else (str(node.module), alias.name)
        elif isinstance(node, ast.Import):
            yield from ((a.name, None) for a in node.names if a.name.partition(".")[0] == "mcover")


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_every_module_has_a_room():
    assert {room_of(module) for module in FILES} <= set(ROW)


@pytest.mark.parametrize("module", FILES)
def test_data_flows_downwards(module):
    own = ROW[room_of(module)]
    upwards = [where for where, _ in imports(module) if ROW[room_of(where)] > own]
    assert not upwards, f"{module} imports upwards: {upwards}"


@pytest.mark.parametrize("module", [name for name in FILES if room_of(name) in UPSTAIRS])
def test_upstairs_uses_public_names_only(module):
    for where, name in imports(module):
        if room_of(where) in UPSTAIRS:
            continue
        assert where.count(".") <= 1 or where in PUBLIC, f"{module} reaches into {where}"
        if name is not None:
            public = getattr(importlib.import_module(where), "__all__", None)
            assert not name.startswith("_") or name == "__version__", f"{module}: {where}.{name}"
            assert public is None or name in public or name == "__version__", (
                f"{module} imports {name}, which is not public in {where}"
            )


def test_there_are_no_cycles():
    graph = {
        module: {where for where, _ in imports(module) if where in FILES and where != "mcover"}
        - {module}
        for module in FILES
    }
    # A package is its __init__, which re-exports; inside of it, modules import each other.
    for module, needed in graph.items():
        graph[module] = {one for one in needed if not module.startswith(f"{one}.")}
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"cycle: {' -> '.join(error.args[1])}")


def test_one_name_one_meaning():
    places: dict[str, list[str]] = {}
    for module, path in FILES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module)
    double = {name: where for name, where in places.items() if len(where) > 1}
    assert not double
