"""±1 weights: estimators, latents, training, and the collapse to one model of ±1 weights.

Their lifts are compared with loops in ``test_lift.py``, and are part of ``test_laws.py``.
"""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.utils import parametrize

from covering import (
    KINDS_OF_WEIGHTS,
    SOFT,
    assert_equal,
    base_name,
    both,
    doubles,
    every_model,
    signs,
    train,
)
from mcover import Identity, Uniform, cover_loss, lift
from mcover.errors import McoverWarning
from mcover.nn import binary
from tiny_models import Convolutional, Perceptron, Transformer, tiny

every_kind_of_weights = pytest.mark.parametrize("options", KINDS_OF_WEIGHTS, ids=str)
every_scale = pytest.mark.parametrize("scale", [None, "channel"])


def students(count=3, kind=Perceptron, **options):
    return [binary.binarize(tiny(kind, seed)[0], **options) for seed in range(count)]


def covers_of(models, routing="messages"):
    return lift(models[0], models, Uniform(), routing, seed=0)


# --- weights and estimators -----------------------------------------------------------------------


@pytest.mark.parametrize("name", SOFT)
def test_an_estimator_is_the_derivative_of_its_function(name):
    x = torch.linspace(-2.03, 2.03, 41, dtype=torch.float64, requires_grad=True)
    want = torch.autograd.grad(SOFT[name](x).sum(), x)[0]
    got = torch.autograd.grad(binary.Sign(name)(x).sum(), x)[0]
    torch.testing.assert_close(got, want)
    assert torch.equal(binary.Sign(name)(x), signs(x))
    w, probe = binary.binarize(nn.Linear(3, 5).double(), estimator=name), doubles(5, 3)
    latent = w.parametrizations.weight.original
    got = torch.autograd.grad((w.weight * probe).sum(), latent)[0]
    want = torch.autograd.grad((SOFT[name](latent) * probe).sum(), latent)[0]
    torch.testing.assert_close(got, want)


def test_swish_does_not_overflow_and_a_function_is_an_estimator():
    x = torch.tensor([-1e4, 0.0, 1e4], requires_grad=True)
    binary.Sign("swish")(x).sum().backward()
    assert x.grad.tolist() == [0.0, 5.0, 0.0]
    x.grad = None
    binary.Sign(lambda x: x * x)(x).sum().backward()
    assert x.grad.tolist() == [1e8, 0.0, 1e8]


def test_the_sign_of_zero_is_one():
    zeros = torch.tensor([0.0, -0.0])
    assert binary.Sign()(zeros).tolist() == [1.0, 1.0]
    layer = nn.Linear(2, 1)
    layer.weight.data[:] = zeros
    assert binary.binarize(layer).weight.tolist() == [[1.0, 1.0]]


def test_scales_are_mean_sizes_of_a_channel():
    for layer, axis in ((nn.Conv2d(3, 4, 3), 0), (nn.ConvTranspose2d(4, 3, 3), 1)):
        student = binary.binarize(layer, scale="channel")
        pairs = zip(student.weight.unbind(axis), layer.weight.unbind(axis), strict=True)
        for got, w in pairs:
            torch.testing.assert_close(got, signs(w) * w.abs().mean())


@every_scale
def test_ternary_weights_are_those_of_twn(scale):
    layer = nn.Linear(20, 6).double()
    got = binary.binarize(layer, ternary=True, scale=scale).weight
    rows = [layer.weight] if scale is None else list(layer.weight)
    parts = [got] if scale is None else list(got)
    for w, part in zip(rows, parts, strict=True):
        kept = w.abs() > 0.7 * w.abs().mean()
        size = 1.0 if scale is None else w.abs()[kept].mean()
        torch.testing.assert_close(part, torch.where(kept, signs(w) * size, 0.0))
        assert 0 < kept.sum() < kept.numel()


@every_model
def test_binarize_leaves_the_model_and_biases_alone(kind):
    model, x = tiny(kind)
    before = copy.deepcopy(model.state_dict())
    student = binary.binarize(model)
    assert_equal(model.state_dict(), before)
    state = {base_name(name): value for name, value in student.state_dict().items()}
    assert_equal({name: state[name] for name in before}, before)
    assert state.keys() == before.keys()
    chosen = {base_name(name) for name in binary.latents(student)}
    want = {n for n, p in model.named_parameters() if p.ndim > 1} - {"embed.weight", "position"}
    assert chosen == want
    assert {*map(id, binary.other_parameters(student))} == {
        id(p) for n, p in student.named_parameters() if base_name(n) not in want
    }
    # The same model by hand: signs in the place of weights.
    hand = copy.deepcopy(model)
    for name in want:
        hand.get_parameter(name).data = signs(model.get_parameter(name).data)
    torch.testing.assert_close(student(x), hand(x))
    baked = binary.bake(student)
    assert type(baked) is type(model)
    torch.testing.assert_close(baked.state_dict(), hand.state_dict())


