"""Whole trials: paired seeds, options of model and method, plain outcomes."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.optim.swa_utils import update_bn

import mcover
from mcover import (
    RSA,
    Directed,
    GaussianRing,
    Identity,
    LinearSchedule,
    MCover,
    McoverError,
    Messages,
    Uniform,
    Vanilla,
    anneal,
    teacher_student,
)
from mcover.annealing import amp
from mcover.plain import from_plain, to_plain
from reproduction import data
from reproduction.committee import FAST, CommitteeMachine, machine_of
from reproduction.models import Mlp
from reproduction.perceptron import MessagePassingTrial, PerceptronTrial
from reproduction.training import (
    EMA,
    RSGD,
    SAM,
    SGD,
    SWA,
    BinaryTrial,
    CommitteeTrial,
    CoverTrial,
    DistilledTrial,
    Elastic,
    Entropy,
    Flips,
    Lifted,
    NetworkTrial,
    RepeatedTrial,
    Soup,
    Training,
    fit,
)
from reproduction.training.trials import outcome

METHODS = (
    SGD(),
    CommitteeTrial().method,
    RSGD(noise=0, start="independent"),
    Elastic(noise=0, start="independent"),
    Entropy(),
    SWA(),
    EMA(decay=0.9),
    Soup(),
    SAM(),
)
SHORT = replace(CommitteeTrial().training, epochs=100, batch=20, evaluate_every=20)
FEW = NetworkTrial("digits", Training(2, 50), SGD(), images=100, model="small-mlp")
ADAM = Training(3, 60, lr=0.01, evaluate_every=3, optimizer="adam", lr_schedule="cosine")
BINARY = BinaryTrial("digits", ADAM, images=200, hidden=16)
ON_SIGNS = (
    SGD(),
    Flips(),
    RSGD(2, 0.02),
    Lifted(2, 0.02, routing=Directed(redraw_every=2)),
    Lifted(2, 0.02, routing=Messages()),
)
COOLING = LinearSchedule(0.4, 0.01, 0.01)


def name(one):
    return one.kind


def committee(method, **changes):
    given = {"data": "digits:3,8", "images": 100} | changes
    return CommitteeTrial(training=SHORT, method=method, **given)


def model_of(trial, seed):
    return trial.build(trial.images_of(seed), seed)


def timeless(found):
    return {key: value for key, value in found.items() if key != "core_seconds"}


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_a_trial_of_the_committee_comes_to_plain_numbers(method):
    trial = committee(method)
    found = trial.run(3)
    assert timeless(found) == timeless(trial.run(3))
    assert all(type(value) is float for value in found.values())
    history, images = trial.train(3), trial.images_of(3)
    assert timeless(found) == outcome(history, images)
    model = history.model
    assert isinstance(model, CommitteeMachine)
    for share, part in ((found["error"], "test"), (found["train_error"], "train")):
        x = torch.from_numpy(getattr(images, f"{part}_images"))
        wrong = model.predict(x).numpy() != getattr(images, f"{part}_labels")
        assert share == pytest.approx(wrong.mean())
    assert found["error"] < 0.2
    assert found["epochs"] >= 100 or history.stopped == "errors"
    assert found["gradients"] == int(history.gradients[-1])


def test_a_network_trial_is_the_plain_call():
    lift = Lifted(5, 0.01, topology=GaussianRing(1.5, shift=2), routing=Messages())
    trial = replace(FEW, method=lift, images=200)
    found = trial.run(3)
    images = data.subset(data.load("digits", normalize=True), 200, 3)
    base = Mlp((64, 256, 256, 10)).build([3, 0])
    covered = mcover.lift(base, 5, lift.topology, "messages", noise=0.01, seed=[3, 1])
    history = fit(covered, images, Training(2, 50), seed=[3, 2])
    assert found["error"] == history.collapse_error[-1]
    assert found["cover_error"] == history.cover_error[-1].mean()
    assert found["gradients"] == 2 * 4 * 5


@pytest.mark.parametrize(
    "how",
    [
        {"method": MCover(3, GaussianRing(3, shift=2), bank=10)},
        {"method": Vanilla(), "reads": 3},
        {"method": Vanilla(), "rule": "metropolis"},
        {"method": RSA(3), "rule": "repair", "ties": "plus"},
        {"method": Vanilla(), "stop_at_zero": True},
    ],
    ids=str,
)
def test_a_perceptron_trial_is_the_plain_call(how):
    """The outcome is the read with the least training energy."""
    found = PerceptronTrial(31, 4.0, schedule=COOLING, **how).run(7)
    problem = teacher_student(31, 4.0, seed=[7, 0], ties=how.pop("ties", "redraw"))
    reads = how.pop("reads", 1)
    plain = anneal(problem, schedule=COOLING, num_reads=reads, seed=[7, 1], **how)
    best = np.argmin(plain.collapsed_energy)
    for outcome_name in ("collapsed_energy", "energy", "solved", "generalization_error"):
        assert found[outcome_name] == getattr(plain, outcome_name)[best]
    assert found["proposals"] == plain.proposals.sum()


@pytest.mark.parametrize(
    "how", [{"reinforcement": 0.05, "max_iterations": 20}, {"stop_at_zero": True}], ids=str
)
def test_a_trial_of_message_passing_is_the_plain_call(how):
    found = MessagePassingTrial(101, 3.0, **how).run(4)
    problem = teacher_student(101, 3.0, seed=[4, 0])
    plain = amp(problem.patterns, problem.labels, seed=[4, 2], **how)
    assert found["generalization_error"] == problem.generalization_error(plain.magnetization)
    assert found["training_errors"] == plain.errors


def test_trials_survive_json():
    ring = replace(CommitteeTrial().method, topology=GaussianRing(0.5, shift=1))
    trials = [
        committee(ring),
        RepeatedTrial(NetworkTrial("mnist", method=SGD()), 3, "vote"),
        DistilledTrial("mnist", members=2, temperature=3.0, weight=0.5),
        PerceptronTrial(1000, 1.58, method=MCover(3, GaussianRing(3, shift=2))),
        PerceptronTrial(11, 2, "plus", RSA(5, coupling=0.5), COOLING, reads=3, rule="repair"),
        MessagePassingTrial(11, 2, "plus", 0.01, max_iterations=9, stop_at_zero=True),
        *(committee(one, schedule=FAST, validation=50, subset_seed=None) for one in METHODS),
        *(NetworkTrial(method=one, dropout=0.5, label_noise=0.2, pool=2) for one in METHODS),
        *(CoverTrial("mnist", method=one) for one in METHODS),
        *(replace(BINARY, method=one, policy="signs", model="binary-conv") for one in ON_SIGNS),
    ]
    for trial in trials:
        plain = json.loads(json.dumps(to_plain(trial)))
        assert from_plain(type(trial), plain) == trial
    assert to_plain(PerceptronTrial(11, 2.0, method=RSA())) == {
        "kind": "perceptron",
        "n": 11,
        "alpha": 2.0,
        "method": {"kind": "rsa"},
    }


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_trials_are_paired(method):
    """One seed: the same images, first weights and order of the first cover's batches."""
    plain, other = committee(SGD()), committee(method)
    np.testing.assert_array_equal(*(one.images_of(5).train_images for one in (plain, other)))
    first, covered = (model_of(one, 5) for one in (plain, other))
    weights = machine_of(covered).J
    assert torch.equal(weights if weights.ndim == 2 else weights[0], machine_of(first).J)
    if weights.ndim == 3:
        assert len(weights) == 4
        assert not torch.allclose(weights[0], weights[1])


