"""LoRA covers of a tiny BERT, on sentences of scikit-learn's docstrings, without a download.

python examples/hf_lora_text.py
python examples/hf_lora_text.py --seeds 10

A model learns to predict which of 14 parts of scikit-learn a sentence comes from, and is then
frozen. LoRA adapters learn another task from a few other sentences: is a sentence about supervised
learning, unsupervised learning, or neither? The example compares one plain adapter with routed
covers of it.
"""

import argparse
import importlib
import inspect
import re
import tempfile
import warnings
from collections import Counter

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging

import mcover
from mcover.hf import CoverTrainer, collapse_adapters

KINDS = (
    ("cluster", "decomposition", "manifold", "mixture"),
    ("linear_model", "ensemble", "svm", "neighbors", "naive_bayes"),
    ("preprocessing", "model_selection", "metrics", "datasets", "feature_selection"),
)
PARTS = {part: kind for kind, parts in enumerate(KINDS) for part in parts}
LENGTH, WORDS = 24, 2500
SHAPE = {
    "vocab_size": WORDS + 2, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128, "max_position_embeddings": LENGTH,
}  # fmt: skip


def sentences() -> list[tuple[list[str], str]]:
    """The words of each sentence, and the part of scikit-learn that it comes from."""
    found: dict[str, set[str]] = {}
    for part in PARTS:
        module = importlib.import_module(f"sklearn.{part}")
        for name in dir(module):
            text = "" if name.startswith("_") else inspect.getdoc(getattr(module, name)) or ""
            for sentence in re.split(r"(?<=[.:])\s+|\n\n", text):
                words = re.findall(r"[a-z_]+", sentence.lower())
                if len(words) >= 6:
                    found.setdefault(" ".join(words[:LENGTH]), set()).add(part)
    return [(text.split(), *parts) for text, parts in sorted(found.items()) if len(parts) == 1]


def encoded(rows: list[tuple[list[str], str]], labels: dict[str, int], known: dict[str, int]):
    """Word indices, padded with 0; a rare word has index 1."""
    made = []
    for words, part in rows:
        ids = [known.get(word, 1) for word in words]
        pad = [0] * (LENGTH - len(ids))
        mask = [1] * len(ids) + pad
        made.append({"input_ids": ids + pad, "attention_mask": mask, "labels": labels[part]})
    return made


def train(kind: type[Trainer], model, data, epochs: int, lr: float, seed: int) -> Trainer:
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder, num_train_epochs=epochs, learning_rate=lr, seed=seed, use_cpu=True,
            per_device_train_batch_size=50, per_device_eval_batch_size=500, save_strategy="no",
            logging_strategy="no", report_to="none", disable_tqdm=True,
        )  # fmt: skip
        trainer = kind(model, args, train_dataset=data)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return trainer


def error(trainer: Trainer, data) -> float:
    predicted = trainer.predict(data)
    return float((predicted.predictions.argmax(-1) != predicted.label_ids).mean())


def adapted(base: BertForSequenceClassification, seed: int):
    set_seed(seed)
    model = BertForSequenceClassification(BertConfig(**SHAPE, num_labels=len(KINDS)))
    model.bert.load_state_dict(base.bert.state_dict())
    return get_peft_model(model, LoraConfig("SEQ_CLS", r=4, target_modules="all-linear"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--covers", type=int, default=4)
    parser.add_argument("--noise", default="auto", help="separates the covers at the start")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--known", type=int, default=5000, help="sentences to train the model on")
    parser.add_argument("--sentences", type=int, default=200, help="to train adapters on")
    parser.add_argument("--epochs", type=int, default=10)
    given = parser.parse_args()
    torch.set_num_threads(1)  # the products are small
    logging.set_verbosity_error()
    # peft uses a name of transformers that is deprecated.
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")

    rows = sentences()
    rows = [rows[k] for k in np.random.default_rng(0).permutation(len(rows))]
    count = Counter(word for words, _ in rows for word in words)
    known = {word: 2 + index for index, (word, _) in enumerate(count.most_common(WORDS))}
    by_part = {part: index for index, part in enumerate(PARTS)}
    old = encoded(rows[: given.known], by_part, known)
    new = encoded(rows[given.known :], PARTS, known)

    set_seed(0)
    base = BertForSequenceClassification(BertConfig(**SHAPE, num_labels=len(PARTS)))
    train(Trainer, base, old, epochs=6, lr=2e-3, seed=0)
    print(f"a BERT of {base.num_parameters():,} parameters, trained on {len(old):,} sentences")

    errors: dict[str, list[float]] = {}
    lost = []
    for seed in range(given.seeds):
        order = np.random.default_rng(seed).permutation(len(new))
        learn = [new[k] for k in order[: given.sentences]]
        test = [new[k] for k in order[given.sentences :]]
        for name, times in (
            ("one adapter", 1),
            (f"one, {given.covers} times longer", given.covers),
        ):
            plain = train(Trainer, adapted(base, seed), learn, times * given.epochs, 5e-3, seed)
            errors.setdefault(name, []).append(error(plain, test))

        covered = mcover.lift(
            adapted(base, seed), given.covers, mcover.Uniform(), mcover.Directed(redraw_every=4),
            noise=given.noise, seed=seed,
        )  # fmt: skip
        trainer = train(CoverTrainer, covered, learn, given.epochs, 5e-3, seed)
        for name, trainer.how in (("mean of factors", "mean"), ("mean product", "product")):
            errors.setdefault(f"covers, {name}", []).append(error(trainer, test))
        lost.append(collapse_adapters(covered).error)

    print(f"adapters of rank 4, {len(learn)} sentences to learn from; error on {len(test):,}:")
    for name, values in errors.items():
        print(f"  {name:24} {mcover.statistics.mean(values)}")
    one, longer, _, covers = errors
    for name in (one, longer):
        gain = mcover.statistics.paired(errors[name], errors[covers]).difference
        print(f"gain of the {covers} over {name}: {gain}")
    print(f"relative error of the mean product at rank 4: {mcover.statistics.mean(lost)}")


if __name__ == "__main__":
    main()
