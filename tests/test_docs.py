"""Every Python block of the README and the guide runs, in order, in one fresh interpreter each."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mcover.cli.main import parse

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/guide.md")


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run_when_pasted_in_order(page, tmp_path):
    code = "\n".join(blocks(page))
    assert code
    done = subprocess.run(
        [sys.executable, "-W", "error", "-"],
        input=code, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_are_understood(page):
    lines = re.findall(r"^    mcover ([^#\n]+)", (ROOT / page).read_text(), re.MULTILINE)
    assert lines
    for line in lines:
        assert parse(shlex.split(line)) is not None


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "SECURITY.md", "results/README.md"])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text)
    missing = [
        link
        for link in links
        if "://" not in link and not (ROOT / page).parent.joinpath(link).exists()
    ]
    assert not missing


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
