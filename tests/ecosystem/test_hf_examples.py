"""The examples with Hugging Face run as they are written, at tiny size."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from transformers.utils import logging

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

pytestmark = pytest.mark.filterwarnings(
    "ignore:'pin_memory' argument is set as true but no accelerator is found:UserWarning",
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning",  # peft asks transformers
)


@pytest.fixture(autouse=True)
def as_it_was():
    """Examples seed torch and quieten transformers; the other tests must not notice."""
    AcceleratorState._reset_state(reset_partial_state=True)
    threads, verbosity = torch.get_num_threads(), logging.get_verbosity()
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(threads)
    logging.set_verbosity(verbosity)


def run(name, arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, *arguments.split()])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def errors(printed: str) -> list[float]:
    return [float(value) for value in re.findall(r"^  .*?(\d\.\d{4})", printed, re.MULTILINE)]


def test_hf_image(tmp_path, monkeypatch, capsys):
    arguments = f"--seeds 1 --epochs 4 --images 800 --covers 2 --output {tmp_path}"
    printed = run("hf_image.py", arguments, monkeypatch, capsys)
    assert "ViTForImageClassification of" in printed
    assert len(errors(printed)) == 4
    assert max(errors(printed)[:3]) < 0.8  # guessing costs 0.9
    assert {"config.json", "model.safetensors", "covers.safetensors"} <= {
        path.name for path in (tmp_path / "collapse").iterdir()
    }


def test_hf_lora_text(monkeypatch, capsys):
    arguments = "--seeds 1 --epochs 4 --known 2000 --sentences 300 --covers 2"
    printed = run("hf_lora_text.py", arguments, monkeypatch, capsys)
    assert len(errors(printed)) == 4
    assert max(errors(printed)) < 0.54  # what guessing the largest of three classes costs
    assert 0 < float(re.search(r"at rank 4: (\S+)", printed)[1]) < 1
