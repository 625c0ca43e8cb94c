"""Covers of LoRA adapters: the lifted parameters, and the collapse by products."""

from __future__ import annotations

import peft
import pytest
import torch
import transformers
from hf_models import arguments, assert_same, build, examples, frozen_copy, parameters, quiet
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors import safe_open
from torch import nn

import mcover
from mcover.hf import CoverTrainer, collapse_adapters

pytestmark = quiet


class Picture(nn.Module):
    """Two convolutions and a linear layer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3, padding=1)
        self.second = nn.Conv2d(6, 6, 1)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.second(self.first(x).relu()).relu().mean((2, 3)))


def filled(model: nn.Module) -> nn.Module:
    """B starts at zero; here adapters have learned something."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "lora_" in name:
                value.normal_(std=0.3)
    return model


def adapted(name: str, **options) -> PeftModel:
    given = {
        "bert": {"target_modules": ["query", "value"], "modules_to_save": ["classifier"]},
        "gpt2": {"target_modules": ["c_attn"], "fan_in_fan_out": True},
        "embedding": {"target_modules": ["word_embeddings"]},
        "picture": {"target_modules": ["first", "second", "head"]},
    }[name]
    base = {"embedding": "bert"}.get(name, name)
    model = Picture() if name == "picture" else build(base)
    return filled(
        get_peft_model(model, LoraConfig(**({"r": 2, "lora_alpha": 3} | given | options)))
    )


def lifted(model: PeftModel, covers: int = 3, **options) -> mcover.nn.Covered:
    options = {"noise": "80%", "routing": "directed"} | options
    return mcover.lift(
        model, covers, mcover.Uniform(), **{"routing": "messages", "seed": 0} | options
    )


def layers(model: nn.Module) -> dict[str, LoraLayer]:
    return {n: layer for n, layer in model.named_modules() if isinstance(layer, LoraLayer)}


def delta(model: nn.Module, name: str, adapter: str = "default") -> torch.Tensor:
    return layers(model)[name].get_delta_weight(adapter).detach().double()


def mean_delta(covered, name: str, adapter: str = "default") -> torch.Tensor:
    """The oracle: the mean over covers of the weight update that PEFT computes."""
    return torch.stack(
        [delta(covered.cover(k), name, adapter) for k in range(covered.covers)]
    ).mean(0)


def best_of_rank(matrix: torch.Tensor, rank: int) -> torch.Tensor:
    u, s, v = torch.linalg.svd(matrix.flatten(1), full_matrices=False)
    return (u[:, :rank] * s[:rank] @ v[:rank]).view(matrix.shape)


