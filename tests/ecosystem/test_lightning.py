"""Covers in Lightning: a Trainer with the callback, checkpoints, and Fabric."""

import json

import lightning
import pytest
import pytorch_lightning
import torch
import torch.nn.functional as F  # noqa: N812
import torchmetrics
from lightning.pytorch.callbacks import ModelCheckpoint
from safetensors.torch import load_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mcover
from mcover.errors import McoverError, McoverWarning
from mcover.lightning import CollapseCallback

torch.set_num_threads(1)

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
            how = ROUTINGS.get(routing, routing)
            self.net = mcover.lift(net, 3, mcover.Uniform(), how, seed=0)
            self.accuracy = torchmetrics.classification.MulticlassAccuracy(3, average="micro")
            self.losses = []
            self.seen = {"covers": []}

        def training_step(self, batch, index):
            x, y = batch
            return mcover.cover_loss(F.cross_entropy, self.net(x), y)

        def validation_step(self, batch, index):
            x, y = batch
            logits = self.net(x)
            loss = mcover.cover_loss(F.cross_entropy, logits, y) / self.net.covers
            self.log("loss", loss)
            self.losses.append(loss)
            self.seen["covers"].append(len(logits))
            self.accuracy.update(logits.flatten(0, 1), y.repeat(len(logits) * self.net.passes))
            self.log("accuracy", self.accuracy)

        def on_validation_epoch_end(self):
            self.log_dict({"mean": torch.stack(self.losses).mean()})
            self.losses.clear()

        def test_step(self, batch):
            self.log("test_loss", mcover.cover_loss(F.cross_entropy, self.net(batch[0]), batch[1]))

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


def rows(folder):
    return [json.loads(line) for line in (folder / "collapse.jsonl").read_text().splitlines()]


@torch.no_grad()
def judged(net, given):
    """Loss and accuracy over a loader of batches of one size."""
    pairs = [(net(x), y) for x, y in given]
    losses = [F.cross_entropy(out, y) for out, y in pairs]
    right = [(out.argmax(1) == y).float().mean() for out, y in pairs]
    return torch.stack(losses).mean().item(), torch.stack(right).mean().item()


@pytest.mark.parametrize("framework", [lightning, pytorch_lightning])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_collapse_is_validated_beside_the_covers(framework, routing, tmp_path):
    module = classifier(framework, routing)
    run = trainer(tmp_path, CollapseCallback(), framework=framework)
    run.fit(module, loader(), loader(1))
    loss, accuracy = judged(module.net.collapse(), loader(1))
    metrics = run.callback_metrics
    for name in ("loss", "mean"):
        assert metrics[f"collapse/{name}"].item() == pytest.approx(loss, rel=1e-6)
    assert metrics["collapse/accuracy"].item() == pytest.approx(accuracy)

    run = trainer(tmp_path / "alone", framework=framework)
    alone = classifier(framework, routing)
    run.fit(alone, loader(), loader(1))
    for name in ("loss", "mean", "accuracy"):  # of the covers: as without the callback
        assert metrics[name] == run.callback_metrics[name]
    assert set(module.seen["covers"]) == {3}
    assert not module.losses


def test_training_and_checkpoints_are_as_without_the_callback(tmp_path):
    made = {}
    for name, callbacks in {"with": [CollapseCallback()], "without": []}.items():
        module, run = classifier(), trainer(tmp_path, *callbacks)
        run.fit(module, loader(), loader(1))
        run.save_checkpoint(tmp_path / f"{name}.ckpt")
        made[name] = torch.load(tmp_path / f"{name}.ckpt", weights_only=True)
    ours, theirs = made["with"], made["without"]
    assert ours["state_dict"].keys() == theirs["state_dict"].keys()
    for name, value in theirs["state_dict"].items():
        assert torch.equal(ours["state_dict"][name], value), name
    assert ours.keys() == theirs.keys()
    assert ours["callbacks"] == theirs["callbacks"]


