"""Each cover on separate inputs, against common inputs and single covers.

That covers without mixing are models on their own batches is in ``test_laws.py``.
"""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from covering import RING, doubles, every_model
from mcover import Directed, Identity, Messages, Uniform, cover_loss, lift
from tiny_models import Perceptron, tiny

LIFTS = {
    "messages": Messages(blocks=3, draws=4),
    "exact": Messages(mixer="exact"),
    "streams": Messages(streams=2),
    "destinations": Directed(bank=3, destinations=2),
}


@pytest.mark.parametrize("routing", LIFTS.values(), ids=LIFTS)
@every_model
def test_equal_batches_are_a_common_one(kind, routing):
    model, x = tiny(kind)
    covered = lift(model, 3, RING, routing, noise=0.3, seed=1).eval()
    want, got = covered(x), covered.each(torch.stack([x] * 3))
    torch.testing.assert_close(got, want)
    probe, stacks = doubles(*want.shape), list(covered.stacks().values())
    gradients = [torch.autograd.grad((value * probe).sum(), stacks) for value in (got, want)]
    torch.testing.assert_close(*gradients)


def test_keywords_and_plain_values_reach_the_model():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 2).double()

        def forward(self, pair, *, shift, scale):
            first, second = pair
            return {"sum": scale * self.inner(first + second) + shift, "scale": scale}

    covered = lift(Scaled(), 4, Identity(), "messages", noise=0.5, seed=0)
    a, b, shift = (doubles(4, 5, n, seed=n) for n in (3, 3, 2))
    out = covered.each((a, b), shift=shift, scale=2.5)
    assert out["scale"] == 2.5
    for k in range(4):
        want = covered.cover(k)((a[k], b[k]), shift=shift[k], scale=2.5)["sum"]
        torch.testing.assert_close(out["sum"][k], want)


def test_it_counts_as_a_training_forward():
    model, x = tiny(Perceptron)
    covered = lift(model, 3, Uniform(), Messages(redraw_every=1), seed=0)
    for _ in range(2):
        covered.each(torch.stack([x] * 3))
    assert (covered.steps, covered.redraws) == (2, 1)


@pytest.mark.parametrize("streams", [None, 2])
def test_losses_of_covers_on_their_own_targets_are_averaged_over_streams(streams):
    model = nn.Linear(4, 2).double()
    covered = lift(model, 3, Uniform(), Messages(streams=streams), noise=0.5, seed=0)
    x, y = doubles(3, 6, 4), doubles(3, 6, 2, seed=1)
    outputs = covered.each(x)
    parts = outputs.unflatten(1, (streams or 1, 6))
    want = sum(F.mse_loss(part, y[a]) for a in range(3) for part in parts[a]) / (streams or 1)
    torch.testing.assert_close(cover_loss(F.mse_loss, outputs, y, each=True), want)
    common = cover_loss(F.mse_loss, outputs, y[:1].expand(3, 6, 2), each=True)
    torch.testing.assert_close(common, cover_loss(F.mse_loss, outputs, y[0]))
