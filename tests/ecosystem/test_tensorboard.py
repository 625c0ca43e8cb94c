"""TensorBoard events of a training, read back by TensorBoard."""

import json

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import mcover
from mcover.cli import main
from mcover.lab.data import load, subset
from mcover.lab.models import Mlp
from mcover.lab.training import Training, fit
from mcover.logs import HistoryLog

torch.set_num_threads(1)


def curve(folder, tag):
    events = EventAccumulator(str(folder))
    events.Reload()
    return {event.step: event.value for event in events.Scalars(tag)}


def test_fit_writes_every_cover_a_curve(tmp_path):
    digits = subset(load("digits"), 300, seed=0)
    covered = mcover.lift(Mlp((64, 24, 10)).build(seed=0), 3, mcover.Uniform(), seed=0)
    path = tmp_path / "run.jsonl"
    history = fit(covered, digits, Training(3, 100), log=path, tensorboard=True)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    steps = [row["step"] for row in rows]
    for name in ("train_loss", "collapse_error"):
        expected = dict(zip(steps, getattr(history, name), strict=True))
        assert curve(tmp_path / "run", name) == pytest.approx(expected)
    for index in range(3):
        expected = dict(zip(steps, history.cover_error[:, index], strict=True))
        assert curve(tmp_path / "run", f"cover_error/{index}") == pytest.approx(expected)


def test_the_command_line_writes_events(tmp_path):
    words = "train network --model small-mlp --images 200 --epochs 2 --batch 100 --tensorboard sgd"
    main([*words.split(), "--output", str(tmp_path / "net")])
    assert len(curve(tmp_path / "net", "collapse_error")) == 2


def test_events_after_the_step_that_a_run_goes_on_from_are_dropped(tmp_path):
    path = tmp_path / "run.jsonl"
    log = HistoryLog(path, True)
    for step in (10, 20, 30):
        log.write(step, {"loss": step})
    log.close()
    log = HistoryLog(path, True, after=20)
    log.write(25, {"loss": 25})
    log.close()
    assert curve(tmp_path / "run", "loss") == {10: 10, 20: 20, 25: 25}
