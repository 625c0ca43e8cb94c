"""Outputs and losses: the form of the base, with the covers first."""

import dataclasses
import inspect
from collections import namedtuple

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

import mcover  # noqa: E402
from covering import RING, Parting, both  # noqa: E402
from mcover import Directed, McoverError, Messages, cover_loss, lift  # noqa: E402
from tiny_models import routed  # noqa: E402

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
        parts = {
            "pair": Pair(y.argmax(-1), [y > 0]),
            "none": None,
            "size": 7,
            "item": y[0, 0].item(),
        }
        return Result(y, parts)


@both
def test_outputs_keep_their_form_with_covers_first(routing):
    covered = lift(Nested(), 3, RING, routing, noise=0.5, seed=0).eval()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
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


def test_the_signature_is_the_base_models():
    covered = lift(Nested(), 3, RING, "messages", seed=0)
    assert str(inspect.signature(covered.forward)) == "(x, *, scale=1.0)"


def test_models_that_compute_their_loss_need_no_criterion():
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x, labels):
            logits = self.inner(x)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    x, y = torch.randn(6, 4), torch.arange(6) % 3
    for how in ("messages", Directed(bank=4, destinations=2)):
        covered = lift(WithLoss(), 3, RING, how, noise=0.5, seed=0).eval()
        out = covered(x, labels=y)
        want = cover_loss(F.cross_entropy, out["logits"], y)
        torch.testing.assert_close(cover_loss(out), want)
    with pytest.raises(McoverError, match="give the model its labels"):
        cover_loss({"logits": torch.zeros(3, 2)})


@both
def test_ensembles_of_single_numbers_are_single_numbers(routing):
    class Energy(Parting):
        def forward(self, x):
            return self.b(torch.tanh(self.a(x))).square().mean()

    how = routed(routing, bank=4, destinations=2, streams=2)
    covered = lift(Energy(), 3, RING, how, seed=0).eval()
    x = torch.ones(2, 4)
    assert covered.ensemble(x).shape == ()
    torch.testing.assert_close(covered.ensemble(x, routed=True), covered(x).mean())


def test_targets_that_are_no_batches_are_not_repeated_for_streams():
    covered = lift(nn.Linear(4, 3), 2, RING, Messages(streams=2), noise=0.5, seed=0)
    x, y, weights = torch.randn(6, 4), torch.arange(6) % 3, torch.tensor([1.0, 2.0, 3.0])

    def criterion(output, target):
        labels, weight = target
        return F.cross_entropy(output, labels, weight)

    outputs = covered(x)
    want = sum(F.cross_entropy(output, torch.cat([y, y]), weights) for output in outputs)
    torch.testing.assert_close(cover_loss(criterion, outputs, (y, weights)), want)
