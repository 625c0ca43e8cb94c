"""Buffers and attributes of a module: each cover keeps its own, unless they are shared."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn

import mcover
from covering import RING, both, doubles, mlp, pickled
from mcover import McoverError, lift


class Stateful(nn.Module):
    """State in all forms that modules can have."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 3)
        self.register_buffer("average", torch.zeros(3))
        self.register_buffer("last", None)
        self.register_buffer("mask", torch.ones(3), persistent=False)
        self.count, self.history, self.hidden = 0, [], None

    def forward(self, x):
        y = self.inner(x) * self.mask
        self.average = 0.9 * self.average + 0.1 * y.mean(0)
        self.last = y.detach().sum(0)
        self.count += 1
        self.history.append(float(y.detach().sum()))
        y = y if self.hidden is None else y + self.hidden
        self.hidden = y.detach()
        return y + self.average


@both
@pytest.mark.parametrize("covers", [1, 3])
def test_state_of_a_module_stays_in_its_cover(routing, covers):
    models = [Stateful().double() for _ in range(covers)]
    covered = lift(models[0], models, mcover.Identity(), routing, seed=0)
    for step in range(3):
        x = doubles(4, 6, seed=step)
        want = torch.stack([model(x) for model in models])
        torch.testing.assert_close(covered(x), want)
    for name in ("average", "last"):
        rows = torch.stack([getattr(model, name) for model in models])
        torch.testing.assert_close(getattr(covered.net, name), rows.detach())
        torch.testing.assert_close(getattr(covered.collapse(), name), rows.detach().mean(0))
    others = copy.deepcopy(covered), pickled(covered)
    x = doubles(4, 6, seed=9)
    want = torch.stack([model(x) for model in models])
    for again in others:
        torch.testing.assert_close(again(x), want)


@both
def test_a_buffer_that_is_assigned_leaves_what_backward_saved_and_can_be_undone(routing):
    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(6, 3)
            self.register_buffer("scale", torch.ones(3))
            self.register_buffer("last", None)

        def forward(self, x):
            y = self.inner(x.mul_(0.5)) * self.scale  # the old scale is saved for backward
            last = 0 if self.last is None else self.last
            self.scale = 0.9 * self.scale + 0.1 * y.detach().mean(0)
            self.last = y.detach().sum(0)
            return y + last

    base = Remembers().double()
    covered = lift(base, 3, RING, routing, noise=0, seed=0)
    for step in range(2):  # the first forward is computed twice: the model changes its input
        x = doubles(4, 6, seed=step)
        want, got = base(x.clone()), covered(x.clone())
        torch.testing.assert_close(got, want.expand(3, *want.shape))
        want.square().sum().backward()
        got.square().sum().backward()
    torch.testing.assert_close(covered.net.inner.weight.grad[1], base.inner.weight.grad)
    torch.testing.assert_close(covered.net.scale, base.scale.expand(3, 3))
    assert covered.state == ("scale", "last")


class Writes(nn.Module):
    """Changes a buffer in each forward."""

    def __init__(self, value, write):
        super().__init__()
        self.inner, self.write = nn.Linear(6, 3), write
        self.register_buffer("count", value)

    def forward(self, x):
        self.count = self.write(self.count)
        return self.inner(x)


@pytest.mark.parametrize("write", [lambda b: b.add_(1), lambda b: b + 1], ids=["in place", "new"])
def test_a_shared_buffer_that_is_written_to_is_named(write):
    model, x = Writes(torch.zeros(()), write), torch.ones(2, 6)
    covered = lift(model, 3, RING, "messages", buffers=[], seed=0)
    with pytest.raises(McoverError, match=r"writes to its buffer 'count'.*buffers=\['count'\]"):
        covered(x)
    assert lift(model, 3, RING, "messages", seed=0)(x).shape == (3, 2, 3)


def test_a_sparse_buffer_that_is_assigned_is_named():
    model = Writes(torch.eye(4).to_sparse(), lambda graph: graph * 2)
    with pytest.raises(McoverError, match=r"writes to its buffer 'count'.*make it dense"):
        lift(model, 3, RING, "messages", seed=0)(torch.ones(4, 6))


def test_buffers_that_are_named_are_kept_for_each_cover_and_others_shared():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.norm = nn.Linear(6, 3), nn.BatchNorm1d(3)
            self.register_buffer("table", torch.ones(3))

        def forward(self, x):
            return self.norm(self.inner(x)) * self.table

    x = doubles(4, 6).float()
    for named in ("norm", ["norm.*"]):
        covered = lift(Scaled(), 3, RING, "messages", buffers=named, seed=0)
        assert covered(x).shape == (3, 4, 3)
        kept = ("running_mean", "running_var", "num_batches_tracked")
        assert covered.state == tuple(f"norm.{name}" for name in kept)
        assert covered.net.table.shape == (3,)
    covered = lift(Scaled(), 3, RING, "messages", buffers="norm.running_*", seed=0)
    with pytest.raises(McoverError, match=r"buffers=\['norm.num_batches_tracked'\]"):
        covered(x)


def test_running_averages_of_covers_with_batch_norm():
    covered = lift(mlp(nn.BatchNorm1d(8)), 3, RING, "messages", seed=0)
    batches = [doubles(4, 6, seed=k) for k in range(3)]
    average = AveragedModel(covered)
    average.update_parameters(covered)
    update_bn(batches, covered)
    update_bn(batches, average)
    for model in (covered, average.module):
        assert model.net[1].running_mean.shape == (3, 8)
        assert model.net[1].num_batches_tracked.tolist() == [3, 3, 3]
        assert model.collapse()(batches[0]).shape == (4, 3)