def test_the_subset_has_its_own_seed_where_one_is_given():
    drawn = [committee(SGD()).images_of(seed).train_images for seed in (0, 1)]
    np.testing.assert_array_equal(*drawn)
    free = [committee(SGD(), subset_seed=None).images_of(seed).train_images for seed in (0, 1)]
    assert not np.array_equal(*free)


def test_a_validation_split_never_shows_the_test_images():
    one = committee(SGD(), validation=60)
    whole, split = one.dataset(), one.images_of(0)
    assert len(split.test_labels) == 60
    assert len(split.train_labels) == 100
    pixels = {image.tobytes() for image in whole.test_images}
    assert not any(image.tobytes() in pixels for image in split.test_images)


@pytest.mark.parametrize(("validation", "flipped"), [(None, 0), (100, 30)])
def test_label_noise_is_in_all_that_is_held_out_and_not_in_test_images(validation, flipped):
    plain = NetworkTrial("digits", images=200, label_noise=0.3, validation=validation)
    clean, noisy = replace(plain, label_noise=0.0).images_of(4), plain.images_of(4)
    other = replace(plain, method=SGD()).images_of(4)
    np.testing.assert_array_equal(noisy.train_labels, other.train_labels)
    np.testing.assert_array_equal(noisy.train_images, clean.train_images)
    np.testing.assert_array_equal(noisy.test_images, clean.test_images)
    assert np.count_nonzero(noisy.train_labels != clean.train_labels) == 60
    assert np.count_nonzero(noisy.test_labels != clean.test_labels) == flipped
    assert not np.array_equal(plain.images_of(5).train_labels, noisy.train_labels)


