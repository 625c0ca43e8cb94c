"""The documentation is true: its code runs and prints what it says, commands and links are real."""

import doctest
import re
import shlex
import tomllib

import pytest

from mcover.cli.main import parse
from pages import FRAMEWORKS, MARKDOWN, NOTEBOOK, QUANTIZERS, ROOT, blocks, printed, shown

RESULTS = ["results/README.md", "results/frontier.md"]
OTHERS = ["CONTRIBUTING.md", "SECURITY.md", *RESULTS]
MEASURED = "docs/sklearn-benchmark.md"  # what a command of minutes printed, which is not run here
LANGUAGES = {"python", "text", "sh", "bibtex"}


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def with_code(page):
    return any(block.language == "python" for block in blocks(page))


@pytest.mark.parametrize(
    "page",
    [p for p in [*MARKDOWN, NOTEBOOK] if p not in (*FRAMEWORKS, *QUANTIZERS) and with_code(p)],
)
def test_the_blocks_of_a_page_run_in_order_and_print_what_it_says(page, tmp_path):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    said = shown(page)
    for block, got in printed(page, tmp_path):
        want = said.get(block.line, got)
        assert doctest.OutputChecker().check_output(want, got, flags), f"{want}\n!=\n{got}"


@pytest.mark.parametrize("page", MARKDOWN)
def test_no_block_escapes(page):
    """A block is run, compared, understood as commands, or a directive of the site."""
    languages = {block.language for block in blocks(page)}
    strange = {one for one in languages - LANGUAGES if not one.startswith("{")}
    assert not strange
    wide = [
        line for block in blocks(page) for line in block.text.splitlines()
        if page != "README.md" and block.language in LANGUAGES and len(line) > 88
    ]  # fmt: skip
    assert not wide, "a page shows 88 columns"
    if page == MEASURED:
        assert commands(page)
        return
    outputs = [block.line for block in blocks(page) if block.language == "text"]
    assert len(outputs) == len(shown(page)), "a text block must follow the code that prints it"


def commands(page):
    """Lines of shell blocks, and of indented blocks that begin like a command of ours."""
    lines = [line for b in blocks(page) if b.language == "sh" for line in b.text.splitlines()]
    return lines + re.findall(
        r"^    ((?:[A-Z_]+=\S+ )?(?:mcover|make|python) [^\n]+)", text_of(page), re.M
    )


@pytest.mark.parametrize("page", [p for p in [*MARKDOWN, *OTHERS] if commands(p)])
def test_the_commands_of_a_page_are_understood(page, tmp_path):
    config = tmp_path / "found.json"  # stands for the file that a search has written
    config.write_text('{"trial": {"kind": "network"}}')
    targets = set(re.findall(r"^([\w-]+):", text_of("Makefile"), re.MULTILINE))
    extras = tomllib.loads(text_of("pyproject.toml"))["project"]["optional-dependencies"]
    for line in commands(page):
        words = [
            word for word in shlex.split(line, comments=True) if not re.match(r"[A-Z_]+=", word)
        ]
        if "--config" in words:
            words[words.index("--config") + 1] = str(config)
        match words:
            case ["mcover", *rest]:
                assert parse(rest) is not None
            case ["make", *asked]:
                assert set(asked) <= targets
            case ["pip", "install", what]:
                assert set(re.findall(r"[\w-]+", what.partition("[")[2])) <= set(extras)
            case ["python", script, *_]:
                assert (ROOT / script).is_file()
            case []:
                pass
            case _:
                pytest.fail(f"what does {line!r} do?")


@pytest.mark.parametrize("page", [*MARKDOWN, NOTEBOOK, *OTHERS])
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text_of(page))
    folder = (ROOT / page).parent
    missing = [link for link in links if "://" not in link and not (folder / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", [p for p in MARKDOWN if p not in ("README.md", *FRAMEWORKS)])
def test_numbers_with_an_interval_are_those_of_the_results(page):
    flat = re.sub(r"\s+", " ", "\n".join(map(text_of, RESULTS)))
    prose = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    stated = re.findall(r"−?\d+\.\d+ \[[^\]]+\]", re.sub(r"\s+", " ", prose))
    assert not [number for number in stated if number not in flat]


def test_the_reference_has_every_public_name():
    listed = text_of("tests/public_api.txt").splitlines()
    names = {re.match(r"[\w.]+", line)[0] for line in listed if " = " not in line}
    names -= {name for name in names if name.rpartition(".")[0] in names}  # members of classes
    reference = "\n".join(text_of(page) for page in MARKDOWN if page.startswith("docs/api/"))
    documented = set(re.findall(r"auto(?:function|class|data):: ([\w.]+)", reference))
    for module, members in re.findall(
        r"automodule:: ([\w.]+)\n   :members: ((?:[\w, ]|\n      )+)", reference
    ):
        documented |= {f"{module}.{member}" for member in re.findall(r"\w+", members)}
    documented |= {name.replace(".message_passing.", ".") for name in documented}
    documented |= {name.replace("mcover.errors.", "mcover.") for name in documented}
    are_no_things = {"Method", "Rule", "Schedule", "Ties", "Routes", "EXACT_COVERS", "TABLE_COVERS"}
    missing = {name for name in names - documented if name.rpartition(".")[2] not in are_no_things}
    assert not missing


def test_every_page_is_in_the_site():
    """A page that no table of contents has is an error of the build; one that is no page, too."""
    tocs = [(page, b) for page in MARKDOWN for b in blocks(page) if b.language == "{toctree}"]
    listed = set()
    for page, block in tocs:
        entries = [e for e in block.text.splitlines() if e.strip() and not e.startswith(":")]
        listed |= {((ROOT / page).parent / entry).resolve() for entry in entries}
    pages = {(ROOT / page).with_suffix("").resolve() for page in [*MARKDOWN[1:], NOTEBOOK]}
    assert pages - {(ROOT / "docs/index").resolve()} == listed


def test_the_readme_is_short():
    assert len(text_of("README.md").splitlines()) <= 150


def test_the_pictures_are_those_of_the_script(tmp_path, monkeypatch):
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
