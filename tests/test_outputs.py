"""Outputs: the form of the base, with the covers first."""

import dataclasses
import inspect
from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import mcover
from covering import RING, Parting, both, doubles
from mcover import Directed, McoverError, cover_loss, lift
from mcover.errors import McoverWarning
from tiny_models import routed

Pair = namedtuple("Pair", "first second")


@dataclasses.dataclass(frozen=True)
class Result:
    logits: torch.Tensor
    parts: dict
    name: str = "result"


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x, *, scale=1.0):
        y = scale * self.inner(x)
        pair, item = Pair(y.argmax(-1), [y > 0]), y[0, 0].item()
        return Result(y, {"pair": pair, "none": None, "size": 7, "item": item})


@both
def test_outputs_keep_their_form_with_covers_first(routing):
    covered = lift(Nested(), 3, RING, routing, noise=0.5, seed=0).eval()
    assert str(inspect.signature(covered.forward)) == "(x, *, scale=1.0)"
    x = doubles(5, 4).float()
    out = covered(x, scale=2.0)
    assert isinstance(out, Result)
    assert isinstance(out.parts["pair"], Pair)
    assert out.logits.shape == (3, 5, 3)
    assert out.parts["pair"].first.shape == (3, 5)
    assert out.parts["pair"].second[0].dtype == torch.bool
    assert (out.parts["none"], out.parts["size"], out.name) == (None, 7, "result")
    torch.testing.assert_close(out.parts["item"], out.logits[:, 0, 0].detach())
    mean = covered.ensemble(x)
    votes = torch.stack([covered.cover(k)(x).parts["pair"].first for k in range(3)])
    assert torch.equal(mean.parts["pair"].first, votes.mode(0).values)
    assert mean.parts["pair"].second[0].dtype == torch.bool
    assert mean.logits.shape == (5, 3)


def test_a_target_that_has_the_gradients_of_the_outputs_warns():
    outputs, target = doubles(3, 5, 2).requires_grad_(), doubles(5, 2)
    cover_loss(F.mse_loss, outputs, target)
    with pytest.warns(McoverWarning, match=r"swapped; write cover_loss\(loss, covered\(x\), y\)"):
        cover_loss(lambda output, target: (output - target).square().mean(), target, outputs)


def test_outputs_without_cover_loss_are_plain_tensors_and_help_says_what_to_write():
    covered = lift(nn.Linear(4, 2).double(), 3, seed=0)
    outputs = covered(doubles(5, 4))
    assert type(outputs) is torch.Tensor
    assert "mcover.cover_loss(loss, covered(x), y)" in inspect.getdoc(covered.forward)
    # What the help says: torch refuses, or warns and averages over the covers.
    with pytest.raises(ValueError, match=r"batch_size \(3\) to match target batch_size \(5\)"):
        F.cross_entropy(outputs, torch.zeros(5).long())
    target = doubles(5, 2)
    with pytest.warns(UserWarning, match="broadcasting"):
        averaged = F.mse_loss(outputs, target)
    torch.testing.assert_close(3 * averaged, cover_loss(F.mse_loss, outputs, target))


def test_outputs_of_different_shapes_are_refused():
    class Ragged(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x):
            y = self.inner(x)
            return y[y > 0]

    models = [Ragged() for _ in range(2)]
    for sign, model in zip((1, -1), models, strict=True):
        nn.init.constant_(model.inner.weight, sign)
    covered = lift(models[0], models, mcover.Identity(), "messages", seed=0)
    with pytest.raises(McoverError, match="which cannot be stacked"):
        covered(torch.ones(5, 4))


@pytest.mark.parametrize("how", ["messages", Directed(bank=4, destinations=2)], ids=str)
def test_models_that_compute_their_loss_need_no_criterion(how):
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 3).double()

        def forward(self, x, labels):
            logits = self.inner(x)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    x, y = doubles(6, 4), torch.arange(6) % 3
    out = lift(WithLoss(), 3, RING, how, noise=0.5, seed=0).eval()(x, labels=y)
    torch.testing.assert_close(cover_loss(out), cover_loss(F.cross_entropy, out["logits"], y))


@both
def test_ensembles_of_single_numbers_are_single_numbers(routing):
    class Energy(Parting):
        def forward(self, x):
            return self.b(torch.tanh(self.a(x))).square().mean()

    how = routed(routing, bank=4, destinations=2, streams=2)
    covered = lift(Energy(), 3, RING, how, seed=0).eval()
    assert covered.ensemble(torch.ones(2, 4)).shape == ()