class Doubled(nn.Module):
    """Another parametrization."""

    def forward(self, x):
        return 2 * x

    def right_inverse(self, x):
        return x / 2


@pytest.mark.parametrize("other", [False, True])
def test_binarizing_and_baking_leave_what_they_copy_as_it_was(other):
    """Torch keeps a parametrized tensor as a property of a class that deep copies share."""
    model, x = nn.Sequential(nn.Linear(3, 2), nn.Sigmoid()).double(), torch.ones(4, 3).double()
    if other:
        parametrize.register_parametrization(model[0], "bias", Doubled())
    before = model(x)
    student = binary.binarize(model)
    assert torch.equal(model(x), before)
    covered = lift(student, 3, Uniform(), "directed", seed=0)
    wanted = [m(x) for m in (student, covered.eval())]
    baked = [binary.bake(m) for m in (student, covered.collapse())]
    assert torch.equal(baked[0](x), wanted[0])
    assert [p.shape for p in baked[1].parameters()] == [p.shape for p in baked[0].parameters()]
    for after, want in zip((student(x), covered(x), model(x)), (*wanted, before), strict=True):
        assert torch.equal(after, want)
    assert torch.equal(binary.bake(student)(x), wanted[0])
    assert type(binary.binarize(model)[0]).__mro__[1] is nn.Linear


def test_tied_weights_stay_tied_where_both_are_selected():
    student = binary.binarize(tiny(Transformer)[0], select=["embed", "head"])
    assert list(binary.latents(student)) == ["embed.parametrizations.weight.original"]
    assert torch.equal(student.embed.weight, student.head.weight)
    assert (student.head.weight.abs() == 1).all()


def test_what_is_selected_and_what_is_skipped():
    model = tiny(Perceptron)[0]
    for options, layer in (
        ({"skip": ["hidden", "out"]}, "middle"),
        ({"select": lambda name, module: name == "out"}, "out"),
    ):
        chosen = binary.latents(binary.binarize(model, **options))
        assert [*chosen] == [f"{layer}.parametrizations.weight.original"]
    model.out.weight.requires_grad_(False)
    assert len(binary.latents(binary.binarize(model))) == 2


def test_latents_are_clipped_and_snapped_in_place_also_those_of_covers():
    (student,) = students(1)
    covered = lift(student, 3, Uniform(), "messages", noise="400%", seed=0)
    for model in (student, covered):
        latents = binary.latents(model)
        before = {name: latent.detach().clone() for name, latent in latents.items()}
        binary.clip_latents(model, 0.5)
        for name, latent in latents.items():
            assert torch.equal(latent, before[name].clamp(-0.5, 0.5))
        assert any((value.abs() > 0.5).any() for value in before.values()) or model is student
        binary.snap_latents(model)
        for name, latent in latents.items():
            assert torch.equal(latent, signs(before[name]))


@every_kind_of_weights
def test_weights_of_all_covers_can_be_looked_at(options):
    (student,) = students(1, **options)
    covered = lift(student, 3, Uniform(), "messages", noise="50%", seed=0)
    for k in range(3):
        torch.testing.assert_close(covered.net.middle.weight[k], covered.cover(k).middle.weight)


@both
def test_training_moves_latents_and_flips_signs(routing):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), binary.Sign(), nn.Linear(16, 2))
    x = doubles(64, 8).float()
    y = (x.sum(1) > 0).long()
    covered = lift(binary.binarize(net), 3, Uniform(), routing, seed=0)
    start = {n: signs(s.detach()) for n, s in binary.latents(covered).items()}

    def clipping(parameters):
        optimizer = torch.optim.Adam(parameters, lr=0.02)
        optimizer.register_step_post_hook(lambda *_: binary.clip_latents(covered))
        return optimizer

    given = list(covered.parameters())
    losses = train(lambda: cover_loss(F.cross_entropy, covered(x), y), given, 60, clipping)
    assert losses[-1] < 0.5 * losses[0]
    for name, latent in binary.latents(covered).items():
        assert bool((latent.abs() <= 1).all())
        assert (signs(latent) != start[name]).any()
    for policy in ("latents", "signs", "best"):
        held = {"held_out": [(x, y)]} if policy == "best" else {}
        student = binary.collapse(covered, policy, loader=[x], **held)
        assert (student(x).argmax(1) == y).float().mean() > 0.8


