"""``mcover train``, as a person meets it."""

import io
import json
import re
import sys

import numpy as np
import pytest
import torch
from rich.console import Console

import mcover.lab.training
from mcover import progress
from mcover.cli import main
from mcover.cli.train import Train
from mcover.lab import data, models
from mcover.lab.training import CommitteeTrial
from mcover.lab.training.loop import Status
from mcover.lab.training.objectives import Objective
from mcover.logs import HistoryLog
from mcover.plain import from_plain

TINY = "--model small-mlp --images 200 --epochs 2 --batch 100"


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train(words, folder):
    given = f"{words} {TINY if '--model' not in words else TINY.partition('mlp ')[2]}"
    main(["train", "network", *given.split(), "--output", str(folder / "new" / "net")])
    return folder / "new"


@pytest.mark.parametrize(
    "words",
    [
        "lifted --covers 3",
        "lifted --covers 3 identity",
        "lifted --covers 3 uniform directed --bank 2 --redraw-every 2 --no-redraw-each-epoch",
        "lifted --covers 1 --dropout 0.3 --weight-noise 0.01",
        "swa --average-from 0",
        "ema --decay 0.9",
        "soup --branches 2 --trunk 0 --drop-connect 0.1",
        "sam --rho 0.01",
        "entropy --inner-steps 2",
        "rsgd --covers 3 --growth 10 --growth-epochs 1",
        "elastic --covers 3 --period 2",
        "lifted --covers 3 messages --streams 2 --blocks 4",
        "lifted --covers 3 ring --sigma 2 messages --mixer exact",
        "--model conv lifted --covers 3 messages --dropout 0.2 --noise 150%",
        "lifted --covers 3 directed --bank 4 --destinations 2 --granularity unit",
    ],
)
def test_train_prints_draws_and_saves_the_network(words, tmp_path, capsys):
    folder = train(words, tmp_path)
    printed = capsys.readouterr().out
    assert "test error" in printed
    assert "355 test images" in printed
    assert "[–]" in printed
    assert ("of a cover by itself, mean of 3" in printed) == ("--covers 3" in words)
    assert ("along the routes" in printed) == ("--covers 3" in words)
    assert (folder / "net.png").read_bytes().startswith(b"\x89PNG")
    kept = json.loads((folder / "net.json").read_text())
    digits = data.load("digits", normalize=True)
    network = models.load(folder / "net")
    objective = Objective(network)
    test = objective.tensors(digits.test_images, digits.test_labels)
    _, again = objective.judge(network, *test, "collapse")
    assert again[0] == kept["history"]["collapse_error"][-1]
    assert kept["history"]["epoch"] == [1, 2]
    rows = [json.loads(line) for line in (folder / "net.jsonl").read_text().splitlines()]
    for name in ("epoch", "cover_error", "collapse_error", "gradients"):
        assert [row[name] for row in rows] == kept["history"][name]
    assert [row["step"] for row in rows] == [2, 4]
    assert str(tmp_path) not in (folder / "net.json").read_text()


COMMITTEE = "train committee --images 100 --epochs 20 --evaluate-every 10"


@pytest.mark.parametrize(
    "method", ["lifted", "rsgd", "elastic", "entropy", "sgd", "swa", "ema", "soup", "sam"]
)
def test_a_committee_trains_by_every_method(method, tmp_path, capsys):
    target = tmp_path / "machine"
    main([*COMMITTEE.split(), method, "--output", str(target)])
    printed = capsys.readouterr().out
    assert "committee 64-9-1, slow" in printed
    assert ("4 covers" in printed) == (method in ("lifted", "rsgd", "elastic"))
    assert "70 test images" in printed
    assert "minibatch gradients" in printed
    kept = json.loads((tmp_path / "machine.json").read_text())
    trial = from_plain(CommitteeTrial, kept["trial"])
    assert (trial.method.kind, trial.training.epochs, kept["seed"]) == (method, 20, 0)
    pair = data.load("digits:3,8", binarize="median")
    machine = models.load(target)
    wrong = machine.predict(torch.from_numpy(pair.test_images)).numpy() != pair.test_labels
    assert wrong.mean() == pytest.approx(kept["history"]["collapse_error"][-1])
    assert (tmp_path / "machine.png").read_bytes().startswith(b"\x89PNG")


def test_a_committee_needs_neither_data_nor_images_to_be_named(tmp_path, capsys):
    output = ["--output", str(tmp_path / "machine")]
    main(["train", "committee", "sgd", "--epochs", "3", "--seeds", "2", *output])
    assert "digits:3,8: 287 training and 70 test images" in capsys.readouterr().out