def relative(made: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((made - wanted).norm() / wanted.norm())


KINDS = {
    "bert": ("bert", {}),
    "rslora": ("bert", {"use_rslora": True}),
    "patterns": ("bert", {"rank_pattern": {"value": 3}, "alpha_pattern": {"query": 7}}),
    "bias": ("bert", {"lora_bias": True}),
    "Conv1D of GPT-2": ("gpt2", {}),
    "embedding": ("embedding", {}),
    "convolutions": ("picture", {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_collapse_is_the_best_of_its_rank_for_the_mean_product(kind):
    name, options = KINDS[kind]
    covered = lifted(adapted(name, **options))
    model, error, errors = collapse_adapters(covered)
    assert len(errors) == len(layers(model)) > 0
    lost = whole = 0.0
    for place, layer in layers(model).items():
        wanted = mean_delta(covered, place)
        rank = layer.r["default"]
        best = best_of_rank(wanted, rank)
        torch.testing.assert_close(delta(model, place), best, rtol=1e-4, atol=1e-5)
        assert errors[f"{place}.default"] == pytest.approx(relative(best, wanted), rel=1e-3)
        lost, whole = lost + (best - wanted).norm() ** 2, whole + wanted.norm() ** 2
        # The mean of the factors is another matrix of this rank, so it is no better.
        assert relative(best, wanted) < relative(delta(covered.collapse(), place), wanted)
    assert error == pytest.approx(float((lost / whole).sqrt()), rel=1e-3)
    assert 0.1 < error < 1
    # All but the adapters is the mean over covers, and shapes are the base's.
    mean = covered.collapse().state_dict()
    made = model.state_dict()
    assert made.keys() == mean.keys()
    rest = [key for key in made if "lora_" not in key or key.endswith("bias")]
    assert_same({key: made[key] for key in rest}, {key: mean[key] for key in rest})
    assert {key: made[key].shape for key in made} == {key: mean[key].shape for key in mean}


@pytest.mark.parametrize("kind", KINDS)
def test_full_rank_loses_nothing_and_merges(kind, tmp_path):
    name, options = KINDS[kind]
    base = adapted(name, **options)
    covered = lifted(base)
    rank = 3 * (3 if kind == "patterns" else 2)
    model, error, _ = collapse_adapters(covered, rank=rank)
    assert error < 1e-6
    wanted = {place: mean_delta(covered, place) for place in layers(model)}
    for place, own in wanted.items():
        torch.testing.assert_close(delta(model, place), own, rtol=1e-4, atol=1e-5)
    # A file of the new rank is read by PEFT, into the plain base.
    model.save_pretrained(tmp_path)
    plain = Picture() if name == "picture" else build("bert" if name != "gpt2" else "gpt2")
    plain.load_state_dict(base.unload().state_dict(), strict=False)
    again = PeftModel.from_pretrained(plain, tmp_path)
    for place, own in wanted.items():
        torch.testing.assert_close(delta(again, place), own, rtol=1e-4, atol=1e-5)
    assert again.peft_config["default"].r == rank
    # Merged, the weights are those of the base plus the mean product.
    before = {
        place: layers(model)[place].get_base_layer().weight.detach().clone() for place in wanted
    }
    merged = model.merge_and_unload()
    assert not layers(merged)
    for place, own in wanted.items():
        weight = merged.get_submodule(place.removeprefix("base_model.model.")).weight
        torch.testing.assert_close(weight.double(), before[place] + own, rtol=1e-4, atol=1e-5)


def test_it_is_what_peft_makes_of_m_adapters():
    """PEFT can also add adapters by SVD, if all are in one model; it reports no error.

    Before 0.21 it gives another multiple of the same matrix.
    """
    covered = lifted(adapted("bert", modules_to_save=None))
    one = covered.cover(0)
    for k in (1, 2):
        one.add_adapter(f"cover{k}", one.peft_config["default"])
        for place, layer in layers(one).items():
            source = layers(covered.cover(k))[place]
            layer.lora_A[f"cover{k}"].load_state_dict(source.lora_A["default"].state_dict())
            layer.lora_B[f"cover{k}"].load_state_dict(source.lora_B["default"].state_dict())
    names = ["default", "cover1", "cover2"]
    one.add_weighted_adapter(names, [1 / 3] * 3, "merged", combination_type="svd", svd_rank=2)
    model = collapse_adapters(covered).model
    for place in layers(model):
        theirs, ours = delta(one, place, "merged"), delta(model, place)
        torch.testing.assert_close(theirs / theirs.norm(), ours / ours.norm(), rtol=1e-3, atol=1e-5)


def test_equal_covers_lose_nothing_and_untrained_ones_can_still_learn():
    covered = lifted(adapted("bert"), noise=0.0)
    model, error, _ = collapse_adapters(covered)
    assert error < 1e-7
    for place in layers(model):
        torch.testing.assert_close(delta(model, place), mean_delta(covered, place))
    with torch.no_grad():
        for name, stack in covered.stacks().items():
            if "lora_B" in name:
                stack.zero_()
    model, error, errors = collapse_adapters(covered)
    assert error == 0.0
    assert set(errors.values()) == {0.0}
    ids = torch.ones(2, 6, dtype=torch.long)
    model(input_ids=ids, labels=torch.tensor([0, 1])).loss.backward()
    assert all(
        layer.lora_B["default"].weight.grad.abs().sum() > 0 for layer in layers(model).values()
    )


def test_several_adapters_and_shared_factors():
    model = adapted("bert")
    model.add_adapter("other", LoraConfig(r=3, target_modules=["query"]))
    filled(model)
    covered = lifted(model)  # "default" is active and trains; "other" is shared
    made, _, errors = collapse_adapters(covered, rank=4)
    assert all(name.endswith(".default") for name in errors)
    assert (made.peft_config["default"].r, made.peft_config["other"].r) == (4, 3)
    place = next(place for place in layers(made) if place.endswith("query"))
    torch.testing.assert_close(delta(made, place, "other"), delta(model, place, "other"))

    # With A shared, the mean product is the product of means: nothing is lost.
    covered = lifted(adapted("bert"), select=["*.lora_B*"])
    made, error, _ = collapse_adapters(covered)
    assert error < 1e-7
    for place in layers(made):
        torch.testing.assert_close(
            delta(made, place), delta(covered.collapse(), place), atol=1e-6, rtol=1e-4
        )


def test_the_covered_model_is_left_alone():
    covered = lifted(adapted("bert"))
    before = {key: value.clone() for key, value in covered.state_dict().items()}
    config = covered.net.peft_config["default"].to_dict()
    collapse_adapters(covered, rank=5)
    assert_same(covered.state_dict(), before)
    assert covered.net.peft_config["default"].to_dict() == config
    assert {layer.r["default"] for layer in layers(covered.cover(1)).values()} == {2}


def ada_lora():
    ada = peft.AdaLoraConfig(init_r=2, target_modules=["query"], total_step=10)
    return lifted(get_peft_model(build("bert"), ada), 2)


REFUSED = [
    (lambda: mcover.lift(build("bert"), 2, routing="messages"), "no LoRA adapter is lifted"),
    (lambda: lifted(adapted("bert", use_dora=True), 2), r"DoraLinearVariant.*covered\.collapse"),
    (ada_lora, r"AdaLoRA.*covered\.collapse"),
    (lambda: adapted("bert"), r"mcover\.lift"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_is_no_product_is_refused(make, message):
    with pytest.raises(mcover.McoverError, match=message):
        collapse_adapters(make())


@pytest.mark.parametrize("how", ["mean", "product"])
@pytest.mark.parametrize("routing", ["directed", "messages"])
def test_a_trainer_of_adapters(how, routing, tmp_path):
    model, data = adapted("bert"), examples("bert")
    base = frozen_copy(model)

    def given(folder):
        return arguments(folder, max_steps=4, save_strategy="steps", save_steps=2)

    def fresh(seed: int) -> mcover.nn.Covered:
        return mcover.lift(model, 3, mcover.Uniform(), routing, seed=seed)

    covered = fresh(0)
    assert all("lora_" in name or "classifier" in name for name in covered.lifted)
    assert {layer.r["default"] for layer in layers(covered.net).values()} == {2}
    trainer = CoverTrainer(
        covered, given(tmp_path / "whole"), train_dataset=data, eval_dataset=data, how=how
    )
    trainer.train()
    assert_same(frozen_copy(covered.net), base)
    metrics = trainer.evaluate()
    assert trainer.predict(data).predictions.shape == (10, 3)
    if how == "product":
        assert metrics["eval_product_error"] == collapse_adapters(covered).error > 0

    checkpoint = tmp_path / "whole" / "checkpoint-4"
    again = PeftModel.from_pretrained(build("bert"), checkpoint)
    assert_same(parameters(again), parameters(trainer.collapse()))
    again = transformers.Trainer(again, given(tmp_path / "again"), eval_dataset=data)
    assert again.evaluate()["eval_loss"] == pytest.approx(metrics["eval_loss"], rel=1e-6)

    # Neither file has the frozen model in it.
    with safe_open(checkpoint / "covers.safetensors", "pt") as file:
        held = [name for name in file.keys() if name not in ("_extra_state",)]  # noqa: SIM118
    trained = {f"net.{name}" for name, p in covered.net.named_parameters() if p.requires_grad}
    buffers = {f"net.{name}" for name, _ in covered.net.named_buffers()}
    assert set(held) <= trained | buffers
    assert trained <= set(held)

    resumed = CoverTrainer(fresh(5), given(tmp_path / "resumed"), train_dataset=data, how=how)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert_same(resumed.model.state_dict(), covered.state_dict())

    loaded = mcover.nn.load(checkpoint / "covers", model)
    assert_same(loaded.state_dict(), covered.state_dict())


def test_covers_of_adapters_that_never_meet_are_plain_adapters(tmp_path):
    models = [adapted("bert") for _ in range(2)]
    covered = mcover.lift(models[0], models, mcover.Identity(), "messages", seed=0)
    given = arguments(tmp_path, save_strategy="no", gradient_accumulation_steps=2)
    CoverTrainer(covered, given, train_dataset=examples("bert")).train()
    for index, model in enumerate(models):
        transformers.Trainer(model, given, train_dataset=examples("bert")).train()
        assert_same(parameters(covered.cover(index)), parameters(model), tolerance=2e-4)


def test_fewer_bytes_without_the_frozen_model(tmp_path):
    covered = lifted(adapted("bert"))
    whole = covered.save(tmp_path / "whole").stat().st_size
    part = covered.save(tmp_path / "part", frozen_too=False).stat().st_size
    frozen = sum(value.nbytes for value in frozen_copy(covered.net).values())
    assert whole - part > frozen
    # The whole file brings the frozen model too, into any model of its architecture.
    other = adapted("bert")
    with torch.no_grad():
        for value in other.parameters():
            value.zero_()
    assert_same(mcover.nn.load(tmp_path / "whole", other).state_dict(), covered.state_dict())
    kept = frozen_copy(mcover.nn.load(tmp_path / "part", other).net)
    assert not any(value.any() for value in kept.values())
