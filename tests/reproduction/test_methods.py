"""Every training method by name: against updates written out, its batches, gradients and rules."""

import copy
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
from reproduction.training.draws import Batches
from reproduction.training.loop import Loop, fit

TINY = Mlp((64, 12, 10))
METHODS = (
    SGD(),
    Lifted(covers=3),
    RSGD(covers=3),
    Elastic(covers=3),
    Entropy(inner_steps=5),
    SWA(),
    EMA(decay=0.9),
    Soup(branches=2),
    SAM(),
)
ON_COVERS = METHODS[1:4]


def name(method):
    return method.kind


@pytest.fixture(scope="module")
def digits():
    return data.subset(data.load("digits"), 300, seed=0)


@pytest.fixture(scope="module")
def pair():
    return data.subset(data.load("digits:3,8", binarize="median"), 200, seed=0)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def lifted(model, method, noise=0.05):
    topology = mcover.Uniform() if isinstance(method, Lifted) else mcover.Identity()
    routing = "directed" if isinstance(model, CommitteeMachine) else "messages"
    return mcover.lift(model, 3, topology, routing, noise=noise, seed=0)


def module(kind, method):
    base = TINY.build(seed=0) if kind == "mlp" else CommitteeMachine(64, 5, seed=0)
    return lifted(base, method) if hasattr(method, "covers") else base


@pytest.mark.parametrize("method", METHODS, ids=name)
@pytest.mark.parametrize("kind", ["mlp", "committee"])
def test_every_method_learns_with_every_model(kind, method, digits, pair):
    dataset = digits if kind == "mlp" else pair
    settings = Training(epochs=30, batch=50, lr=0.1 if kind == "mlp" else 1.0)
    history = fit(module(kind, method), dataset, settings, method)
    assert history.collapse_error[-1] < (0.2 if kind == "mlp" else 0.1)
    assert type(history.model) is (nn.Sequential if kind == "mlp" else CommitteeMachine)
    assert history.stopped == "epochs"
    again = fit(module(kind, method), dataset, settings, method)
    np.testing.assert_array_equal(history.train_loss, again.train_loss)


@pytest.mark.parametrize(
    ("method", "gradients"),
    [
        (SGD(), 1),
        (SWA(), 1),
        (EMA(), 1),
        (Soup(branches=2, trunk=0.0), 1),
        (SAM(), 2),
        (Entropy(inner_steps=4), 1),
        (Lifted(covers=3), 3),
        (RSGD(covers=3), 3),
        (Elastic(covers=3), 3),
    ],
)
def test_gradients_of_single_models_are_counted(digits, method, gradients):
    """An epoch is one pass over the images for each cover, whatever the method makes of it."""
    history = fit(module("mlp", method), digits, Training(epochs=2, batch=50, lr=0.01), method)
    assert history.gradients.tolist()[-1] == 2 * 6 * gradients
    np.testing.assert_array_equal(history.epoch[-1], 2)


def test_gradients_of_a_lift_are_counted_for_every_pass(pair):
    base = CommitteeMachine(64, 5, seed=0)
    covered = mcover.lift(
        base, 3, mcover.Uniform(), mcover.Directed(bank=4, destinations=None), seed=0
    )
    history = fit(covered, pair, Training(epochs=2, batch=100))
    assert history.gradients.tolist() == [2 * 3 * 4, 4 * 3 * 4]


def test_a_walk_longer_than_an_epoch_takes_its_batches_from_the_next(digits):
    settings = Training(epochs=3, batch=150, evaluate_every=2)
    history = fit(TINY.build(seed=0), digits, settings, Entropy(inner_steps=5))
    np.testing.assert_array_equal(history.epoch, [2.5, 5.0])
    assert history.gradients.tolist() == [5, 10]


def full_batch(model, images, labels):
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    loss = functional.cross_entropy(model(x), y)
    return torch.autograd.grad(loss, list(model.parameters()))


def weights(model):
    return torch.cat([one.detach().ravel() for one in model.parameters()])


