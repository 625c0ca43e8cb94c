"""``covered.loss`` against ``cover_loss`` of one forward: the same values, gradients and state."""

import copy
import weakref
from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from covering import (
    Checkpointed,
    assert_same_gradients,
    doubles,
    mlp,
    squares,
)
from mcover import Directed, McoverError, Uniform, cover_loss, lift
from mcover.nn import binary
from tiny_models import MODELS, Convolutional, Perceptron, tiny

EXACT = {"rtol": 0, "atol": 0}


def pair(model, how=None, covers=4, **options):
    """Twice the same covered model."""
    how = Directed(bank=4) if how is None else how
    covered = lift(model, covers, Uniform(), how, **{"noise": 0.3, "seed": 0} | options)
    return covered, copy.deepcopy(covered)


def assert_same(other, one, exact=True):
    """The same gradients and buffers; to the last bit, unless sums are in another order."""
    assert_same_gradients(one, other, **(EXACT if exact else {}))
    torch.testing.assert_close(
        dict(other.named_buffers()), dict(one.named_buffers()), **(EXACT if exact else {})
    )


def train(one, other, x, target, exact=True, **options):
    """Three steps of both, which are compared after each."""
    optimizers = [torch.optim.SGD(model.parameters(), 0.05, momentum=0.9) for model in (one, other)]
    for step in range(3):
        torch.manual_seed(step)
        outputs = one.each(x) if options.get("each") else one(x)
        want = cover_loss(squares, outputs, target, **options)
        torch.manual_seed(step)
        got = other.loss(squares, x, target, **options)
        torch.testing.assert_close(got, want, **(EXACT if exact else {}))
        for value, optimizer in zip((want, got), optimizers, strict=True):
            optimizer.zero_grad()
            value.backward()
        assert_same(other, one, exact)
        for optimizer in optimizers:
            optimizer.step()
    assert (one.steps, one.redraws) == (other.steps, other.redraws)


class Noisy(nn.Module):
    """Dropout, a weight of two uses, and state in buffers and attributes."""

    def __init__(self, p):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)
        self.norm, self.drop = nn.BatchNorm1d(6), nn.Dropout(p)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("late", None)
        self.calls = 0

    def forward(self, x):
        h = self.drop(self.norm(self.a(torch.relu(self.a(x)))))
        y = self.b(h)
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        self.late = y.detach().sum()
        return y + 0.01 * self.mean * self.calls


class Writing(nn.Linear):
    """Writes to its input, of which it is given a copy."""

    def forward(self, x):
        return super().forward(x.mul_(2.0))


def checkpointed(reentrant, destinations):
    """Several destinations draw dropout in another order, so they have none."""
    model = Checkpointed(reentrant).double()
    model.drop.p = 0.3 if destinations == 1 else 0.0
    return model, doubles(5, 6), Directed(bank=4, destinations=destinations)


