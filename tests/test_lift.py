"""Every lift on every tiny model against plain loops, in value and gradient."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import reference
from covering import (
    RING,
    SOFT,
    assert_oracle,
    base_name,
    directed_oracle,
    doubles,
    every_model,
    mixers_of,
    signs,
    sources,
)
from mcover import Chain, Directed, FactorGraph, GaussianRing, Messages, Uniform, cover_loss, lift
from mcover.factor_graph import lift_bank
from mcover.nn import binary
from mcover.routing import draw_bank
from tiny_models import Convolutional, Perceptron, Transformer, tiny

TOPOLOGIES = [RING, Uniform(), Chain(0.8)]
every_topology = pytest.mark.parametrize("topology", TOPOLOGIES, ids=repr)
every_number = pytest.mark.parametrize("covers", [1, 2, 5])
STREAMS = Messages(streams=3, blocks=None, block_channels=1)


def check_messages(model, x, covered, weights=lambda own: own):
    mixers = mixers_of(covered)
    assert_oracle(
        covered, covered(x), lambda own: reference.message_lift(model, x, weights(own), mixers)
    )


@every_number
@every_topology
@every_model
def test_message_lift_is_the_papers_sum(kind, topology, covers):
    model, x = tiny(kind)
    how = Messages(blocks=3, draws=4, block_channels=1)
    check_messages(model, x, lift(model, covers, topology, how, noise=0.3, seed=1))


@every_number
@every_model
def test_exact_mixers_are_the_kernel(kind, covers):
    model, x = tiny(kind)
    covered = lift(model, covers, RING, Messages(mixer="exact"), noise=0.3, seed=1)
    for mixer in covered.mixers().values():
        np.testing.assert_allclose(mixer[0, 0], RING.matrix(covers))
    check_messages(model, x, covered)


@every_number
@every_model
def test_streams_follow_single_routes(kind, covers):
    model, x = tiny(kind)
    covered = lift(model, covers, Uniform(), STREAMS, noise=0.3, seed=1)
    streams = [mixers_of(covered) for _ in range(3)]
    for s, own in enumerate(streams):
        own |= {name: mixer[s] for name, mixer in own.items()}
        assert all(torch.equal(mixer, mixer.round()) for mixer in own.values())
    assert_oracle(
        covered, covered(x),
        lambda own: torch.cat([reference.message_lift(model, x, own, each) for each in streams], 1),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("topology", "covers", "granularity"),
    [(topology, covers, "weight") for topology in TOPOLOGIES for covers in (1, 2, 5)]
    + [(Uniform(), 3, "unit"), (Uniform(), 3, "tensor")],
    ids=str,
)
@every_model
def test_directed_lift_reads_each_source_along_its_route(kind, topology, covers, granularity):
    model, x = tiny(kind)
    how = Directed(bank=3, destinations=2, granularity=granularity)
    covered = lift(model, covers, topology, how, noise=0.3, seed=1)
    count, _ = sources(covered.stacks(), granularity)
    assert covered.routes.shape == (min(3, count), count, covers)
    assert_oracle(covered, covered(x), lambda own: directed_oracle(covered, model, x, own))


def test_blocks_of_uneven_size_and_more_blocks_than_inputs():
    for blocks in (1, 2, 4, 5, 100, None):
        model, x = tiny(Perceptron)
        covered = lift(model, 3, Uniform(), Messages(blocks=blocks, draws=3), noise=0.3, seed=2)
        assert covered.mixers()["hidden"].shape[1] == min(blocks or 7, 7)
        check_messages(model, x, covered)


# --- ±1 weights -----------------------------------------------------------------------------------


def signs_of(own, soft):
    """The weights of an explicit lift of signs: signs, with the derivative of ``soft``."""

    def straight(x):
        return soft(x) + (signs(x) - soft(x)).detach()

    return {base_name(n): straight(s) if n.endswith(".original") else s for n, s in own.items()}


@pytest.mark.parametrize("estimator", ["clip", "tanh"])
@every_model
def test_the_message_lift_mixes_messages_of_signs(kind, estimator):
    model, x = tiny(kind)
    how = Messages(blocks=3, draws=4, block_channels=1)
    student = binary.binarize(model, estimator=estimator)
    covered = lift(student, 3, RING, how, noise=0.3, seed=1)
    check_messages(model, x, covered, lambda own: signs_of(own, SOFT[estimator]))


@pytest.mark.parametrize("granularity", ["weight", "unit"])
@every_model
def test_the_directed_lift_routes_signs_with_their_latents(kind, granularity):
    model, x = tiny(kind)
    how = Directed(bank=3, destinations=2, granularity=granularity)
    covered = lift(binary.binarize(model), 3, Uniform(), how, noise=0.3, seed=1)
    assert_oracle(
        covered, covered(x),
        lambda own: directed_oracle(covered, model, x, signs_of(own, SOFT["clip"])),
    )  # fmt: skip


@pytest.mark.parametrize("ternary", [False, True])
@pytest.mark.parametrize("scale", [None, "channel"])
def test_scales_and_thresholds_are_those_of_the_virtual_model(scale, ternary):
    model, x = tiny(Perceptron)
    student = binary.binarize(model, scale=scale, ternary=ternary)
    covered = lift(student, 3, Uniform(), Directed(bank=3), noise=0.3, seed=1)
    assert_oracle(covered, covered(x), lambda own: directed_oracle(covered, student, x, own))


# --- a batch for each cover -----------------------------------------------------------------------

LAYERS = {
    Perceptron: lambda: nn.Linear(7, 5),
    Convolutional: lambda: nn.Conv2d(2, 4, 3, padding=1),
    Transformer: lambda: nn.Embedding(6, 4),
}


@pytest.mark.parametrize("kind", LAYERS, ids=lambda kind: kind.__name__)
def test_messages_of_different_batches_are_mixed_as_the_paper_sums_them(kind):
    layer = LAYERS[kind]().double()
    how = Messages(blocks=2, draws=4, block_channels=1)
    covered = lift(layer, 3, Uniform(), how, noise=0.3, seed=1)
    x, mixer = torch.stack([tiny(kind, seed)[1] for seed in range(3)]), covered.mixers()["(model)"]

    def oracle(own):
        weights, biases = list(own["weight"]), own.get("bias")
        if kind is Perceptron:
            outputs = reference.message_linear(list(x), weights, list(biases), mixer)
        elif kind is Convolutional:
            outputs = reference.message_convolution(
                list(x), weights, list(biases), mixer, layer
            )  # fmt: skip
        else:
            rows = torch.stack([table[ids] for table, ids in zip(weights, x, strict=True)])
            return torch.einsum("rba,a...r->b...r", mixer[:, 0], rows)
        return torch.stack(outputs)

    assert_oracle(covered, covered.each(x), oracle)


# --- what lifts promise about one another ---------------------------------------------------------


def test_tied_weights_are_one_stack_with_two_mixers():
    covered = lift(tiny(Transformer)[0], 3, Uniform(), "messages", seed=0)
    assert covered.net.head.weight is covered.net.embed.weight
    assert covered.net.embed.weight.shape == (3, 6, 4)
    mixers = covered.mixers()
    assert not torch.equal(mixers["embed"][:, 0], mixers["head"][:4, 0])


def test_streams_and_mixers_agree_in_expectation_in_a_linear_network():
    """Routes of different layers are independent, so means multiply: same mean of the outputs."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).double()
    x, topology, common = doubles(1, 4), GaussianRing(0.8, shift=1), {"noise": 0.5, "seed": 3}
    streams = lift(model, 3, topology, Messages(blocks=2, streams=1500), **common)
    values = streams(x).detach().unflatten(1, (1500, 1))
    spread = values.std(1) / 1500**0.5
    mixed = lift(model, 3, topology, Messages(blocks=2, draws=20_000), **common)
    for name, stack in mixed.stacks().items():
        assert torch.equal(stack, streams.stacks()[name])
    gap = (values.mean(1) - mixed(x).detach()).abs() / spread
    assert gap.max() < 5