def test_file_holds_the_collapse_under_the_keys_of_the_base(tmp_path):
    module = classifier()
    trainer(tmp_path, CollapseCallback(tmp_path / "new")).fit(module, loader(), loader(1))
    net = network().eval()
    assert load_model(net, tmp_path / "new" / "collapse.safetensors") == (set(), [])
    for name, value in module.net.collapse().state_dict().items():
        assert torch.equal(net.state_dict()[name], value), name
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [
        "collapse.jsonl",
        "collapse.safetensors",
    ]


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_without_validation_the_file_is_written_at_the_end(tmp_path):
    module = classifier()
    trainer(tmp_path, CollapseCallback()).fit(module, loader())
    net = network()
    load_model(net, tmp_path / "collapse.safetensors")
    assert torch.equal(net[0].weight, module.net.collapse()[0].weight)


def test_best_collapse_is_kept(tmp_path):
    class Spoiled(CollapseCallback):
        def on_train_epoch_end(self, trainer, pl_module):
            kept.append(pl_module.net.collapse()[0].weight)
            with torch.no_grad():  # nothing later can be as good
                pl_module.net.stacks()["3.weight"].fill_(100.0)
                pl_module.net.stacks()["3.bias"][:, 0] = 100.0

    kept = []
    module, callback = classifier(), Spoiled(monitor="collapse/loss")
    trainer(tmp_path, callback, max_epochs=3).fit(module, loader(), loader(1))
    net = network()
    load_model(net, tmp_path / "collapse.safetensors")
    assert torch.equal(net[0].weight, kept[0])
    history = rows(tmp_path)
    assert callback.best == history[0]["collapse/loss"] < history[1]["collapse/loss"]


def test_a_metric_that_is_not_logged_is_refused(tmp_path):
    run = trainer(tmp_path, CollapseCallback(monitor="collapse/nothing"))
    with pytest.raises(McoverError, match=r"write one of .*collapse/loss"):
        run.fit(classifier(), loader(), loader(1))


