"""The commands as a user types them: output, files and errors."""

import re
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from importlib.metadata import version

import numpy as np
import pytest

import mcover
from interrupting import interruptible
from mcover import RSA, GaussianRing, LinearSchedule, Uniform, Vanilla
from mcover.annealing import (
    AnnealOptions,
    AnnealResult,
    BetaSchedule,
    CustomSchedule,
    GeometricSchedule,
)
from mcover.checks import cpus, memory_limit
from mcover.cli import main
from mcover.extras import install

PNG = b"\x89PNG"
SHORT = ["--schedule", "linear:0.4:0.01:0.01"]


def ended(words, capsys):
    """Exit code and text of a command that ends without a signal."""
    with pytest.raises(SystemExit) as stop:
        main(words.split())
    captured = capsys.readouterr()
    return stop.value.code, captured.out + captured.err


def test_version_is_the_packages(capsys):
    assert ended("--version", capsys) == (0, f"mcover {mcover.__version__}\n")
    assert version("mcover") == mcover.__version__


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--help", ("demo", "anneal", "solve")),
        ("solve --help", ("perceptron|committee|FILE", "--time-limit SECONDS", "(60)", "--bits N")),
        ("demo --help", ("--trials", "--epochs")),
        ("anneal --help", ("perceptron|committee|FILE", "patterns (P, N)", ".csv", "--alpha")),
        ("anneal perceptron --help", ("{mcover,rsa,vanilla}", "--bank N", "(auto:500)")),
    ],
)
def test_help_names_commands_options_and_defaults(words, expected, capsys):
    code, printed = ended(words, capsys)
    assert code == 0
    assert all(word in printed for word in expected)
    assert max(map(len, printed.splitlines())) <= 80


def test_import_is_light():
    """Compilers, plots, progress bars and torch are imported when they are used."""
    heavy = ("torch", "numba", "scipy", "matplotlib", "tqdm")
    code = f"import sys, mcover; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_anneal_prints_a_summary_and_writes_result_and_picture(tmp_path, capsys):
    words = "anneal perceptron --n 51 --alpha 2 --reads 3 --bank 4 --sigma 3 --output"
    main([*words.split(), str(tmp_path / "new" / "run"), *SHORT])
    printed = capsys.readouterr().out
    for word in ("102 patterns of 51 inputs", "solved", "generalization error", "3 reads"):
        assert word in printed
    assert max(map(len, printed.replace(str(tmp_path), "").splitlines())) <= 80
    assert (tmp_path / "new" / "run.png").read_bytes().startswith(PNG)
    result = AnnealResult.load(tmp_path / "new" / "run.npz")
    ring = GaussianRing(3, shift=2)
    assert result.options.method == replace(AnnealOptions.method, topology=ring, bank=4)
    assert result.weights.shape == (3, result.options.method.covers, 51)
    assert result.options.schedule == LinearSchedule(0.4, 0.01, 0.01)


@pytest.mark.parametrize(
    ("words", "method", "schedule"),
    [
        (
            "committee --n 11 --hidden 3 --covers 2 --bank none --topology uniform"
            " --schedule linear:0.4:0.2:0.1",
            replace(AnnealOptions.method, covers=2, topology=Uniform(), bank=None),
            LinearSchedule(0.4, 0.2, 0.1),
        ),
        (
            "perceptron --method rsa --coupling 0.5 --coupling-growth 0.01 --n 20"
            " --schedule geometric:0.4:0.01:20",
            RSA(coupling=0.5, coupling_growth=0.01),
            GeometricSchedule(0.4, 0.01, 20),
        ),
        (
            "perceptron --n 20 --method vanilla --order sequential --schedule beta:0.4:0.01:20:2",
            Vanilla(),
            BetaSchedule(0.4, 0.01, 20, 2),
        ),
        (
            "perceptron --n 20 --rule metropolis --energy errors --schedule custom:0.4:0.1",
            AnnealOptions.method,
            CustomSchedule((0.4, 0.1)),
        ),
        (
            "perceptron --n 20 --redraw-every 5 --stop-at-zero --workers 1 --shift 1"
            " --schedule custom:0.2",
            replace(AnnealOptions.method, topology=GaussianRing(1.5, shift=1), redraw_every=5),
            CustomSchedule((0.2,)),
        ),
    ],
)
def test_anneal_takes_every_option(words, method, schedule, tmp_path):
    main(["anneal", *words.split(), "--reads", "2", "--output", str(tmp_path / "run")])
    result = AnnealResult.load(tmp_path / "run.npz")
    assert len(result.energy) == 2
    assert result.options.method == method
    assert result.options.schedule == schedule
    assert result.options.stop_at_zero == ("--stop-at-zero" in words)
    assert result.options.energy == ("errors" if "errors" in words else "linear")