def test_full_bank_is_the_exact_directed_lift():
    """All destinations against the general factor-graph lift, loss and gradient."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    x, y = doubles(3, 2), doubles(3, 1, seed=1)
    covered = lift(model, 3, Uniform(), Directed(bank=None, destinations=None), noise=0.5, seed=4)
    stacks = {name: s.detach().clone().requires_grad_() for name, s in covered.stacks().items()}

    def loss(*weights):
        flat, own, start = torch.stack(weights), {}, 0
        for name, stack in stacks.items():
            size = stack[0].numel()
            own[name] = flat[start : start + size].view(stack.shape[1:])
            start += size
        return F.mse_loss(torch.func.functional_call(model, own, x), y)

    count = sum(stack[0].numel() for stack in stacks.values())
    bank = draw_bank(Uniform(), 3, count, count, seed=0)
    object.__setattr__(bank, "routes", covered.routes)
    values = torch.cat([stack.flatten(1) for stack in stacks.values()], 1)
    exact = lift_bank(FactorGraph([(loss, range(count))]), bank).objective(values)
    ours = cover_loss(F.mse_loss, covered(x), y)
    torch.testing.assert_close(ours, exact)
    want = torch.autograd.grad(exact, list(stacks.values()))
    got = torch.autograd.grad(ours, list(covered.stacks().values()))
    torch.testing.assert_close(got, want)
    for p in range(count):
        assert covered.routes[p, p].tolist() == [0, 1, 2]
