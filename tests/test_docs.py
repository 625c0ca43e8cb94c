"""Code of the documentation runs and prints what it shows; commands and links exist."""

import csv
import doctest
import importlib.util
import json
import re
import shlex
import tomllib

import pytest

import mcover
from mcover.cli.main import _parser as mcover_parser
from pages import (
    FRAMEWORKS,
    MARKDOWN,
    NOTEBOOK,
    QUANTIZERS,
    ROOT,
    assert_prints_what_it_shows,
    blocks,
    shown,
)
from reproduction.__main__ import _parser as reproduction_parser

RESULTS = [page for page in MARKDOWN if page.startswith("docs/results/")]
OTHERS = ["CONTRIBUTING.md", "SECURITY.md", "reproduction/results/README.md"]
# Output of commands that take minutes and are not run here.
MEASURED = ("docs/sklearn-benchmark.md", "docs/annealer-benchmark.md")


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def with_code(page):
    return any(block.language == "python" for block in blocks(page))


@pytest.mark.parametrize(
    "page",
    [p for p in [*MARKDOWN, NOTEBOOK] if p not in (*FRAMEWORKS, *QUANTIZERS) and with_code(p)],
)
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(page, tmp_path):
    assert_prints_what_it_shows(page, tmp_path)


@pytest.mark.parametrize("page", [p for p in MARKDOWN if p not in MEASURED])
def test_every_shown_output_follows_the_code_that_prints_it(page):
    outputs = [block for block in blocks(page) if block.language == "text"]
    assert len(outputs) == len(shown(page))


def commands(page):
    """Lines of shell blocks, and of indented blocks that begin like one of our commands."""
    lines = [line for b in blocks(page) if b.language == "sh" for line in b.text.splitlines()]
    return lines + re.findall(
        r"^    ((?:[A-Z_]+=\S+ )?(?:mcover|make|python|pip) [^\n]+)", text_of(page), re.M
    )


@pytest.mark.parametrize("page", [p for p in [*MARKDOWN, *OTHERS] if commands(p)])
def test_the_commands_of_a_page_exist(page):
    targets = set(re.findall(r"^([\w-]+):", text_of("Makefile"), re.MULTILINE))
    extras = tomllib.loads(text_of("pyproject.toml"))["project"]["optional-dependencies"]
    for line in commands(page):
        words = shlex.split(line, comments=True)
        words = [word for word in words if not re.match(r"[A-Z_]+=", word)]
        match words:
            case ["mcover", *rest]:
                mcover_parser().parse_args(rest)  # exits where it does not parse
            case ["python", "-m", "reproduction", *rest]:
                reproduction_parser().parse_args(rest)
            case ["python", "-m", module, *_]:
                assert importlib.util.find_spec(module)
            case ["make", *asked]:
                assert set(asked) <= targets
            case ["pip", "install", torch, "--index-url", _]:
                assert torch in text_of("constraints.txt").splitlines()
            case ["pip", "install", "-c", constraints, *options]:
                assert (ROOT / constraints).is_file()
                what, *others = [word for word in options if word != "-e"]
                assert what.startswith((".", f"dist/mcover-{mcover.__version__}-py3-none-any.whl"))
                assert set(re.findall(r"[\w-]+", what.partition("[")[2])) <= set(extras)
                assert others in ([], ["-r", "reproduction/requirements.txt"])
            case ["python", script, *_]:
                assert (ROOT / script).is_file()
            case []:
                pass
            case _:
                pytest.fail(f"no rule to check the command {line!r}")


@pytest.mark.parametrize("page", [*MARKDOWN, NOTEBOOK, *OTHERS])
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text_of(page))
    folder = (ROOT / page).parent
    missing = [link for link in links if "://" not in link and not (folder / link).exists()]
    assert not missing


# What examples print: examples/mlp.py, and the tutorial with ten seeds.
OF_EXAMPLES = """
0.0290 [0.0264, 0.0316] 0.0309 [0.0282, 0.0335] 0.0293 [0.0266, 0.0320]
0.0019 [0.0006, 0.0032] 0.0003 [−0.0011, 0.0017]
0.0518 [0.0469, 0.0567] 0.0410 [0.0348, 0.0473] 0.0501 [0.0454, 0.0547] −0.0018 [−0.0061, 0.0026]
"""


