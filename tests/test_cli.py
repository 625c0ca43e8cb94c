import signal
import subprocess
import sys
from importlib.metadata import version

import numpy as np
import pytest

import mcover
from interrupting import interruptible
from mcover import RSA, GaussianRing, LinearSchedule, MCover, Torus, Uniform, Vanilla
from mcover.annealing import AnnealResult
from mcover.cli import main
from mcover.cli.main import spell_schedule

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
        ("topology ring --sigma -1", "--sigma is -1"),
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


SHORT = ["--schedule", "linear:0.4:0.01:0.01"]


def test_anneal_prints_a_summary_and_writes_result_and_picture(tmp_path, capsys):
    words = "anneal perceptron --n 51 --alpha 2 --reads 3 mcover --bank 4 ring --sigma 3 --shift 2"
    target = tmp_path / "new" / "run"
    main([*words.split(), *SHORT, "--output", str(target)])
    printed = capsys.readouterr().out
    for word in ("102 patterns of 51 inputs", "solved", "generalization error", "3 reads"):
        assert word in printed
    assert target.with_suffix(".png").read_bytes().startswith(PNG)
    result = AnnealResult.load(target.with_suffix(".npz"))
    assert result.weights.shape == (3, 3, 51)
    assert result.options.method == MCover(3, GaussianRing(3, shift=2), bank=4)
    assert result.options.schedule == LinearSchedule(0.4, 0.01, 0.01)


@pytest.mark.parametrize(
    ("words", "method", "schedule"),
    [
        (
            "committee --n 11 --hidden 3 --alpha 2 mcover --covers 2 --bank none uniform",
            MCover(2, Uniform(), bank=None),
            "linear:0.4:0.2:0.1",
        ),
        (
            "perceptron --n 20 --alpha 1 rsa --coupling 0.5 --coupling-growth 0.01",
            RSA(coupling=0.5, coupling_growth=0.01),
            "geometric:0.4:0.01:20",
        ),
        ("perceptron --n 20 --order sequential vanilla", Vanilla(), "beta:0.4:0.01:20:2"),
        ("perceptron --n 20 --rule metropolis --energy errors", MCover(), "custom:0.4:0.1"),
        (
            "perceptron --n 20 --redraw-every 5 --stop-at-zero --workers 1 --shift 1",
            MCover(topology=GaussianRing(1.5, shift=1), redraw_every=5),
            "linear:0.4:0.01:0.01",
        ),
        ("perceptron --n 20 mcover torus --rows 3 --cols 1", MCover(3, Torus(3, 1)), "beta:1:1:2"),
    ],
)
def test_anneal_takes_every_option(words, method, schedule, tmp_path):
    more = ["--reads", "2", "--schedule", schedule, "--output", str(tmp_path / "run")]
    main(["anneal", *words.split(), *more])
    result = AnnealResult.load(tmp_path / "run.npz")
    assert len(result.energy) == 2
    assert result.options.method == method
    assert spell_schedule(result.options.schedule).startswith(schedule)


def test_anneal_reads_your_own_data(tmp_path, capsys):
    rng = np.random.default_rng(0)
    file = tmp_path / "data.npz"
    np.savez(file, patterns=rng.choice([-1, 1], (40, 9)), labels=rng.choice([-1, 1], 40))
    arguments = ["--file", str(file), *SHORT, "--output", str(tmp_path / "run")]
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


def test_ctrl_c_ends_with_130_and_averages_no_unfinished_read(tmp_path):
    words = "anneal perceptron --n 801 --schedule linear:0.4:0.01:1e-6 --reads 2 --output run"
    arguments = [sys.executable, "-m", "mcover", *words.split()]
    with interruptible(arguments, tmp_path) as process:
        assert "1266 patterns" in process.stdout.readline()
        while "starting" in (line := process.stdout.readline()):
            pass  # the progress of a read that has not begun
        assert "accepted" in line
        process.send_signal(signal.SIGINT)
        printed = process.stdout.read()
    assert process.returncode == 130
    assert "interrupted: 0 of 2 reads were finished" in printed
    assert "generalization error" not in printed
    result = AnnealResult.load(tmp_path / "run.npz")
    assert result.interrupted
    assert not result.finished.any()


def test_one_read_has_no_interval(tmp_path, capsys):
    words = "anneal perceptron --n 21 --alpha 2 --reads 1 vanilla --output"
    main([*words.split(), str(tmp_path / "run"), *SHORT])
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "teacher overlap" in one]
    assert "[–]" in line


def test_help_of_anneal_is_readable(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["anneal", "--help"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    for word in ("--schedule", "--covers", "• perceptron", "• mcover", "• rsa", "• vanilla"):
        assert word in printed
    for word in ("{None}", "tyro", ":func:", "``"):
        assert word not in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("perceptron --n 0", "--n is 0"),
        ("perceptron --alpha -1", "--alpha is -1.0"),
        ("perceptron --n 20 --bank 30", "at most 20"),
        ("perceptron --schedule linear:0.1:0.4:0.1", "write start ≥ stop"),
        ("perceptron --schedule linear:0.4:0", "stop is 0.0"),
        ("perceptron --schedule spiral:0.4", "write linear:START:STOP:STEP"),
        ("perceptron --schedule geometric:0.4:0.1:1.5", "write linear:START:STOP:STEP"),
        ("perceptron --sigma 0", "--sigma is 0"),
        ("perceptron --reads 0", "--reads is 0"),
        ("perceptron --seed -1", "--seed is -1"),
        ("perceptron --output .", "--output is '.'; write the path of a file"),
        ("perceptron mcover custom --matrix missing.txt", "cannot read a matrix"),
        ("perceptron rsa --coupling 301", "--coupling is 301"),
        ("perceptron rsa --bank 3", "--bank"),
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
    assert "compiling" not in captured.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["cut", "text", "npy"])
def test_data_that_cannot_be_read_is_refused(damage, tmp_path, capsys):
    file = tmp_path / "data.npz"
    np.savez(file, patterns=np.ones((3, 3)), labels=np.ones(3))
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:100])
    elif damage == "text":
        file.write_text("hello")
    else:
        with file.open("wb") as out:
            np.save(out, np.ones((3, 3)))
    with pytest.raises(SystemExit) as stop:
        main(["anneal", "data", "--file", str(file)])
    assert stop.value.code == 2
    assert "as an .npz file" in " ".join(capsys.readouterr().err.split())


def test_data_without_labels_is_refused(tmp_path, capsys):
    np.savez(tmp_path / "data.npz", patterns=np.ones((3, 3)))
    with pytest.raises(SystemExit):
        main(["anneal", "data", "--file", str(tmp_path / "data.npz")])
    assert "needs 'patterns' and 'labels'" in " ".join(capsys.readouterr().err.split())
