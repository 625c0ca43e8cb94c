"""±1 weights: estimators, both lifts of them, and the way back to one model of ±1 weights."""

import copy
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402
from torch.nn.utils import parametrize  # noqa: E402

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
from mcover.errors import McoverWarning  # noqa: E402
from mcover.nn import binary, load  # noqa: E402
from test_lift import mixers_of  # noqa: E402
from tiny_models import MODELS, Convolutional, Perceptron, Recurrent, Transformer, tiny  # noqa: E402

torch.set_num_threads(1)

KINDS = {"argvalues": MODELS, "ids": lambda kind: kind.__name__}
ROUTINGS = ["messages", "directed"]
# The functions whose derivatives stand for that of the sign.
SOFT = {
    "identity": lambda x: x,
    "clip": lambda x: x.clamp(-1, 1),
    "polynomial": lambda x: torch.where(x.abs() < 1, 2 * x - x * x.abs(), torch.sign(x)),
    "tanh": torch.tanh,
    "swish": lambda x: 2 * torch.sigmoid(5 * x) * (1 + 5 * x * torch.sigmoid(-5 * x)) - 1,
}


def signs(x):
    return torch.where(x < 0, -1.0, 1.0).to(x.dtype)


def straight(x, soft):
    """The sign, with the derivative of ``soft``."""
    return soft(x) + (signs(x) - soft(x)).detach()


def base_name(name):
    return name.replace("parametrizations.", "").replace(".original", "")


def quiet(*args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", McoverWarning)
        return binary.collapse(*args, **kwargs)


# --- weights and estimators -----------------------------------------------------------------------


@pytest.mark.parametrize("name", SOFT)
def test_an_estimator_is_the_derivative_of_its_function(name):
    x = torch.linspace(-2.03, 2.03, 41, dtype=torch.float64, requires_grad=True)
    want = torch.autograd.grad(SOFT[name](x).sum(), x)[0]
    got = torch.autograd.grad(binary.Sign(name)(x).sum(), x)[0]
    torch.testing.assert_close(got, want)
    assert torch.equal(binary.Sign(name)(x), signs(x))
    w = binary.binarize(nn.Linear(3, 5).double(), estimator=name)
    latent = w.parametrizations.weight.original
    probe = torch.randn(5, 3, dtype=torch.float64)
    got = torch.autograd.grad((w.weight * probe).sum(), latent)[0]
    torch.testing.assert_close(
        got, torch.autograd.grad((straight(latent, SOFT[name]) * probe).sum(), latent)[0]
    )


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
    layer = nn.Conv2d(3, 4, 3).double()
    student = binary.binarize(layer, scale="channel")
    for channel in range(4):
        w = layer.weight[channel]
        torch.testing.assert_close(student.weight[channel], signs(w) * w.abs().mean())
    turned = nn.ConvTranspose2d(4, 3, 3).double()
    student = binary.binarize(turned, scale="channel")
    w = turned.weight[:, 1]
    torch.testing.assert_close(student.weight[:, 1], signs(w) * w.abs().mean())
    with pytest.raises(McoverError, match="no axis of output channels"):
        binary.binarize(nn.ConvTranspose1d(4, 4, 3, groups=2), scale="channel")


@pytest.mark.parametrize("scale", [None, "channel"])
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


@pytest.mark.parametrize("kind", **KINDS)
def test_binarize_leaves_the_model_and_biases_alone(kind):
    model, x = tiny(kind)
    before = copy.deepcopy(model.state_dict())
    student = binary.binarize(model)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    state = {base_name(name): value for name, value in student.state_dict().items()}
    assert state.keys() == before.keys()
    for name, value in state.items():
        assert torch.equal(value, before[name])
    chosen = {base_name(name) for name in binary.latents(student)}
    want = {n for n, p in model.named_parameters() if p.ndim > 1} - {"embed.weight", "position"}
    assert chosen == want
    assert {*map(id, binary.others(student))} == {
        id(p) for n, p in student.named_parameters() if base_name(n) not in want
    }
    # The same model by hand: signs in the place of weights.
    hand = copy.deepcopy(model)
    for name in want:
        hand.get_parameter(name).data = signs(model.get_parameter(name).data)
    torch.testing.assert_close(student(x), hand(x))
    baked = binary.bake(student)
    assert type(baked) is type(model)
    for name, value in baked.state_dict().items():
        assert torch.equal(value, hand.state_dict()[name])


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
    skipped = binary.binarize(model, skip=["hidden", "out"])
    assert [*binary.latents(skipped)] == ["middle.parametrizations.weight.original"]
    chosen = binary.binarize(model, select=lambda name, module: name == "out")
    assert [*binary.latents(chosen)] == ["out.parametrizations.weight.original"]
    model.out.weight.requires_grad_(False)
    assert len(binary.latents(binary.binarize(model))) == 2


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: binary.binarize(3), "model is 3"),
        (
            lambda: binary.binarize(nn.Linear(2, 2), estimator="ste"),
            "estimator is 'ste'; .* or a f",
        ),
        (lambda: binary.binarize(nn.Linear(2, 2), scale="tensor"), "scale is 'tensor'"),
        (lambda: binary.binarize(nn.Linear(2, 2), ternary=0.7), "ternary is 0.7"),
        (lambda: binary.binarize(nn.LayerNorm(3)), "no weight is left"),
        (lambda: binary.binarize(nn.Linear(2, 2), skip="0"), "skip: '0' matches no parameters"),
        (lambda: binary.binarize(binary.binarize(nn.Linear(2, 2))), "parametrized already"),
        (lambda: binary.binarize(nn.Embedding(3, 2, padding_idx=0), select="weight"), "padding"),
        (
            lambda: binary.binarize(lift(nn.Linear(4, 2), 2, Uniform(), "messages", seed=0)),
            r"lift\(binarize\(model\)",
        ),
        (lambda: binary.clip_latents(nn.Linear(2, 2)), "no latent weights"),
        (lambda: binary.clip_latents(binary.binarize(nn.Linear(2, 2)), 0), "bound is 0"),
        (lambda: binary.snap_latents(nn.Linear(2, 2)), "no latent weights"),
        (lambda: binary.snap_latents(binary.binarize(nn.Linear(2, 2), ternary=True)), "ternary"),
        (lambda: binary.bake(nn.Linear(2, 2)), "no latent weights"),
    ],
)
def test_bad_input_is_refused(make, match):
    with pytest.raises(McoverError, match=match):
        make()


