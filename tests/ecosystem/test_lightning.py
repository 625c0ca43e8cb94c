"""Covers in Lightning: the collapse in validation, tests and predictions; checkpoints; Fabric."""

import lightning
import pytest
import pytorch_lightning
import torch
import torch.nn.functional as F  # noqa: N812
import torchmetrics
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mcover
from covering import assert_equal
from mcover.errors import McoverError, McoverWarning
from mcover.lightning import CollapseCallback, collapsed
from mcover.nn import Covered

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*dataloader.*num_workers"),
    pytest.mark.filterwarnings("ignore:.*litlogger"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
]

ROUTINGS = {
    "messages": mcover.Messages(redraw_every=3),
    "directed": mcover.Directed(destinations=2, redraw_every=3),
}


def network():
    layers = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)
    return nn.Sequential(*layers)


def loader(seed=0, size=48):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 8, generator=generator)
    teacher = torch.linspace(-1, 1, 24).view(8, 3).sin()
    return DataLoader(TensorDataset(x, (x @ teacher).argmax(1)), batch_size=16)


def classifier(framework=lightning, routing="messages"):
    class Classifier(framework.LightningModule):
        def __init__(self):
            super().__init__()
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                net = network()
            self.net = mcover.lift(net, 3, mcover.Uniform(), ROUTINGS[routing], seed=0)
            self.accuracy = torchmetrics.classification.MulticlassAccuracy(3, average="micro")

        def training_step(self, batch, index):
            x, y = batch
            return mcover.cover_loss(F.cross_entropy, self.net(x), y)

        def validation_step(self, batch, index, dataloader_idx=0):
            x, y = batch
            logits = self.net(x)
            assert not self.net.training
            self.log("loss", F.cross_entropy(logits, y) if logits.ndim == 2 else logits.mean())
            self.accuracy.update(logits.flatten(0, -2), y.repeat(logits[..., 0].numel() // len(y)))
            self.log("accuracy", self.accuracy)

        def test_step(self, batch):
            self.log("test_loss", F.cross_entropy(self.net(batch[0]), batch[1]))

        def predict_step(self, batch):
            return self.net(batch[0])

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.net.parameter_groups(lr=1e-2, weight_decay=0.1))
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]

    return Classifier()