def gains_by_noise():
    """The rows of bench/noise.py that the page on training uses, ordered by seed."""
    errors = {}
    for setup, how, _, error in csv.reader(text_of("bench/noise.csv").splitlines()):
        errors.setdefault((setup, how), []).append(float(error))
    gains = [
        [a - b for a, b in zip(errors[setup, "plain"], own, strict=True)]
        for (setup, how), own in errors.items()
        if how != "plain"
    ]
    return " ".join(f"{mcover.statistics.mean(gain):.4f}".replace("-", "−") for gain in gains)


def prose_of(page):
    """A page without its outputs; of a notebook the text cells, of a source the words."""
    text = text_of(page)
    if page.endswith(".ipynb"):
        cells = json.loads(text)["cells"]
        return "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    if page.endswith(".py"):  # doctests are run
        parts = doctest.DocTestParser().parse(text)
        return re.sub(r"^ *#", "", "".join(p for p in parts if isinstance(p, str)), flags=re.M)
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


SOURCES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("src", "bench", "examples", "reproduction")
    for path in (ROOT / folder).rglob("*.py")
    if re.search(r"\d\s+\[[−+-]?\d+\.\d+,", path.read_text(encoding="utf-8"))
)


@pytest.mark.parametrize("page", [*MARKDOWN, NOTEBOOK, *OTHERS, "CHANGELOG.md", *SOURCES])
def test_numbers_with_an_interval_are_those_of_the_results(page):
    outputs = (b.text for measured in MEASURED for b in blocks(measured) if b.language == "text")
    flat = "\n".join([OF_EXAMPLES, gains_by_noise(), *map(text_of, RESULTS), *outputs])
    flat = re.sub(r"\s+", " ", flat)
    flat += flat.replace("-", "−")
    flowing = re.sub(r"\s+", " ", prose_of(page))
    stated = re.findall(r"[+−]?\d+\.\d+ \[[^\]]+\]", flowing)
    assert not [number for number in stated if number not in flat]


def test_the_reference_has_every_public_name():
    listed = text_of("tests/public_api.txt").splitlines()
    names = {re.match(r"[\w.]+", line)[0] for line in listed if " = " not in line}
    names -= {name for name in names if name.rpartition(".")[0] in names}  # members of classes
    reference = "\n".join(text_of(page) for page in MARKDOWN if page.startswith("docs/api/"))
    documented = set(re.findall(r"(?:auto|py:)(?:function|class|data):: ([\w.]+)", reference))
    for module, members in re.findall(
        r"automodule:: ([\w.]+)\n   :members: ((?:[\w, ]|\n      )+)", reference
    ):
        documented |= {f"{module}.{member}" for member in re.findall(r"\w+", members)}
    documented |= {name.replace(".message_passing.", ".") for name in documented}
    documented |= {name.replace("mcover.errors.", "mcover.") for name in documented}
    type_aliases_and_constants = {
        "Method",
        "Rule",
        "Schedule",
        "Ties",
        "Routes",
    }
    missing = {
        name
        for name in names - documented
        if name.rpartition(".")[2] not in type_aliases_and_constants
    }
    assert not missing


def test_every_page_is_in_the_site():
    """Every page is in a table of contents, and every entry of one is a page."""
    tocs = [(page, b) for page in MARKDOWN for b in blocks(page) if b.language == "{toctree}"]
    listed = set()
    for page, block in tocs:
        entries = [e for e in block.text.splitlines() if e.strip() and not e.startswith(":")]
        files = [re.sub(r".*<(.*)>", r"\1", entry) for entry in entries]
        listed |= {((ROOT / page).parent / file).resolve() for file in files}
    listed |= {(ROOT / page).with_suffix("").resolve() for page in RESULTS}  # by conf.py
    pages = {(ROOT / page).with_suffix("").resolve() for page in [*MARKDOWN[1:], NOTEBOOK]}
    assert pages - {(ROOT / "docs/index").resolve()} == listed


def test_the_committed_figures_are_those_of_the_script(tmp_path, monkeypatch):
    import runpy
    import sys

    monkeypatch.setattr(sys, "argv", ["figures.py", "--output", str(tmp_path)])
    runpy.run_path(str(ROOT / "docs" / "figures.py"), run_name="__main__")
    committed = {path.name for path in (ROOT / "docs" / "figures").glob("*.svg")}
    assert {path.name for path in tmp_path.iterdir()} == committed
    used = "\n".join(text_of(page) for page in MARKDOWN)
    assert all(f"figures/{name}" in used for name in committed)
    for name in committed:
        words = [
            re.findall(r"<text[^>]*>([^<]*)", (folder / name).read_text(encoding="utf-8"))
            for folder in (tmp_path, ROOT / "docs" / "figures")
        ]
        assert words[0] == words[1]
