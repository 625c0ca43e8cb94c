"""``covered.loss`` against ``cover_loss`` of one forward: the same values, gradients and state."""

import copy
import weakref

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from covering import RING, doubles, mlp  # noqa: E402
from mcover import Directed, McoverError, Uniform, cover_loss, lift  # noqa: E402
from mcover.nn import binary  # noqa: E402
from tiny_models import MODELS, Convolutional, Perceptron, tiny  # noqa: E402

torch.set_num_threads(1)

NAMES = {"argvalues": MODELS, "ids": lambda kind: kind.__name__}


def squares(output, target):
    return ((output - target) ** 2).mean()


def pair(model, how=None, covers=4, **options):
    """Twice the same covered model."""
    how = Directed(bank=4) if how is None else how
    covered = lift(model, covers, Uniform(), how, **{"noise": 0.3, "seed": 0} | options)
    return covered, copy.deepcopy(covered)


def train(one, other, x, target, loss=squares, steps=3, exact=True, **options):
    """Steps of both, which are compared after each."""
    optimizers = [torch.optim.SGD(model.parameters(), 0.05, momentum=0.9) for model in (one, other)]
    for step in range(steps):
        torch.manual_seed(step)
        want = cover_loss(loss, one.each(x) if options.get("each") else one(x), target, **options)
        torch.manual_seed(step)
        got = other.loss(loss, x, target, **options)
        assert_same(got.detach(), want.detach(), exact)
        for value, optimizer in zip((want, got), optimizers, strict=True):
            optimizer.zero_grad()
            value.backward()
        assert_same_state(other, one, exact)
        for optimizer in optimizers:
            optimizer.step()
    assert (one.steps, one.redraws) == (other.steps, other.redraws)


def assert_same(a, b, exact=True):
    torch.testing.assert_close(a, b, **({"rtol": 0, "atol": 0} if exact else {}))


