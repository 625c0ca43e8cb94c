"""The examples run as they are written, at tiny size, and learn something."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(autouse=True)
def restore_torch():
    """The examples seed torch's global generator; it is restored for the other tests."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(threads)


def run(name, arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, *arguments.split()])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def test_mlp(monkeypatch, capsys):
    printed = run("mlp.py", "--steps 40 --covers 3 --seeds 3", monkeypatch, capsys)
    errors = re.findall(r"^  (?:3 covers|plain, \S+ \S+) +(\S+)", printed, re.MULTILINE)
    assert len(errors) == 3
    assert all(0 < float(error) < 0.2 for error in errors)
    assert printed.count("gain over plain") == 2


@pytest.mark.parametrize("more", ["", "--routing messages", "--select head"])
def test_any_module(more, monkeypatch, capsys):
    arguments = f"--epochs 2 --channels 8 --covers 3 --seeds 1 {more}"
    printed = run("any_module.py", arguments, monkeypatch, capsys)
    errors = re.findall(r"^  (?:3 covers|plain, \S+ \S+) +(\S+)", printed, re.MULTILINE)
    assert len(errors) == 3
    assert all(0 < float(error) < 0.5 for error in errors)
    assert printed.count("gain over plain") == 2


def test_perceptron(monkeypatch, capsys):
    lines = run("perceptron.py", "--n 41 --alpha 2 --reads 2", monkeypatch, capsys).splitlines()
    assert [line.split()[0] for line in lines] == ["vanilla", "RSA", "M-cover"]
    assert all("(n = 2)" in line for line in lines)


def test_every_example_is_tested():
    beside = Path(__file__).parent.glob("ecosystem/*.py")  # those that need more packages
    tested = "".join(path.read_text() for path in (Path(__file__), *beside))
    assert all(f'"{path.name}"' in tested for path in EXAMPLES.glob("*.py"))