def test_anneal_without_options_has_the_defaults_of_the_library(tmp_path):
    main(f"anneal perceptron --n 21 --reads 1 --output {tmp_path}/run".split())
    options, default = AnnealResult.load(tmp_path / "run.npz").options, AnnealOptions()
    assert len(options.schedule.temperatures()) == default.schedule.sweeps
    assert replace(options, schedule=default.schedule) == default


@pytest.mark.parametrize("kind", ["npz", "npy", "csv", "csv without names", "csv of words"])
def test_anneal_reads_your_own_data(kind, tmp_path, capsys):
    rng = np.random.default_rng(0)
    patterns, labels = rng.choice([-1, 1], (40, 9)), rng.choice([-1, 1], 40)
    file = tmp_path / f"data.{kind[:3]}"
    rows = np.column_stack([patterns, labels])
    words = [",".join(map(str, row)) for row in rows.tolist()]
    names = ",".join(f"x{i}" for i in range(9)) + ",y"
    if kind == "npz":
        np.savez(file, patterns=patterns, labels=labels)
    elif kind == "npy":
        np.save(file, rows)
    elif kind == "csv":
        file.write_text("\n".join([names, *words]))
    elif kind == "csv without names":
        file.write_text("\n".join(words).replace(",", ";") + "\n\n")
    else:
        lines = [f"{word.rpartition(',')[0]},{['no', 'yes'][word[-2] != '-']}" for word in words]
        file.write_text("\n".join([names, *lines]))
    main(["anneal", str(file), *SHORT, "--output", str(tmp_path / "run"), "--bank", "3"])
    printed = capsys.readouterr().out
    assert printed.startswith("Perceptron: 40 patterns of 9 inputs")
    assert ("'no' → -1 and 'yes' → +1" in printed) == (kind == "csv of words")
    assert "teacher" not in printed
    result = AnnealResult.load(tmp_path / "run.npz")
    problem = mcover.Perceptron(patterns, labels)
    assert (
        result.training_errors.tolist() == problem.training_errors(result.collapsed_sign).tolist()
    )


@pytest.mark.parametrize("words", ["", "--hidden 3", "--bits 2 --restarts 3"])
def test_solve_writes_weights_that_fit_your_own_data(words, tmp_path, capsys):
    rng = np.random.default_rng(0)
    patterns, teacher = rng.integers(0, 2, (60, 21)), rng.choice([-1, 1], 21)
    right = (2 * patterns - 1) @ teacher > 0
    rows = [[*row, ["no", "yes"][int(of)]] for row, of in zip(patterns, right, strict=True)]
    (tmp_path / "data.csv").write_text("\n".join(",".join(map(str, row)) for row in rows))
    target = tmp_path / "new" / "student.npz"
    main(["solve", str(tmp_path / "data.csv"), *words.split(), "--output", str(target)])
    printed = capsys.readouterr().out
    for text in ("patterns of 21 inputs", "'yes' → +1", "solved on 60 patterns", str(target)):
        assert text in printed
    assert [path.name for path in target.parent.iterdir()] == ["student.npz"]
    with np.load(target) as file:
        weights, classes, errors = file["weights"], file["classes"], file["errors"]
    assert weights.shape == (3 if "hidden" in words else 1, 21)
    votes = np.sign((2 * patterns - 1) @ weights.T).sum(axis=1)
    assert classes[(votes > 0).astype(int)].tolist() == [row[-1] for row in rows]
    assert errors == 0


