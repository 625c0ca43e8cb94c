"""Whole trials: paired seeds, options of their own model and method, plain outcomes."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from mcover import Directed, GaussianRing, Identity, Messages, Uniform
from mcover.errors import McoverError
from mcover.plain import from_plain, to_plain
from reproduction.committee import FAST, CommitteeMachine, machine_of
from reproduction.training import (
    EMA,
    RSGD,
    SAM,
    SGD,
    SWA,
    CommitteeTrial,
    CoverTrial,
    DistilledTrial,
    Elastic,
    Entropy,
    Lifted,
    NetworkTrial,
    RepeatedTrial,
    Soup,
    Training,
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


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def name(method):
    return method.kind


def digits(method, **changes):
    given = {"data": "digits:3,8", "images": 100} | changes
    return CommitteeTrial(training=SHORT, method=method, **given)


def model_of(trial, seed):
    return trial.build(trial.images_of(seed), seed)


def timeless(found):
    return {key: value for key, value in found.items() if key != "core_seconds"}


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_a_trial_of_the_committee_comes_to_plain_numbers(method):
    trial = digits(method)
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


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_trials_survive_json(method):
    ring = replace(CommitteeTrial().method, topology=GaussianRing(0.5, shift=1))
    for trial in (
        digits(method, schedule=FAST, validation=50, subset_seed=None),
        digits(ring),
        NetworkTrial(method=method, dropout=0.5, model="transformer", label_noise=0.2, pool=2),
        RepeatedTrial(NetworkTrial("mnist", method=SGD()), 3, "vote"),
        CoverTrial("mnist", method=method),
        DistilledTrial("mnist", members=2, temperature=3.0, weight=0.5),
    ):
        plain = json.loads(json.dumps(to_plain(trial)))
        assert from_plain(type(trial), plain) == trial


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_trials_are_paired(method):
    """One seed: the same images, first weights and order of the first cover's batches."""
    plain, other = digits(SGD()), digits(method)
    np.testing.assert_array_equal(*(one.images_of(5).train_images for one in (plain, other)))
    first, covered = (model_of(one, 5) for one in (plain, other))
    weights = machine_of(covered).J
    assert torch.equal(weights if weights.ndim == 2 else weights[0], machine_of(first).J)
    if weights.ndim == 3:
        assert len(weights) == 4
        assert not torch.allclose(weights[0], weights[1])


def test_the_subset_has_its_own_seed_where_one_is_given():
    drawn = [digits(SGD()).images_of(seed).train_images for seed in (0, 1)]
    np.testing.assert_array_equal(*drawn)
    free = [digits(SGD(), subset_seed=None).images_of(seed).train_images for seed in (0, 1)]
    assert not np.array_equal(*free)


def test_a_validation_split_never_shows_the_test_images():
    one = digits(SGD(), validation=60)
    whole, split = one.dataset(), one.images_of(0)
    assert len(split.test_labels) == 60
    assert len(split.train_labels) == 100
    pixels = {image.tobytes() for image in whole.test_images}
    assert not any(image.tobytes() in pixels for image in split.test_images)


def test_label_noise_is_the_same_for_all_methods_and_spares_the_test_images():
    plain = NetworkTrial("digits", images=200, label_noise=0.3)
    clean = replace(plain, label_noise=0.0).images_of(4)
    np.testing.assert_array_equal(
        *(replace(plain, method=one).images_of(4).train_labels for one in (SGD(), Lifted()))
    )
    noisy = plain.images_of(4)
    assert np.count_nonzero(noisy.train_labels != clean.train_labels) == 60
    np.testing.assert_array_equal(noisy.train_images, clean.train_images)
    np.testing.assert_array_equal(noisy.test_labels, clean.test_labels)
    assert not np.array_equal(plain.images_of(5).train_labels, noisy.train_labels)


def test_held_out_labels_are_as_noisy_as_those_trained_on():
    trial = NetworkTrial("digits", images=200, label_noise=0.3, validation=100)
    clean, noisy = replace(trial, label_noise=0.0).images_of(4), trial.images_of(4)
    np.testing.assert_array_equal(noisy.test_images, clean.test_images)
    assert np.count_nonzero(noisy.test_labels != clean.test_labels) == 30


