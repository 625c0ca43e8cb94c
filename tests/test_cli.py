import signal
import subprocess
import sys
from importlib.metadata import version

import numpy as np
import pytest

import mcover
from interrupting import interruptible
from mcover import GaussianRing
from mcover.annealing import AnnealResult
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
        ("topology ring --sigma -1", "sigma of GaussianRing is -1"),
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


def test_anneal_prints_a_summary_and_writes_result_and_picture(tmp_path, capsys):
    words = "anneal perceptron --n 51 --alpha 2 --covers 3 --sigma 3 --shift 2 --bank 4 --reads 3"
    target = tmp_path / "new" / "run"
    main([*words.split(), "--temperatures", "60", "--output", str(target)])
    printed = capsys.readouterr().out
    for word in ("102 patterns of 51 inputs", "solved", "generalization error", "3 reads"):
        assert word in printed
    assert target.with_suffix(".png").read_bytes().startswith(PNG)
    result = AnnealResult.load(target.with_suffix(".npz"))
    assert result.weights.shape == (3, 3, 51)
    assert result.settings["topology"] == GaussianRing(3.0, 2.0).to_dict()
    assert result.settings["bank"] == 4


@pytest.mark.parametrize(
    "words",
    [
        "committee --n 11 --hidden 3 --alpha 2 --method exact --covers 2",
        "perceptron --n 20 --alpha 1 --method rsa --coupling 0.5 --coupling-growth 0.01",
        "perceptron --n 20 --alpha 1 --method vanilla --schedule geometric --order sequential",
        "perceptron --n 20 --alpha 1 --schedule beta --rule metropolis --energy errors --sweeps 2",
        "perceptron --n 20 --alpha 1 --redraw-every 5 --stop-at-zero --workers 1 --shift 1",
    ],
)
def test_anneal_takes_every_option(words, tmp_path):
    arguments = [*words.split(), "--temperatures", "20", "--reads", "2"]
    main(["anneal", *arguments, "--output", str(tmp_path / "run")])
    assert len(AnnealResult.load(tmp_path / "run.npz").energy) == 2


def test_anneal_reads_your_own_data(tmp_path, capsys):
    rng = np.random.default_rng(0)
    file = tmp_path / "data.npz"
    np.savez(file, patterns=rng.choice([-1, 1], (40, 9)), labels=rng.choice([-1, 1], 40))
    arguments = ["--file", str(file), "--temperatures", "20", "--output", str(tmp_path / "run")]
    main(["anneal", "data", *arguments, "--bank", "3"])
    printed = capsys.readouterr().out
    assert "40 patterns of 9 inputs" in printed
    assert "teacher" not in printed


def test_demo_compares_the_methods(tmp_path, capsys):
    main(f"demo --n 41 --alpha 2 --trials 3 --epochs 1 --output {tmp_path}".split())
    printed = capsys.readouterr().out
    for word in ("vanilla", "RSA", "M-cover", "n = 3 trials each", "TTS99"):
        assert word in printed
    for name in ("topology.png", "annealing.png", "training.png"):
        assert (tmp_path / name).read_bytes().startswith(PNG)


def test_ctrl_c_shows_what_was_reached(tmp_path):
    words = "anneal perceptron --n 801 --temperatures 1000000 --reads 2 --output run"
    arguments = [sys.executable, "-m", "mcover", *words.split()]
    with interruptible(arguments, tmp_path) as process:
        assert "1266 patterns" in process.stdout.readline()
        while "accepted   nan%" in (line := process.stdout.readline()):
            pass  # the progress of a read that has not begun
        assert "accepted" in line
        process.send_signal(signal.SIGINT)
        printed = process.stdout.read()
    assert process.returncode == 0
    assert "interrupted: what follows is what was reached so far" in printed
    assert AnnealResult.load(tmp_path / "run.npz").interrupted


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("perceptron --n 0", "n is 0"),
        ("perceptron --alpha -1", "alpha is -1.0"),
        ("perceptron --method rsa --bank 3", "has no bank"),
        ("perceptron --n 20 --bank 30", "at most 20"),
        ("perceptron --t-start 0.1 --t-stop 0.4", "write --t-start above"),
        ("perceptron --t-stop 0", "temperatures need"),
        ("perceptron --sigma 0", "sigma of GaussianRing is 0"),
        ("data --file missing.npz", "cannot read missing.npz"),
    ],
)
def test_bad_annealing_requests_end_with_a_message(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["anneal", *words.split()])
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert message in " ".join((captured.out + captured.err).split())
    assert list(tmp_path.iterdir()) == []


def test_data_without_labels_is_refused(tmp_path, capsys):
    np.savez(tmp_path / "data.npz", patterns=np.ones((3, 3)))
    with pytest.raises(SystemExit):
        main(["anneal", "data", "--file", str(tmp_path / "data.npz")])
    assert "needs 'patterns' and 'labels'" in " ".join(capsys.readouterr().err.split())