def test_solve_makes_problems_as_anneal_does(tmp_path, capsys):
    for command in ("anneal --reads 1 --workers 1", "solve --restarts 2 --workers 1"):
        name, *how = command.split()
        words = [name, "committee", "--n", "21", "--alpha", "3", *how]
        main([*words, "--output", str(tmp_path / name)])
        assert "Committee: 315 patterns of 21 inputs, 5 hidden units" in capsys.readouterr().out


def test_demo_compares_the_methods(tmp_path, capsys):
    main(f"demo --n 41 --alpha 2 --trials 3 --epochs 1 --output {tmp_path}".split())
    printed = capsys.readouterr().out
    for word in ("vanilla", "RSA", "M-cover", "3 teachers", "TTS99", "collapse of 4 covers"):
        assert word in printed
    for name in ("topology.png", "annealing.png", "training.png"):
        assert (tmp_path / name).read_bytes().startswith(PNG)


def test_without_optional_packages_the_commands_name_the_extras(tmp_path, capsys, monkeypatch):
    for module in ("mcover.cli.demo", "mcover.cli.output"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: None)
    main(f"demo --n 21 --trials 2 --output {tmp_path}".split())
    main(["anneal", "perceptron", "--n", "21", *SHORT, "--output", str(tmp_path / "run")])
    printed = capsys.readouterr().out
    assert printed.count(install("plot")) == 3
    assert install("sklearn") in printed
    assert [path.name for path in tmp_path.iterdir()] == ["run.npz"]


def test_figures_without_matplotlib_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=re.escape(install("plot"))):
        Uniform().plot(3)


def interrupted(words, folder):
    """The output of a command that is interrupted after its first read has begun."""
    with interruptible([sys.executable, "-m", "mcover", *words.split()], folder) as process:
        seen = ""
        while "accepted" not in seen:
            seen += process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        printed = process.stdout.read()
    assert process.returncode == 130
    return printed


def test_ctrl_c_ends_with_130_and_writes_what_was_reached(tmp_path):
    words = "anneal perceptron --n 801 --schedule linear:0.4:0.01:1e-6 --reads 2 --output run"
    printed = interrupted(words, tmp_path)
    assert "interrupted: 0 of 2 reads were finished" in printed
    assert "generalization error" not in printed
    assert "Traceback" not in printed
    result = AnnealResult.load(tmp_path / "run.npz")
    assert result.interrupted
    # An older file is kept.
    before = (tmp_path / "run.npz").read_bytes()
    assert "run.npz was left as it was" in interrupted(words, tmp_path)
    assert (tmp_path / "run.npz").read_bytes() == before


def test_ctrl_c_ends_a_search_with_130_and_writes_the_best_so_far(tmp_path):
    how = ["--n", "501", "--alpha", "1.2", "--time-limit", "none", "--output", "run"]
    with interruptible(
        [sys.executable, "-m", "mcover", "solve", "perceptron", *how], tmp_path
    ) as process:
        seen = ""
        while "of 601 wrong" not in seen:  # a restart was finished
            seen += process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        printed = process.stdout.read()
    assert process.returncode == 130
    assert "interrupted: the best so far" in printed
    assert "Traceback" not in printed
    with np.load(tmp_path / "run.npz") as file:
        assert file["weights"].shape == (1, 501)
        assert 0 < file["errors"] < 300


