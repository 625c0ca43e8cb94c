"""Hugging Face's Trainer and accelerate with covered models.

The oracle is Trainer itself: covers without routes (``Identity``) must give the results of M plain
trainers, for every model, loss, clipping, precision and accumulation.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from accelerate import Accelerator
from hf_models import (
    MODELS,
    SHAPES,
    arguments,
    assert_same,
    build,
    copies,
    examples,
    parameters,
    quiet,
)
from safetensors.torch import load_file
from torch.nn import functional as F  # noqa: N812

import mcover
from mcover.hf import CoverSeq2SeqTrainer, CoverTrainer

pytestmark = quiet
ROUTINGS = {
    "messages": mcover.Messages(blocks=2, draws=3),
    "directed": mcover.Directed(bank=3, redraw_every=2),
}


def lifted(name: str, covers: int = 3, routing="messages", **options) -> mcover.nn.Covered:
    how = ROUTINGS.get(routing, routing)
    return mcover.lift(build(name), covers, mcover.Uniform(), how, seed=1, **options)


def accuracy(prediction) -> dict[str, float]:
    logits = prediction.predictions
    logits = logits[0] if isinstance(logits, tuple) else logits
    hits = logits.argmax(-1) == prediction.label_ids
    return {"accuracy": float(hits.mean())}


def row(covered, index: int) -> dict[str, torch.Tensor]:
    return parameters(covered.cover(index))


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("name", MODELS)
def test_trains_evaluates_and_saves_the_base_model(name, routing, tmp_path):
    covered = lifted(name, routing=routing)
    before = {key: stack.detach().clone() for key, stack in covered.stacks().items()}
    trainer = CoverTrainer(
        covered,
        arguments(tmp_path, save_strategy="steps", save_steps=3, logging_strategy="steps",
                  logging_steps=1),
        train_dataset=examples(name), eval_dataset=examples(name), compute_metrics=accuracy,
    )  # fmt: skip
    result = trainer.train()
    assert trainer.model is covered
    assert covered.steps == 3
    assert all(not torch.equal(before[key], stack) for key, stack in covered.stacks().items())
    # A fresh model of 40 words or 3 classes: the loss of one model, and not the sum of three.
    assert result.training_loss < 1.3 * np.log(40 if name in ("gpt2", "t5") else 3) + 1
    metrics = trainer.evaluate()
    assert {"eval_loss", "eval_accuracy"} <= metrics.keys()
    predicted = trainer.predict(examples(name)).predictions
    predicted = predicted[0] if name == "t5" else predicted
    assert predicted.shape == SHAPES[name]

    checkpoint = tmp_path / "checkpoint-3"
    collapse = trainer.collapse()
    again = type(collapse).from_pretrained(checkpoint)
    assert type(again) is type(build(name))
    assert_same(parameters(again), parameters(collapse))
    back = mcover.nn.load(checkpoint / "covers", build(name, seed=9))
    assert_same(back.state_dict(), covered.state_dict())
    assert back.settings == covered.settings

    # What was evaluated is that model, as a plain Trainer has it.
    plain = transformers.Trainer(again, arguments(tmp_path), eval_dataset=examples(name))
    assert plain.evaluate()["eval_loss"] == pytest.approx(metrics["eval_loss"], rel=1e-6)


OPTIONS = {
    "accumulated, the last time less": {"gradient_accumulation_steps": 3, "num_train_epochs": 2,
                                        "max_steps": -1},
    "clipped, decayed": {"max_grad_norm": 0.01, "weight_decay": 0.3, "lr_scheduler_type": "cosine"},
    "not clipped, smoothed labels": {"max_grad_norm": 0.0, "label_smoothing_factor": 0.2,
                                     "gradient_accumulation_steps": 2, "max_steps": 2},
}  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", MODELS)
def test_covers_that_never_meet_are_plain_trainers(name, options, tmp_path):
    given = arguments(tmp_path, logging_strategy="steps", logging_steps=1, **OPTIONS[options])
    covered = mcover.lift(build(name), copies(name, 2), mcover.Identity(), "messages", seed=0)
    trainer = CoverTrainer(covered, given, train_dataset=examples(name))
    trainer.train()
    logged = []
    for index, model in enumerate(copies(name, 2)):
        plain = transformers.Trainer(model, given, train_dataset=examples(name))
        plain.train()
        # Adam divides by gradients near zero, so that rounding shows.
        assert_same(row(covered, index), parameters(model), tolerance=2e-4)
        logged.append([[e["loss"], e["grad_norm"]] for e in plain.state.log_history if "loss" in e])
    seen = [[e["loss"], e["grad_norm"]] for e in trainer.state.log_history if "loss" in e]
    np.testing.assert_allclose(seen, np.mean(logged, 0), rtol=1e-3)


def test_bfloat16_is_that_of_plain_trainers(tmp_path):
    given = arguments(tmp_path, bf16=True)
    covered = mcover.lift(build("bert"), copies("bert", 2), mcover.Identity(), "messages", seed=0)
    data = examples("bert")
    trainer = CoverTrainer(covered, given, train_dataset=data, eval_dataset=data)
    trainer.train()
    seen = []
    covered.net.classifier.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    covered(input_ids=torch.ones(1, 6, dtype=torch.long))
    assert {value.dtype for value in seen} == {torch.bfloat16}
    assert {stack.dtype for stack in covered.stacks().values()} == {torch.float32}
    for index, model in enumerate(copies("bert", 2)):
        plain = transformers.Trainer(model, given, train_dataset=data)
        plain.train()
        assert_same(row(covered, index), parameters(model), tolerance=2e-4)
    # The collapse is evaluated in the same precision.
    plain = transformers.Trainer(trainer.collapse(), given, eval_dataset=data)
    assert trainer.evaluate()["eval_loss"] == plain.evaluate()["eval_loss"]
    exact = transformers.Trainer(trainer.collapse(), arguments(tmp_path), eval_dataset=data)
    assert trainer.evaluate()["eval_loss"] != exact.evaluate()["eval_loss"]


@pytest.mark.parametrize("routing", ROUTINGS)
def test_accumulated_steps_are_a_plain_loop(routing, tmp_path):
    """GPT-2's loss is over all words of the accumulated batches; rows differ in their number."""
    covered, other = lifted("gpt2", routing=routing), lifted("gpt2", routing=routing)
    options = {"optim": "sgd", "learning_rate": 0.5, "lr_scheduler_type": "constant",
               "max_grad_norm": 0.5, "gradient_accumulation_steps": 2}  # fmt: skip
    trainer = CoverTrainer(
        covered, arguments(tmp_path, **options), train_dataset=examples("gpt2", 12)
    )
    batches = list(trainer.get_train_dataloader())
    assert "source" not in batches[0]  # a column that the base does not take
    assert trainer.label_names == ["labels"]
    trainer.train()

    optimizer = torch.optim.SGD(other.parameters(), lr=0.5)
    for step in range(3):
        pair = batches[2 * step : 2 * step + 2]
        count = sum((batch["labels"][:, 1:] != -100).sum() for batch in pair)
        for batch in pair:
            outputs = other(batch["input_ids"], attention_mask=batch["attention_mask"])

            def words(logits, labels, count=count):
                flat = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
                return F.cross_entropy(*flat, reduction="sum") / count

            mcover.cover_loss(words, outputs.logits, batch["labels"]).backward()
        other.clip_grad_norm_(0.5)
        optimizer.step()
        optimizer.zero_grad()
    assert_same(parameters(covered), parameters(other), tolerance=1e-5)


