"""A tiny ViT on scikit-learn's digits: CoverTrainer against a plain Trainer, without a download.

python examples/hf_image.py
python examples/hf_image.py --seeds 10 --images 500 --routing messages
python examples/hf_image.py --output runs    # keep checkpoints, which from_pretrained reads
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from transformers import (
    PrinterCallback,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
    set_seed,
)
from transformers.utils import logging

import mcover
from mcover.hf import CoverTrainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--covers", type=int, default=4)
    parser.add_argument("--routing", default="directed", help="directed or messages")
    parser.add_argument("--noise", default="auto", help="separates the covers at the start")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--images", type=int, default=300, help="to train on")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--output", type=Path, help="folder of the checkpoints")
    given = parser.parse_args()
    torch.set_num_threads(1)  # the products are small
    logging.set_verbosity_error()

    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 1, 8, 8) / 8 - 1).astype(np.float32)
    rows = [{"pixel_values": x, "labels": int(y)} for x, y in zip(images, labels, strict=True)]
    config = ViTConfig(
        image_size=8, patch_size=2, num_channels=1, hidden_size=32, num_hidden_layers=1,
        num_attention_heads=4, intermediate_size=64, num_labels=10,
    )  # fmt: skip

    def measures(prediction):
        return {"error": float((prediction.predictions.argmax(-1) != prediction.label_ids).mean())}

    def run(kind: type[Trainer], model, seed: int, epochs: int, folder: Path) -> Trainer:
        order = np.random.default_rng(seed).permutation(len(rows))
        args = TrainingArguments(
            str(folder), num_train_epochs=epochs, learning_rate=5e-3, seed=seed, use_cpu=True,
            per_device_train_batch_size=25, per_device_eval_batch_size=500,
            lr_scheduler_type="cosine", save_strategy="no", logging_strategy="no",
            report_to="none", disable_tqdm=True,
        )  # fmt: skip
        trainer = kind(
            model, args, compute_metrics=measures,
            train_dataset=[rows[k] for k in order[: given.images]],
            eval_dataset=[rows[k] for k in order[given.images :]],
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        return trainer

    def fresh(seed: int) -> ViTForImageClassification:
        set_seed(seed)
        return ViTForImageClassification(config)

    errors: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.output or Path(temporary)
        for seed in range(given.seeds):
            for name, times in (("one", 1), (f"one, {given.covers} times longer", given.covers)):
                plain = run(Trainer, fresh(seed), seed, times * given.epochs, folder)
                errors.setdefault(name, []).append(plain.evaluate()["eval_error"])
            covered = mcover.lift(
                fresh(seed), given.covers, routing=given.routing, noise=given.noise, seed=seed
            )
            trainer = run(CoverTrainer, covered, seed, given.epochs, folder)
            trainer.evaluate_covers = True
            metrics = trainer.evaluate()  # of the collapse, and of each cover by itself
            errors.setdefault("covers, collapsed", []).append(metrics["eval_error"])
            errors.setdefault("covers, each by itself", []).append(metrics["eval_cover_error"])
        trainer.save_model(folder / "collapse")
        net = ViTForImageClassification.from_pretrained(folder / "collapse")

    print(f"{type(net).__name__} of {net.num_parameters():,} parameters, {given.images} images")
    for name, values in errors.items():
        print(f"  {name:24} test error {mcover.statistics.mean(values)}")
    one, longer, covers, *_ = errors
    for name in (one, longer):
        gain = mcover.statistics.paired(errors[name], errors[covers]).difference
        print(f"gain of the covers over {name}: {gain}")


if __name__ == "__main__":
    main()