def test_pooled_images_are_seen_by_the_model():
    trial = NetworkTrial("digits", images=100, pool=2, model="tiny-mlp", method=SGD())
    assert trial.images_of(0).train_images.shape == (100, 4, 4)
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
    trial = NetworkTrial("digits", Training(3, 100), images=200, model="small-mlp")
    assert trial.run(0)["gradients"] == 3 * 2 * 4


def test_the_options_of_a_lift_reach_it():
    ring = GaussianRing(1.5, shift=2)
    messages = Lifted(covers=5, topology=ring, routing=Messages(blocks=4, streams=2), noise=0.01)
    model = model_of(NetworkTrial(method=messages, model="small-mlp"), 0)
    assert (model.covers, model.passes) == (5, 2)
    directed = Lifted(covers=3, routing=Directed(bank=4, destinations=2), noise="150%")
    model = model_of(NetworkTrial(method=directed, model="small-mlp"), 0)
    assert (model.covers, model.passes, len(model.routes)) == (3, 2, 4)
    spread = (
        model.net[1].weight.std(dim=0).mean()
        / model_of(NetworkTrial(method=SGD(), model="small-mlp"), 0)[1].weight.std()
    )
    assert 1 < float(spread.detach()) < 2


def test_replicas_of_networks_keep_to_themselves():
    coupled = NetworkTrial(method=RSGD(covers=3, noise=0.1), model="small-mlp")
    model = model_of(coupled, 0)
    x = torch.ones(2, 8, 8)
    each = torch.stack([model.cover(index)(x) for index in range(3)])
    torch.testing.assert_close(model.eval()(x), each)
    assert Identity() != NetworkTrial().method.topology


def test_one_routed_cover_is_the_plain_model():
    alone = digits(replace(CommitteeTrial().method, covers=1))
    assert timeless(alone.run(1)) == timeless(digits(SGD()).run(1))


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: digits(replace(CommitteeTrial().method, routing=Messages())), "routes weights"),
        (lambda: digits("sgd"), r"method is 'sgd'; write one of Lifted\(\), SGD\(\)"),
        (lambda: digits(SGD(), hidden=0), "hidden is 0"),
        (lambda: digits(SGD(), data="digits:3"), "is one class"),
        (lambda: NetworkTrial(data="cifar"), "no data set 'cifar'"),
        (lambda: NetworkTrial(model="committee"), "model is 'committee'"),
        (lambda: NetworkTrial(images=0), "images is 0"),
        (lambda: NetworkTrial(dropout=1.0), "dropout is 1.0"),
        (lambda: NetworkTrial(label_noise=1.0), "label_noise is 1.0"),
        (lambda: NetworkTrial(pool=0), "pool is 0"),
        (lambda: NetworkTrial(training={}), "training is {}"),
        (lambda: RepeatedTrial(SGD()), "trial is"),
        (lambda: DistilledTrial(members=0), "members is 0"),
        (lambda: DistilledTrial(temperature=0), "temperature is 0"),
        (lambda: DistilledTrial(weight=1.5), "weight is 1.5"),
        (lambda: DistilledTrial(method=RSGD()), "plain networks"),
        (lambda: RSGD(growth_epochs=0), "growth_epochs is 0"),
        (lambda: Soup(branches=0), "branches is 0"),
        (lambda: Soup(trunk=1.0), "trunk is 1.0"),
        (lambda: Training(drop_connect=1.0), "drop_connect is 1.0"),
        (lambda: RepeatedTrial(NetworkTrial(), 0), "times is 0"),
    ],
)
def test_trials_that_cannot_be_are_refused(make, message):
    with pytest.raises(McoverError, match=message):
        make()


@pytest.mark.parametrize(
    ("cls", "options"),
    [(SGD, {"covers": 3}), (RSGD, {"bank": 3}), (NetworkTrial, {"hidden": 5})],
)
def test_options_of_something_else_cannot_be_written(cls, options):
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        cls(**options)


def test_a_committee_wants_two_classes():
    with pytest.raises(McoverError, match=r"two classes, digits has 10.*digits:3,8"):
        digits(SGD(), data="digits").run(0)
