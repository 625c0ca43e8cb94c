"""Bop: the published rule entry by entry, beside another optimizer, and over a restart."""

import copy
import io
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from mcover import McoverError, Uniform, cover_loss, lift  # noqa: E402
from mcover.nn import binary  # noqa: E402
from mcover.optim import Bop  # noqa: E402

torch.set_num_threads(1)

RESTS = {
    "Adam": lambda params: torch.optim.Adam(params, lr=1e-2),
    "SGD": lambda params: torch.optim.SGD(params, lr=1e-2, momentum=0.9),
    "Adagrad": lambda params: torch.optim.Adagrad(params, lr=1e-2),
}


def start(seed=0, shape=(3, 4, 5)):
    draw = torch.Generator().manual_seed(seed)
    signs = torch.where(torch.rand(shape, generator=draw) < 0.5, -1.0, 1.0).double()
    return nn.Parameter(signs), draw


@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("rate", [0.05, 0.5, 1.0])
def test_weights_flip_by_the_published_rule(rate, threshold):
    w, draw = start()
    optimizer = Bop([w], lr=rate, threshold=threshold)
    weights, means = w.detach().numpy().copy(), np.zeros(w.shape)
    total = 0
    for _ in range(20):
        w.grad = torch.randn(w.shape, generator=draw, dtype=torch.float64)
        optimizer.step()
        flips = 0
        for index in np.ndindex(*w.shape):
            means[index] = (1 - rate) * means[index] + rate * float(w.grad[index])
            same = np.sign(means[index]) == np.sign(weights[index])
            if abs(means[index]) >= threshold and same:
                weights[index] = -weights[index]
                flips += 1
        np.testing.assert_array_equal(w.detach().numpy(), weights)
        assert optimizer.flipped == flips / w.numel()
        total += flips
    assert total > 0


def test_a_mean_of_exactly_the_threshold_flips_and_one_of_zero_does_not():
    w = nn.Parameter(torch.tensor([1.0, 1.0, -1.0, -1.0]))
    w.grad = torch.tensor([0.5, 0.25, -0.5, 0.5])
    Bop([w], lr=1.0, threshold=0.5).step()
    assert w.tolist() == [-1.0, 1.0, 1.0, -1.0]
    w.grad = torch.zeros(4)
    Bop([w], lr=1.0, threshold=0.0).step()
    assert w.tolist() == [-1.0, 1.0, 1.0, -1.0]


