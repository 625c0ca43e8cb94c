"""Quantisers of other libraries under a lift, as docs/howto/binary.md shows them."""

from __future__ import annotations

import doctest

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.optim.swa_utils import update_bn

import mcover
from mcover.nn import binary
from pages import QUANTIZERS, printed, shown

COVERS = 3
ROUTINGS = ("messages", "directed")


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(128, 16, generator=torch.Generator().manual_seed(0))
    return x, (x.sum(1) > 0).long()


def network(linear) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), linear(32, 2))


def train(covered, optimizer, steps, after=lambda: None) -> list[float]:
    x, y = data()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = mcover.cover_loss(F.cross_entropy, covered(x), y)
        loss.backward()
        optimizer.step()
        after()
        losses.append(loss.item())
    return losses


def accuracy(net: nn.Module) -> float:
    x, y = data()
    return float((net(x).argmax(1) == y).float().mean())


@pytest.mark.parametrize("routing", ROUTINGS)
def test_brevitas_layers_of_one_bit(routing):
    from brevitas.core.function_wrapper import TensorClamp
    from brevitas.nn import QuantLinear
    from brevitas.quant import SignedBinaryWeightPerTensorConst

    class BinaryWeight(SignedBinaryWeightPerTensorConst):
        tensor_clamp_impl = TensorClamp

    net = network(lambda i, o: QuantLinear(i, o, bias=True, weight_quant=BinaryWeight))
    covered = mcover.lift(net, COVERS, mcover.Uniform(), routing, seed=0)
    weights = [s for n, s in covered.stacks().items() if n in ("0.weight", "3.weight")]
    before = [w.detach().clone() for w in weights]

    def clip():
        with torch.no_grad():
            for weight in weights:
                weight.clamp_(-0.1, 0.1)

    losses = train(covered, torch.optim.Adam(covered.parameters(), lr=0.01), 60, clip)
    assert losses[-1] < 0.5 * losses[0]
    for weight, old in zip(weights, before, strict=True):
        assert ((weight < 0) != (old < 0)).any()
    x, _ = data()
    student = covered.collapse(loader=[x])
    assert type(student[0]) is QuantLinear
    for layer in (student[0], student[3]):
        torch.testing.assert_close(
            layer.quant_weight().value.abs(), torch.full_like(layer.weight, 0.1)
        )
    assert accuracy(student) > 0.8


@pytest.mark.parametrize("routing", ROUTINGS)
def test_parq_trains_stacks_to_one_bit(routing):
    from torchao.prototype.parq import LSBQuantizer, ProxPARQ, QuantOptimizer

    covered = mcover.lift(network(nn.Linear), COVERS, mcover.Uniform(), routing, seed=0)
    stacks = covered.stacks()
    weights = [stacks["0.weight"], stacks["3.weight"]]
    rest = [p for p in covered.parameters() if all(p is not w for w in weights)]
    base = torch.optim.Adam([{"params": weights, "quant_bits": 1}, {"params": rest}], lr=0.01)
    optimizer = QuantOptimizer(
        base,
        LSBQuantizer(),
        ProxPARQ(anneal_start=10, anneal_end=60),
        quant_period=1,
        quant_per_channel=True,  # the first axis of a stack: each cover has its own two values
    )
    losses = train(covered, optimizer, 80)
    assert all(loss < float("inf") for loss in losses)
    assert losses[-1] < 0.7 * losses[0]
    for weight in weights:
        sizes = weight.detach().abs().flatten(1)
        torch.testing.assert_close(sizes, sizes[:, :1].expand_as(sizes))  # ± one size a cover
        assert len(sizes[:, 0].unique()) == COVERS
    signs = torch.stack([torch.sign(weights[0][k]) for k in range(COVERS)])
    optimizer.restore_latent_params()
    assert torch.equal(torch.sign(weights[0]), signs)
    assert len(weights[0].unique()) > 2 * COVERS
    student = binary.binarize(covered.collapse())
    x, _ = data()
    update_bn([x], student)
    assert type(student) is nn.Sequential
    assert (student[0].weight.abs() == 1).all()
    assert accuracy(student) > 0.8


@pytest.mark.parametrize("page", QUANTIZERS)
def test_the_page_runs_and_prints_what_it_says(page, tmp_path):
    said = shown(page)
    ran = printed(page, tmp_path)
    assert ran
    for block, got in ran:
        want = said.get(block.line, got)
        assert doctest.OutputChecker().check_output(want, got, doctest.NORMALIZE_WHITESPACE)
