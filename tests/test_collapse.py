"""Back to one model: what collapse, per-cover models and ensembles hand out."""

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from mcover import GaussianRing, McoverError, Uniform, lift  # noqa: E402
from mcover.errors import McoverWarning  # noqa: E402
from tiny_models import MODELS, Convolutional, Perceptron, Transformer, routed, tiny  # noqa: E402

torch.set_num_threads(1)

RING = GaussianRing(1.5, shift=2)
NAMES = {"argvalues": MODELS, "ids": lambda kind: kind.__name__}
ROUTINGS = ["messages", "directed"]


def assert_equal_states(a, b, **tolerance):
    assert list(a) == list(b)
    for name in a:
        torch.testing.assert_close(a[name], b[name], msg=name, **tolerance)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("kind", **NAMES)
def test_without_noise_the_collapse_is_the_base_model(kind, routing):
    model, x = tiny(kind)
    net = lift(model, 5, RING, routing, noise=0.0, seed=0).collapse()
    assert type(net) is type(model)
    assert [type(m) for m in net.modules()] == [type(m) for m in model.modules()]
    assert not net.training
    assert_equal_states(net.state_dict(), model.state_dict(), rtol=1e-14, atol=1e-15)
    torch.testing.assert_close(net(x), model.eval()(x), rtol=1e-12, atol=1e-13)
    net.load_state_dict(model.state_dict())


def test_the_mean_is_over_covers_and_covers_can_be_taken_out():
    models = [tiny(Perceptron, seed)[0] for seed in range(3)]
    covered = lift(models[0], models, RING, "messages", seed=0)
    mean = covered.collapse().state_dict()
    for name in mean:
        want = torch.stack([model.state_dict()[name] for model in models]).mean(0)
        torch.testing.assert_close(mean[name], want)
    assert_equal_states(covered.cover(-1).state_dict(), models[2].state_dict())
    with pytest.raises(McoverError, match="cover is 3; write a whole number from -3 to 2"):
        covered.cover(3)


def test_other_methods_sign_and_functions():
    models = [nn.Linear(3, 2) for _ in range(3)]
    for model, values in zip(models, ([-1.0, 1, 1], [1.0, 1, -1], [-1.0, 1, -1]), strict=True):
        model.weight.data[:] = torch.tensor(values)
    covered = lift(models[0], models, Uniform(), "messages", seed=0)
    assert covered.collapse("sign").weight.tolist() == [[-1.0, 1.0, -1.0]] * 2
    last = covered.collapse(lambda stack: stack[-1])
    assert torch.equal(last.weight, models[2].weight)
    median = covered.collapse(lambda stack: stack.median(0).values)
    assert median.weight.tolist() == [[-1.0, 1.0, -1.0]] * 2
    with pytest.raises(McoverError, match="how is 'max'"):
        covered.collapse("max")


def test_tied_weights_stay_tied():
    model, x = tiny(Transformer)
    covered = lift(model, 3, RING, "messages", noise=0.3, seed=0)
    for net in (covered.collapse(), covered.cover(1)):
        assert net.head.weight is net.embed.weight
        assert net.head.weight.shape == (6, 4)
        net(x).sum().backward()


def test_collapse_shares_nothing_with_the_covers():
    model, x = tiny(Convolutional)
    covered = lift(model, 3, RING, "messages", seed=0)
    before = copy.deepcopy(covered.state_dict())
    net = covered.collapse()
    optimizer = torch.optim.SGD(net.train().parameters(), lr=1.0)
    net(x).sum().backward()
    optimizer.step()
    for name, value in covered.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_collapse_keeps_what_is_trained_and_the_mode_of_the_covers():
    model = tiny(Perceptron)[0]
    model.hidden.weight.requires_grad_(False)
    covered = lift(model, 3, RING, "messages", seed=0)
    net = covered.collapse()
    assert [p.requires_grad for p in net.parameters()] == [
        p.requires_grad for p in model.parameters()
    ]
    assert covered.training


def test_running_statistics_are_averaged_or_computed_anew():
    model, x = tiny(Convolutional)
    covered = lift(model, 3, RING, "messages", noise=0.5, seed=0)
    for _ in range(3):
        covered(x)
    stats = covered.net.norm.running_mean.clone()
    average = covered.collapse()
    torch.testing.assert_close(average.norm.running_mean, stats.mean(0))
    assert average.norm.num_batches_tracked.dtype == torch.int64
    assert int(average.norm.num_batches_tracked) == 3
    anew = covered.collapse(loader=[(x, None)])
    torch.testing.assert_close(anew.norm.running_mean, anew.first(x).mean((0, 2, 3)))
    assert not anew.training
    assert torch.equal(covered.net.norm.running_mean, stats)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused_by_name(bad):
    covered = lift(tiny(Perceptron)[0], 3, RING, "messages", seed=0)
    covered.net.middle.weight.data[1, 0, 0] = bad
    with pytest.raises(McoverError, match=r"'middle.weight' .* \(in covers \[1\]\)"):
        covered.collapse()
    with pytest.raises(McoverError, match=r"'middle.weight'"):
        covered.cover(1)


def test_running_statistics_that_are_not_finite_are_refused():
    covered = lift(tiny(Convolutional)[0], 3, RING, "messages", seed=0)
    covered.net.norm.running_var[2] = float("nan")
    with pytest.raises(McoverError, match=r"'norm.running_var'"):
        covered.collapse()


@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_ensemble_is_the_mean_prediction(routing):
    model, x = tiny(Perceptron)
    how = routed(routing, bank=4, destinations=2)
    covered = lift(model, 3, RING, how, noise=0.5, seed=0).eval()
    want = torch.stack([covered.cover(k)(x) for k in range(3)]).mean(0)
    torch.testing.assert_close(covered.ensemble(x), want)
    passes = covered.passes
    along_routes = covered(x).unflatten(1, (passes, len(x))).mean((0, 1))
    torch.testing.assert_close(covered.ensemble(x, routed=True), along_routes)


def test_batch_norm_without_a_loader_warns_and_says_what_to_write():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)).double()
    covered = lift(model, 3, seed=0)
    covered.collapse()  # nothing ran: the statistics are those of the model
    x = torch.randn(8, 4, dtype=torch.float64)
    covered(x)
    with pytest.warns(McoverWarning, match=r"batch norm '1' .*collapse\(loader=batches\)"):
        covered.collapse()
    net = covered.collapse(loader=[x])
    seen = net[0](x).mean(0)
    assert torch.allclose(net[1].running_mean, seen)
    lift(model, 1, seed=0)(x)
