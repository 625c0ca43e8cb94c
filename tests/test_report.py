"""``covered.report``: the treatment of each module, memory, and the cost of a step."""

import pytest
import torch
from torch import nn

from covering import RING, Parting, both
from mcover import Messages, lift
from mcover.errors import McoverWarning
from tiny_models import Transformer, tiny


def treatments(report):
    return {row.name: row.treatment for row in report.rows}


def test_it_says_what_became_of_each_module():
    model, _ = tiny(Transformer)
    report = lift(model, 3, RING, "messages", seed=0).report()
    assert {row.name: (row.treatment, row.blocks) for row in report.rows} == {
        "": ("copied", 0), "embed": ("mixed", 1), "attention": ("mixed", 4),
        "attention.out_proj": ("mixed", 4), "norm": ("copied", 0), "feed": ("mixed", 4),
        "back": ("mixed", 5), "head": ("mixed", 4),
    }  # fmt: skip
    assert report.parameters == sum(p.numel() for p in model.parameters())
    assert report.covered == 3 * report.parameters
    assert report.facts == RING.facts(3)
    directed = lift(model, 3, RING, "directed", seed=0).report()
    assert set(treatments(directed).values()) == {"routed"}
    for word in ("extra memory", "cost of a step", "spectral gap", "drift", "LayerNorm"):
        assert word in str(report)


def test_it_counts_cost_and_memory():
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))
    x = torch.zeros(4, 64)
    covered = lift(model, 4, RING, Messages(blocks=8), seed=0)
    report = covered.report(x)
    # The first layer mixes weights, once a batch: Σ_g Q̂ W. The second mixes messages.
    first = 4 * (4 * 64 * 32) + 4 * 4 * 64 * 32
    second = 4 * (4 * 32 * 16 + 4 * 4 * 8 * 16)
    assert report.cost == pytest.approx((first + second) / (4 * (64 * 32 + 32 * 16)))
    assert report.counted
    mixers = (32 + 16) * 8 * 16 * 4
    assert report.extra_bytes == 3 * 4 * report.parameters + mixers
    streams = lift(model, 4, RING, Messages(streams=2), seed=0).report()
    assert streams.cost == pytest.approx(2 * covered.report().cost)


def test_it_counts_convolutions_as_they_are_computed():
    model = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 6, 1))
    covered = lift(model, 5, RING, Messages(blocks=4, block_channels=1), seed=0)
    places = 2 * 7 * 7
    # The first mixes weights, once a batch, since covers share its input; the second messages.
    first = 5 * (4 * 9 * 8) * places + 5 * 5 * (4 * 9 * 8)
    second = 5 * (8 * 6 + 5 * 4 * 6) * places
    base = (4 * 9 * 8 + 8 * 6) * places
    assert covered.report(torch.zeros(2, 4, 7, 7)).cost == pytest.approx((first + second) / base)


@both
def test_it_counts_a_trunk_once_for_each_cover_and_says_what_saves_it(routing):
    trunk = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)).requires_grad_(False)
    model = nn.Sequential(trunk, nn.Linear(32, 32), nn.Linear(32, 4))
    covered = lift(model, 4, RING, routing, seed=0)
    estimate, counted = covered.report(), covered.report(torch.zeros(8, 32))
    if routing == "directed":
        assert estimate.cost == counted.cost == 4
    assert counted.cost >= 4
    assert estimate.trunk == ("0.0", "0.2")
    for said in ("2 more", "frozen", "nn.Sequential(trunk, mcover.lift(head, ...))"):
        assert said in str(estimate)
    behind = lift(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), 4, RING, select="0", seed=0)
    assert behind.report().trunk == ()


def test_it_counts_the_model_around_adapters():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).requires_grad_(False)
    model.append(nn.Linear(64, 2, bias=False)).append(nn.Linear(2, 64, bias=False))
    model.append(nn.Linear(64, 64).requires_grad_(False))
    report = lift(model, 3, RING, seed=0).report()
    assert report.cost == 3
    assert report.trunk == ()
    html = report._repr_html_()
    assert html.count("<tr>") == 4
    for said in ("3 more", "<table>"):
        assert said in html


def test_with_an_example_it_counts_what_was_really_called():
    class Unused(Parting):
        def forward(self, x):
            return self.a(x) + x @ self.b.weight.T

    covered = lift(Unused(), 3, RING, "messages", seed=0)
    assert treatments(covered.report()) == {"a": "mixed", "b": "mixed", "c": "mixed"}
    with pytest.warns(
        McoverWarning, match=r"met at 1 of 3 layers: this forward did not call \['b', 'c'\]"
    ):
        report = covered.report(torch.ones(2, 4))
    assert treatments(report) == {"a": "mixed", "b": "copied", "c": "copied"}


def test_an_example_leaves_each_module_in_its_mode():
    covered = lift(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), 2, RING, seed=0)
    covered.net[1].eval()
    covered.report(torch.ones(2, 4))
    assert [module.training for module in covered.net.modules()] == [True, True, False]
