"""Whole experiments: paired seeds, options of their own model and method, plain outcomes."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from mcover.errors import McoverError
from mcover.lab import data
from mcover.lab.committee import CommitteeMachine, machine_of
from mcover.lab.training import trial
from mcover.lab.training.experiment import COMMITTEE_TRAINING, Experiment, committee
from mcover.lab.training.settings import METHODS, Training
from mcover.lab.training.trial import images_of, model_of, run_trial
from mcover.lifting import Directed, Messages
from mcover.topology import GaussianRing, Identity, Uniform

ON_COVERS = ("mcover", "rsgd", "elastic")
SHORT = replace(COMMITTEE_TRAINING, epochs=100, batch=20, evaluate_every=20)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def digits(method, **changes):
    how = replace(SHORT, method=method, decay=0.9 if method == "ema" else None)
    return committee(how, **{"data": "digits:3,8", "images": 100} | changes)


@pytest.mark.parametrize("method", METHODS)
def test_a_trial_of_the_committee_comes_to_plain_numbers(method):
    found = run_trial(digits(method), seed=3)
    again = run_trial(digits(method), seed=3)
    assert replace(found, seconds=0.0) == replace(again, seconds=0.0)
    model = found.history.model
    assert isinstance(model, CommitteeMachine)
    images = images_of(digits(method), seed=3)
    for share, part in ((found.error, "test"), (found.train_error, "train")):
        x = torch.from_numpy(getattr(images, f"{part}_images"))
        wrong = model.predict(x).numpy() != getattr(images, f"{part}_labels")
        assert share == pytest.approx(wrong.mean())
    assert found.error < 0.2
    assert found.epochs >= 100 or found.stopped == "errors"
    assert found.gradients == int(found.history.gradients[-1])


def test_settings_survive_json():
    one = digits("mcover", topology="ring", sigma=0.5, schedule="0.5,2e-3,0.5,2e-3", validation=50)
    plain = json.loads(json.dumps(asdict(one)))
    back = Experiment(Training(**plain.pop("training")), **plain)
    assert back == one


@pytest.mark.parametrize("method", METHODS)
def test_trials_are_paired(method):
    """One seed: the same images, first weights and order of the first cover's batches."""
    plain, other = digits("sgd"), digits(method)
    images = [images_of(one, seed=5).train_images for one in (plain, other)]
    np.testing.assert_array_equal(*images)
    first, covered = (model_of(one, images_of(one, 5), 5) for one in (plain, other))
    weights = machine_of(covered).J
    assert torch.equal(weights if weights.ndim == 2 else weights[0], machine_of(first).J)
    if weights.ndim == 3:
        assert len(weights) == 4
        assert not torch.allclose(weights[0], weights[1])


def test_the_subset_has_its_own_seed_where_one_is_given():
    drawn = [images_of(digits("sgd"), seed).train_images for seed in (0, 1)]
    np.testing.assert_array_equal(*drawn)
    free = [images_of(digits("sgd", subset_seed=None), seed).train_images for seed in (0, 1)]
    assert not np.array_equal(*free)


def test_a_validation_split_never_shows_the_test_images():
    one = digits("sgd", validation=60)
    whole, split = trial.dataset(one), images_of(one, 0)
    assert len(split.test_labels) == 60
    assert len(split.train_labels) == 100
    pixels = {image.tobytes() for image in whole.test_images}
    assert not any(image.tobytes() in pixels for image in split.test_images)


def test_the_paper_s_committee_is_the_default():
    one = committee()
    assert (one.data, one.images, one.subset_seed) == ("fashion-mnist:dress,coat", 500, 0)
    how = one.training
    assert (how.epochs, how.batch, how.lr, how.momentum) == (20_000, 100, 10.0, 0.0)
    assert (how.stop_loss, how.stop_error, how.judge) == (1e-7, 0.0, "collapse")
    routed = digits("mcover")
    model = model_of(routed, images_of(routed, 0), 0)
    assert (model.covers, model.passes) == (4, 10)
    assert model.settings.topology == Uniform()
    assert model.settings.routing == Directed(bank=10, destinations=None)
    assert machine_of(model).J.shape == (4, 9, 64)


