"""The public API as one list, so that every change is intended and appears in a diff.

``python tests/test_public_api.py`` rewrites the list; CONTRIBUTING.md says what a change means
for the version number.
"""

import ast
import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mcover
from mcover.extras import install

FILE = Path(__file__).with_name("public_api.txt")
SOURCE = Path(mcover.__file__).parent
MODULES = (
    "",
    "annealing",
    "errors",
    "nn",
    "nn.binary",
    "optim",
    "permutations",
    "plain",
    "statistics",
)
# Classes that functions return: how they are made is private, so only their members are listed.
RETURNED = (
    "AnnealResult",
    "AnnealStatus",
    "Assignment",
    "Comparison",
    "Covered",
    "Estimate",
    "Folded",
    "GraphResult",
    "NextRoutes",
    "Solution",
    "SolveStatus",
    "Student",
    "Summary",
    "Trajectory",
)
NOT_INTEGRATIONS = ("cli", *MODULES)
HOW = "if it is intended, run python tests/test_public_api.py, and a line in CHANGELOG.md"


def tree(part: str) -> ast.Module:
    folder = SOURCE.joinpath(*part.split("."))
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    return ast.parse(path.read_text())


def integrations() -> list[str]:
    """Modules with ``__all__`` that need another package, matplotlib included."""
    names_of_modules = sorted(path.stem for path in SOURCE.iterdir() if path.suffix in ("", ".py"))
    names_of_modules = [
        part
        for part in names_of_modules
        if not part.startswith("_") and part not in NOT_INTEGRATIONS
    ]
    return [part for part in names_of_modules if stated(tree(part)) is not None]


def stated(module: ast.Module) -> list[str] | None:
    """``__all__``."""
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return None


def names(part: str) -> list[str]:
    """``__all__``; without it what is imported as itself, and what is defined."""
    module = tree(part)
    found = stated(module)
    if found is None:
        found = []
        for node in ast.walk(module):
            if isinstance(node, ast.ImportFrom):
                found += [one.name for one in node.names if one.asname == one.name]
        for node in module.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.append(node.name)
    return sorted({name for name in found if not name.startswith("_")})


def lines() -> Iterator[str]:
    listed: dict[int, str] = {}
    for part in MODULES:
        module = importlib.import_module(f"mcover.{part}".rstrip("."))
        for name in names(part):
            value, full = getattr(module, name), f"{module.__name__}.{name}"
            first = listed.setdefault(id(value), full)
            yield from described(full, value) if first == full else [f"{full} = {first}"]
    for part in integrations():
        yield from (f"mcover.{part}.{name}" for name in names(part))


def described(name: str, value: object) -> Iterator[str]:
    """A function with its arguments; a class with those, and its members."""
    if inspect.isclass(value):
        yield name if value.__name__ in RETURNED else name + arguments(value)
        yield from (f"{name}.{line}" for line in members(value))
    else:
        yield name + (arguments(value) if inspect.isfunction(value) else "")


def arguments(value: object) -> str:
    """Names and defaults; mypy checks types."""
    try:
        signature = inspect.signature(value)
    except ValueError:
        return ""
    plain = []
    for one in signature.parameters.values():
        default = one.default
        if default is not one.empty and callable(default):
            default = ast.parse(default.__qualname__, mode="eval").body
            one = one.replace(default=_Text(ast.unparse(default)))
        plain.append(one.replace(annotation=one.empty))
    return str(signature.replace(parameters=plain, return_annotation=signature.empty))


class _Text(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def members(kind: type) -> Iterator[str]:
    fields = (
        [one.name for one in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
    )
    own: dict[str, object] = {}
    if kind.__name__ in RETURNED:
        own, fields = dict.fromkeys(fields), []
    for cls in reversed(kind.__mro__):
        if cls.__module__.startswith("mcover"):
            own |= vars(cls)
    for name, value in sorted(own.items()):
        if name.startswith("_") or name in fields:
            continue
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        yield name + (arguments(function) if inspect.isfunction(function) else "")


def test_the_public_api_is_the_list():
    listed, found = FILE.read_text().splitlines(), list(lines())
    assert not set(listed) - set(found), f"gone or changed; {HOW}"
    assert not set(found) - set(listed), f"new or changed; {HOW}"
    assert listed == found


def test_all_that_is_public_can_be_read():
    assert set(mcover.__all__) == set(names(""))
    for part in (one for one in MODULES if one):
        assert names(part), part


def test_an_integration_without_its_package_names_the_extra(monkeypatch):
    for name in [one for one in sys.modules if one.startswith("mcover.lightning")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("lightning", "pytorch_lightning"):
        for loaded in [one for one in sys.modules if one.partition(".")[0] == name]:
            monkeypatch.delitem(sys.modules, loaded)
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=re.escape(install("lightning"))):
        importlib.import_module("mcover.lightning")


def documented() -> Iterator[tuple[str, list[str], list[str]]]:
    """Functions and classes with an Args section, their arguments, and the lines of the section."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                text = (ast.get_docstring(node) or "").partition("Args:\n")[2].partition("\n\n")[0]
                made = [n for n in ast.walk(node) if isinstance(n, ast.FunctionDef)]
                own = next((n for n in made if n.name == "__init__"), node)
                if text and isinstance(own, ast.FunctionDef):
                    given = [*own.args.args, *own.args.kwonlyargs, own.args.kwarg]
                    yield f"{path}: {node.name}", [a.arg for a in given if a], text.splitlines()


def test_each_argument_is_described_in_a_line_of_its_own():
    found = list(documented())
    assert len(found) > 40
    for place, given, text in found:
        hidden = [w for line in text for w in re.findall(r"[.;] (\w+): ", line) if w in given]
        assert not hidden, f"{place}: {hidden}"


def test_types_are_shipped():
    assert (SOURCE / "py.typed").exists()


if __name__ == "__main__":
    FILE.write_text("".join(f"{line}\n" for line in lines()))