def test_latents_are_clipped_and_snapped_in_place_also_those_of_covers():
    student = binary.binarize(tiny(Perceptron)[0])
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


# --- lifts ----------------------------------------------------------------------------------------


def leaves(covered, soft):
    """Latents as leaves, and what a hand-written lift of signs takes for weights."""
    own = {n: s.detach().clone().requires_grad_() for n, s in covered.stacks().items()}
    weights = {
        base_name(n): straight(s, soft) if n.endswith(".original") else s for n, s in own.items()
    }
    return own, weights


def assert_same(ours, theirs, covered, stacks):
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
    probe = torch.randn(ours.shape, generator=torch.Generator().manual_seed(0), dtype=ours.dtype)
    got = torch.autograd.grad((ours * probe).sum(), list(covered.stacks().values()))
    want = torch.autograd.grad((theirs * probe).sum(), list(stacks.values()))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
    assert any(a.abs().max() > 0 for a in got)


@pytest.mark.parametrize("estimator", ["clip", "tanh"])
@pytest.mark.parametrize("kind", **KINDS)
def test_the_message_lift_mixes_messages_of_signs(kind, estimator):
    model, x = tiny(kind)
    student = binary.binarize(model, estimator=estimator)
    how = Messages(blocks=3, draws=4, block_channels=1)
    covered = lift(student, 3, GaussianRing(1.5, shift=2), how, noise=0.3, seed=1)
    own, weights = leaves(covered, SOFT[estimator])
    want = reference.message_lift(model, x, weights, mixers_of(covered))
    assert_same(covered(x), want, covered, own)


@pytest.mark.parametrize("granularity", ["weight", "unit"])
@pytest.mark.parametrize("kind", **KINDS)
def test_the_directed_lift_routes_signs_with_their_latents(kind, granularity):
    model, x = tiny(kind)
    covered = lift(
        binary.binarize(model), 3, Uniform(),
        Directed(bank=3, destinations=2, granularity=granularity), noise=0.3, seed=1,
    )  # fmt: skip
    own, weights = leaves(covered, SOFT["clip"])
    source = sources(weights, granularity)
    routes = covered.routes
    parts = [reference.directed_lift(model, x, weights, routes[s], source) for s in range(2)]
    assert_same(covered(x), torch.cat(parts, 1), covered, own)


def sources(stacks, granularity):
    number = {}
    for name, stack in stacks.items():
        for index in np.ndindex(*stack.shape[1:]):
            number.setdefault((name, index[:1] if granularity == "unit" else index), len(number))
    return lambda name, index: number[name, index[:1] if granularity == "unit" else index]


@pytest.mark.parametrize("options", [{"ternary": True}, {"scale": "channel"},
                                     {"ternary": True, "scale": "channel"}])  # fmt: skip