def test_sam_takes_the_gradient_uphill(digits):
    model, twin = TINY.build(seed=0), TINY.build(seed=0)
    fit(model, digits, Training(3, 10_000, 0.1, 0.0), SAM(rho=0.2))
    for _ in range(3):
        parameters = list(twin.parameters())
        grads = full_batch(twin, digits.train_images, digits.train_labels)
        norm = torch.sqrt(sum(grad.square().sum() for grad in grads))
        kept = [one.detach().clone() for one in parameters]
        with torch.no_grad():
            for one, grad in zip(parameters, grads, strict=True):
                one.add_(0.2 * grad / norm)
        grads = full_batch(twin, digits.train_images, digits.train_labels)
        with torch.no_grad():
            for one, grad, before in zip(parameters, grads, kept, strict=True):
                one.copy_(before - 0.1 * grad)
    torch.testing.assert_close(weights(model), weights(twin), rtol=1e-4, atol=1e-5)


def test_ema_averages_every_step(digits):
    def after(epochs):
        model = TINY.build(seed=0)
        return fit(model, digits, Training(epochs, 10_000, 0.1, 0.0)).model

    steps = [weights(after(epochs)) for epochs in (1, 2, 3)]
    mean = steps[0]
    for one in steps[1:]:
        mean = 0.8 * mean + 0.2 * one
    model = TINY.build(seed=0)
    history = fit(model, digits, Training(3, 10_000, 0.1, 0.0), EMA(decay=0.8))
    torch.testing.assert_close(weights(history.model), mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weights(model), steps[-1])


@pytest.mark.parametrize(
    "method", [RSGD(covers=3, coupling=0.0), Elastic(covers=3, coupling=0.0)], ids=name
)
@pytest.mark.parametrize("kind", ["mlp", "committee"])
def test_replicas_without_coupling_train_alone_on_batches_of_their_own(kind, method, digits, pair):
    dataset = digits if kind == "mlp" else pair
    covered = module(kind, method)
    start = [covered.cover(index) for index in range(3)]
    settings = Training(epochs=2, batch=64, lr=0.05)
    fit(covered, dataset, settings, method, seed=4)
    fit(start[0], dataset, settings, seed=4)
    # The first replica is the plain model with the same seed; the others see other batches.
    torch.testing.assert_close(weights(covered.cover(0)), weights(start[0]), rtol=1e-4, atol=1e-5)
    fit(start[1], dataset, settings, seed=4)
    assert not torch.allclose(weights(covered.cover(1)), weights(start[1]), atol=1e-4)


@pytest.mark.parametrize(
    "method", [RSGD(covers=3, coupling=np.inf), Elastic(covers=3, coupling=np.inf)], ids=name
)
def test_replicas_of_infinite_coupling_stay_together(method, digits):
    covered = module("mlp", method)
    history = fit(covered, digits, Training(2, 64), method)
    torch.testing.assert_close(weights(covered.cover(0)), weights(covered.cover(2)))
    np.testing.assert_array_equal(history.cover_error[-1], history.collapse_error[-1])


def test_elastic_hands_back_its_centre(digits):
    method = Elastic(covers=3, coupling=0.1, period=7)
    covered = module("mlp", method)
    history = fit(covered, digits, Training(2, 64), method)
    assert not torch.allclose(weights(history.model), weights(covered.collapse()), atol=1e-6)


@pytest.mark.parametrize("method", ON_COVERS, ids=name)
def test_methods_on_covers_refuse_a_plain_module(method, digits):
    called = type(method).__name__
    with pytest.raises(McoverError, match=rf"{called} needs covers.*mcover.lift"):
        fit(TINY.build(seed=0), digits, Training(), method)
    with pytest.raises(McoverError, match=rf"3 covers, and {called} has 4; write {called}"):
        fit(module("mlp", method), digits, Training(), replace(method, covers=4))


def numbered(count):
    return torch.arange(count, dtype=torch.float32).reshape(-1, 1), torch.arange(count)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("each", [None, 3])
def test_a_pass_has_every_image_once_for_every_cover(each, whole, monkeypatch):
    monkeypatch.setattr("reproduction.training.draws._GATHER_BYTES", 1 << 25 if whole else 0)
    batches = Batches(*numbered(10), 4, np.random.SeedSequence(1), each)
    seen = []
    for _ in range(2):
        parts = [batches.next() for _ in range(3)]
        assert [part[1].shape[-1] for part in parts] == [4, 4, 2]
        labels = torch.cat([part[1] for part in parts], dim=-1).reshape(each or 1, 10)
        assert all(sorted(row) == list(range(10)) for row in labels.tolist())
        images = torch.cat([part[0] for part in parts], dim=-2).reshape(each or 1, 10)
        assert torch.equal(images, labels.float())
        seen += labels.tolist()
    assert len({tuple(row) for row in seen}) == len(seen)
    assert batches.passes == 2