def words_of_our_own(outputs, labels, num_items_in_batch=None):
    flat = outputs["logits"][:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return F.cross_entropy(*flat, reduction="sum") / num_items_in_batch


def with_tuples() -> mcover.nn.Covered:
    model = build("bert")
    model.config.return_dict = False
    return mcover.lift(model, 3, mcover.Uniform(), ROUTINGS["messages"], seed=1)


STREAMS = mcover.Messages(blocks=2, streams=2)
ALIKE = {
    "a loss of one's own": ("gpt2", {}, {"compute_loss_func": words_of_our_own}),
    "the same over streams": (
        "gpt2",
        {"routing": STREAMS},
        {"compute_loss_func": words_of_our_own},
    ),
    "outputs that are tuples": ("bert", {}, {"model": with_tuples}),
    "a function that makes the model": ("bert", {}, {"model_init": lambda: lifted("bert")}),
}


@pytest.mark.parametrize("what", ALIKE)
def test_what_is_said_in_another_way_ends_where_the_default_ends(what, tmp_path):
    name, options, other = ALIKE[what]
    given = arguments(tmp_path, optim="sgd", gradient_accumulation_steps=2)
    ends = []
    for more in ({}, other):
        model = (
            None if "model_init" in more else more.get("model", lambda: lifted(name, **options))()
        )
        rest = {key: value for key, value in more.items() if key != "model"}
        trainer = CoverTrainer(model, given, train_dataset=examples(name), **rest)
        trainer.train()
        ends.append(parameters(trainer.model))
        assert trainer.predict(examples(name)).predictions.shape == SHAPES[name]
    assert_same(*ends, tolerance=1e-6)


def dropping(seed: int) -> mcover.nn.Covered:
    torch.manual_seed(7)
    model = MODELS["bert"](dropout=0.2)
    return mcover.lift(model, 3, mcover.Uniform(), ROUTINGS["directed"], seed=seed)


def test_resumed_training_is_bitwise_that_without_a_break(tmp_path):
    options = {"save_strategy": "steps", "save_steps": 3, "max_steps": 7, "logging_steps": 1,
               "logging_strategy": "steps", "gradient_accumulation_steps": 2}  # fmt: skip
    whole = CoverTrainer(
        dropping(0), arguments(tmp_path / "whole", **options), train_dataset=examples("bert")
    )
    whole.train()
    # Another seed, and so other covers and routes: all of that is in the checkpoint.
    resumed = CoverTrainer(
        dropping(1), arguments(tmp_path / "resumed", **options), train_dataset=examples("bert")
    )
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert_same(resumed.model.state_dict(), whole.model.state_dict())
    assert resumed.model.steps == whole.model.steps == 12
    assert resumed.model.redraws == whole.model.redraws > 0
    losses = [[e["loss"] for e in t.state.log_history if "loss" in e] for t in (whole, resumed)]
    assert losses[0] == losses[1]
    assert_same(
        resumed.optimizer.state_dict()["state"][0], whole.optimizer.state_dict()["state"][0]
    )


@pytest.mark.parametrize(
    ("covers", "topology", "checkpoint", "message"),
    [
        (2, mcover.Uniform(), "checkpoint-1", r"3 covers.* 2"),
        (3, mcover.GaussianRing(1.0), "checkpoint-1", "other settings"),
        (3, mcover.Uniform(), "nowhere", r"covers\.safetensors"),
    ],
)
def test_checkpoints_of_other_covers_are_refused(covers, topology, checkpoint, message, tmp_path):
    given = arguments(tmp_path, save_strategy="steps", save_steps=1, max_steps=1)
    CoverTrainer(dropping(0), given, train_dataset=examples("bert")).train()
    other = mcover.lift(build("bert"), covers, topology, ROUTINGS["directed"], seed=0)
    trainer = CoverTrainer(other, arguments(tmp_path / "other"), train_dataset=examples("bert"))
    with pytest.raises(mcover.McoverError, match=message):
        trainer.train(resume_from_checkpoint=str(tmp_path / checkpoint))


def test_a_frozen_trunk_comes_back_from_a_checkpoint(tmp_path):
    def fresh(seed: int) -> mcover.nn.Covered:
        model = build("bert", seed)
        model.bert.requires_grad_(False)
        return mcover.lift(model, 2, mcover.Uniform(), "messages", seed=seed)

    options = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    trained = fresh(0)
    before = parameters(trained.net.bert)
    CoverTrainer(trained, arguments(tmp_path, **options), train_dataset=examples("bert")).train()
    assert_same(parameters(trained.net.bert), before)
    resumed = CoverTrainer(
        fresh(1), arguments(tmp_path / "other", **options), train_dataset=examples("bert")
    )
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert_same(resumed.model.state_dict(), trained.state_dict())


def test_the_best_covers_are_there_at_the_end(tmp_path):
    scores = iter([0.1, 0.9, 0.5, 0.5])
    trainer = CoverTrainer(
        lifted("bert"),
        arguments(tmp_path, eval_strategy="steps", eval_steps=1, save_strategy="steps",
                  save_steps=1, load_best_model_at_end=True, metric_for_best_model="score"),
        train_dataset=examples("bert"), eval_dataset=examples("bert"),
        compute_metrics=lambda prediction: {"score": next(scores)},
    )  # fmt: skip
    trainer.train()
    assert Path(trainer.state.best_model_checkpoint).name == "checkpoint-2"
    best = mcover.nn.load(tmp_path / "checkpoint-2" / "covers", build("bert"))
    assert_same(trainer.model.state_dict(), best.state_dict())
    assert trainer.model.steps == 2
    trainer.save_model(tmp_path / "final")
    final = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "final")
    assert_same(parameters(final), parameters(best.collapse()))


