"""Histories as JSON lines: complete at any time, and cut where a run goes on."""

import json
import logging
import math

import numpy as np
import pytest
import torch

from mcover.errors import McoverError
from mcover.logs import HistoryLog


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_are_on_disk_as_soon_as_they_are_written(tmp_path):
    path = tmp_path / "new" / "run.jsonl"
    log = HistoryLog(path)
    assert rows(path) == []
    log.write(1, {"loss": np.float32(0.5), "errors": np.array([0.25, math.inf]), "none": None})
    assert rows(path) == [{"step": 1, "loss": 0.5, "errors": [0.25, None]}]
    log.write(2, {"loss": torch.tensor(math.nan), "gradients": np.int64(7)})
    assert rows(path)[1] == {"step": 2, "loss": None, "gradients": 7}
    log.close()


def test_a_new_run_begins_a_new_history(tmp_path):
    for loss in (1.0, 2.0):
        HistoryLog(tmp_path / "run.jsonl").write(1, {"loss": loss})
    assert rows(tmp_path / "run.jsonl") == [{"step": 1, "loss": 2.0}]


def test_a_run_that_goes_on_keeps_what_it_knows_of(tmp_path):
    path = tmp_path / "run.jsonl"
    log = HistoryLog(path)
    for step in (10, 20, 30):
        log.write(step, {"loss": 1 / step})
    HistoryLog(path, after=20).write(25, {"loss": 0.5})
    assert [row["step"] for row in rows(path)] == [10, 20, 25]
    HistoryLog(tmp_path / "other.jsonl", after=20).write(25, {})  # in a folder of its own


@pytest.mark.parametrize("text", ["not JSON\n", "[1]\n", '{"loss": 1}\n', '{"step": "x"}\n'])
def test_a_file_that_is_no_history_is_left_alone(text, tmp_path):
    (tmp_path / "notes.txt").write_text(text)
    with pytest.raises(McoverError, match="is no history of an earlier run; write another path"):
        HistoryLog(tmp_path / "notes.txt", after=20)
    assert (tmp_path / "notes.txt").read_text() == text


def test_what_cannot_be_written_is_said(tmp_path, caplog):
    log = HistoryLog(tmp_path / "run.jsonl")
    (tmp_path / "run.jsonl").unlink()
    (tmp_path / "run.jsonl").mkdir()
    with caplog.at_level(logging.WARNING, "mcover"):
        log.write(1, {"loss": 0.5})
    assert "cannot write to" in caplog.text


def test_tensorboard_is_asked_for_by_true_or_false(tmp_path, monkeypatch):
    with pytest.raises(McoverError, match="tensorboard is 'runs'; write True or False"):
        HistoryLog(tmp_path / "run.jsonl", "runs")
    monkeypatch.setattr("mcover.logs.find_spec", lambda name: None)
    with pytest.raises(McoverError, match=r"pip install 'mcover\[tensorboard\]'"):
        HistoryLog(tmp_path / "run.jsonl", True)
    assert not list(tmp_path.iterdir())
