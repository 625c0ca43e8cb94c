"""Which module may import which, and that the reproduction uses public names only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import mcover

SOURCE = Path(mcover.__file__).parent
ROOT = Path(__file__).parent.parent
REPRODUCTION = sorted((ROOT / "reproduction").rglob("*.py"))

# A module imports from its own layer and from layers above it in this list.
LAYERS = (
    ("errors", "extras"),
    ("announce", "checks", "compiled", "figures", "files", "plain", "seeds", "tables"),
    ("balancing",),
    ("permutations", "permutation_kernels"),
    ("topology",),
    ("routing",),
    ("factor_graph", "statistics"),
    ("annealing", "lifting"),
    ("nn", "optim"),
    ("",),  # the package itself: what a user imports
    ("distributed", "hf", "lightning", "optuna", "sklearn"),  # imported only when used
    ("cli", "__main__"),
)
LAYER = {part: number for number, layer in enumerate(LAYERS) for part in layer}


def module_of(path: Path) -> str:
    parts = ("mcover", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


@cache
def imports(module: str) -> tuple[str, ...]:
    """All modules that a module of the library imports, also inside functions."""
    return tuple(_imports(ast.parse(FILES[module].read_text())))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "write absolute imports"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in FILES else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def ours(module: str) -> list[str]:
    return [one for one in imports(module) if one.partition(".")[0] == "mcover"]


def part_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_every_module_has_a_layer():
    assert {part_of(module) for module in FILES} <= set(LAYER)


@pytest.mark.parametrize("module", FILES)
def test_imports_go_one_way(module):
    own = LAYER[part_of(module)]
    wrong = [one for one in ours(module) if LAYER[part_of(one)] > own]
    assert not wrong, f"{module} imports from a later layer: {wrong}"


@pytest.mark.parametrize("module", FILES)
def test_the_library_never_imports_the_reproduction(module):
    assert not [one for one in imports(module) if one.partition(".")[0] == "reproduction"]


def test_there_are_no_cycles():
    graph = {module: {one for one in ours(module) if one in FILES} for module in FILES}
    # An __init__ re-exports what is inside its package, and modules inside import each other.
    for module, needed in graph.items():
        graph[module] = {
            one
            for one in needed
            if one not in ("mcover", module) and not module.startswith(f"{one}.")
        }
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"cycle: {' -> '.join(error.args[1])}")


def test_every_public_class_has_a_unique_name():
    places: dict[str, list[str]] = {}
    for module, path in FILES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(module)
    assert not {name: where for name, where in places.items() if len(where) > 1}


def public_names() -> set[str]:
    """Names of the list without their arguments, and the packages and modules they are in."""
    listed = (ROOT / "tests" / "public_api.txt").read_text().splitlines()
    names = {line.partition("(")[0].partition(" = ")[0] for line in listed}
    parents = {one.rpartition(".")[0] for one in names}
    return names | {one for one in parents if one in FILES} | {"mcover", "mcover.__version__"}


def used_names(source: str) -> Iterator[str]:
    """Full names of all of mcover that a file imports, or reads from an imported module."""
    tree = ast.parse(source)
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "mcover":
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full
                if full in FILES:
                    modules[alias.asname or alias.name] = full
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "mcover":
                    yield alias.name
                    modules[alias.asname or "mcover"] = alias.name if alias.asname else "mcover"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield from _attribute(node, modules)


def _attribute(node: ast.Attribute, modules: dict[str, str]) -> Iterator[str]:
    """``mcover.nn.binary.latents`` as a full name; attributes of values are not followed."""
    parts, inner = [node.attr], node.value
    while isinstance(inner, ast.Attribute):
        parts.append(inner.attr)
        inner = inner.value
    if isinstance(inner, ast.Name) and inner.id in modules:
        full = modules[inner.id]
        for part in reversed(parts):
            if full not in FILES:
                return
            full = f"{full}.{part}"
        yield full


@pytest.mark.parametrize("path", REPRODUCTION, ids=lambda path: path.stem)
def test_the_reproduction_uses_public_names_only(path):
    private = sorted(set(used_names(path.read_text())) - public_names())
    assert not private, f"{path.name} uses names that are not in tests/public_api.txt: {private}"


def test_names_are_followed_through_imported_modules():
    """The check itself: each way to reach a private name is seen."""
    for source in (
        "import mcover\nmcover.nn.binary.secret()",
        "import mcover.routing",
        "from mcover import checks",
        "from mcover import statistics as s\ns.secret",
        "from mcover.nn import binary\nbinary.secret.more",
        "def f():\n    from mcover.files import write_atomic",
    ):
        assert set(used_names(source)) - public_names(), source
    for source in ("import mcover\nmcover.lift", "from mcover import statistics\nstatistics.mean"):
        assert not set(used_names(source)) - public_names(), source