def test_scales_and_thresholds_are_those_of_the_virtual_model(options):
    model, x = tiny(Perceptron)
    student = binary.binarize(model, **options)
    covered = lift(student, 3, Uniform(), Directed(bank=3, destinations=1), noise=0.3, seed=1)
    own = {n: s.detach().clone().requires_grad_() for n, s in covered.stacks().items()}
    want = reference.directed_lift(student, x, own, covered.routes[0], sources(own, "weight"))
    assert_same(covered(x), want, covered, own)


@pytest.mark.parametrize("options", [{}, {"ternary": True, "scale": "channel"}])
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("kind", **KINDS)
def test_one_cover_is_the_base_and_without_mixing_covers_are_models(kind, routing, options):
    model, x = tiny(kind)
    student = binary.binarize(model, **options)
    one = lift(student, 1, Uniform(), routing, seed=0)
    torch.testing.assert_close(one(x)[0], student(x))
    models = [binary.binarize(tiny(kind, seed)[0], **options) for seed in range(3)]
    covered = lift(models[0], models, Identity(), routing, seed=0)
    passes = covered.passes
    for row, own in zip(covered(x), models, strict=True):
        torch.testing.assert_close(row, torch.cat([own(x)] * passes))


@pytest.mark.parametrize("options", [{}, {"scale": "channel"}, {"ternary": True},
                                     {"ternary": True, "scale": "channel"}])  # fmt: skip
def test_weights_of_all_covers_can_be_looked_at(options):
    student = binary.binarize(tiny(Perceptron)[0], **options)
    covered = lift(student, 3, Uniform(), "messages", noise="50%", seed=0)
    for k in range(3):
        torch.testing.assert_close(covered.net.middle.weight[k], covered.cover(k).middle.weight)
    with pytest.raises(McoverError, match="called by itself"):
        covered.net.middle(torch.zeros(2, 6))  # which has no bias: all it has is parametrized


@pytest.mark.parametrize("routing", ROUTINGS)
def test_binary_covers_save_load_and_copy(routing, tmp_path):
    model, x = tiny(Perceptron)
    student = binary.binarize(model)
    covered = lift(student, 3, Uniform(), routing, seed=0).eval()
    covered.save(tmp_path / "covers")
    want = covered(x)
    assert torch.equal(load(tmp_path / "covers", student).eval()(x), want)
    assert torch.equal(copy.deepcopy(covered)(x), want)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_training_moves_latents_and_flips_signs(routing):
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), binary.Sign(), nn.Linear(16, 2))
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(64, 8, generator=draw)
    y = (x.sum(1) > 0).long()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net.apply(lambda m: m.reset_parameters() if hasattr(m, "reset_parameters") else None)
        covered = lift(binary.binarize(net), 3, Uniform(), routing, seed=0)
    optimizer = torch.optim.Adam(covered.parameters(), lr=0.02)
    optimizer.register_step_post_hook(lambda *_: binary.clip_latents(covered))
    start = {n: signs(s.detach()) for n, s in binary.latents(covered).items()}
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = cover_loss(F.cross_entropy, covered(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        assert all(bool((s.abs() <= 1).all()) for s in binary.latents(covered).values())
    assert losses[-1] < 0.5 * losses[0]
    assert all((signs(s) != start[n]).any() for n, s in binary.latents(covered).items())
    for policy in ("latents", "signs", "best"):
        held = {"held_out": [(x, y)]} if policy == "best" else {}
        student = binary.collapse(covered, policy, loader=[x], **held)
        assert (student(x).argmax(1) == y).float().mean() > 0.8


# --- collapse -------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"scale": "channel"}, {"ternary": True},
                                     {"ternary": True, "scale": "channel"}])  # fmt: skip
@pytest.mark.parametrize("policy", ["latents", "signs"])
def test_equal_covers_collapse_to_themselves(policy, options):
    models = [binary.binarize(tiny(Convolutional, 3)[0], **options) for _ in range(4)]
    net = quiet(lift(models[0], models, Uniform(), "messages", seed=0), policy)
    assert not net.training
    assert type(net) is type(models[0])
    for name, value in net.state_dict().items():
        torch.testing.assert_close(value, models[0].state_dict()[name], rtol=0, atol=0)