def test_trainings_that_stop_in_different_epochs_are_shown_together(tmp_path, capsys):
    words = "sgd --lr 1 --epochs 300 --momentum 0.9 --images 40 --batch 20 --seeds 3"
    given = ["train", "committee", "--evaluate-every", "10"]
    main([*given, *words.split(), "--output", str(tmp_path / "machine")])
    printed = " ".join(capsys.readouterr().out.split())  # a narrow terminal wraps the title
    assert re.search(r"after \d+ to \d+ epochs, where the training images were right", printed)
    assert (tmp_path / "machine.png").exists()


def help_of(words, capsys):
    with pytest.raises(SystemExit):
        main([*words.split(), "--help"])
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_the_help_shows_the_defaults_of_the_model_that_is_named(capsys):
    for words, epochs in (("train", 40), ("train network", 40), ("train committee", 20000)):
        assert f"(default: {epochs})" in help_of(words, capsys)


@pytest.mark.parametrize(
    "words",
    ["train", "train committee", "train network rsgd", "train network lifted messages"],
)
def test_the_help_names_choices_and_never_a_bare_text(words, capsys):
    shown = help_of(words, capsys)
    assert "{None}" not in shown
    assert "STR" not in shown
    assert "tyro" not in shown


def test_options_of_another_method_are_not_there(capsys):
    shown = help_of("train network sam", capsys)
    assert "--rho" in shown
    assert not any(option in shown for option in ("--covers", "--bank", "--decay", "--hidden"))


def test_several_seeds_have_an_interval_and_a_network_each(tmp_path, capsys):
    folder = train("sgd --seeds 2 --seed 5", tmp_path)
    assert "intervals: over seeds (2 seeds)" in capsys.readouterr().out
    assert sorted(path.name for path in folder.glob("*.safetensors")) == [
        "net-5.safetensors",
        "net-6.safetensors",
    ]
    courses = [json.loads((folder / f"net-{seed}.json").read_text()) for seed in (5, 6)]
    assert [one["seed"] for one in courses] == [5, 6]
    losses = [one["history"]["train_loss"] for one in courses]
    assert not np.array_equal(*losses)
    alone = train("sgd --seed 6", tmp_path / "alone")
    assert json.loads((alone / "net.json").read_text())["history"]["train_loss"] == losses[1]


def test_an_interrupt_still_shows_and_saves(tmp_path, capsys, monkeypatch):
    step, calls = mcover.lab.training.loop._Loop.step, []

    def stop(self, *batch):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return step(self, *batch)

    monkeypatch.setattr(mcover.lab.training.loop._Loop, "step", stop)
    with pytest.raises(SystemExit) as stopped:
        train("sgd --seeds 3", tmp_path)
    assert stopped.value.code == 130
    printed = capsys.readouterr().out
    assert "interrupted" in printed
    assert "after 1.5 epochs" in printed
    assert (tmp_path / "new" / "net-0.safetensors").exists()