def assert_same_state(one, other, exact=True):
    for (name, p), q in zip(one.named_parameters(), other.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            assert_same(p.grad, q.grad, exact)
    buffers = dict(other.named_buffers())
    for name, value in one.named_buffers():
        assert_same(value, buffers[name], exact)


@pytest.mark.parametrize("destinations", [1, 2, 3])
@pytest.mark.parametrize("kind", **NAMES)
def test_gradients_are_those_of_one_forward_to_the_last_bit(kind, destinations):
    """Linear, convolutional, recurrent and attention layers, batch norm, tied and bare weights."""
    model, x = tiny(kind)
    how = Directed(bank=4, destinations=destinations, redraw_every=2)
    train(*pair(model, how), x, 0.5)


@pytest.mark.parametrize("granularity", ["unit", "tensor"])
@pytest.mark.parametrize("covers", [1, 2, 7])
def test_any_number_of_covers_and_granularity(covers, granularity):
    model, x = tiny(Convolutional)
    train(*pair(model, Directed(granularity=granularity), covers), x, 0.5)


class Noisy(nn.Module):
    """Dropout, a weight of two uses, and state in buffers and attributes."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)
        self.norm, self.drop = nn.BatchNorm1d(6), nn.Dropout(0.4)
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


def test_dropout_batch_norm_and_state_are_those_of_one_forward():
    one, other = pair(Noisy().double())
    train(one, other, doubles(5, 6), 0.5)
    assert other.net.mean.shape == (4, 3)
    assert other.net.late.shape == (4,)
    assert [other.cover(k).calls for k in range(4)] == [3] * 4


def test_several_destinations_draw_dropout_in_another_order_and_are_averaged():
    one, other = pair(Noisy().double(), Directed(bank=4, destinations=3))
    other.net.drop.p = one.net.drop.p = 0.0
    train(one, other, doubles(5, 6), 0.5)
    other.net.drop.p = 0.4
    loss = other.loss(squares, doubles(5, 6), 0.5)
    loss.backward()
    assert bool(other.net.a.weight.grad.isfinite().all())


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.drop, self.reentrant = nn.Dropout(0.3), reentrant

    def inner(self, h):
        return self.drop(torch.tanh(self.b(torch.tanh(h))))

    def forward(self, x):
        return self.c(checkpoint(self.inner, self.a(x), use_reentrant=self.reentrant))


@pytest.mark.parametrize("destinations", [1, 2])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_inside_the_model_computes_each_pass_again(reentrant, destinations):
    model = Checkpointed(reentrant).double()
    if destinations > 1:
        model.drop.p = 0.0
    train(*pair(model, Directed(bank=4, destinations=destinations)), doubles(5, 6), 0.5)


def test_inputs_and_targets_of_each_cover():
    model = tiny(Perceptron)[0]
    x, y = doubles(4, 5, 7), doubles(4, 5, 3, seed=1)
    for how in (Directed(bank=4), Directed(bank=4, destinations=2)):
        train(*pair(model, how), x, y, each=True)
    covered = pair(model)[0]
    for inputs, target in ((x[:3], y), (x, y[:3])):
        with pytest.raises(McoverError, match="4 covers first"):
            covered.loss(squares, inputs, target, each=True)


def test_accumulated_and_scaled_gradients():
    one, other = pair(tiny(Perceptron)[0], Directed(bank=4, destinations=2))
    for k in range(3):
        x = doubles(5, 7, seed=k)
        (cover_loss(squares, one(x), 0.5) / 4).backward()
        (other.loss(squares, x, 0.5) / 4).backward()
    assert_same_state(other, one)
    one.zero_grad()
    other.zero_grad()
    x = doubles(5, 7)
    (cover_loss(squares, one(x), 0.5) * 2.0**20).backward()
    (other.loss(squares, x, 0.5, scale=2.0**20) * 2.0**20).backward()
    assert_same_state(other, one)


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
    assert_same_state(other, one)
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
    assert_same_state(other, one, exact=shared == 2)
    assert one.net[0].weight.grad is not None
    assert_same(trunks[1].weight.grad, trunks[0].weight.grad, exact=shared == 2)


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
    assert_same(got, want)
    assert_same(losses[1].t.grad, losses[0].t.grad, exact=False)
    assert_same_state(other, one, exact=False)


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
    assert_same_state(other, one, exact=destinations == 1)
    cover_loss(lambda o, t: F.cross_entropy(o["logits"], t), one(**batch), batch["labels"])
    loss = other.loss(
        lambda o, t: F.cross_entropy(o["logits"], t),
        (batch["x"], batch["labels"]),
        batch["labels"],
    )
    assert loss.requires_grad
    with pytest.raises(McoverError, match="no loss for each cover"):
        pair(nn.Linear(6, 3).double())[0].loss(None, {"input": doubles(4, 6)})


class Writing(nn.Module):
    """A model that writes to its input, in training."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 3)

    def forward(self, x):
        return self.out(x.mul_(2.0))


def test_a_model_that_writes_to_its_input_writes_to_a_copy():
    one, other = pair(Writing().double())
    x = doubles(4, 6)
    before = x.clone()
    train(one, other, x, 0.5)
    assert torch.equal(x, before)
    other.loss(squares, x.requires_grad_(), 0.5).backward()
    assert x.grad is not None


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
        assert_same_state(other, one)


def test_signs_of_latents():
    student = binary.binarize(mlp(), scale="channel")
    train(*pair(student), doubles(4, 6), 0.5)


def test_without_gradients_it_is_the_loss_alone():
    one, other = pair(tiny(Convolutional)[0])
    x = tiny(Convolutional)[1]
    for model in (one, other):
        model.eval()
    with torch.no_grad():
        want, got = cover_loss(squares, one(x), 0.5), other.loss(squares, x, 0.5)
    assert_same(got, want)
    assert not got.requires_grad
    with torch.inference_mode():
        assert_same(other.loss(squares, x, 0.5), want)
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
    """A forward that waits for its backward is not disturbed, and runs once more if it has to."""
    one, other = pair(Checkpointed(False).double())
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
    assert_same_state(other, one, exact=False)


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
    assert_same_state(other, one)
    assert_same(arounds[1].trunk.weight.grad, arounds[0].trunk.weight.grad, exact=False)
    with pytest.raises(McoverError, match="did not call this covered model"):
        other.loss(squares, x, 0.5, through=nn.Linear(5, 6).double())
    assert other(doubles(4, 6)).shape == (4, 4, 3)  # what was expected is forgotten


def test_hooks_of_stacks_see_the_whole_gradient_once():
    one, other = pair(mlp())
    seen = []
    other.net[0].weight.register_hook(lambda grad: seen.append(grad.clone()))
    cover_loss(squares, one(doubles(4, 6)), 0.5).backward()
    other.loss(squares, doubles(4, 6), 0.5).backward()
    assert len(seen) == 1
    assert_same(seen[0], one.net[0].weight.grad)


def test_what_it_cannot_do_is_refused():
    covered = pair(mlp())[0]
    x = doubles(4, 6)
    with pytest.raises(McoverError, match=r"message lift meet in every layer.*cover_loss"):
        lift(mlp(), 3, RING, "messages", seed=0).loss(squares, x, 0.5)
    loss = covered.loss(squares, x, 0.5)
    loss.backward()
    with pytest.raises(McoverError, match="handed over already"):
        loss.backward()
    with pytest.raises(McoverError, match=r"shape \(4, 3\).*single number"):
        covered.loss(lambda o, t: o, x)
    with pytest.raises(McoverError, match="single number"):
        covered.loss(lambda o, t: 1.0, x)
    with pytest.raises(McoverError, match="loss refuses a cover's output"):
        covered.loss(F.cross_entropy, x, torch.zeros(2, dtype=torch.long))
    for wrong in ({"loss": 3}, {"loss": nn.MSELoss}, {"each": 1}, {"scale": 0}, {"through": 3}):
        with pytest.raises(McoverError):
            covered.loss(**{"loss": squares, "inputs": x, "target": 0.5} | wrong)
    covered.loss(squares, x, 0.5).backward()  # refusals leave it as it was
