"""A model may write to its inputs: covers share them, but not each other's changes."""

import pytest
import torch
from torch import nn

from covering import RING, both, doubles
from mcover import Directed, McoverError, lift


class Halves(nn.Module):
    """Changes its input."""

    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.calls = 0

    def forward(self, x):
        return self.out(self.norm(x.mul_(0.5)))


class Counts(Halves):
    """Counts its calls, too."""

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * self.calls


@both
def test_a_model_that_changes_its_input_does_so_for_each_cover_alone(routing):
    base = Counts().double()
    covered = lift(base, 3, RING, routing, noise=0, seed=0)
    x = doubles(4, 6)
    for _ in range(2):
        for mode in (True, False):
            want = base.train(mode)(x.clone())
            got = covered.train(mode)(x.clone())
            torch.testing.assert_close(got, want.expand(3, *want.shape))
    assert covered.net.norm.num_batches_tracked.tolist() == [2, 2, 2]


@both
def test_inputs_are_changed_for_each_cover_alone_in_inference_mode_too(routing):
    base = Halves().double().eval()
    covered = lift(base, 3, RING, routing, noise=0, seed=0).eval()
    with torch.inference_mode():
        x = doubles(4, 6).clone()
        want = base(x.clone())
        torch.testing.assert_close(covered.ensemble(x), want)
        torch.testing.assert_close(covered(x), want.expand(3, *want.shape))


@pytest.mark.parametrize("covers", [1, 3])
def test_passes_of_a_model_that_changes_its_input_all_see_the_input_as_it_was(covers):
    base, x = Halves().double().eval(), doubles(4, 6)
    how = Directed(bank=3, destinations=3)
    covered = lift(base, covers, RING, how, noise=0, seed=0)
    want = base(x.clone()).repeat(3, 1).expand(covers, 12, 3)
    for _ in range(2):
        torch.testing.assert_close(covered(x.clone()), want)
        torch.testing.assert_close(covered.each(x.expand(covers, 4, 6).clone()), want)


@both
def test_an_input_that_is_changed_has_its_gradient_and_keeps_its_values(routing):
    base = Counts().double()
    covered = lift(base, 3, RING, routing, noise=0, seed=0)
    before = doubles(4, 6)
    for calls in (1, 2):
        inputs = [before.clone().requires_grad_() for _ in range(2)]
        base.calls = calls - 1
        base(own := inputs[0] * 1).square().sum().backward()
        covered(common := inputs[1] * 1).square().sum().backward()
        assert not torch.equal(own, before)
        assert torch.equal(common, before)
        torch.testing.assert_close(inputs[1].grad, 3 * inputs[0].grad)


@both
def test_a_tensor_that_is_given_twice_is_one_tensor_to_each_cover(routing):
    class Asks(Halves):
        def forward(self, x, y):
            return self.out(x) * (2 if x is y else 1)

    covered = lift(Asks(), 3, RING, routing, noise=0, seed=0)
    x = torch.ones(2, 6)
    for _ in range(2):
        torch.testing.assert_close(covered(x, x), 2 * covered(x, x.clone()))
    own = x.expand(3, 2, 6)
    torch.testing.assert_close(covered.each(own, own), 2 * covered(x, x.clone()))


def test_a_model_that_begins_to_change_its_input_is_refused():
    class Sometimes(Halves):
        def forward(self, x):
            return self.out(x if self.norm.momentum == 0.1 else x.mul_(2))

    covered = lift(Sometimes(), 3, RING, "messages", seed=0)
    covered(torch.ones(4, 6))
    covered.net.norm.momentum = 0.2
    with pytest.raises(McoverError, match=r"changed its input in place.*x\.clone\(\)"):
        covered(torch.ones(4, 6))
