"""Trainings as explicit loops on the batches that ``fit`` draws: the oracle of ``fit``."""

import torch
from numpy.random import SeedSequence
from torch.nn import functional

from reproduction.training.draws import Batches

WHOLE = 10_000  # a batch of all images: the order then plays no part


def seeds_of(seed):
    """Of the order of the images, and of noise."""
    _, order, noise, _ = SeedSequence(seed).spawn(4)
    return order, noise


def batches_of(dataset, size, seed):
    images, labels = map(torch.from_numpy, (dataset.train_images, dataset.train_labels))
    return Batches(images, labels, size, seeds_of(seed)[0], None)


def train(model, batches, optimizer, epochs, loss=None, before=lambda step: None):
    """Cross-entropy, or another loss of a batch; ``before`` is called before each step."""
    loss = loss or (lambda x, y: functional.cross_entropy(model(x), y))
    model.train()
    for step in range(epochs * batches.length):
        before(step)
        x, y = batches.next()
        optimizer.zero_grad()
        loss(x, y).backward()
        optimizer.step()


def sgd(model, lr=0.05, momentum=0.9):
    return torch.optim.SGD(model.parameters(), lr, momentum, nesterov=momentum > 0)


def weights(model):
    return torch.cat([one.detach().ravel() for one in model.parameters()])


def assert_same_weights(one, other, rtol=1e-4, atol=1e-5):
    torch.testing.assert_close(weights(one), weights(other), rtol=rtol, atol=atol)


def same_state(model, other):
    """Bit by bit."""
    return all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))