def test_an_interrupt_of_the_plain_model_ends_it_all(tmp_path, monkeypatch):
    calls = []

    def stop(self):
        calls.append(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(mcover.lab.training.loop._Loop, "step", stop)
    with pytest.raises(SystemExit) as stopped:
        train("lifted --covers 3 --compare", tmp_path)
    assert stopped.value.code == 130
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--seeds 0", "--seeds is 0"),
        ("--seed -1", "--seed is -1"),
        ("--epochs 0", "--epochs is 0"),
        ("--images 99999", "from 1 to 1442"),
        ("lifted --covers 0", "--covers is 0"),
        ("lifted ring --sigma -1", "--sigma is -1"),
        ("sgd --covers 3", "--covers"),
        ("--rho 0.1", "--rho"),
        ("sam ring", "ring"),
        ("lifted uniform --sigma 1", "--sigma"),
        ("lifted messages --bank 3", "--bank"),
        ("--hidden 3", "--hidden"),
        ("--data digits:3", "is one class"),
        ("--data frobnicate", "no data set 'frobnicate'"),
        ("--noise much", "noise is 'much'"),
        ("--output /", "output is '/'"),
    ],
)
def test_bad_input_ends_with_a_message(words, message, tmp_path, capsys):
    given = ["--output", str(tmp_path / "new" / "net"), *TINY.split()]
    with pytest.raises(SystemExit) as stop:
        main(["train", "network", *given, *words.split()])
    assert stop.value.code == 2
    said = capsys.readouterr()
    assert message in " ".join((said.out + said.err).replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


def test_the_plain_model_is_trained_beside(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mcover.progress._PLAIN_SECONDS", -1.0)
    monkeypatch.setattr("mcover.lab.training.loop._SHOW_SECONDS", 0.0)
    train("--compare lifted --covers 3", tmp_path)
    said = capsys.readouterr()
    shares = [int(line[:3]) for line in said.err.splitlines()]
    assert shares == sorted(shares)
    assert "test error of the plain model" in said.out
    histories = sorted(path.name for path in (tmp_path / "new").glob("*.jsonl"))
    assert histories == ["net-plain.jsonl", "net.jsonl"]
    with pytest.raises(SystemExit):
        train("--compare sgd", tmp_path)
    assert "compare is True, and the model is trained plain" in capsys.readouterr().err


def test_a_line_says_how_far_it_is(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mcover.progress._PLAIN_SECONDS", -1.0)
    monkeypatch.setattr("mcover.lab.training.loop._SHOW_SECONDS", 0.0)
    train("lifted --covers 3", tmp_path)
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "  0%  loading torch and digits"
    assert shown[1] == "  0%  lifting and compiling"
    assert re.match(r" *25%  epoch 1/2 loss \d", shown[2])
    assert re.match(r"100%  epoch 2/2 loss .* error \d+\.\d%", shown[-1])
    assert max(map(len, shown)) < 80


@pytest.mark.parametrize(("seeds", "compare"), [(1, False), (10, False), (1, True), (10, True)])
def test_the_live_line_fits_80_columns(seeds, compare, monkeypatch):
    terminal = Console(file=io.StringIO(), width=80, force_terminal=True)
    monkeypatch.setattr("mcover.progress.errors", terminal)
    with progress.live_line() as line:
        train = Train(CommitteeTrial(), seeds=seeds, compare=compare)
        show = train._show(line, seeds - 1, train.trial)
        show(Status(0.999, 20_000, 1.234e-5, 0.4567))
        line._bar.refresh()
        shown = line._bar.get_renderable()
        texts = ["".join(part.text for part in row) for row in terminal.render_lines(shown)]
    assert len(texts) == 1
    assert "error 45.7%" in texts[0]
    assert "left" in texts[0]
    assert "…" not in texts[0]


def test_an_output_that_cannot_be_written_is_refused_before_the_work(tmp_path, capsys, monkeypatch):
    def never(*given, **kwargs):
        raise AssertionError("trained all the same")

    monkeypatch.setattr("mcover.lab.training.loop._Loop.run", never)
    (tmp_path / "new").write_text("a file, not a folder")
    with pytest.raises(SystemExit) as stop:
        train("sgd", tmp_path)
    assert stop.value.code == 2
    assert "is not a folder that can be written" in " ".join(capsys.readouterr().err.split())


def test_a_model_that_cannot_be_written_goes_elsewhere(tmp_path, capsys, monkeypatch):
    (tmp_path / "new" / "net.safetensors").mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "spare"))
    (tmp_path / "spare").mkdir()
    train("sgd", tmp_path)
    said = capsys.readouterr()
    assert "net.safetensors" in said.err
    (kept,) = (tmp_path / "spare").glob("*/net.safetensors")
    assert str(kept.name) in said.out
    models.load(kept.with_suffix(""))


def test_a_history_that_cannot_be_written_does_not_end_the_training(tmp_path, capsys, monkeypatch):
    class Gone(HistoryLog):
        def write(self, step, row):
            if self.path.is_file():
                self.path.unlink()
                self.path.mkdir()
            super().write(step, row)

    monkeypatch.setattr("mcover.lab.training.loop.HistoryLog", Gone)
    train("sgd", tmp_path)
    models.load(tmp_path / "new" / "net")


def test_tensorboard_that_is_missing_is_said_before_the_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mcover.logs.find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        train("--tensorboard sgd", tmp_path)
    assert "pip install 'mcover[tensorboard]'" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "new").exists()


def test_data_that_is_not_there_ends_with_a_message(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MCOVER_DATA", "nowhere")
    with pytest.raises(SystemExit):
        train("--data mnist", tmp_path)
    assert "MCOVER_DATA is 'nowhere', which is not a folder" in capsys.readouterr().err


def test_the_demo_without_torch_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mcover.cli.demo.find_spec", lambda name: None)
    main(f"demo --n 41 --alpha 2 --trials 2 --output {tmp_path}".split())
    assert "pip install 'mcover[torch,data]'" in capsys.readouterr().out


def test_without_torch_the_message_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit):
        train("sgd", tmp_path)
    assert "pip install 'mcover[torch,data]'" in " ".join(capsys.readouterr().err.split())