def test_networks_route_weights_that_are_redrawn_each_epoch_by_default():
    one = Experiment(Training(method="mcover", batch=100), model="small-mlp")
    images = data.load("digits")
    lifted = model_of(one, images, 0).settings
    assert (lifted.covers, lifted.topology, lifted.noise) == (4, Uniform(), 0.05)
    assert lifted.routing == Directed(redraw_every=-(-len(images.train_labels) // 100))
    assert model_of(replace(one, model="conv"), images, 0).settings.noise == 0.02
    quenched = model_of(replace(one, redraw_every=0, noise=0.02), images, 0).settings
    assert (quenched.noise, quenched.routing) == (0.02, Directed())


def test_messages_are_routed_as_in_the_paper_where_they_are_asked_for():
    one = Experiment(Training(method="mcover"), model="small-mlp", routing="messages")
    lifted = model_of(one, data.load("digits"), 0).settings
    assert (lifted.covers, lifted.topology) == (5, GaussianRing(1.5, shift=2))
    assert (lifted.routing, lifted.noise) == (Messages(block_channels=1), 0.01)


def test_replicas_of_networks_keep_to_themselves():
    coupled = Experiment(Training(method="rsgd"), model="small-mlp", covers=3, noise=0.1)
    model = model_of(coupled, data.load("digits"), 0)
    assert (model.covers, model.settings.noise, model.settings.topology) == (3, 0.1, Identity())


def test_one_routed_cover_is_the_plain_model():
    alone, plain = (
        run_trial(digits(m, **o), 1) for m, o in (("mcover", {"covers": 1}), ("sgd", {}))
    )
    assert replace(alone, seconds=0.0) == replace(plain, seconds=0.0)


@pytest.mark.parametrize(
    "options", [{}, {"model": "conv"}, {"model": "conv", "routing": "messages"}]
)
def test_trials_of_networks_run_too(options):
    how = Training(3, 64, method="mcover")
    one = Experiment(how, **{"model": "small-mlp", "images": 300, "covers": 3} | options)
    found = run_trial(one, seed=0)
    assert found.error < 0.5
    assert found.train_error < 0.5
    assert found.loss > 0
    assert found.gradients == 3 * 5 * 3


def test_an_interrupted_trial_is_no_outcome(monkeypatch):
    def stop(self):
        raise KeyboardInterrupt

    monkeypatch.setattr("mcover.lab.training.loop._Loop.step", stop)
    with pytest.raises(KeyboardInterrupt):
        run_trial(digits("sgd"), 0)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("sgd", {"covers": 3}, "covers is for methods on covers"),
        ("swa", {"noise": 0.1}, "noise is for methods on covers"),
        ("rsgd", {"bank": 3}, "bank is for method 'mcover'"),
        ("elastic", {"topology": "ring"}, "topology is for method 'mcover'"),
        ("mcover", {"sigma": 1.0}, "sigma is for a ring; it is 'uniform'"),
        ("mcover", {"blocks": 2}, "blocks is for routing 'messages'"),
        ("mcover", {"routing": "messages"}, "routes weights"),
        ("mcover", {"dropout": 0.5}, "no dropout"),
        ("mcover", {"noise": 0.5}, "noise is for covers of a common start"),
    ],
)
def test_options_of_something_else_are_refused(method, options, message):
    with pytest.raises(McoverError, match=message):
        digits(method, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": 5}, "hidden is for model 'committee'"),
        ({"schedule": "slow"}, "schedule is for model 'committee'"),
        ({"free_norms": True}, "free_norms is for model 'committee'"),
        ({"routing": "messages", "bank": 5}, "bank is for routing 'weights'"),
        ({"routing": "weights", "streams": 5}, "streams is for routing 'messages'"),
        ({"start": "independent", "noise": 0.1}, "noise is for covers of a common start"),
    ],
)
def test_options_of_the_committee_are_refused_for_networks(options, message):
    with pytest.raises(McoverError, match=message):
        Experiment(Training(method="mcover"), **options)


def test_a_committee_wants_two_classes():
    with pytest.raises(McoverError, match=r"two classes apart, digits has 10.*digits:3,8"):
        run_trial(digits("sgd", data="digits"), 0)
