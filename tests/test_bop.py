"""Bop: the published rule entry by entry, and its use with another optimizer."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from covering import train
from mcover import Uniform, cover_loss, lift
from mcover.nn import binary
from mcover.optim import Bop
from optim_battery import RESTS


def stack(seed=0, shape=(3, 4, 5)):
    draw = torch.Generator().manual_seed(seed)
    return nn.Parameter(torch.where(torch.rand(shape, generator=draw) < 0.5, -1.0, 1.0).double())


@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("rate", [0.05, 0.5, 1.0])
def test_weights_flip_by_the_published_rule(rate, threshold):
    w, draw = stack(), torch.Generator().manual_seed(1)
    optimizer = Bop([w], lr=rate, threshold=threshold)
    weights, means = w.detach().numpy().copy(), np.zeros(w.shape)
    total = 0
    for _ in range(20):
        w.grad = torch.randn(w.shape, generator=draw, dtype=torch.float64)
        optimizer.step()
        flips = 0
        for index in np.ndindex(*w.shape):
            means[index] = (1 - rate) * means[index] + rate * float(w.grad[index])
            same = np.sign(means[index]) == np.sign(weights[index])
            if abs(means[index]) >= threshold and same:
                weights[index] = -weights[index]
                flips += 1
        np.testing.assert_array_equal(w.detach().numpy(), weights)
        assert optimizer.flipped == flips / w.numel()
        total += flips
    assert total > 0


def test_a_mean_of_exactly_the_threshold_flips_and_one_of_zero_does_not():
    w = nn.Parameter(torch.tensor([1.0, 1.0, -1.0, -1.0]))
    w.grad = torch.tensor([0.5, 0.25, -0.5, 0.5])
    Bop([w], lr=1.0, threshold=0.5).step()
    assert w.tolist() == [-1.0, 1.0, 1.0, -1.0]
    w.grad = torch.zeros(4)
    Bop([w], lr=1.0, threshold=0.0).step()
    assert w.tolist() == [-1.0, 1.0, 1.0, -1.0]


@pytest.mark.parametrize("rest", RESTS.values(), ids=RESTS)
def test_beside_another_optimizer_both_step_as_they_do_alone_and_learn(rest):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), binary.Sign(), nn.Linear(12, 2))
        x = torch.randn(32, 6)
    y = (x.sum(1) > 0).long()
    student = binary.binarize(net, estimator="identity")
    covered = lift(student, 3, Uniform(), "messages", noise="50%", seed=0)
    binary.snap_latents(covered)
    twin, how = copy.deepcopy(covered), {"lr": 0.1, "threshold": 1e-3}
    before = {name: s.detach().clone() for name, s in binary.latents(covered).items()}

    def together(_):
        other = rest(binary.other_parameters(covered), lr=1e-2)
        return Bop(binary.latents(covered).values(), rest=other, **how)

    losses = train(lambda: cover_loss(F.cross_entropy, covered(x), y), None, 60, together)
    assert losses[-1] < 0.75 * losses[0]
    flips = Bop(binary.latents(twin).values(), **how)
    alone = rest(binary.other_parameters(twin), lr=1e-2)
    for _ in range(60):
        twin.zero_grad()
        cover_loss(F.cross_entropy, twin(x), y).backward()
        flips.step()
        alone.step()
    for a, b in zip(covered.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)
    for name, latent in binary.latents(covered).items():
        assert (latent.abs() == 1).all()
        assert (latent != before[name]).any()
    net = binary.collapse(covered, "signs", loader=[x])
    assert all((w.abs() == 1).all() for w in binary.latents(net).values())
    assert (net(x).argmax(1) == y).float().mean() > 0.7


def test_one_scheduler_serves_both_and_groups_can_be_added():
    w, v, bias, late = stack(), stack(1), nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2))
    optimizer = Bop([w], lr=0.4, rest=torch.optim.SGD([bias], lr=0.1))
    optimizer.add_param_group({"params": [v], "lr": 0.2})
    optimizer.add_param_group({"params": [late], "lr": 1.0, "flips": False})
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for p in (w, v, bias, late):
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert (bias == -0.1).all()
    assert (late == -1).all()
    scheduler.step()
    assert [g["lr"] for g in optimizer.param_groups] == [0.2, 0.05, 0.1, 0.5]
    assert [g["lr"] for g in optimizer.rest.param_groups] == [0.05, 0.5]
    optimizer.zero_grad()
    assert late.grad is None
    optimizer.step()  # what has no gradient stays
    assert (late == -1).all()


def test_a_copy_shares_groups_with_the_copy_of_the_other_optimizer():
    bias = nn.Parameter(torch.zeros(3))
    same = copy.deepcopy(Bop([stack()], rest=torch.optim.Adam([bias], lr=0.1)))
    assert same.rest.param_groups[0] is same.param_groups[1]