def problem(rest=None, covers=3, seed=0):
    """A covered student of ±1 weights, its optimizer, and a step of training."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), binary.Sign(), nn.Linear(12, 2))
        x = torch.randn(32, 6)
    student = binary.binarize(net, estimator="identity")
    covered = lift(student, covers, Uniform(), "messages", noise="50%", seed=0)
    binary.snap_latents(covered)
    other = None if rest is None else RESTS[rest](binary.others(covered))
    optimizer = Bop(binary.latents(covered).values(), lr=0.1, threshold=1e-3, rest=other)
    return covered, optimizer, x


def train(covered, optimizer, x, steps):
    y = (x.sum(1) > 0).long()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = cover_loss(F.cross_entropy, covered(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("rest", RESTS)
def test_the_other_optimizer_steps_as_it_does_alone(rest):
    covered, optimizer, x = problem(rest)
    twin = copy.deepcopy(covered)
    flips = Bop(binary.latents(twin).values(), lr=0.1, threshold=1e-3)
    alone = RESTS[rest](binary.others(twin))
    y = (x.sum(1) > 0).long()
    train(covered, optimizer, x, 5)
    for _ in range(5):
        for one in (flips, alone):
            one.zero_grad()
        cover_loss(F.cross_entropy, twin(x), y).backward()
        flips.step()
        alone.step()
    for a, b in zip(covered.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)


def test_training_by_flips_learns_and_keeps_signs():
    covered, optimizer, x = problem("Adam")
    before = {n: s.detach().clone() for n, s in binary.latents(covered).items()}
    losses = train(covered, optimizer, x, 80)
    assert losses[-1] < 0.7 * losses[0]
    for name, stack in binary.latents(covered).items():
        assert (stack.abs() == 1).all()
        assert (stack != before[name]).any()
    net = binary.collapse(covered, "signs", loader=[x])
    assert all((w.abs() == 1).all() for w in binary.latents(net).values())
    assert (net(x).argmax(1) == (x.sum(1) > 0).long()).float().mean() > 0.7


def saved(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("rest", [None, *RESTS])
def test_a_saved_training_goes_on_as_if_it_had_not_stopped(rest):
    covered, optimizer, x = problem(rest)
    train(covered, optimizer, x, 3)
    states = saved([covered.state_dict(), optimizer.state_dict()])
    want = train(covered, optimizer, x, 4)
    other, resumed, _ = problem(rest, seed=5)
    train(other, resumed, x, 1)  # what a new optimizer may hold already is replaced
    other.load_state_dict(states[0])
    resumed.load_state_dict(states[1])
    assert train(other, resumed, x, 4) == want
    for a, b in zip(covered.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    assert resumed.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copy_is_independent_and_goes_the_same_way(clone):
    w, draw = start()
    bias = nn.Parameter(torch.zeros(3))
    optimizer = Bop([w], lr=0.3, threshold=0.1, rest=torch.optim.Adam([bias], lr=0.1))
    gradients = [torch.randn(w.shape, generator=draw, dtype=torch.float64) for _ in range(6)]

    def run(optimizer, w, bias, some):
        for gradient in some:
            w.grad, bias.grad = gradient.clone(), gradient.sum((1, 2)).float()
            optimizer.step()
        return w.detach().clone(), bias.detach().clone()

    run(optimizer, w, bias, gradients[:3])
    same, v, twin = clone((optimizer, w, bias))
    want = run(optimizer, w, bias, gradients[3:])
    got = run(same, v, twin, gradients[3:])
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert torch.equal(w, want[0])
    assert same.rest.param_groups[0] is same.param_groups[1]


def test_one_scheduler_serves_both_and_groups_can_be_added():
    w, v, bias, late = (
        start()[0], start(1)[0], nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2)),
    )  # fmt: skip
    optimizer = Bop([w], lr=0.4, rest=torch.optim.SGD([bias], lr=0.1))
    optimizer.add_param_group({"params": [v], "lr": 0.2})
    optimizer.add_param_group({"params": [late], "lr": 1.0, "flips": False})
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for p in (w, v, bias, late):
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert (bias == -0.1).all()
    assert (late == -1).all()
    scheduler.step()
    assert [g["lr"] for g in optimizer.param_groups] == [0.2, 0.05, 0.1, 0.5]
    assert [g["lr"] for g in optimizer.rest.param_groups] == [0.05, 0.5]
    optimizer.zero_grad()
    assert late.grad is None
    optimizer.step()  # what has no gradient stays
    assert (late == -1).all()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Bop([nn.Parameter(torch.ones(2) / 2)]), "parameter 0 of shape .2,. is not ±1"),
        (lambda: Bop(nn.Linear(2, 2).parameters()), "snap_latents"),
        (lambda: Bop(torch.ones(2)), "params is a Tensor"),
        (lambda: Bop([start()[0]], lr=1.5), "lr is 1.5"),
        (lambda: Bop([start()[0]], threshold=-1), "threshold is -1"),
        (lambda: Bop([start()[0]], rest=torch.optim.Adam), "rest is"),
        (lambda: Bop([start()[0]]).add_param_group({"params": [nn.Parameter(torch.ones(2))],
                                                    "flips": False}), "no other optimizer"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(make, match):
    with pytest.raises(McoverError, match=match):
        make()


def test_a_parameter_belongs_to_one_of_both():
    w = start()[0]
    with pytest.raises(McoverError, match="given to Bop and to rest"):
        Bop([w], rest=torch.optim.SGD([w], lr=0.1))
