"""The training loop against loops written out by hand, and the networks it is used with."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from mcover.errors import McoverError
from reproduction import data
from reproduction.models import Conv, Mlp
from reproduction.training import (
    EMA,
    RSGD,
    SAM,
    SWA,
    Elastic,
    Entropy,
    Lifted,
    NetworkTrial,
    Training,
    draws,
)
from reproduction.training.loop import fit

TINY = Mlp((64, 24, 10))
WHOLE = 10_000  # a batch of all images: the order then plays no part


@pytest.fixture(scope="module")
def digits():
    return data.subset(data.load("digits"), 300, seed=0)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Stack(nn.Module):
    """A stand-in for a covered module: independent networks side by side."""

    def __init__(self, parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.covers = len(parts)

    def cover(self, index):
        return self.parts[index]

    def forward(self, x):
        return torch.stack([part(x) for part in self.parts])

    def collapse(self):
        states = [part.state_dict() for part in self.parts]
        one = copy.deepcopy(self.parts[0])
        one.load_state_dict(
            {name: torch.stack([state[name] for state in states]).mean(dim=0) for name in states[0]}
        )
        return one


def by_hand(model, images, labels, steps, lr=0.05):
    """Full-batch SGD with Nesterov momentum, written out; yields the weights after each step."""
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    velocity = [torch.zeros_like(one) for one in model.parameters()]
    for _ in range(steps):
        loss = functional.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for one, grad, v in zip(model.parameters(), grads, velocity, strict=True):
                v.mul_(0.9).add_(grad)
                one.sub_(lr * (grad + 0.9 * v))
        yield {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same(state, other):
    for name, tensor in state.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-4, atol=1e-5, msg=name)


def test_a_plain_module_trains_as_by_hand(digits):
    model, twin = TINY.build(seed=0), TINY.build(seed=0)
    history = fit(model, digits, Training(epochs=4, batch=WHOLE))
    *_, last = by_hand(twin, digits.train_images, digits.train_labels, 4)
    assert_same(model.state_dict(), last)
    assert history.model is model
    assert history.cover_error.shape == (4, 1)
    np.testing.assert_array_equal(history.cover_error[:, 0], history.collapse_error)
    wrong = model(torch.from_numpy(digits.test_images)).argmax(1).numpy() != digits.test_labels
    assert history.collapse_error[-1] == wrong.mean()


def test_covers_that_do_not_mix_train_as_independent_modules(digits):
    stack = Stack([TINY.build(seed) for seed in range(3)])
    history = fit(stack, digits, Training(epochs=3, batch=WHOLE))
    assert history.cover_error.shape == (3, 3)
    losses = []
    for seed, part in enumerate(stack.parts):
        twin = TINY.build(seed)
        alone = fit(twin, digits, Training(epochs=3, batch=WHOLE))
        assert_same(part.state_dict(), twin.state_dict())
        np.testing.assert_array_equal(history.cover_error[:, seed], alone.collapse_error)
        losses.append(alone.train_loss)
    np.testing.assert_allclose(history.train_loss, np.mean(losses, axis=0), rtol=1e-4)
    assert_same(history.model.state_dict(), stack.collapse().state_dict())


def test_streams_along_the_batch_count_as_one_cover(digits):
    class Streams(Stack):
        passes = 2

        def forward(self, x):
            return torch.cat([super().forward(x), super().forward(x)], dim=1)

    parts = [TINY.build(seed) for seed in range(3)]
    once, twice = (
        fit(kind(copy.deepcopy(parts)), digits, Training(epochs=2, batch=WHOLE))
        for kind in (Stack, Streams)
    )
    np.testing.assert_array_equal(once.cover_error, twice.cover_error)
    np.testing.assert_allclose(once.train_loss, twice.train_loss, rtol=1e-5)


def test_swa_averages_the_epochs_after_its_start(digits):
    model, twin = TINY.build(seed=0), TINY.build(seed=0)
    history = fit(model, digits, Training(epochs=4, batch=WHOLE), SWA(average_from=0.5))
    states = list(by_hand(twin, digits.train_images, digits.train_labels, 4))
    assert_same(model.state_dict(), states[3])
    mean = {name: (states[2][name] + states[3][name]) / 2 for name in states[0]}
    assert_same(history.model.state_dict(), mean)


def test_swa_measures_batch_norm_anew(digits):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    history = fit(model, digits, Training(epochs=2, batch=100), SWA(average_from=0.0))
    with torch.no_grad():
        hidden = history.model[1](torch.from_numpy(digits.train_images).flatten(1))
    torch.testing.assert_close(history.model[2].running_mean, hidden.mean(0), rtol=1e-3, atol=1e-4)


def test_training_learns_and_follows_its_seed_alone(digits):
    def train(seed):
        model = Mlp((64, 24, 10), dropout=0.2).build(seed=1)
        settings = Training(epochs=8, batch=50, weight_noise=0.02, evaluate_every=3)
        return fit(model, digits, settings, seed=seed)

    state = torch.get_rng_state()
    first = train(0)
    torch.rand(7)
    again, other = train(0), train(1)
    torch.set_rng_state(state)
    np.testing.assert_array_equal(first.epoch, [3, 6, 8])
    np.testing.assert_array_equal(first.train_loss, again.train_loss)
    assert not np.array_equal(first.train_loss, other.train_loss)
    assert first.collapse_error[-1] < 0.2
    assert np.all(np.diff(first.train_loss) < 0)


def test_training_leaves_the_generator_of_torch_alone(digits):
    before = torch.get_rng_state()
    fit(Mlp((64, 8, 10), dropout=0.5).build(seed=0), digits, Training(epochs=1))
    assert torch.equal(before, torch.get_rng_state())


def test_weight_noise_is_taken_back_bit_by_bit():
    model = TINY.build(seed=0)
    before = copy.deepcopy(model.state_dict())
    parameters = list(model.parameters())

    def crash():
        with draws.noisy(parameters, 0.1, torch.Generator().manual_seed(0)):
            moved = torch.cat([one.detach().ravel() for one in parameters])
            kept = torch.cat([one.ravel() for one in before.values()])
            assert abs((moved - kept).std().item() - 0.1) < 0.01
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        crash()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_training_that_diverges_says_so(digits):
    with pytest.raises(McoverError, match=r"diverged.*smaller lr"):
        fit(TINY.build(seed=0), digits, Training(epochs=30, batch=100, lr=1e30))


def test_a_frozen_module_is_refused(digits):
    with pytest.raises(McoverError, match="no parameters to train"):
        fit(TINY.build(seed=0).requires_grad_(False), digits)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"batch": 0}, "batch is 0"),
        ({"lr": 0.0}, "lr is 0.0"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"momentum": -1.0}, "momentum is -1.0"),
        ({"weight_noise": -0.1}, "weight_noise is -0.1"),
        ({"stop_loss": float("nan")}, "stop_loss is nan"),
        ({"epochs": float("nan")}, "epochs is nan"),
        ({"epochs": float("inf")}, "epochs is inf"),
        ({"epochs": 1.5}, "epochs is 1.5"),
        ({"batch": float("nan")}, "batch is nan"),
        ({"batch": True}, "batch is True"),
    ],
)
def test_trainings_that_cannot_be_are_refused(bad, message):
    with pytest.raises(McoverError, match=message):
        Training(**bad)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SWA(average_from=1.0), "average_from is 1.0"),
        (lambda: Entropy(inner_steps=0), "inner_steps is 0"),
        (lambda: RSGD(coupling=-1.0), "coupling is -1.0"),
        (lambda: Elastic(period=0), "period is 0"),
        (lambda: EMA(decay=1), "decay is 1"),
        (lambda: SAM(rho=float("nan")), "rho is nan"),
        (lambda: Lifted(covers=0), "covers is 0"),
        (lambda: Lifted(topology="ring"), "topology is 'ring'; write mcover.Uniform"),
        (lambda: Lifted(routing="messages"), r"routing is 'messages'; write mcover.Directed"),
        (lambda: Lifted(noise="much"), "noise is 'much'"),
        (lambda: Lifted(noise=0.1, start="independent"), "write noise=0"),
    ],
)
def test_methods_that_cannot_be_are_refused(make, message):
    with pytest.raises(McoverError, match=message):
        make()


def test_networks_have_the_sizes_of_the_paper():
    def sizes(kind):
        layers = [layer for layer in kind.build(seed=0) if isinstance(layer, nn.Linear)]
        return [layers[0].in_features] + [layer.out_features for layer in layers]

    images, labels = np.zeros((1, 28, 28), np.float32), np.zeros(1, np.int64)
    mnist = data.Dataset("as large as MNIST", images, labels, images, labels)
    assert sizes(NetworkTrial().architecture(mnist)) == [784, 512, 512, 10]
    small = NetworkTrial(model="small-mlp")
    assert sizes(small.architecture(data.load("digits"))) == [64, 256, 256, 10]


def test_a_network_is_drawn_by_its_seed_alone():
    state = torch.get_rng_state()
    one, same, other = (TINY.build(seed) for seed in (0, 0, 1))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(one[1].weight, same[1].weight)
    assert not torch.equal(one[1].weight, other[1].weight)


def test_convolutions_halve_the_image_and_end_in_classes():
    model = Conv((9, 8), channels=(4, 6), classes=3, dropout=0.2).build(seed=0)
    assert model(torch.ones(5, 9, 8)).shape == (5, 3)
    kinds = [type(layer).__name__ for layer in model]
    part = ["Conv2d", "ReLU", "MaxPool2d"]
    assert kinds == ["Unflatten", *part, *part, "Flatten", "Dropout", "Linear"]
    assert model[-1].in_features == 6 * 2 * 2


@pytest.mark.parametrize(("sizes", "dropout"), [((3,), 0.0), ((3, 0, 1), 0.0), ((3, 1), 1.0)])
def test_networks_that_cannot_be_are_refused(sizes, dropout):
    with pytest.raises(McoverError, match="write"):
        Mlp(sizes, dropout)


@pytest.mark.parametrize(
    ("size", "channels", "dropout"),
    [((8, 8), (), 0.0), ((8, 8), (4, 0), 0.0), ((8, 3), (4, 4), 0.0), ((8, 8), (4,), -0.1)],
)
def test_convolutions_that_cannot_be_are_refused(size, channels, dropout):
    with pytest.raises(McoverError, match="write"):
        Conv(size, channels, dropout=dropout)
