"""Back to one model: the results of collapse, per-cover models and ensembles."""

import copy

import pytest
import torch
from torch import nn

from covering import RING, assert_equal, both, doubles
from mcover import Uniform, lift
from mcover.errors import McoverWarning
from tiny_models import Convolutional, Perceptron, Transformer, routed, tiny


def test_the_mean_is_over_covers_and_covers_can_be_taken_out():
    models = [tiny(Perceptron, seed)[0] for seed in range(3)]
    covered = lift(models[0], models, RING, "messages", seed=0)
    for name, value in covered.collapse().state_dict().items():
        want = torch.stack([model.state_dict()[name] for model in models]).mean(0)
        torch.testing.assert_close(value, want)
    assert_equal(covered.cover(-1).state_dict(), models[2].state_dict())


def test_other_methods_sign_and_functions():
    models = [nn.Linear(3, 2) for _ in range(3)]
    for model, values in zip(models, ([-1.0, 1, 1], [1.0, 1, -1], [-1.0, 1, -1]), strict=True):
        model.weight.data[:] = torch.tensor(values)
    covered = lift(models[0], models, Uniform(), "messages", seed=0)
    assert covered.collapse("sign").weight.tolist() == [[-1.0, 1.0, -1.0]] * 2
    last = covered.collapse(lambda stack: stack[-1])
    assert torch.equal(last.weight, models[2].weight)
    median = covered.collapse(lambda stack: stack.median(0).values)
    assert median.weight.tolist() == [[-1.0, 1.0, -1.0]] * 2


def test_tied_weights_stay_tied():
    model, x = tiny(Transformer)
    covered = lift(model, 3, RING, "messages", noise=0.3, seed=0)
    for net in (covered.collapse(), covered.cover(1)):
        assert net.head.weight is net.embed.weight
        assert net.head.weight.shape == (6, 4)
        net(x).sum().backward()


def test_collapse_shares_nothing_with_the_covers():
    model, x = tiny(Convolutional)
    covered = lift(model, 3, RING, "messages", seed=0)
    before = copy.deepcopy(covered.state_dict())
    net = covered.collapse()
    optimizer = torch.optim.SGD(net.train().parameters(), lr=1.0)
    net(x).sum().backward()
    optimizer.step()
    assert_equal(covered.state_dict(), before)


def test_running_statistics_are_averaged_or_recomputed():
    model, x = tiny(Convolutional)
    covered = lift(model, 3, RING, "messages", noise=0.5, seed=0)
    for _ in range(3):
        covered(x)
    stats = covered.net.norm.running_mean.clone()
    average = covered.collapse()
    torch.testing.assert_close(average.norm.running_mean, stats.mean(0))
    assert average.norm.num_batches_tracked.dtype == torch.int64
    assert int(average.norm.num_batches_tracked) == 3
    again = covered.collapse(loader=[(x, None)])
    torch.testing.assert_close(again.norm.running_mean, again.first(x).mean((0, 2, 3)))
    assert not again.training
    assert torch.equal(covered.net.norm.running_mean, stats)


@pytest.mark.filterwarnings("error::mcover.errors.McoverWarning")
def test_batch_norm_without_a_loader_warns_and_says_what_to_write():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).double()
    covered = lift(model, 3, seed=0)
    covered.collapse()  # nothing ran: the statistics are those of the model
    covered(doubles(8, 4))
    with pytest.warns(McoverWarning, match=r"batch norm '1' .*collapse\(loader=batches\)"):
        covered.collapse()


@both
def test_the_ensemble_is_the_mean_prediction(routing):
    model, x = tiny(Perceptron)
    how = routed(routing, bank=4, destinations=2)
    covered = lift(model, 3, RING, how, noise=0.5, seed=0).eval()
    want = torch.stack([covered.cover(k)(x) for k in range(3)]).mean(0)
    torch.testing.assert_close(covered.ensemble(x), want)
