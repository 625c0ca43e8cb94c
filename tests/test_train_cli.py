"""``mcover train``, as a person meets it."""

import json
import re
import sys

import numpy as np
import pytest
import torch

import mcover.lab.training
from mcover.cli import main
from mcover.lab import data, models
from mcover.lab.training.loop import errors

TINY = "train --model small-mlp --images 200 --epochs 2 --batch 100"


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train(words, folder):
    main([*TINY.split(), *words.split(), "--output", str(folder / "new" / "net")])
    return folder / "new"


@pytest.mark.parametrize(
    "words",
    [
        "--covers 3",
        "--covers 3 --topology identity",
        "--covers 3 --routing weights --topology uniform --bank 2 --redraw-every 2",
        "--covers 1 --dropout 0.3 --weight-noise 0.01",
        "--method swa --average-from 0",
        "--method ema --decay 0.9",
        "--method sam --rho 0.01",
        "--method entropy --inner-steps 2",
        "--method rsgd --covers 3 --growth 10",
        "--method elastic --covers 3 --period 2",
        "--covers 3 --routing messages --streams 2 --blocks 4",
        "--covers 3 --routing messages --mixer exact",
        "--model conv --covers 3 --routing messages --dropout 0.2",
        "--covers 3 --routing weights --bank 4 --destinations 2 --granularity unit",
    ],
)
def test_train_prints_draws_and_saves_the_network(words, tmp_path, capsys):
    folder = train(words, tmp_path)
    printed = capsys.readouterr().out
    assert "test error" in printed
    assert "355 test images" in printed
    assert ("of a cover, mean of 3" in printed) == ("--covers 3" in words)
    assert (folder / "net.png").read_bytes().startswith(b"\x89PNG")
    kept = json.loads((folder / "net.json").read_text())
    digits = data.load("digits", normalize=True)
    again = errors(
        models.load(folder / "net"),
        torch.from_numpy(digits.test_images),
        torch.from_numpy(digits.test_labels),
    )
    assert again[0] == kept["history"]["collapse_error"][-1]
    assert kept["history"]["epoch"] == [1, 2]
    assert str(tmp_path) not in (folder / "net.json").read_text()


COMMITTEE = "train --model committee --data digits:3,8 --images 100 --epochs 20 --evaluate-every 10"


@pytest.mark.parametrize(
    "method", ["mcover", "rsgd", "elastic", "entropy", "sgd", "swa", "ema", "sam"]
)
def test_a_committee_trains_by_every_method(method, tmp_path, capsys):
    target = tmp_path / "machine"
    main([*COMMITTEE.split(), "--method", method, "--output", str(target)])
    printed = capsys.readouterr().out
    assert "committee 64-9-1, slow" in printed
    assert ("4 covers" in printed) == (method in ("mcover", "rsgd", "elastic"))
    assert "70 test images" in printed
    assert "gradients of a single model" in printed
    kept = json.loads((tmp_path / "machine.json").read_text())
    assert kept["settings"]["training"]["method"] == method
    pair = data.load("digits:3,8", binarize="median")
    machine = models.load(target)
    wrong = machine.predict(torch.from_numpy(pair.test_images)).numpy() != pair.test_labels
    assert wrong.mean() == pytest.approx(kept["history"]["collapse_error"][-1])
    assert (tmp_path / "machine.png").read_bytes().startswith(b"\x89PNG")


def test_a_committee_needs_neither_data_nor_images_to_be_named(tmp_path, capsys):
    output = ["--output", str(tmp_path / "machine")]
    main(
        ["train", "--model=committee", "--method", "sgd", "--epochs", "3", "--seeds", "2", *output]
    )
    assert "digits:3,8: 280 training and 70 test images" in capsys.readouterr().out


def test_trainings_that_stop_in_different_epochs_are_shown_together(tmp_path, capsys):
    words = "--method sgd --lr 1 --epochs 300 --momentum 0.9 --images 40 --batch 20 --seeds 3"
    main([*COMMITTEE.split(), *words.split(), "--output", str(tmp_path / "machine")])
    printed = " ".join(capsys.readouterr().out.split())  # a narrow terminal wraps the title
    assert re.search(r"after \d+ to \d+ epochs, where the training images were right", printed)
    assert (tmp_path / "machine.png").exists()


def test_the_help_shows_the_defaults_of_the_model_that_is_named(capsys):
    for words, epochs in (("", 40), ("--model committee", 20000)):
        with pytest.raises(SystemExit):
            main(["train", *words.split(), "--help"])
        shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
        assert f"(default: {epochs})" in shown


def test_several_seeds_have_an_interval_and_a_network_each(tmp_path, capsys):
    folder = train("--covers 1 --seeds 2 --seed 5", tmp_path)
    assert "intervals: over 2 seeds" in capsys.readouterr().out
    assert sorted(path.name for path in folder.glob("*.safetensors")) == [
        "net-5.safetensors",
        "net-6.safetensors",
    ]
    courses = [json.loads((folder / f"net-{seed}.json").read_text()) for seed in (5, 6)]
    assert [one["settings"]["seed"] for one in courses] == [5, 6]
    losses = [one["history"]["train_loss"] for one in courses]
    assert not np.array_equal(*losses)
    alone = train("--covers 1 --seed 6", tmp_path / "alone")
    assert json.loads((alone / "net.json").read_text())["history"]["train_loss"] == losses[1]


def test_an_interrupt_still_shows_and_saves(tmp_path, capsys, monkeypatch):
    step, calls = mcover.lab.training.loop._Loop.step, []

    def stop(self, *batch):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return step(self, *batch)

    monkeypatch.setattr(mcover.lab.training.loop._Loop, "step", stop)
    folder = train("--covers 1 --seeds 3", tmp_path)
    printed = capsys.readouterr().out
    assert "interrupted" in printed
    assert "after 1.5 epochs" in printed
    assert (folder / "net-0.safetensors").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--seeds 0", "seeds is 0"),
        ("--epochs 0", "epochs is 0"),
        ("--images 99999", "from 1 to 1442"),
        ("--covers 0", "covers is 0"),
        ("--topology ring --sigma -1", "sigma must be positive"),
        ("--method sgd --covers 3", "covers is for methods on covers"),
        ("--rho 0.1", "rho is an option of method 'sam'; the method is 'mcover'"),
        ("--method sam --topology ring", "topology is for method 'mcover'"),
        ("--topology uniform --sigma 1", "sigma is for a ring"),
        ("--routing messages --bank 3", "bank is for routing 'weights'"),
        ("--hidden 3", "hidden is for model 'committee'"),
        ("--data digits:3", "is one class"),
        ("--model committee --data digits", "tells two classes apart"),
    ],
)
def test_bad_input_ends_with_a_message(words, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        train(words, tmp_path)
    assert stop.value.code == 2
    said = capsys.readouterr()
    assert message in " ".join((said.out + said.err).replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


def test_a_line_says_how_far_it_is(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mcover.progress._PLAIN_SECONDS", -1.0)
    monkeypatch.setattr("mcover.lab.training.loop._SHOW_SECONDS", 0.0)
    train("--covers 3", tmp_path)
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "  0%  compiling, or loading what was compiled before"
    assert re.match(r" *25%  epoch 1/2  loss \d\.\d+", shown[1])
    assert re.match(r"100%  epoch 2/2  loss .*  covers \d+\.\d+%  collapse \d+", shown[-1])


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
        train("--covers 3", tmp_path)
    assert "pip install 'mcover[torch,data]'" in " ".join(capsys.readouterr().err.split())
