"""Each cover on inputs of its own: against loops over covers, and against common inputs."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

import reference  # noqa: E402
from mcover import (  # noqa: E402
    Directed,
    GaussianRing,
    Identity,
    McoverError,
    Messages,
    Uniform,
    cover_loss,
    lift,
)
from tiny_models import MODELS, Convolutional, Perceptron, Transformer, tiny  # noqa: E402

torch.set_num_threads(1)

NAMES = {"argvalues": MODELS, "ids": lambda kind: kind.__name__}
RING = GaussianRing(1.5, shift=2)
LIFTS = {
    "messages": Messages(blocks=3, draws=4),
    "exact": Messages(mixer="exact"),
    "streams": Messages(streams=2),
    "destinations": Directed(bank=3, destinations=2),
}


def batches(kind, covers=3):
    """One batch for each cover, all different."""
    return torch.stack([tiny(kind, seed)[1] for seed in range(covers)])


@pytest.mark.parametrize("routing", ["messages", "directed"])
@pytest.mark.parametrize("kind", **NAMES)
def test_uncoupled_covers_are_models_on_their_own_batches(kind, routing):
    models = [tiny(kind, seed)[0].train() for seed in range(3)]
    covered = lift(models[0], models, Identity(), routing, seed=0)
    x = batches(kind)
    outputs = covered.each(x)
    want = torch.stack([model(batch) for model, batch in zip(models, x, strict=True)])
    torch.testing.assert_close(outputs, want)
    outputs.square().sum().backward()
    want.square().sum().backward()
    for name, stack in covered.stacks().items():
        theirs = torch.stack([model.get_parameter(name).grad for model in models])
        torch.testing.assert_close(stack.grad, theirs, msg=lambda m, n=name: f"{n}: {m}")
    for name, stack in covered.state_stacks().items():
        torch.testing.assert_close(stack, torch.stack([m.get_buffer(name) for m in models]))


@pytest.mark.parametrize("routing", LIFTS.values(), ids=LIFTS)
@pytest.mark.parametrize("kind", **NAMES)
def test_equal_batches_are_a_common_one(kind, routing):
    model, x = tiny(kind)
    covered = lift(model, 3, RING, routing, noise=0.3, seed=1).eval()
    want = covered(x)
    got = covered.each(torch.stack([x] * 3))
    torch.testing.assert_close(got, want)
    probe = torch.randn(want.shape, generator=torch.Generator().manual_seed(0), dtype=want.dtype)
    stacks = list(covered.stacks().values())
    for a, b in zip(torch.autograd.grad((got * probe).sum(), stacks),
                    torch.autograd.grad((want * probe).sum(), stacks), strict=True):  # fmt: skip
        torch.testing.assert_close(a, b)


def test_messages_of_different_batches_are_mixed_as_the_paper_sums_them():
    model = nn.Linear(7, 5).double()
    covered = lift(model, 3, Uniform(), Messages(blocks=3, draws=4), noise=0.3, seed=1)
    x = batches(Perceptron)
    weight, bias = covered.net.weight, covered.net.bias
    mixer = covered.mixers()["(model)"]
    want = reference.message_linear(list(x), list(weight), list(bias), mixer)
    torch.testing.assert_close(covered.each(x), torch.stack(want))


def test_messages_of_different_images_are_mixed_as_the_paper_sums_them():
    model = nn.Conv2d(2, 4, 3, padding=1).double()
    how = Messages(blocks=2, draws=4, block_channels=1)
    covered = lift(model, 3, Uniform(), how, noise=0.3, seed=1)
    x = batches(Convolutional)
    own = list(covered.net.weight), list(covered.net.bias)
    want = reference.message_convolution(list(x), *own, covered.mixers()["(model)"], model)
    torch.testing.assert_close(covered.each(x), torch.stack(want))


def test_tokens_of_their_own_read_mixed_rows():
    model = nn.Embedding(6, 4).double()
    covered = lift(model, 3, Uniform(), Messages(draws=4), noise=0.3, seed=1)
    ids = batches(Transformer)
    tables = list(covered.net.weight)
    rows = torch.stack([tables[a][ids[a]] for a in range(3)])
    want = torch.einsum("rba,a...r->b...r", covered.mixers()["(model)"][:, 0], rows)
    torch.testing.assert_close(covered.each(ids), want)


def test_keywords_and_plain_values_reach_the_model():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, pair, *, shift, scale):
            first, second = pair
            return {"sum": scale * self.inner(first + second) + shift, "scale": scale}

    covered = lift(Scaled(), 4, Identity(), "messages", noise=0.5, seed=0)
    draw = torch.Generator().manual_seed(0)
    a, b, shift = (torch.randn(4, 5, n, generator=draw) for n in (3, 3, 2))
    out = covered.each((a, b), shift=shift, scale=2.5)
    assert out["scale"] == 2.5
    for k in range(4):
        want = covered.cover(k)((a[k], b[k]), shift=shift[k], scale=2.5)["sum"]
        torch.testing.assert_close(out["sum"][k], want)


def test_it_counts_as_a_training_forward():
    model, x = tiny(Perceptron)
    covered = lift(model, 3, Uniform(), Messages(redraw_every=1), seed=0)
    covered.each(torch.stack([x] * 3))
    covered.each(torch.stack([x] * 3))
    assert (covered.steps, covered.redraws) == (2, 1)


def test_inputs_without_covers_in_front_are_refused():
    covered = lift(nn.Linear(4, 2), 3, Uniform(), "messages", seed=0)
    with pytest.raises(McoverError, match=r"3 covers first, and got a tensor of shape \(5, 4\)"):
        covered.each(torch.zeros(5, 4))
    with pytest.raises(McoverError, match=r"got a tensor of shape \(\)"):
        covered.each(torch.zeros(3, 5, 4), torch.tensor(1.0))
    with pytest.raises(McoverError, match="got no tensor"):
        covered.each()


def test_losses_of_covers_on_their_own_targets():
    covered = lift(nn.Linear(4, 3), 5, RING, "messages", noise=0.5, seed=0)
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(5, 6, 4, generator=draw), torch.randint(0, 3, (5, 6), generator=draw)
    outputs = covered.each(x)
    want = sum(F.cross_entropy(outputs[a], y[a]) for a in range(5))
    torch.testing.assert_close(cover_loss(F.cross_entropy, outputs, y, each=True), want)
    common = cover_loss(F.cross_entropy, outputs, y[:1].expand(5, 6), each=True)
    torch.testing.assert_close(common, cover_loss(F.cross_entropy, outputs, y[0]))


def test_losses_of_streams_on_their_own_targets_are_averaged():
    covered = lift(nn.Linear(4, 2), 3, Uniform(), Messages(streams=2), noise=0.5, seed=0)
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(3, 6, 4, generator=draw), torch.randn(3, 6, 2, generator=draw)
    outputs = covered.each(x)
    parts = outputs.unflatten(1, (2, 6))
    want = sum(F.mse_loss(parts[a, s], y[a]) for a in range(3) for s in range(2)) / 2
    torch.testing.assert_close(cover_loss(F.mse_loss, outputs, y, each=True), want)


@pytest.mark.parametrize("target", [torch.zeros(6), torch.tensor(0.0), 0.5])
def test_targets_without_covers_in_front_are_refused(target):
    with pytest.raises(McoverError, match=r"3 covers first.*each=False"):
        cover_loss(F.mse_loss, torch.zeros(3, 6), target, each=True)
