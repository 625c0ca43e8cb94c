"""Tiny models of transformers with random weights, and batches for them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

WORDS = 40
quiet = pytest.mark.filterwarnings(
    "ignore:'pin_memory' argument is set as true but no accelerator is found:UserWarning",
    "ignore:`tie_word_embeddings`:UserWarning",
    "ignore:Could not find a config file in:UserWarning",
    "ignore:Adapter 'default'. 4 LoRA tensor.s. have invalid shape",  # biases, which have one axis
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning",  # peft asks transformers
)


def arguments(folder: Path, kind: Any = transformers.TrainingArguments, **options: Any) -> Any:
    given = {
        "per_device_train_batch_size": 2, "per_device_eval_batch_size": 4, "max_steps": 3,
        "learning_rate": 1e-2, "report_to": "none", "use_cpu": True, "disable_tqdm": True,
        "save_strategy": "no", "logging_strategy": "no", "seed": 3,
    }  # fmt: skip
    return kind(output_dir=str(folder), **(given | options))


def bert(dropout: float = 0.0) -> nn.Module:
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=32, max_position_embeddings=16, num_labels=3,
            hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
        )
    )  # fmt: skip


def gpt2() -> nn.Module:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=WORDS, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=1,
            eos_token_id=2, pad_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )
    )  # fmt: skip


def vit() -> nn.Module:
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            image_size=8, patch_size=4, num_channels=1, hidden_size=16, num_hidden_layers=1,
            num_attention_heads=2, intermediate_size=32, num_labels=3, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def t5() -> nn.Module:
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=WORDS, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2,
            dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
        )
    )  # fmt: skip


MODELS = {"bert": bert, "gpt2": gpt2, "vit": vit, "t5": t5}
# Of predictions for 10 examples; T5 also puts out its encoder's last states.
SHAPES = {"bert": (10, 3), "gpt2": (10, 6, WORDS), "vit": (10, 3), "t5": (10, 4, WORDS)}


def build(name: str, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name]()


def examples(name: str, count: int = 10) -> list[dict]:
    """Rows of a data set, with a column that no model accepts."""
    draw = np.random.default_rng(5)
    rows = []
    for index in range(count):
        ids = draw.integers(4, WORDS, 6).tolist()
        if name == "vit":
            row = {"pixel_values": draw.normal(size=(1, 8, 8)).astype(np.float32)}
        else:
            row = {"input_ids": ids, "attention_mask": [1] * 6}
        if name == "gpt2":  # rows have different numbers of words to predict
            labels = [-100] * (index % 4) + ids[index % 4 :]
        elif name == "t5":
            labels = draw.integers(4, WORDS, 4).tolist()
            row["decoder_input_ids"] = [0, *labels[:-1]]
        else:
            labels = int(draw.integers(3))
        rows.append(row | {"labels": labels, "source": "made here"})
    return rows


def copies(name: str, covers: int) -> list[nn.Module]:
    return [build(name, seed=index) for index in range(covers)]


def assert_same(one: dict, other: dict, tolerance: float = 0.0) -> None:
    assert one.keys() == other.keys()
    for key in one:
        torch.testing.assert_close(one[key], other[key], rtol=tolerance, atol=tolerance, msg=key)


def parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def frozen_copy(model: nn.Module) -> dict[str, torch.Tensor]:
    return copy.deepcopy(
        {n: p.detach() for n, p in model.named_parameters() if not p.requires_grad}
    )