# A model, an input, and where they are not the usual ones, options of the lift and covers.
CASES = {
    f"{kind.__name__}, {n} destinations": lambda kind=kind, n=n: (
        *tiny(kind), Directed(bank=4, destinations=n, redraw_every=2)
    )
    for kind in MODELS for n in (1, 2, 3)
} | {
    f"{covers} covers by {granularity}": lambda covers=covers, granularity=granularity: (
        *tiny(Convolutional), Directed(granularity=granularity), covers
    )
    for covers in (1, 2, 7) for granularity in ("unit", "tensor")
} | {
    f"checkpointing, {'reentrant, ' if reentrant else ''}{n} destinations":
        partial(checkpointed, reentrant, n)
    for reentrant in (False, True) for n in (1, 2)
} | {
    "dropout, batch norm and state": lambda: (Noisy(0.4).double(), doubles(5, 6)),
    "batch norm and state in passes": lambda: (
        Noisy(0.0).double(), doubles(5, 6), Directed(bank=4, destinations=3)
    ),
    "writing to the input": lambda: (Writing(6, 3).double(), doubles(4, 6)),
    "signs of latents": lambda: (binary.binarize(mlp(), scale="channel"), doubles(4, 6)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_one_forward_to_the_last_bit(name):
    model, x, *how = CASES[name]()
    before = x.clone()
    train(*pair(model, *how), x, 0.5)
    assert torch.equal(x, before)


def test_inputs_and_targets_of_each_cover():
    model = tiny(Perceptron)[0]
    x, y = doubles(4, 5, 7), doubles(4, 5, 3, seed=1)
    for how in (Directed(bank=4), Directed(bank=4, destinations=2)):
        train(*pair(model, how), x, y, exact=False, each=True)
    with pytest.raises(McoverError, match="4 covers first"):
        pair(model)[0].loss(squares, x, y[:3], each=True)


def test_accumulated_and_scaled_gradients():
    one, other = pair(tiny(Perceptron)[0], Directed(bank=4, destinations=2))
    for k in range(3):
        x = doubles(5, 7, seed=k)
        (cover_loss(squares, one(x), 0.5) / 4).backward()
        (other.loss(squares, x, 0.5) / 4).backward()
    assert_same(other, one)
    one.zero_grad()
    other.zero_grad()
    x = doubles(5, 7)
    (cover_loss(squares, one(x), 0.5) * 2.0**20).backward()
    (other.loss(squares, x, 0.5, scale=2.0**20) * 2.0**20).backward()
    assert_same(other, one)


def test_half_precision_needs_the_scale_inside():
    """Gradients of 1e-8 are zero in float16, unless the loss was scaled before."""
    model = nn.Linear(4, 2)
    one, other = pair(model, covers=2)
    x, scale = torch.full((3, 4), 1e-4), 2.0**16
    for m in (one, other):
        m.half()

    def loss(output, target):
        return (output * 1e-4).mean()

    (cover_loss(loss, one(x.half()), None) * scale).backward()
    (other.loss(loss, x.half(), scale=scale) * scale).backward()
    assert_same(other, one)
    assert bool(other.net.weight.grad.any())
    other.zero_grad()
    other.loss(loss, x.half()).backward()
    assert not other.net.weight.grad.any()


@pytest.mark.parametrize("shared", [2, 4])
def test_shared_parameters_inputs_and_what_is_around(shared):
    """Sums over covers of what they share are in another order: exact for two covers."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    one, other = pair(model, covers=shared, select="2")
    trunks = [nn.Linear(5, 6).double()]
    trunks.append(copy.deepcopy(trunks[0]))
    x = doubles(4, 5)
    cover_loss(squares, one(trunks[0](x)), 0.5).backward()
    other.loss(squares, trunks[1](x), 0.5).backward()
    assert_same(other, one, exact=shared == 2)
    assert one.net[0].weight.grad is not None
    assert_same(trunks[1], trunks[0], exact=shared == 2)


class Temperature(nn.Module):
    def __init__(self):
        super().__init__()
        self.t = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

    def forward(self, output, target):
        return F.cross_entropy(output * self.t, target)


def test_what_the_loss_itself_trains_gets_its_gradient_in_the_backward():
    one, other = pair(tiny(Perceptron)[0])
    x, y = doubles(5, 7), torch.arange(5) % 3
    losses = [Temperature(), Temperature()]
    penalties = [model.net.hidden.weight.square().mean() for model in (one, other)]
    want = cover_loss(lambda o, t: losses[0](o, t) + penalties[0], one(x), y)
    got = other.loss(lambda o, t: losses[1](o, t) + penalties[1], x, y)
    assert losses[1].t.grad is None
    assert all(p.grad is None for p in other.parameters())
    want.backward()
    got.backward()
    assert torch.equal(got, want)
    assert_same(losses[1], losses[0], exact=False)
    assert_same(other, one, exact=False)


class OwnLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, x, labels=None):
        logits = self.out(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits, "kind": "own"}


@pytest.mark.parametrize("destinations", [1, 3])
def test_models_that_compute_their_own_loss(destinations):
    one, other = pair(OwnLoss().double(), Directed(bank=4, destinations=destinations))
    batch = {"x": doubles(4, 6), "labels": torch.arange(4) % 3}
    cover_loss(one(**batch)).backward()
    other.loss(None, batch).backward()
    assert_same(other, one, exact=destinations == 1)
    own = lambda o, t: F.cross_entropy(o["logits"], t)  # noqa: E731
    assert other.loss(own, (batch["x"], batch["labels"]), batch["labels"]).requires_grad


@pytest.mark.parametrize("kind", [Perceptron, Convolutional])
def test_autocast(kind):
    model, x = tiny(kind)
    one, other = pair(model.float())
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            want = cover_loss(squares, one(x.float()), 0.5)
            got = other.loss(squares, x.float(), 0.5)
            assert torch.is_autocast_cache_enabled()
        want.backward()
        got.backward()
        assert_same(other, one)


def test_without_gradients_it_is_the_loss_alone():
    one, other = pair(tiny(Convolutional)[0])
    x = tiny(Convolutional)[1]
    for model in (one, other):
        model.eval()
    with torch.no_grad():
        want, got = cover_loss(squares, one(x), 0.5), other.loss(squares, x, 0.5)
    assert torch.equal(got, want)
    assert not got.requires_grad
    with torch.inference_mode():
        assert torch.equal(other.loss(squares, x, 0.5), want)
    assert all(p.grad is None for p in other.parameters())


def test_activations_of_one_cover_are_alive_at_a_time():
    """Each cover's hidden units are freed before the next cover runs."""
    alive, most = 0, 0

    class Activation(nn.Module):
        def forward(self, x):
            nonlocal alive, most
            y = torch.tanh(x)
            alive += 1
            most = max(most, alive)
            weakref.finalize(y, freed)
            return y

    def freed():
        nonlocal alive
        alive -= 1

    model = nn.Sequential(nn.Linear(6, 8), Activation(), nn.Linear(8, 3)).double()
    covered = pair(model)[0]
    loss = covered.loss(squares, doubles(4, 6), 0.5)
    assert (alive, most) == (0, 1)
    loss.backward()
    most = 0
    loss = cover_loss(squares, covered(doubles(4, 6)), 0.5)
    assert (alive, most) == (4, 4)


def test_forwards_around_it_keep_their_tensors():
    """A forward pass whose backward is pending is unaffected, and reruns if necessary."""
    model = Checkpointed(False).double()
    model.drop.p = 0.3
    one, other = pair(model)
    x = doubles(5, 6)
    torch.manual_seed(0)
    first = one(x)
    second = one(2 * x)
    (cover_loss(squares, first, 0.5) + cover_loss(squares, second, 0.5)).backward()
    torch.manual_seed(0)
    first = other(x)
    loss = other.loss(squares, 2 * x, 0.5)
    cover_loss(squares, first, 0.5).backward()
    loss.backward()
    assert_same(other, one, exact=False)


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.trunk, self.inner = nn.Linear(5, 6).double(), inner

    def forward(self, x):
        return self.inner(self.trunk(x))


def test_through_a_module_around_the_covered_model():
    one, other = pair(mlp())
    arounds = [Around(one)]
    arounds.append(Around(other))
    arounds[1].trunk.load_state_dict(arounds[0].trunk.state_dict())
    x = doubles(4, 5)
    cover_loss(squares, arounds[0](x), 0.5).backward()
    other.loss(squares, x, 0.5, through=arounds[1]).backward()
    assert_same(other, one)
    assert_same(arounds[1].trunk, arounds[0].trunk, exact=False)


def test_hooks_of_stacks_see_the_whole_gradient_once():
    one, other = pair(mlp())
    seen = []
    other.net[0].weight.register_hook(lambda grad: seen.append(grad.clone()))
    cover_loss(squares, one(doubles(4, 6)), 0.5).backward()
    other.loss(squares, doubles(4, 6), 0.5).backward()
    assert len(seen) == 1
    assert torch.equal(seen[0], one.net[0].weight.grad)


def test_what_is_refused_leaves_the_covered_model_as_it_was():
    covered, x = pair(mlp())[0], doubles(4, 6)
    loss = covered.loss(squares, x, 0.5)
    loss.backward()
    with pytest.raises(McoverError, match="used already"):
        loss.backward()
    target = torch.zeros(2, dtype=torch.long)
    with pytest.raises(McoverError, match="loss refuses a cover's output"):
        covered.loss(F.cross_entropy, x, target)
    with pytest.raises(McoverError, match="did not call this covered model"):
        covered.loss(squares, x, 0.5, through=nn.Linear(6, 6).double())
    assert covered(x).shape == (4, 4, 3)  # what was expected is forgotten
    covered.loss(squares, x, 0.5).backward()