@pytest.mark.filterwarnings("ignore:.*when using `ckpt_path`, callbacks")
@pytest.mark.parametrize("routing", ROUTINGS)
def test_interrupted_and_resumed_is_as_never_interrupted(routing, tmp_path):
    whole = classifier(routing=routing)
    trainer(tmp_path / "whole", CollapseCallback(), max_epochs=4).fit(whole, loader(), loader(1))

    class PowerCut(lightning.Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 11:  # of 12
                raise RuntimeError("power cut")

    folder, keep = tmp_path / "half", ModelCheckpoint(tmp_path / "kept", "{epoch}", save_top_k=-1)
    cut = CollapseCallback(monitor="collapse/loss"), keep, PowerCut()
    with pytest.raises(RuntimeError, match="power cut"):
        trainer(folder, *cut, max_epochs=4, enable_checkpointing=True).fit(
            classifier(routing=routing), loader(), loader(1)
        )
    assert len(rows(folder)) == 3  # one more than the checkpoint below knows of

    rest, resumed = CollapseCallback(monitor="collapse/loss"), classifier(routing=routing)
    run = trainer(folder, rest, max_epochs=4)
    two = tmp_path / "kept" / "epoch=1.ckpt"
    run.fit(resumed, loader(), loader(1), ckpt_path=two, weights_only=True)
    expected, seen = whole.state_dict(), resumed.state_dict()
    assert expected.keys() == seen.keys()
    for name, value in expected.items():
        assert torch.equal(seen[name], value), name
    assert rows(folder) == rows(tmp_path / "whole")
    assert rest.best == min(row["collapse/loss"] for row in rows(folder))
    for name, value in whole.net.collapse().state_dict().items():
        assert torch.equal(resumed.net.collapse().state_dict()[name], value), name


def test_other_callbacks_may_monitor_the_collapse(tmp_path):
    keep = ModelCheckpoint(tmp_path, monitor="collapse/accuracy", mode="max", filename="best")
    module = classifier()
    trainer(tmp_path, CollapseCallback(), keep, enable_checkpointing=True).fit(
        module, loader(), loader(1)
    )
    assert keep.best_model_score == max(row["collapse/accuracy"] for row in rows(tmp_path))
    again = type(module).load_from_checkpoint(keep.best_model_path, weights_only=True)
    assert again.net.covers == 3


def test_tests_and_several_loaders_judge_the_collapse_too(tmp_path):
    class Two(type(classifier())):
        def validation_step(self, batch, index, dataloader_idx=0):
            self.log("loss", mcover.cover_loss(F.cross_entropy, self.net(batch[0]), batch[1]))

        def on_validation_epoch_end(self):
            pass

    module, run = Two(), trainer(tmp_path, CollapseCallback())
    found = run.validate(module, [loader(1), loader(2)], verbose=False)
    net = module.net.collapse()
    for index, seed in enumerate((1, 2)):
        logged = found[index][f"collapse/loss/dataloader_idx_{index}"]
        assert logged == pytest.approx(judged(net, loader(seed))[0], rel=1e-6)
    (found,) = run.test(module, loader(3), verbose=False)
    assert found["collapse/test_loss"] == pytest.approx(judged(net, loader(3))[0], rel=1e-6)
    assert not list(tmp_path.iterdir())  # no training, no file


def test_batch_norms_may_be_computed_anew(tmp_path):
    batches = [x for x, _ in loader()]

    def anew(covered):
        return covered.collapse(loader=batches)

    module, run = classifier(), trainer(tmp_path, CollapseCallback(collapse=anew))
    run.fit(module, loader(), loader(1))
    loss, _ = judged(anew(module.net), loader(1))
    assert run.callback_metrics["collapse/loss"].item() == pytest.approx(loss, rel=1e-6)
    assert abs(loss - judged(module.net.collapse(), loader(1))[0]) > 1e-4


def test_several_covered_models_have_a_file_each(tmp_path):
    class Pair(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            parts = {name: nn.Linear(8, 3) for name in ("left", "right")}
            lifted = {k: mcover.lift(v, 2, mcover.Uniform(), seed=0) for k, v in parts.items()}
            self.parts = nn.ModuleDict(lifted)

        def training_step(self, batch, index):
            x, y = batch
            return sum(mcover.cover_loss(F.cross_entropy, p(x), y) for p in self.parts.values())

        def validation_step(self, batch, index):
            self.log("loss", self.training_step(batch, index))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module, run = Pair(), trainer(tmp_path, CollapseCallback(prefix="one_"))
    run.fit(module, loader(), loader(1))
    total = 0.0
    for name, part in module.parts.items():
        net = nn.Linear(8, 3)
        load_model(net, tmp_path / f"collapse-parts.{name}.safetensors")
        assert torch.equal(net.weight, part.collapse().weight)
        total += judged(net, loader(1))[0]
    assert run.callback_metrics["one_loss"].item() == pytest.approx(total, rel=1e-6)


def test_tensorboard_shows_what_the_lines_hold(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    callback = CollapseCallback(tmp_path / "log", tensorboard=True)
    trainer(tmp_path, callback).fit(classifier(), loader(), loader(1))
    events = EventAccumulator(str(tmp_path / "log" / "collapse"))
    events.Reload()
    seen = {event.step: event.value for event in events.Scalars("collapse/loss")}
    assert seen == pytest.approx(
        {row["step"]: row["collapse/loss"] for row in rows(tmp_path / "log")}
    )


def test_mixed_precision(tmp_path):
    module = classifier()
    run, held_out = trainer(tmp_path, CollapseCallback(), precision="bf16-mixed"), loader(1)
    run.fit(module, loader(), held_out)
    exact, logged = (
        judged(module.net.collapse(), held_out)[0],
        run.callback_metrics["collapse/loss"],
    )
    assert abs(logged - exact) > 1e-6  # it was judged in the trainer's own precision
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = judged(module.net.collapse(), held_out)
    assert logged.item() == pytest.approx(loss, rel=1e-6)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # of the tracer's
def test_a_compiled_module(tmp_path):
    module, run = classifier(), trainer(tmp_path, CollapseCallback())
    run.fit(torch.compile(module, backend="eager"), loader(), loader(1))
    loss, _ = judged(module.net.collapse(), loader(1))
    assert run.callback_metrics["collapse/loss"].item() == pytest.approx(loss, rel=1e-6)
    assert set(module.seen["covers"]) == {3}


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
        covered = mcover.lift(Plain(), 2, mcover.Uniform(), seed=0)
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
    for name, value in whole[0].state_dict().items():
        assert torch.equal(second[0].state_dict()[name], value), name
    net = second[0].collapse()
    assert type(net) is nn.Sequential
    assert judged(net, loader())[0] < judged(start()[0].collapse(), loader())[0]