def trainer(folder, *callbacks, framework=lightning, **options):
    options = {"max_epochs": 2, "logger": False, "enable_checkpointing": False} | options
    return framework.Trainer(
        accelerator="cpu",
        callbacks=list(callbacks),
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


@torch.no_grad()
def scores(net, given):
    """Loss and accuracy over a loader of batches of one size."""
    pairs = [(net(x), y) for x, y in given]
    losses = [F.cross_entropy(out, y) for out, y in pairs]
    right = [(out.argmax(1) == y).float().mean() for out, y in pairs]
    return torch.stack(losses).mean().item(), torch.stack(right).mean().item()


@pytest.mark.parametrize("framework", [lightning, pytorch_lightning])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_collapse_is_validated_and_training_is_as_without_the_callback(
    framework, routing, tmp_path
):
    made = {}
    for name, callbacks in {"with": [CollapseCallback()], "without": []}.items():
        module, run = (
            classifier(framework, routing),
            trainer(tmp_path, *callbacks, framework=framework),
        )
        run.fit(module, loader(), loader(1))
        run.save_checkpoint(tmp_path / f"{name}.ckpt")
        made[name] = module, run, torch.load(tmp_path / f"{name}.ckpt", weights_only=True)
    module, run, ours = made["with"]
    alone, _, theirs = made["without"]
    loss, accuracy = scores(module.net.collapse(), loader(1))
    assert run.callback_metrics["loss"].item() == pytest.approx(loss, rel=1e-6)
    assert run.callback_metrics["accuracy"].item() == pytest.approx(accuracy)
    assert_equal(module.state_dict(), alone.state_dict())
    assert ours.keys() == theirs.keys()
    assert ours["callbacks"] == theirs["callbacks"]
    assert ours["state_dict"].keys() == module.state_dict().keys()


def test_tests_predictions_and_several_loaders_use_the_collapse(tmp_path):
    module, run = classifier(), trainer(tmp_path, CollapseCallback())
    net = module.net.collapse()
    found = run.validate(module, [loader(1), loader(2)], verbose=False)
    for index, seed in enumerate((1, 2)):
        logged = found[index][f"loss/dataloader_idx_{index}"]
        assert logged == pytest.approx(scores(net, loader(seed))[0], rel=1e-6)
    (tested,) = run.test(module, loader(3), verbose=False)
    assert tested["test_loss"] == pytest.approx(scores(net, loader(3))[0], rel=1e-6)
    predicted = run.predict(module, loader(3))
    for batch, (x, _) in zip(predicted, loader(3), strict=True):
        torch.testing.assert_close(batch, net(x))
    assert isinstance(module.net, mcover.nn.Covered)


@pytest.mark.filterwarnings("ignore:.*when using `ckpt_path`, callbacks")
@pytest.mark.parametrize("routing", ROUTINGS)
def test_interrupted_and_resumed_is_as_never_interrupted(routing, tmp_path):
    whole = classifier(routing=routing)
    trainer(tmp_path, CollapseCallback(), max_epochs=4).fit(whole, loader(), loader(1))

    class PowerCut(lightning.Callback):
        def on_validation_batch_end(self, trainer, *_):
            if trainer.global_step == 9:  # in the third validation of four
                raise RuntimeError("power cut")

    class SaveAtException(Checkpoint):
        def on_exception(self, trainer, *_):
            trainer.save_checkpoint(tmp_path / "crash.ckpt")

    keep = ModelCheckpoint(tmp_path, "{epoch}", monitor="accuracy", mode="max", save_top_k=-1)
    cut = classifier(routing=routing)
    run = trainer(
        tmp_path, PowerCut(), CollapseCallback(), keep, SaveAtException(), max_epochs=4,
        enable_checkpointing=True,
    )  # fmt: skip
    with pytest.raises(RuntimeError, match="power cut"):
        run.fit(cut, loader(), loader(1))
    assert isinstance(cut.net, mcover.nn.Covered)  # the exception left the module as it was
    saved = torch.load(tmp_path / "crash.ckpt", weights_only=True)
    assert saved["state_dict"].keys() == cut.state_dict().keys()

    resumed = classifier(routing=routing)
    run = trainer(tmp_path, CollapseCallback(), max_epochs=4)
    run.fit(resumed, loader(), loader(1), ckpt_path=tmp_path / "epoch=1.ckpt", weights_only=True)
    assert_equal(resumed.state_dict(), whole.state_dict())


def test_other_callbacks_monitor_the_collapse(tmp_path):
    seen = []

    class Listening(lightning.Callback):
        def on_validation_end(self, trainer, pl_module):
            if not trainer.sanity_checking:
                seen.append(scores(pl_module.net.collapse(), loader(1))[0])

    keep = ModelCheckpoint(tmp_path, monitor="loss", filename="best")
    module = classifier()
    trainer(
        tmp_path, CollapseCallback(), Listening(), keep, max_epochs=3, enable_checkpointing=True
    ).fit(module, loader(), loader(1))
    assert keep.best_model_score.item() == pytest.approx(min(seen), rel=1e-6)
    best = type(module).load_from_checkpoint(keep.best_model_path, weights_only=True)
    assert scores(best.net.collapse(), loader(1))[0] == pytest.approx(min(seen), rel=1e-6)


def recomputed(covered):
    return covered.collapse(loader=[x for x, _ in loader()])


def test_mixed_precision(tmp_path):
    module = classifier()
    run, held_out = trainer(tmp_path, CollapseCallback(), precision="bf16-mixed"), loader(1)
    run.fit(module, loader(), held_out)
    logged = run.callback_metrics["loss"]
    assert abs(logged - scores(module.net.collapse(), held_out)[0]) > 1e-6
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = scores(module.net.collapse(), held_out)
    assert logged.item() == pytest.approx(loss, rel=1e-6)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # of the tracer's
@pytest.mark.parametrize("what", ["recomputed", "compiled"])
def test_recomputed_statistics_and_compiled_modules(what, tmp_path):
    collapse = recomputed if what == "recomputed" else Covered.collapse
    module, run = classifier(), trainer(tmp_path, CollapseCallback(collapse))
    whole = module if what == "recomputed" else torch.compile(module, backend="eager")
    run.fit(whole, loader(), loader(1))
    logged = run.callback_metrics["loss"].item()
    assert logged == pytest.approx(scores(collapse(module.net), loader(1))[0], rel=1e-6)
    if what == "recomputed":
        assert abs(logged - scores(module.net.collapse(), loader(1))[0]) > 1e-4


def test_the_context_manager_replaces_every_name_and_restores_after_an_exception():
    covered = mcover.lift(nn.Linear(8, 3), 2, mcover.Uniform(), "messages", seed=0)
    model = nn.ModuleDict({"one": nn.Sequential(covered), "same": covered, "rest": nn.ReLU()})
    with collapsed(model):
        assert type(model["same"]) is nn.Linear
        assert model["one"][0] is model["same"]
    assert model["one"][0] is model["same"] is covered
    with pytest.raises(RuntimeError), collapsed(model):
        model["same"](torch.zeros(5))  # the wrong shape
    assert model["one"][0] is model["same"] is covered

    def fail(covered):
        raise ValueError("no collapse")

    with pytest.raises(ValueError, match="no collapse"), collapsed(model, fail):
        pass
    assert model["same"] is covered
    with pytest.raises(McoverError, match=r"covered\.collapse"), collapsed(covered):
        pass


def test_a_module_without_covers_is_told_what_to_write(tmp_path):
    class Plain(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(8, 3)

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, index):
            return F.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    with pytest.raises(McoverError, match=r"self\.net = mcover\.lift"):
        trainer(tmp_path, CollapseCallback()).fit(Plain(), loader())
    # A Trainer takes no covers of a LightningModule, and says less about it than we do.
    with pytest.warns(McoverWarning, match=r"self\.net = mcover\.lift.*cover_loss"):
        covered = mcover.lift(Plain(), 2, mcover.Uniform(), "messages", seed=0)
    with pytest.raises(TypeError, match="LightningModule"):
        trainer(tmp_path).fit(covered, loader())


@pytest.mark.parametrize("routing", ROUTINGS)
def test_fabric_trains_saves_and_resumes(routing, tmp_path):
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    fabric.launch()

    def start():
        covered = classifier(routing=routing).net
        return fabric.setup(covered, torch.optim.Adam(covered.parameters(), lr=1e-2))

    def train(model, optimizer, epochs):
        for _ in range(epochs):
            for x, y in fabric.setup_dataloaders(loader()):
                optimizer.zero_grad()
                fabric.backward(mcover.cover_loss(F.cross_entropy, model(x), y))
                optimizer.step()

    whole = start()
    train(*whole, 4)
    first = start()
    train(*first, 2)
    fabric.save(tmp_path / "two.ckpt", {"model": first[0], "optimizer": first[1]})
    second = start()
    fabric.load(tmp_path / "two.ckpt", {"model": second[0], "optimizer": second[1]})
    train(*second, 2)
    assert_equal(second[0].state_dict(), whole[0].state_dict())
    net = second[0].collapse()
    assert type(net) is nn.Sequential
    assert scores(net, loader())[0] < scores(start()[0].collapse(), loader())[0]
