"""Every training method by name: it learns, counts gradients, stops and reports as it should."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import mcover
from mcover.errors import McoverError
from reproduction import data
from reproduction.committee import CommitteeMachine
from reproduction.models import Mlp
from reproduction.training import EMA, RSGD, SAM, SGD, SWA, Elastic, Entropy, Lifted, Soup, Training
from reproduction.training.loop import Loop, fit

TINY = Mlp((64, 12, 10))
# With the gradients of single models that a batch takes.
METHODS = {
    SGD(): 1,
    SWA(): 1,
    EMA(decay=0.9): 1,
    Soup(branches=2): 1,
    Entropy(inner_steps=5): 1,
    SAM(): 2,
    Lifted(covers=3): 3,
    RSGD(covers=3): 3,
    Elastic(covers=3): 3,
}
ON_COVERS = [method for method in METHODS if hasattr(method, "covers")]


def name(method):
    return method.kind


def module(kind, method):
    base = TINY.build(seed=0) if kind == "mlp" else CommitteeMachine(64, 5, seed=0)
    if not hasattr(method, "covers"):
        return base
    topology = mcover.Uniform() if isinstance(method, Lifted) else mcover.Identity()
    routing = "messages" if kind == "mlp" else "directed"
    return mcover.lift(base, 3, topology, routing, noise=0.05, seed=0)


@pytest.mark.parametrize("method", METHODS, ids=name)
@pytest.mark.parametrize("kind", ["mlp", "committee"])
def test_every_method_learns_with_every_model(kind, method, digits, pair):
    """An epoch is one pass over the images for each cover, for every method."""
    dataset = digits if kind == "mlp" else pair
    settings = Training(epochs=30, batch=50, lr=0.1 if kind == "mlp" else 1.0)
    history = fit(module(kind, method), dataset, settings, method)
    assert history.collapse_error[-1] < (0.2 if kind == "mlp" else 0.1)
    assert type(history.model) is (nn.Sequential if kind == "mlp" else CommitteeMachine)
    assert history.stopped == "epochs"
    assert history.epoch[-1] == 30
    passes = -(-len(dataset.train_labels) // 50) * 30
    assert history.gradients[-1] == passes * METHODS[method]


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_every_method_but_one_takes_adam_and_a_schedule(digits, method):
    adam = Training(4, 60, lr=0.01, optimizer="adam", lr_schedule="cosine")
    if isinstance(method, Entropy):
        for other in ({"optimizer": "sgd"}, {"lr_schedule": "constant"}):
            with pytest.raises(McoverError, match="Entropy-SGD supports 'sgd'"):
                fit(TINY.build(seed=0), digits, replace(adam, **other), method)
        return
    found = []
    for training in (adam, replace(adam, lr_schedule="constant"), replace(adam, optimizer="sgd")):
        model = module("mlp", method)
        fit(model, digits, training, method)
        found.append(torch.cat([one.detach().flatten() for one in model.parameters()]))
    assert all(bool(torch.isfinite(one).all()) for one in found)
    assert not torch.allclose(found[0], found[1])
    assert not torch.allclose(found[0], found[2])


@pytest.mark.parametrize("method", ON_COVERS, ids=name)
def test_methods_on_covers_refuse_a_plain_module(method, digits):
    called = type(method).__name__
    with pytest.raises(McoverError, match=rf"{called} needs covers.*mcover.lift"):
        fit(TINY.build(seed=0), digits, Training(), method)
    with pytest.raises(McoverError, match=rf"3 covers, and {called} has 4; write {called}"):
        fit(module("mlp", method), digits, Training(), replace(method, covers=4))


def test_training_follows_its_seed_alone(digits):
    def train(seed):
        model = Mlp((64, 24, 10), dropout=0.2).build(seed=1)
        settings = Training(epochs=8, batch=50, weight_noise=0.02, evaluate_every=3)
        return fit(model, digits, settings, seed=seed)

    state = torch.get_rng_state()
    first = train(0)
    assert torch.equal(state, torch.get_rng_state())
    torch.rand(7)
    again, other = train(0), train(1)
    torch.set_rng_state(state)
    np.testing.assert_array_equal(first.epoch, [3, 6, 8])
    np.testing.assert_array_equal(first.train_loss, again.train_loss)
    assert not np.array_equal(first.train_loss, other.train_loss)
    assert np.all(np.diff(first.train_loss) < 0)


@pytest.mark.parametrize("method", [SGD(), Lifted(covers=3)], ids=name)
def test_training_stops_in_the_first_epoch_without_errors(method, pair):
    pair = data.subset(pair, 40, seed=1)
    settings = Training(400, 20, 1.0, 0.9, evaluate_every=7, stop_error=0.0)
    history = fit(module("committee", method), pair, settings, method)
    assert history.stopped == "errors"
    last = int(history.epoch[-1])
    assert 1 < last < 400

    def wrong(epochs):
        plain = replace(settings, epochs=epochs, stop_error=None)
        single = fit(module("committee", method), pair, plain, method).model
        images, labels = map(torch.from_numpy, (pair.train_images, pair.train_labels))
        return int((single.predict(images) != labels).sum())

    assert wrong(last) == 0
    assert wrong(last - 1) > 0


def test_training_stops_where_the_loss_is_small(digits):
    settings = Training(200, 50, 0.1, stop_loss=0.3)
    model, before = TINY.build(seed=0), TINY.build(seed=0)
    history = fit(model, digits, settings)
    assert history.stopped == "loss"
    fit(before, digits, replace(settings, epochs=int(history.epoch[-1]) - 1, stop_loss=None))
    x, y = torch.from_numpy(digits.train_images), torch.from_numpy(digits.train_labels)
    with torch.no_grad():
        assert 0.1 < float(functional.cross_entropy(model(x), y)) < 0.3
        assert float(functional.cross_entropy(before(x), y)) >= 0.3


def test_averages_and_soups_stop_when_there_is_one(pair):
    settings = Training(100, 50, 1.0, 0.0, stop_error=1.0)
    history = fit(CommitteeMachine(64, 5, seed=0), pair, settings, SWA(average_from=0.9))
    assert (history.stopped, history.epoch[-1]) == ("errors", 91)
    how = Soup(branches=2, trunk=0.5)
    history = fit(CommitteeMachine(64, 5, seed=0), pair, replace(settings, epochs=8), how)
    assert (history.stopped, history.epoch[-1]) == ("errors", 8)


def test_a_training_that_cannot_be_says_so(digits):
    with pytest.raises(McoverError, match=r"diverged.*smaller lr"):
        fit(TINY.build(seed=0), digits, Training(epochs=30, batch=100, lr=1e30))
    with pytest.raises(McoverError, match="no parameters to train"):
        fit(TINY.build(seed=0).requires_grad_(False), digits)
    with pytest.raises(McoverError, match="3 epochs leave none for each of 4 branches"):
        fit(TINY.build(0), digits, Training(3, 50), Soup())


def test_errors_of_covers_and_of_routed_models_have_their_own_names(digits):
    base = TINY.build(seed=0)
    covered = mcover.lift(base, 3, mcover.Uniform(), mcover.Directed(bank=2), noise=0.2, seed=0)
    history = fit(covered, digits, Training(2, 50))
    x, y = torch.from_numpy(digits.test_images), torch.from_numpy(digits.test_labels)
    alone = [float((covered.cover(k)(x).argmax(1) != y).double().mean()) for k in range(3)]
    np.testing.assert_allclose(history.cover_error[-1], alone)
    with torch.no_grad():
        routed = (covered.eval()(x).argmax(-1).reshape(3, -1, len(y)) != y).double().mean((1, 2))
    np.testing.assert_allclose(history.routed_error[-1], routed)
    assert not np.allclose(history.cover_error[-1], history.routed_error[-1])
    assert fit(base, digits, Training(1)).routed_error is None


def test_sharpness_follows_the_epochs_of_the_model_that_is_trained(pair, monkeypatch):
    model = CommitteeMachine(64, 5, seed=0)
    fit(model, pair, Training(5, 50, 1.0))
    assert (model.beta, model.gamma) == model.schedule.at(4)
    torch.testing.assert_close(model.J.square().sum(1), torch.full((5,), 64.0))
    seen = []
    monkeypatch.setattr(CommitteeMachine, "sharpen", lambda self, epoch: seen.append(epoch))
    fit(CommitteeMachine(64, 5, seed=0), pair, Training(8, 50, 1.0, 0.0), Soup(2, trunk=0.5))
    assert seen == [0, 1, 2, 3, 4, 5, 4, 5]  # a branch is as sharp as a training of its length


@pytest.mark.parametrize("method", [SWA(), EMA()], ids=name)
def test_averages_of_a_committee_are_as_sharp_as_the_machine(method, pair):
    model = CommitteeMachine(64, 5, seed=0)
    seen = []
    loop = Loop(model, pair, Training(20, 50, 1.0, 0.0, stop_loss=0.0), method, 0, None)
    evaluate = loop.objective.evaluate

    def evaluated(source, images, *given):
        loss, wrong = evaluate(source, images, *given)
        if images is loop.images:  # by the stopping rule, not on the test images
            single = loop.collapsed()
            y = torch.from_numpy(2.0 * pair.train_labels - 1).float()
            seen.append((float(loss[0]), single.loss(single(images), y).item()))
        return loss, wrong

    loop.objective.evaluate = evaluated
    loop.run()
    assert seen
    np.testing.assert_allclose(*np.array(seen).T, rtol=1e-4)
    assert (loop.single.beta, loop.single.gamma) == model.schedule.at(19)