def test_pooled_images_are_seen_by_the_model():
    trial = NetworkTrial("digits", images=100, pool=2, model="tiny-mlp", method=SGD())
    whole = replace(trial, pool=1).images_of(0).train_images
    mean = whole.reshape(100, 4, 2, 4, 2).mean((2, 4))
    np.testing.assert_allclose(trial.images_of(0).train_images, mean)
    assert model_of(trial, 0)[1].weight.shape == (128, 16)
    with pytest.raises(McoverError, match="pool is 3"):
        replace(trial, pool=3).prepare()


def test_the_paper_s_training_of_the_committee_is_the_default():
    one = CommitteeTrial()
    how = one.training
    assert (how.epochs, how.batch, how.lr, how.momentum) == (20_000, 100, 10.0, 0.0)
    assert (how.stop_loss, how.stop_error) == (1e-7, 0.0)
    assert (one.hidden, one.subset_seed) == (9, 0)
    assert set(np.unique(one.images_of(0).train_images)) == {-1, 1}
    model = model_of(one, 0)
    assert (model.covers, model.passes) == (4, 10)
    assert (one.method.topology, one.method.routing.redraw_every) == (Uniform(), None)
    assert machine_of(model).J.shape == (4, 9, 64)


def test_networks_route_weights_that_are_redrawn_each_epoch_by_default():
    method = NetworkTrial().method
    assert (method.covers, method.topology, method.noise) == (4, Uniform(), 0.05)
    assert isinstance(method.routing, Directed)
    assert method.redraw_each_epoch


def test_the_options_of_a_lift_reach_it():
    ring = GaussianRing(1.5, shift=2)
    messages = Lifted(covers=5, topology=ring, routing=Messages(blocks=4, streams=2), noise=0.01)
    model = model_of(replace(FEW, method=messages), 0)
    assert (model.covers, model.passes) == (5, 2)
    directed = Lifted(covers=3, routing=Directed(bank=4, destinations=2), noise="150%")
    model = model_of(replace(FEW, method=directed), 0)
    assert (model.covers, model.passes, len(model.routes)) == (3, 2, 4)
    spread = model.net[1].weight.std(dim=0).mean() / model_of(FEW, 0)[1].weight.std()
    assert 1 < float(spread.detach()) < 2


def test_replicas_of_networks_keep_to_themselves():
    model = model_of(replace(FEW, method=RSGD(covers=3, noise=0.1)), 0)
    x = torch.ones(2, 8, 8)
    each = torch.stack([model.cover(index)(x) for index in range(3)])
    torch.testing.assert_close(model.eval()(x), each)


def test_one_routed_cover_is_the_plain_model():
    alone = committee(replace(CommitteeTrial().method, covers=1))
    assert timeless(alone.run(1)) == timeless(committee(SGD()).run(1))


@pytest.mark.parametrize(
    ("model", "epochs"), [("small-mlp", 3), ("conv", 3), ("small-conv", 6), ("transformer", 12)]
)
@pytest.mark.parametrize("routing", [Directed(redraw_every=None), Messages()], ids=name)
def test_trials_of_networks_run_too(model, epochs, routing):
    method = Lifted(covers=3, routing=routing, noise=0.02, redraw_each_epoch=True)
    how = Training(epochs, 64, evaluate_every=epochs)
    found = NetworkTrial("digits", how, method, images=300, model=model).run(0)
    assert found["error"] < 0.5
    assert found["train_error"] < 0.5
    assert found["loss"] > 0
    assert found["gradients"] == epochs * 5 * 3
    assert 0 <= found["routed_error"] <= 1


