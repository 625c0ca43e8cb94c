"""Pages and examples that need another framework run, and print the output they show."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from transformers.utils import logging

from pages import FRAMEWORKS, assert_prints_what_it_shows

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
]


@pytest.mark.parametrize("page", FRAMEWORKS)
def test_the_blocks_of_a_page_run_in_order_and_print_what_it_says(page, tmp_path):
    assert_prints_what_it_shows(page, tmp_path)


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs an example at tiny size, and returns what it prints."""
    verbosity = logging.get_verbosity()

    def printed_by(name, arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments.split()])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    yield printed_by
    logging.set_verbosity(verbosity)


def errors(printed: str) -> list[float]:
    return [float(value) for value in re.findall(r"^  .*?(\d\.\d{4})", printed, re.MULTILINE)]


def test_hf_image(run, tmp_path):
    said = run("hf_image.py", f"--seeds 1 --epochs 4 --images 800 --covers 2 --output {tmp_path}")
    assert "ViTForImageClassification of" in said
    assert len(errors(said)) == 4
    assert max(errors(said)[:3]) < 0.8  # guessing costs 0.9
    assert {"config.json", "model.safetensors", "covers.safetensors"} <= {
        path.name for path in (tmp_path / "collapse").iterdir()
    }


def test_hf_lora_text(run):
    said = run("hf_lora_text.py", "--seeds 1 --epochs 4 --known 2000 --sentences 300 --covers 2")
    assert len(errors(said)) == 4
    assert max(errors(said)) < 0.54  # what guessing the largest of three classes costs
    assert 0 < float(re.search(r"at rank 4: (\S+)", said)[1]) < 1


@pytest.mark.skipif(" " in torch.__file__, reason="inductor cannot link where a path has a space")
def test_export(run, tmp_path):
    said = run("export.py", f"--epochs 2 --output {tmp_path}")
    apart = dict(re.findall(r"(\S+) +largest difference of a logit (\S+),", said))
    assert apart.keys() == {"torch.compile", "torch.export", "onnxruntime"}
    assert all(float(value) < 1e-4 for value in apart.values())
    assert said.count("same answer on 100%") == 3