def test_a_search_that_found_nothing_leaves_an_older_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mcover.cli.solve.solve", partial(mcover.solve, interrupt=lambda: True))
    words = f"solve perceptron --n 501 --alpha 1.2 --output {tmp_path}/run"
    code, printed = ended(words, capsys)
    assert code == 130
    assert "0 restarts" in printed
    before = (tmp_path / "run.npz").read_bytes()
    code, printed = ended(words, capsys)
    assert code == 130
    assert "run.npz was left as it was" in printed
    assert (tmp_path / "run.npz").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "codes"),
    [("anneal perceptron --n 21 --reads 1", [141]), ("--help", [0, 141])],
)
def test_a_pipe_that_is_closed_early_ends_the_command_as_a_signal_would(words, codes, tmp_path):
    """No traceback, and the exit code of a process that SIGPIPE ended: mcover … | head -1.

    argparse ignores a closed pipe where Python's output has no buffer, and then --help ends with 0.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "mcover", *words.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    process.stdout.close()
    assert "Traceback" not in process.communicate()[1]
    assert process.returncode in codes


# One of each kind: a value of the library's, an option's text, options that do not belong together,
# files, and commands.
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("anneal perceptron --n 20 --bank 30", "at most 20"),
        ("anneal perceptron --bank few", "invalid integer or none value: 'few'"),
        ("anneal perceptron --schedule linear:0.1:0.4:0.1", "write start ≥ stop"),
        ("anneal perceptron --schedule spiral:0.4", "linear:START:STOP:STEP"),
        ("anneal perceptron --schedule geometric:0.4:0.1:1.5", "linear:START:STOP:STEP"),
        ("anneal perceptron --sigma 0", "--sigma is 0"),
        ("anneal perceptron --method rsa --bank 3", "--method rsa has no --bank; leave it out"),
        ("anneal perceptron --topology uniform --sigma 3", "--topology uniform has no --sigma"),
        ("anneal perceptron --hidden 3", "perceptron has no --hidden; write committee"),
        ("anneal missing.npz --alpha 3", "missing.npz has no --alpha; leave it out"),
        ("anneal missing.npz", "cannot read missing.npz as an .npz file: there is no such file"),
        ("anneal data.txt", "write a file that ends in .npz, .npy or .csv"),
        ("anneal percepton", "did you mean perceptron?"),
        ("anneal perceptron --output .", "--output is '.'; write the path of a file"),
        ("anneal perceptron --output /proc/run", "/proc is not a folder that can be written"),
        ("solve perceptron --output /proc/run", "/proc is not a folder that can be written"),
        ("solve perceptron --output .", "--output is '.'; write the path of a file"),
        ("solve missing.csv", "cannot read missing.csv as a .csv file: there is no such file"),
        ("solve percepton", "did you mean perceptron?"),
        ("solve perceptron --hidden 3", "perceptron has no --hidden; write committee"),
        ("solve perceptron --time-limit 0", "--time-limit is 0.0; write a finite number above 0"),
        ("solve perceptron --time-limit long", "invalid number or none value: 'long'"),
        ("solve perceptron --bits 9", "--bits is 9; write a whole number from 1 to 8"),
        ("solve perceptron --restarts 0", "--restarts is 0"),
        ("solve perceptron --workers 0", "--workers is 0"),
        ("solve perceptron --seed -1", "--seed is -1"),
        ("demo --output /proc", "/proc is not a folder that can be written"),
        ("demo --trials 0", "--trials is 0"),
        ("train", "invalid choice: 'train'"),
        ("", "required: COMMAND"),
    ],
)
def test_bad_requests_end_with_2_and_a_message(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, printed = ended(words, capsys)
    assert code == 2
    assert message in " ".join(printed.split())
    assert list(tmp_path.iterdir()) == []


def test_data_that_cannot_be_read_is_refused_in_one_line(tmp_path, capsys):
    np.savez(tmp_path / "data.npz", patterns=np.ones((3, 3)))
    code, printed = ended(f"anneal {tmp_path / 'data.npz'}", capsys)
    assert code == 2
    assert printed.count("\n") == 1  # no traceback
    assert printed.startswith("mcover: ")
    assert "needs 'patterns' and 'labels'" in printed


def test_limits_of_a_container_count(tmp_path, monkeypatch):
    memory, cpu = tmp_path / "memory.max", tmp_path / "cpu.max"
    monkeypatch.setattr("mcover.checks._MEMORY_FILES", (str(memory),))
    monkeypatch.setattr("mcover.checks._CPU_FILES", ((str(cpu),),))
    monkeypatch.delenv("MCOVER_MEMORY_LIMIT", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    machine = memory_limit()
    assert cpus() == 8
    memory.write_text("max\n")
    cpu.write_text("max 100000\n")
    assert (memory_limit(), cpus()) == (machine, 8)
    memory.write_text("1000000\n")
    cpu.write_text("150000 100000\n")
    assert (memory_limit(), cpus()) == (500_000, 2)