def test_a_student_of_labels_alone_is_the_plain_network():
    plain = FEW.run(4)
    trial = DistilledTrial(
        "digits", FEW.training, members=2, weight=0.0, images=100, model="small-mlp"
    )
    found = trial.run(4)
    assert (found["error"], found["loss"]) == (plain["error"], plain["loss"])
    assert found["gradients"] == 3 * plain["gradients"]
    assert replace(trial, weight=1.0).run(4)["loss"] != plain["loss"]


def test_a_cover_trial_counts_single_covers():
    method = Lifted(noise=0.05, routing=Directed(redraw_every=2))
    given = "digits", Training(3, 50), method
    whole, cover = (kind(*given, images=100).run(1) for kind in (NetworkTrial, CoverTrial))
    assert cover["error"] == cover["cover_error"] == whole["cover_error"]
    assert cover["collapse_error"] == whole["error"] != cover["error"]


def test_the_distance_of_covers_is_kept():
    assert "distance" not in FEW.run(0)
    assert replace(FEW, method=RSGD(3, 0.1, coupling=float("inf"))).run(0)["distance"] < 1e-12


@pytest.mark.parametrize("model", ["binary-mlp", "binary-conv"])
@pytest.mark.parametrize("method", ON_SIGNS, ids=name)
def test_a_binary_trial_is_repeated_and_has_every_policy(model, method):
    trial = replace(BINARY, model=model, method=method)
    found = trial.run(2)
    assert timeless(found) == timeless(trial.run(2))
    assert found["gradients"] == 9 * trial.covers
    assert found["error"] == found["error_latents"]
    for policy in ("signs", "best"):
        assert replace(trial, policy=policy).run(2)["error"] == found[f"error_{policy}"]
    assert ("routed_error" in found) == (method.kind == "lifted")
    if trial.covers == 1:
        assert len({found[name] for name in found if "error" in name}) == 1


@pytest.mark.parametrize("method", [SGD(), Flips(1e-2, 1e-6)], ids=name)
def test_binary_networks_learn(method):
    trial = replace(BINARY, training=replace(ADAM, epochs=30), images=600, hidden=64)
    assert replace(trial, method=method).run(0)["error"] < 0.2


@pytest.mark.parametrize("routing", [Directed(), Messages()], ids=name)
def test_policies_agree_where_covers_are_equal_and_give_the_plain_network(routing):
    found = replace(BINARY, method=Lifted(3, 0.0, topology=Identity(), routing=routing)).run(1)
    errors = {name: value for name, value in BINARY.run(1).items() if "error" in name}
    assert {name: found[name] for name in errors} == errors


def test_policies_are_those_of_the_covers_by_hand():
    """Signs of the mean, majority of signs, and the least error on held-out images."""
    trial = replace(BINARY, method=Lifted(3, 0.05, routing=Directed(redraw_every=2)))
    given, images, labels = trial.parts_of(4)
    covered = trial.build(given, 4)
    fit(covered, given, ADAM, trial.method, seed=[4, 2])
    pixels = torch.from_numpy(given.train_images)
    covers = [covered.cover(index) for index in range(3)]

    def wrong(net, images, labels):
        with torch.no_grad():
            guess = net.eval()(torch.from_numpy(images)).argmax(-1).numpy()
        return float((guess != labels).mean())

    def made(choose):
        net = trial.architecture(given).build(0)
        for key, own in net.named_parameters():
            stack = torch.stack([dict(one.named_parameters())[key] for one in covers]).detach()
            own.data = choose(stack) if key.endswith("original") else stack.mean(0)
        update_bn([pixels], net)
        return wrong(net, given.test_images, given.test_labels)

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
    parts = [replace(BINARY, method=method).parts_of(5) for method in ON_SIGNS]
    whole = data.subset(data.load("digits", normalize=True), 200, seed=5)
    for given, images, labels in parts:
        np.testing.assert_array_equal(images, parts[0][1])
        np.testing.assert_array_equal(given.train_images, parts[0][0].train_images)
        np.testing.assert_array_equal(given.test_images, whole.test_images)
        assert (len(given.train_labels), len(labels)) == (180, 20)
        both = [one.tobytes() for one in (*images, *given.train_images)]
        assert sorted(both) == sorted(one.tobytes() for one in whole.train_images)
    drawn = [replace(BINARY, subset_seed=1).parts_of(seed)[1] for seed in (0, 1)]
    np.testing.assert_array_equal(*drawn)