def test_covers_are_evaluated_beside_the_collapse(tmp_path):
    covered = lifted("bert", noise=0.3)
    data = examples("bert")
    trainer = CoverTrainer(
        covered, arguments(tmp_path), eval_dataset=data, compute_metrics=accuracy,
        evaluate_covers=True,
    )  # fmt: skip
    metrics = trainer.evaluate()
    each = [
        transformers.Trainer(
            covered.cover(k), arguments(tmp_path), eval_dataset=data, compute_metrics=accuracy
        ).evaluate()
        for k in range(3)
    ]
    for key in ("loss", "accuracy"):
        mean = np.mean([e[f"eval_{key}"] for e in each])
        assert metrics[f"eval_cover_{key}"] == pytest.approx(mean, rel=1e-6)
    assert metrics["eval_cover_loss"] != metrics["eval_loss"]
    assert trainer.predict(data).predictions.shape == (10, 3)
    assert json.dumps(metrics)


def test_a_seq2seq_trainer_generates_with_the_collapse(tmp_path):
    covered = lifted("t5")
    given = arguments(
        tmp_path, transformers.Seq2SeqTrainingArguments, predict_with_generate=True,
        generation_max_length=5,
    )  # fmt: skip
    trainer = CoverSeq2SeqTrainer(
        covered, given, train_dataset=examples("t5"), eval_dataset=examples("t5")
    )
    trainer.train()
    predicted = trainer.predict(examples("t5")).predictions
    plain = transformers.Seq2SeqTrainer(covered.collapse(), given)
    np.testing.assert_array_equal(predicted, plain.predict(examples("t5")).predictions)
    assert predicted.shape[0] == 10
    assert predicted.dtype == np.int64


