"""Trials of binary networks, Adam, the cosine schedule and Bop, against loops written out."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.random import SeedSequence
from torch.nn import functional
from torch.optim.swa_utils import update_bn

import mcover
from mcover import Directed, Messages
from mcover.errors import McoverError
from mcover.nn import binary
from mcover.plain import from_plain, to_plain
from reproduction import data
from reproduction.binary_models import BinaryConv, BinaryMlp
from reproduction.models import Mlp, one_thread
from reproduction.studies import find_study
from reproduction.study import Cell, Choosing, Plan
from reproduction.training import (
    EMA,
    RSGD,
    SAM,
    SGD,
    SWA,
    BinaryTrial,
    Elastic,
    Entropy,
    Flips,
    Lifted,
    NetworkTrial,
    Training,
)
from reproduction.training.loop import Batches, fit

ADAM = Training(3, 60, lr=0.01, evaluate_every=3, optimizer="adam", lr_schedule="cosine")
SMALL = BinaryTrial("digits", ADAM, images=200, hidden=16)
METHODS = (
    SGD(),
    Flips(),
    RSGD(2, 0.02),
    Lifted(2, 0.02, routing=Directed(redraw_every=2)),
    Lifted(2, 0.02, routing=Messages()),
)


def untimed(outcome):
    return {name: value for name, value in outcome.items() if name != "core_seconds"}


@pytest.fixture(scope="module")
def digits():
    return data.subset(data.load("digits", normalize=True), 200, seed=0)


@pytest.fixture(autouse=True)
def on_one_thread():
    with one_thread():
        yield


def batches(digits, training, seed):
    """Those of a training with this seed, as the loop draws them."""
    images, labels = torch.from_numpy(digits.train_images), torch.from_numpy(digits.train_labels)
    return Batches(images, labels, training.batch, SeedSequence(seed).spawn(4)[1], None)


def trained_by_hand(net, digits, training, seed, optimizer, after=lambda: None):
    """Cross-entropy, with learning rates lr (1 + cos πt/T)/2."""
    given = batches(digits, training, seed)
    total = training.epochs * given.length
    first = [group["lr"] for group in optimizer.param_groups]
    net.train()
    for step in range(total):
        for group, lr in zip(optimizer.param_groups, first, strict=True):
            group["lr"] = lr * (1 + math.cos(math.pi * step / total)) / 2
        images, labels = given.next()
        optimizer.zero_grad()
        functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
        after()


def assert_same_weights(one, other):
    for (name, ours), theirs in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=name, rtol=1e-4, atol=1e-6)


def test_adam_and_its_schedule_are_the_loop_written_out(digits):
    training = replace(ADAM, momentum=0.8)
    ours, theirs = (Mlp((64, 12, 10)).build(seed=0) for _ in range(2))
    fit(ours, digits, training, seed=3)
    adam = torch.optim.Adam(theirs.parameters(), lr=0.01, betas=(0.8, 0.999))
    trained_by_hand(theirs, digits, training, 3, adam)
    assert_same_weights(ours, theirs)


@pytest.mark.parametrize("method", [RSGD(3, coupling=0.0), Elastic(3, coupling=0.0)])
def test_replicas_that_are_not_coupled_step_by_the_optimizer_of_the_training(digits, method):
    """The first of them has the weights and batches of a plain training."""
    base = Mlp((64, 12, 10)).build(seed=0).double()  # Adam enlarges rounding of small gradients
    covered = mcover.lift(base, 3, mcover.Identity(), "messages", noise=0.05, seed=0)
    alone = covered.cover(0)
    fit(covered, digits, ADAM, method, seed=3)
    fit(alone, digits, ADAM, seed=3)
    assert_same_weights(covered.cover(0), alone)


@pytest.mark.parametrize("method", [SAM(), SWA(), EMA(0.5), Lifted(3), RSGD(3), Elastic(3)])
def test_every_method_but_one_takes_adam_and_a_schedule(digits, method):
    if isinstance(method, SAM):
        pytest.importorskip("pytorch_optimizer")
    found = []
    for training in (ADAM, replace(ADAM, lr_schedule="constant"), replace(ADAM, optimizer="sgd")):
        model = Mlp((64, 12, 10)).build(seed=0)
        if hasattr(method, "covers"):
            model = mcover.lift(model, 3, mcover.Uniform(), "messages", noise=0.05, seed=0)
        fit(model, digits, training, method, seed=3)
        found.append(torch.cat([one.detach().flatten() for one in model.parameters()]))
    assert all(bool(torch.isfinite(one).all()) for one in found)
    assert not torch.allclose(found[0], found[1])
    assert not torch.allclose(found[0], found[2])


@pytest.mark.parametrize("other", [{"optimizer": "adam"}, {"lr_schedule": "cosine"}])
def test_entropy_sgd_takes_neither(digits, other):
    training = Training(2, **other)
    with pytest.raises(McoverError, match="Entropy-SGD supports 'sgd'"):
        fit(Mlp((64, 12, 10)).build(seed=0), digits, training, Entropy())
    with pytest.raises(McoverError, match="Entropy-SGD supports 'sgd'"):
        NetworkTrial(training=training, method=Entropy())


def test_plain_binary_training_is_the_loop_written_out(digits):
    """At a rate so large that latents are clipped."""
    training = replace(ADAM, lr=0.5)
    ours, theirs = (BinaryMlp((64, 12, 10)).build(seed=0) for _ in range(2))
    fit(ours, digits, training, seed=3)
    adam = torch.optim.Adam(theirs.parameters(), lr=0.5)
    trained_by_hand(theirs, digits, training, 3, adam, lambda: binary.clip_latents(theirs))
    assert_same_weights(ours, theirs)
    assert max(float(one.detach().abs().max()) for one in binary.latents(ours).values()) == 1


def test_bop_is_the_loop_written_out(digits):
    ours, theirs = (BinaryMlp((64, 12, 10)).build(seed=0) for _ in range(2))
    fit(ours, digits, ADAM, Flips(1e-2, 1e-6), seed=3)
    binary.snap_latents(theirs)
    rest = torch.optim.Adam(binary.others(theirs), lr=0.01)
    flips = mcover.optim.Bop(binary.latents(theirs).values(), 1e-2, 1e-6, rest=rest)
    trained_by_hand(theirs, digits, ADAM, 3, flips)
    assert_same_weights(ours, theirs)
    assert all(bool((one.abs() == 1).all()) for one in binary.latents(ours).values())


def test_bop_needs_binary_weights(digits):
    with pytest.raises(McoverError, match="has no latent weights; write binarize"):
        fit(Mlp((64, 12, 10)).build(seed=0), digits, ADAM, Flips())
    with pytest.raises(McoverError, match="method is Flips"):
        NetworkTrial(method=Flips())


@pytest.mark.parametrize("model", ["binary-mlp", "binary-conv"])
@pytest.mark.parametrize("method", METHODS, ids=lambda one: one.kind)
def test_a_trial_is_repeated_to_the_last_digit(model, method):
    trial = replace(SMALL, model=model, method=method)
    found = trial.run(2)
    assert untimed(found) == untimed(trial.run(2))
    assert found["gradients"] == 9 * trial.covers
    assert found["error"] == found["error_latents"]
    for policy in ("signs", "best"):
        assert replace(trial, policy=policy).run(2)["error"] == found[f"error_{policy}"]
    assert ("routed_error" in found) == (method.kind == "lifted")
    if trial.covers == 1:
        assert len({found[name] for name in found if "error" in name}) == 1


@pytest.mark.parametrize("method", [SGD(), Flips(1e-2, 1e-6)])
def test_binary_networks_learn(method):
    training = replace(ADAM, epochs=30)
    assert (
        replace(SMALL, training=training, method=method, images=600, hidden=64).run(0)["error"]
        < 0.2
    )


@pytest.mark.parametrize("routing", [Directed(), Messages()])
def test_policies_agree_where_covers_are_equal_and_give_the_plain_network(routing):
    equal = Lifted(3, 0.0, topology=mcover.Identity(), routing=routing)
    found = replace(SMALL, method=equal).run(1)
    plain = SMALL.run(1)
    errors = {name: value for name, value in plain.items() if "error" in name}
    assert {name: found[name] for name in errors} == errors


def test_policies_are_those_of_the_covers_by_hand():
    """Signs of the mean, majority of signs, and the least error on held-out images."""
    trial = replace(SMALL, method=Lifted(3, 0.05, routing=Directed(redraw_every=2)))
    given, images, labels = trial.parts_of(4)
    covered = trial.build(given, 4)
    fit(covered, given, ADAM, trial.method, seed=[4, 2])
    pixels = torch.from_numpy(given.train_images)

    def wrong(net, images, labels):
        with torch.no_grad():
            guess = net.eval()(torch.from_numpy(images)).argmax(-1).numpy()
        return float((guess != labels).mean())

    def made(choose):
        net = trial.architecture(given).build(0)
        for name, own in net.named_parameters():
            stack = torch.stack([dict(one.named_parameters())[name] for one in covers]).detach()
            is_latent = name.endswith("original")
            own.data = choose(stack) if is_latent else stack.mean(0)
        update_bn([pixels], net)
        return wrong(net, given.test_images, given.test_labels)

    covers = [covered.cover(index) for index in range(3)]
    for one in covers:
        update_bn([pixels], one)
    errors = [wrong(one, given.test_images, given.test_labels) for one in covers]
    best = int(np.argmin([wrong(one, images, labels) for one in covers]))
    found = trial.run(4)
    assert found["error_latents"] == pytest.approx(made(lambda stack: stack.mean(0)))
    signs = made(lambda stack: torch.where(stack < 0, -1.0, 1.0).sum(0).sign())
    assert found["error_signs"] == pytest.approx(signs)
    assert found["error_best"] == pytest.approx(errors[best])
    assert found["cover_error"] == pytest.approx(np.mean(errors))
    assert found["error_latents"] != found["error_signs"]


def test_a_tenth_is_held_out_of_every_line_and_never_seen():
    parts = [replace(SMALL, method=method).parts_of(5) for method in METHODS]
    whole = data.subset(data.load("digits", normalize=True), 200, seed=5)
    for given, images, labels in parts:
        np.testing.assert_array_equal(images, parts[0][1])
        np.testing.assert_array_equal(given.train_images, parts[0][0].train_images)
        np.testing.assert_array_equal(given.test_images, whole.test_images)
        assert (len(given.train_labels), len(labels)) == (180, 20)
        both = [one.tobytes() for one in (*images, *given.train_images)]
        assert sorted(both) == sorted(one.tobytes() for one in whole.train_images)
    drawn = [replace(SMALL, subset_seed=1).parts_of(seed)[1] for seed in (0, 1)]
    np.testing.assert_array_equal(*drawn)


@pytest.mark.parametrize("kind", [BinaryMlp((64, 12, 12, 10)), BinaryConv((8, 8), (4, 6))])
def test_all_that_layers_multiply_is_a_sign(kind, digits):
    net, seen = kind.build(seed=1).eval(), []
    for layer in net:
        if hasattr(layer, "parametrizations"):
            layer.register_forward_pre_hook(lambda layer, given: seen.append((layer, given[0])))
    assert net(torch.from_numpy(digits.test_images)).shape == (len(digits.test_labels), 10)
    assert len(seen) == 3
    for layer, given in seen:
        assert set(given.unique().tolist()) == set(layer.weight.unique().tolist()) == {-1, 1}
    for latent in binary.latents(net).values():
        assert float(latent.detach().abs().max()) <= 0.05
    again = kind.build(seed=1)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("scale", ["smoke", "paper"])
def test_all_candidates_of_a_panel_have_as_many_gradients(scale):
    panels = {}
    for cell in find_study("binary-networks").at(scale):
        for trial in cell.choices.values():
            images = trial.images or 60_000
            steps = -(-(images - images // 10) // trial.training.batch) * trial.training.epochs
            panels.setdefault(cell.panel, set()).add(steps * trial.covers)
            if scale == "smoke" and cell.panel == "digits, conv":
                assert trial.run(0)["gradients"] == steps * trial.covers
    assert {len(found) for found in panels.values()} == {1}
    assert len(panels) == {"smoke": 2, "paper": 8}[scale]


def test_candidates_are_tried_on_what_the_study_and_the_cell_say():
    choices = {"a": SMALL, "b": replace(SMALL, latents=0.1)}
    cell = Cell(SMALL, "line", choices=choices, tried_on={"images": 120})
    plan = Plan((cell,), Choosing(extra={"validation": 50}, seeds=1))
    tries = [(one.trial, seed) for one, seed in plan.pending({})]
    assert tries == [(replace(one, images=120, validation=50), 1000) for one in choices.values()]


@pytest.mark.parametrize("method", METHODS, ids=lambda one: one.kind)
def test_trials_survive_json(method):
    trial = replace(SMALL, method=method, policy="signs", model="binary-conv")
    assert from_plain(BinaryTrial, json.loads(json.dumps(to_plain(trial)))) == trial


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BinaryTrial(model="mlp"), "model is 'mlp'"),
        (lambda: BinaryTrial(policy="mean"), "policy is 'mean'"),
        (lambda: BinaryTrial(latents=2.0), "latents is 2.0"),
        (lambda: BinaryTrial(hidden=0), "hidden is 0"),
        (lambda: BinaryTrial(training=Training(stop_error=0.1)), "leave stop_loss and stop_error"),
        (lambda: Flips(adaptivity=2.0), "adaptivity is 2.0"),
        (lambda: Flips(threshold=-1.0), "threshold is -1.0"),
        (lambda: Training(optimizer="lion"), "optimizer is 'lion'"),
        (lambda: Training(lr_schedule="linear"), "lr_schedule is 'linear'"),
        (lambda: Training(optimizer="adam", momentum=1.0), "momentum is 1.0"),
        (lambda: BinaryMlp((64,)), "sizes is"),
        (lambda: BinaryConv((8, 8), ()), "channels is"),
    ],
)
def test_bad_options_are_refused(make, message):
    with pytest.raises(McoverError, match=message):
        make()
