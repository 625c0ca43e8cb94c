import subprocess
import sys
from importlib.metadata import version

import pytest

import mcover
from mcover.cli import main

PNG = b"\x89PNG"


def test_version_is_the_packages(capsys):
    main(["--version"])
    assert capsys.readouterr().out.strip() == f"mcover {mcover.__version__}"
    assert version("mcover") == mcover.__version__


def test_help_lists_the_verbs(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    assert "topology" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        "ring --sigma 1.5 --shift 2 --covers 12",
        "uniform --covers 3",
        "identity --covers 1",
        "band --width 2 --one-sided",
        "chain --sigma 0.8",
        "blocks --count 4",
        "torus --rows 2 --cols 3",
        "ring --covers 30",
    ],
)
def test_topology_prints_its_facts_and_draws(words, tmp_path, capsys):
    picture = tmp_path / "new" / "topology.png"
    main(["topology", *words.split(), "--output", str(picture)])
    printed = capsys.readouterr().out
    assert "spectral gap" in printed
    assert "effective width" in printed
    assert picture.read_bytes().startswith(PNG)


def test_topology_from_a_file(tmp_path, capsys):
    kernel = tmp_path / "kernel.csv"
    kernel.write_text("1, 2\n3, 4\n")
    arguments = ["--matrix", str(kernel), "--output", str(tmp_path / "t.pdf")]
    main(["topology", "custom", *arguments])
    assert "2 covers" in capsys.readouterr().out
    assert (tmp_path / "t.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("topology ring --covers 0", "covers is 0"),
        ("topology torus --rows 2 --cols 3 --covers 5", "write covers=6"),
        ("topology ring --output t.doc", "end the name in one of"),
        ("topology custom --matrix missing.txt", "cannot read a matrix"),
        ("topology ring --sigma -1", "sigma must be positive"),
    ],
)
def test_bad_input_ends_with_a_message_and_not_a_traceback(words, message, tmp_path):
    arguments = [sys.executable, "-m", "mcover", *words.split()]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert message in " ".join((done.stdout + done.stderr).replace("│", " ").split())
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_import_is_light():
    """Neither a compiler nor plots nor torch are loaded before they are used."""
    code = (
        "import sys, mcover; "
        "print([m for m in ('torch', 'numba', 'scipy', 'matplotlib', 'tyro') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