# --- collapse -------------------------------------------------------------------------------------


@every_scale
@pytest.mark.parametrize("covers", [3, 4])
def test_the_majority_of_signs_entry_by_entry(covers, scale):
    models = students(covers, scale=scale)
    net = binary.collapse(covers_of(models), "signs")
    got = signs(net.middle.parametrizations.weight.original)
    ties = 0
    for index in np.ndindex(*got.shape):
        votes = [signs(model.middle.weight)[index].item() for model in models]
        ties += sum(votes) == 0
        assert got[index].item() == (np.sign(sum(votes)) or votes[0])
    assert bool(ties) == (covers == 4)
    torch.testing.assert_close(net.out.bias, torch.stack([m.out.bias for m in models]).mean(0))
    if scale:  # the mean of the covers' scales
        want = torch.stack([m.middle.weight.abs()[:, 0] for m in models]).mean(0)
        torch.testing.assert_close(net.middle.weight.abs()[:, 0], want)


@every_scale
def test_the_most_frequent_of_three_values(scale):
    models = students(4, ternary=True, scale=scale)
    net = binary.collapse(covers_of(models), "signs")
    each = [torch.sign(model.middle.weight) for model in models]
    got = torch.sign(net.middle.weight)
    for index in np.ndindex(*got.shape):
        votes = [w[index].item() for w in each]
        counts = sorted(((votes.count(v), v) for v in set(votes)), reverse=True)
        tied = len(counts) > 1 and counts[0][0] == counts[1][0]
        assert got[index].item() == (votes[0] if tied else counts[0][1])


def test_the_mean_of_latents_and_the_best_cover():
    models = students()
    covered, x = covers_of(models), doubles(32, 7)
    for name, value in binary.collapse(covered).state_dict().items():
        want = torch.stack([m.state_dict()[name] for m in models]).mean(0)
        torch.testing.assert_close(value, want)
    for k in range(3):
        y = models[k](x).argmax(1)
        batches = [(x[:20], y[:20]), (x[20:], y[20:])]
        best = binary.collapse(covered, "best", held_out=batches)
        assert torch.equal(best.middle.weight, models[k].middle.weight)
        best = binary.collapse(covered, "best", held_out=batches, score=F.cross_entropy)
        losses = [F.cross_entropy(m(x), y).item() for m in models]
        assert torch.equal(best.middle.weight, models[int(np.argmin(losses))].middle.weight)


def test_a_single_output_is_scored_by_its_sign():
    models = [binary.binarize(nn.Linear(5, 1, bias=False)) for _ in range(3)]
    for k, model in enumerate(models):
        with torch.no_grad():
            binary.latents(model)["parametrizations.weight.original"].fill_(0.5)[0, k] = -0.5
    x = signs(doubles(64, 5).float())
    y = signs(models[1](x)).flatten()
    for target in (y, (y > 0).long()):
        best = binary.collapse(covers_of(models), "best", held_out=[(x, target)])
        assert torch.equal(best.weight, models[1].weight)


@pytest.mark.parametrize("policy", ["latents", "signs", "best"])
def test_norms_are_recalibrated_or_a_warning_is_given(policy):
    model, x = tiny(Convolutional)
    covered = lift(binary.binarize(model), 3, Uniform(), "messages", noise="50%", seed=0)
    covered(x)
    held = {"held_out": [(x, torch.zeros(len(x)))]} if policy == "best" else {}
    with pytest.warns(McoverWarning, match="batch norm 'norm' describe the covers"):
        binary.collapse(covered, policy, **held)
    untracked = nn.Sequential(nn.Linear(5, 2), nn.BatchNorm1d(2, track_running_stats=False))
    binary.collapse(lift(binary.binarize(untracked), 3, seed=0))  # no statistics, no warning
    net = binary.collapse(covered, policy, loader=[x], **held)
    torch.testing.assert_close(net.norm.running_mean, net.first(x).mean((0, 2, 3)))
    assert not net.training
    if policy == "best":  # without mixing, statistics are those of the cover itself
        apart = lift(binary.binarize(model), 3, Identity(), "messages", seed=0)
        binary.collapse(apart, policy, **held)