def test_plain_modules_are_saved_as_trainer_saves_them(tmp_path):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(64, 3)

        def forward(self, pixel_values, labels=None):
            logits = self.layer(pixel_values.flatten(1))
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    covered = mcover.lift(Net(), 2, mcover.Uniform(), "messages", seed=0)
    given = arguments(tmp_path, save_strategy="steps", save_steps=3, max_steps=3)
    trainer = CoverTrainer(covered, given, train_dataset=examples("vit"))
    trainer.train()
    assert trainer.predict(examples("vit")).predictions.shape == (10, 3)
    saved = load_file(tmp_path / "checkpoint-3" / "model.safetensors")
    assert_same(saved, covered.collapse().state_dict())


# transformers 5.23 renamed the option.
_FIELDS = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
_NAMES = ("activation_checkpointing", "gradient_checkpointing")
CHECKPOINTING = next(name for name in _NAMES if name in _FIELDS)


def unlabelled(rows):
    return [{k: v for k, v in row.items() if k != "labels"} for row in rows]


def bert(**more):
    return lambda: {"model": lifted("bert")} | more


REFUSED = {
    "no covers": (lambda: {"model": build("bert")}, {}, r"mcover\.lift\(model"),
    "a function of no covers": (lambda: {"model_init": lambda: build("bert")}, {}, r"mcover\.lift"),
    "checkpointing": (bert(), {CHECKPOINTING: True}, r"before mcover\.lift"),
    "NEFTune": (bert(), {"neftune_noise_alpha": 5.0}, "NEFTune"),
    "no labels": (bert(train_dataset=unlabelled(examples("bert"))), {}, "labels"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_is_refused_with_the_remedy(what, tmp_path):
    given, options, message = REFUSED[what]
    with pytest.raises(mcover.McoverError, match=message):
        CoverTrainer(args=arguments(tmp_path, **options), **given()).train()


@pytest.mark.parametrize("by_cover", [False, True])
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate_by_hand(precision, by_cover, tmp_path):
    """The loop of accelerate's introduction, with a covered model and both losses."""
    covered, other = lifted("bert", routing="directed"), lifted("bert", routing="directed")
    collate = transformers.default_data_collator
    rows = [{k: v for k, v in one.items() if k != "source"} for one in examples("bert", 12)]
    loader = torch.utils.data.DataLoader(rows, batch_size=2, collate_fn=collate)
    accelerator = Accelerator(cpu=True, mixed_precision=precision, gradient_accumulation_steps=2)
    optimizer = torch.optim.SGD(covered.parameters(), lr=0.5)
    model, optimizer, batches = accelerator.prepare(covered, optimizer, loader)
    for batch in batches:
        with accelerator.accumulate(model):
            if by_cover:
                loss = covered.loss(None, batch, through=model)
            else:
                loss = mcover.cover_loss(model(**batch))
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.unwrap_model(model).clip_grad_norm_(0.5)
            optimizer.step()
            optimizer.zero_grad()

    plain = torch.optim.SGD(other.parameters(), lr=0.5)
    for index, batch in enumerate(loader):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = mcover.cover_loss(other(**batch))
        (loss / 2).backward()
        if index % 2:
            other.clip_grad_norm_(0.5)
            plain.step()
            plain.zero_grad()
    assert_same(parameters(covered), parameters(other), tolerance=1e-6)
    assert covered.steps == other.steps == 6

    accelerator.save_state(tmp_path / "state")
    end = {key: value.clone() for key, value in covered.state_dict().items()}
    mcover.cover_loss(model(**batch)).backward()
    optimizer.step()
    assert covered.steps == 7
    accelerator.load_state(tmp_path / "state")
    assert_same(covered.state_dict(), end)
    unwrapped = accelerator.unwrap_model(model, keep_fp32_wrapper=False)
    assert unwrapped(**batch).logits.dtype == torch.float32
    unwrapped.collapse().save_pretrained(tmp_path / "model")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    assert_same(parameters(again), parameters(covered.collapse()))


class Scaled(torch.nn.Module):
    """A custom model: the root holds lifted parameters, one of them a scalar."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.out = torch.nn.Parameter(torch.ones(4, 3))
        self.logit_scale = torch.nn.Parameter(torch.tensor(1.0))

    def forward(self, x, labels=None):
        logits = self.inner(x) @ self.out * self.logit_scale
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.parametrize("routing", ROUTINGS)
def test_parameters_of_the_root_and_scalars_are_trained_with_default_arguments(routing, tmp_path):
    rows = [{"x": [float(k == i) for k in range(4)], "labels": i % 3} for i in range(4)] * 2
    base = Scaled()
    covered = mcover.lift(base, 3, mcover.Uniform(), ROUTINGS[routing], seed=0)
    before = covered.net.logit_scale.detach().clone()
    trainer = CoverTrainer(covered, arguments(tmp_path, max_steps=2), train_dataset=rows)
    plain = transformers.Trainer(base, arguments(tmp_path), train_dataset=rows)
    assert trainer.model_accepts_loss_kwargs == plain.model_accepts_loss_kwargs
    trainer._set_signature_columns_if_needed()
    plain._set_signature_columns_if_needed()
    assert trainer._signature_columns == plain._signature_columns
    trainer.train()
    assert not torch.equal(covered.net.logit_scale, before)


def test_the_plain_trainer_names_the_one_for_covers(tmp_path):
    covered, data = lifted("bert", routing="directed"), examples("bert")
    plain = transformers.Trainer(covered, arguments(tmp_path), train_dataset=data)
    for use in (plain.train, lambda: plain.evaluate(data), lambda: plain.predict(data)):
        with pytest.raises(mcover.McoverError, match=r"Trainer takes one loss.*CoverTrainer"):
            use()

    class Own(transformers.Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            return mcover.cover_loss(model(**inputs))

    Own(covered, arguments(tmp_path), train_dataset=data).train()
    assert covered.steps == 3
    with pytest.raises(mcover.McoverError, match=r"Trainer takes one loss.*CoverTrainer"):
        plain.evaluate(data)  # also after steps