def test_the_first_cover_sees_the_batches_of_a_plain_training():
    plain, own = (Batches(*numbered(9), 2, np.random.SeedSequence(7), each) for each in (None, 4))
    for _ in range(10):
        assert torch.equal(plain.next()[1], own.next()[1][0])


@pytest.mark.parametrize("method", [SGD(), Lifted(covers=3)], ids=name)
def test_training_stops_in_the_first_epoch_without_errors(method, pair):
    pair = data.subset(pair, 40, seed=1)
    settings = Training(400, 20, 1.0, 0.9, evaluate_every=7, stop_error=0.0)
    model = module("committee", method)
    history = fit(model, pair, settings, method)
    assert history.stopped == "errors"
    last = int(history.epoch[-1])
    assert 1 < last < 400

    def wrong(epochs):
        model = module("committee", method)
        plain = replace(settings, epochs=epochs, stop_error=None)
        single = fit(model, pair, plain, method).model
        images = torch.from_numpy(pair.train_images)
        labels = torch.from_numpy(pair.train_labels)
        return int((single.predict(images) != labels).sum())

    assert wrong(last) == 0
    assert wrong(last - 1) > 0


def test_training_stops_where_the_loss_is_small(digits):
    settings = Training(200, 50, 0.1, stop_loss=0.3)
    model = TINY.build(seed=0)
    history = fit(model, digits, settings)
    assert history.stopped == "loss"
    with torch.no_grad():
        x, y = torch.from_numpy(digits.train_images), torch.from_numpy(digits.train_labels)
        assert 0.1 < float(functional.cross_entropy(model(x), y)) < 0.3
    before = TINY.build(seed=0)
    fit(before, digits, replace(settings, epochs=int(history.epoch[-1]) - 1, stop_loss=None))
    with torch.no_grad():
        assert float(functional.cross_entropy(before(x), y)) >= 0.3


def test_swa_does_not_stop_before_it_averages(pair):
    how = Training(100, 50, 1.0, 0.0, stop_error=1.0)
    history = fit(CommitteeMachine(64, 5, seed=0), pair, how, SWA(average_from=0.9))
    assert (history.stopped, history.epoch[-1]) == ("errors", 91)


@pytest.mark.parametrize("method", [SWA(average_from=0.0), EMA(decay=0.5)], ids=name)
@pytest.mark.parametrize("routing", ["messages", "directed"])
def test_averages_of_covers_with_batch_norm_measure_it_anew(method, routing, digits):
    torch.manual_seed(0)
    base = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    covered = mcover.lift(base, 3, mcover.Uniform(), routing, noise=0.05, seed=0)
    history = fit(covered, digits, Training(3, 100), method)
    assert history.collapse_error[-1] < 0.9
    assert type(history.model) is nn.Sequential
    assert history.model[2].num_batches_tracked == 3
    assert bool(history.model[2].running_var.isfinite().all())
    assert history.model(torch.zeros(2, 8, 8)).shape == (2, 10)
    # One by one, as anybody would: torch's own function takes covers.
    torch.optim.swa_utils.update_bn([torch.from_numpy(digits.train_images)], covered)
    assert not torch.equal(covered.collapse()[2].running_mean, base[2].running_mean)


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


def test_routes_are_redrawn_after_each_epoch_where_asked_for(digits):
    for each in (True, False):
        method = Lifted(covers=3, redraw_each_epoch=each)
        covered = module("mlp", method)
        fit(covered, digits, Training(4, 50), method)
        assert covered.redraws == (4 if each else 0)


def test_sharpness_follows_the_passes_over_the_images(pair):
    model = CommitteeMachine(64, 5, seed=0)
    fit(model, pair, Training(5, 50, 1.0))
    assert (model.beta, model.gamma) == model.schedule.at(4)
    assert copy.deepcopy(model).beta == model.beta
    torch.testing.assert_close(model.J.square().sum(1), torch.full((5,), 64.0))


@pytest.mark.parametrize("method", [SWA(), EMA()], ids=name)
def test_averages_of_a_committee_are_as_sharp_as_the_machine(method, pair):
    model = CommitteeMachine(64, 5, seed=0)
    seen = []
    settings = Training(20, 50, 1.0, 0.0, stop_loss=0.0)
    loop = Loop(model, pair, settings, method, 0, None)
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
