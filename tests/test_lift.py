"""Every lift on every tiny model against plain loops, in value and gradient."""

import collections
import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import reference  # noqa: E402
from mcover import Chain, Directed, GaussianRing, Messages, Uniform, lift  # noqa: E402
from tiny_models import MODELS, Perceptron, Transformer, tiny  # noqa: E402

torch.set_num_threads(1)

TOPOLOGIES = [GaussianRing(1.5, shift=2), Uniform(), Chain(0.8)]
COVERS = [1, 2, 5]
NAMES = {"argvalues": MODELS, "ids": lambda kind: kind.__name__}


def mixers_of(covered):
    """All mixers as the reference names them; where nothing mixes, the identity."""
    eye = torch.eye(covered.covers, dtype=torch.float64)[None, None]
    named = collections.defaultdict(lambda: eye)
    for place, part, _, mixer in covered.mixing():
        layer = place.removesuffix(f" ({part})")
        named[f"{layer}.mixer_{part}" if part else f"{layer}.mixer"] = mixer
    return named


def leaves(covered):
    """Stacks as fresh leaves for the reference, so that both gradients can be compared."""
    return {name: s.detach().clone().requires_grad_() for name, s in covered.stacks().items()}


def assert_same(ours, theirs, covered, stacks):
    """Equal outputs, and equal gradients of one random functional of them."""
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
    probe = torch.randn(ours.shape, generator=torch.Generator().manual_seed(0), dtype=ours.dtype)
    got = torch.autograd.grad((ours * probe).sum(), list(covered.stacks().values()))
    want = torch.autograd.grad((theirs * probe).sum(), list(stacks.values()))
    for name, a, b in zip(stacks, got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("covers", COVERS)
@pytest.mark.parametrize("topology", TOPOLOGIES, ids=repr)
@pytest.mark.parametrize("kind", **NAMES)
def test_message_lift_is_the_papers_sum(kind, topology, covers):
    model, x = tiny(kind)
    how = Messages(blocks=3, draws=4, block_channels=1)
    covered = lift(model, covers, topology, how, noise=0.3, seed=1)
    stacks = leaves(covered)
    assert_same(covered(x), reference.message_lift(model, x, stacks, mixers_of(covered)),
                covered, stacks)  # fmt: skip


@pytest.mark.parametrize("covers", COVERS)
@pytest.mark.parametrize("kind", **NAMES)
def test_exact_mixers_are_the_kernel(kind, covers):
    model, x = tiny(kind)
    topology = GaussianRing(1.0, shift=1)
    covered = lift(model, covers, topology, Messages(mixer="exact"), noise=0.3, seed=1)
    stacks, mixers = leaves(covered), mixers_of(covered)
    for mixer in mixers.values():
        np.testing.assert_allclose(mixer[0, 0], topology.matrix(covers))
    assert_same(covered(x), reference.message_lift(model, x, stacks, mixers), covered, stacks)


@pytest.mark.parametrize("covers", COVERS)
@pytest.mark.parametrize("kind", **NAMES)
def test_streams_follow_single_routes(kind, covers):
    model, x = tiny(kind)
    how = Messages(streams=3, blocks=None, block_channels=1)
    covered = lift(model, covers, Uniform(), how, noise=0.3, seed=1)
    stacks, mixers = leaves(covered), mixers_of(covered)
    parts = []
    for s in range(3):
        own = mixers_of(covered)
        own |= {name: mixer[s] for name, mixer in mixers.items()}
        assert all(torch.equal(mixer, mixer.round()) for mixer in own.values())
        parts.append(reference.message_lift(model, x, stacks, own))
    assert_same(covered(x), torch.cat(parts, 1), covered, stacks)


@pytest.mark.parametrize("covers", COVERS)
@pytest.mark.parametrize("topology", TOPOLOGIES, ids=repr)
@pytest.mark.parametrize("kind", **NAMES)
def test_directed_lift_reads_each_weight_along_its_route(kind, topology, covers):
    compare_directed(kind, topology, covers, "weight")


@pytest.mark.parametrize("granularity", ["unit", "tensor"])
@pytest.mark.parametrize("kind", **NAMES)
def test_coarser_routes_of_the_directed_lift(kind, granularity):
    compare_directed(kind, Uniform(), 3, granularity)


def compare_directed(kind, topology, covers, granularity):
    model, x = tiny(kind)
    how = Directed(bank=3, destinations=2, granularity=granularity)
    covered = lift(model, covers, topology, how, noise=0.3, seed=1)
    stacks = leaves(covered)
    number, count = {}, 0
    for name, stack in stacks.items():
        for index in np.ndindex(*stack.shape[1:]):
            key = {"weight": (name, index), "unit": (name, index[:1]), "tensor": name}[granularity]
            if key not in number:
                number[key], count = count, count + 1

    def source(name, index):
        return number[
            {"weight": (name, index), "unit": (name, index[:1]), "tensor": name}[granularity]
        ]

    routes = covered.routes
    assert routes.shape == (min(3, count), count, covers)
    parts = [reference.directed_lift(model, x, stacks, routes[s], source) for s in range(2)]
    assert_same(covered(x), torch.cat(parts, 1), covered, stacks)


def test_blocks_of_uneven_size_and_more_blocks_than_inputs():
    for blocks in (1, 2, 4, 5, 100, None):
        model, x = tiny(Perceptron)
        covered = lift(model, 3, Uniform(), Messages(blocks=blocks, draws=3), noise=0.3, seed=2)
        assert covered.mixers()["hidden"].shape[1] == min(blocks or 7, 7)
        stacks = leaves(covered)
        want = reference.message_lift(model, x, stacks, mixers_of(covered))
        assert_same(covered(x), want, covered, stacks)


def test_tied_weights_are_one_stack_with_two_mixers():
    covered = lift(tiny(Transformer)[0], 3, Uniform(), "messages", seed=0)
    assert covered.net.head.weight is covered.net.embed.weight
    assert covered.net.embed.weight.shape == (3, 6, 4)
    mixers = covered.mixers()
    assert not torch.equal(mixers["embed"][:, 0], mixers["head"][:4, 0])


def test_streams_and_mixers_agree_in_expectation_in_a_linear_network():
    """Routes of different layers are independent, so means multiply: same mean of the outputs."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)).double()
    x = torch.randn(1, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    topology, common = GaussianRing(0.8, shift=1), {"noise": 0.5, "seed": 3}
    streams = lift(model, 3, topology, Messages(blocks=2, streams=3000), **common)
    values = streams(x).detach().unflatten(1, (3000, 1))
    spread = values.std(1) / 3000**0.5
    mixed = lift(model, 3, topology, Messages(blocks=2, draws=20_000), **common)
    for name, stack in mixed.stacks().items():
        assert torch.equal(stack, streams.stacks()[name])
    gap = (values.mean(1) - mixed(x).detach()).abs() / spread
    assert gap.max() < 5


def test_full_bank_is_the_exact_directed_lift():
    """All destinations against the general factor-graph lift, loss and gradient."""
    from mcover import FactorGraph, cover_loss
    from mcover.factor_graph import lift_bank
    from mcover.routing import draw_bank

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh(), torch.nn.Linear(2, 1))
    model = model.double()
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(*s, generator=draw, dtype=torch.float64) for s in [(3, 2), (3, 1)])
    how = Directed(bank=None, destinations=None)
    covered = lift(model, 3, Uniform(), how, noise=0.5, seed=4)
    stacks = leaves(covered)
    names = list(stacks)

    def loss(*weights):
        flat, own, start = torch.stack(weights), {}, 0
        for name in names:
            size = stacks[name][0].numel()
            own[name] = flat[start : start + size].view(stacks[name].shape[1:])
            start += size
        return torch.nn.functional.mse_loss(torch.func.functional_call(model, own, x), y)

    count = sum(stack[0].numel() for stack in stacks.values())
    bank = draw_bank(Uniform(), 3, count, count, seed=0)
    object.__setattr__(bank, "routes", covered.routes)
    values = torch.cat([stack.flatten(1) for stack in stacks.values()], 1)
    exact = lift_bank(FactorGraph([(loss, range(count))]), bank).objective(values)
    ours = cover_loss(torch.nn.functional.mse_loss, covered(x), y)
    torch.testing.assert_close(ours, exact)
    want = torch.autograd.grad(exact, list(stacks.values()))
    got = torch.autograd.grad(ours, list(covered.stacks().values()))
    for a, b in itertools.zip_longest(got, want):
        torch.testing.assert_close(a, b)
    for p in range(count):
        assert covered.routes[p, p].tolist() == [0, 1, 2]