@pytest.mark.parametrize("scale", [None, "channel"])
@pytest.mark.parametrize("covers", [3, 4])
def test_the_majority_of_signs_entry_by_entry(covers, scale):
    models = [binary.binarize(tiny(Perceptron, k)[0], scale=scale) for k in range(covers)]
    net = binary.collapse(lift(models[0], models, Uniform(), "messages", seed=0), "signs")
    each = [binary.binarize(tiny(Perceptron, k)[0]).middle.weight for k in range(covers)]
    got = signs(net.middle.parametrizations.weight.original)
    ties = 0
    for index in np.ndindex(*got.shape):
        votes = [w[index].item() for w in each]
        ties += sum(votes) == 0
        assert got[index].item() == (np.sign(sum(votes)) or votes[0])
    assert bool(ties) == (covers == 4)
    torch.testing.assert_close(net.out.bias, torch.stack([m.out.bias for m in models]).mean(0))
    if scale:  # the mean of the covers' scales
        want = torch.stack([m.middle.weight.abs()[:, 0] for m in models]).mean(0)
        torch.testing.assert_close(net.middle.weight.abs()[:, 0], want)


@pytest.mark.parametrize("scale", [None, "channel"])
def test_the_most_frequent_of_three_values(scale):
    models = [binary.binarize(tiny(Perceptron, k)[0], ternary=True, scale=scale) for k in range(4)]
    net = binary.collapse(lift(models[0], models, Uniform(), "messages", seed=0), "signs")
    each = [torch.sign(model.middle.weight) for model in models]
    got = torch.sign(net.middle.weight)
    for index in np.ndindex(*got.shape):
        votes = [w[index].item() for w in each]
        counts = sorted(((votes.count(v), v) for v in set(votes)), reverse=True)
        tied = len(counts) > 1 and counts[0][0] == counts[1][0]
        assert got[index].item() == (votes[0] if tied else counts[0][1])


def test_the_mean_of_latents_and_the_best_cover():
    models = [binary.binarize(tiny(Perceptron, k)[0]) for k in range(3)]
    covered = lift(models[0], models, Uniform(), "messages", seed=0)
    x = torch.randn(32, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean = binary.collapse(covered)
    for name, value in mean.state_dict().items():
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
    x = torch.where(torch.rand(64, 5, generator=torch.Generator().manual_seed(0)) < 0.5, -1.0, 1.0)
    y = signs(models[1](x)).flatten()
    covered = lift(models[0], models, Uniform(), "messages", seed=0)
    for target in (y, (y > 0).long()):
        best = binary.collapse(covered, "best", held_out=[(x, target)])
        assert torch.equal(best.weight, models[1].weight)


@pytest.mark.parametrize("policy", ["latents", "signs", "best"])
def test_norms_are_recalibrated_or_a_warning_is_given(policy):
    model, x = tiny(Convolutional)
    covered = lift(binary.binarize(model), 3, Uniform(), "messages", noise="50%", seed=0)
    covered(x)
    held = {"held_out": [(x, torch.zeros(len(x)))]} if policy == "best" else {}
    with pytest.warns(McoverWarning, match="batch-norms are those of the covers"):
        binary.collapse(covered, policy, **held)
    net = binary.collapse(covered, policy, loader=[x], **held)
    torch.testing.assert_close(net.norm.running_mean, net.first(x).mean((0, 2, 3)))
    assert not net.training
    apart = lift(binary.binarize(model), 3, Identity(), "messages", seed=0)
    if policy == "best":  # statistics of the cover itself
        binary.collapse(apart, policy, **held)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"policy": "mean"}, "policy is 'mean'"),
        ({"policy": "best"}, "needs held_out"),
        ({"policy": "signs", "held_out": []}, "no part in 'signs'"),
        ({"policy": "best", "held_out": []}, "no samples"),
        ({"policy": "best", "held_out": [torch.zeros(3, 7)]}, "batches"),
        ({"policy": "best", "held_out": iter([])}, "once for each cover"),
        (
            {"policy": "best", "held_out": [(torch.zeros(2, 7).double(), torch.zeros(2))],
             "score": lambda *_: float("nan")},
            "not a number",
        ),
    ],
)  # fmt: skip
def test_bad_policies_are_refused(options, match):
    covered = lift(binary.binarize(tiny(Perceptron)[0]), 2, Uniform(), "messages", seed=0)
    with pytest.raises(McoverError, match=match):
        binary.collapse(covered, **options)


def test_only_covers_of_binarized_models_collapse_so():
    with pytest.raises(McoverError, match=r"binary\.binarize"):
        binary.collapse(nn.Linear(2, 2))
    with pytest.raises(McoverError, match="no latent weights"):
        binary.collapse(lift(nn.Linear(4, 2), 2, Uniform(), "messages", seed=0))
    covered = lift(binary.binarize(tiny(Recurrent)[0]), 2, Uniform(), "directed", seed=0)
    with pytest.raises(McoverError, match="bake"):
        binary.bake(covered)
    binary.latents(covered)["net.out.parametrizations.weight.original"].data[0] = float("nan")
    with pytest.raises(McoverError, match="not finite"):
        binary.collapse(covered, "signs")
