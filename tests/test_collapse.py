"""From M covers back to one model."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from mcover import GaussianRing, McoverError, lift  # noqa: E402
from tiny_models import MODELS, Convolutional, Perceptron, Transformer, tiny  # noqa: E402

torch.set_num_threads(1)
RING = GaussianRing(1.5, shift=2)
KINDS = {"argvalues": MODELS, "ids": lambda kind: kind.__name__}


@pytest.mark.parametrize("routing", ["messages", "weights"])
@pytest.mark.parametrize("kind", **KINDS)
def test_zero_noise_collapses_to_the_base(kind, routing):
    model, x = tiny(kind)
    covered = lift(model, 3, RING, routing, noise=0.0, seed=0)
    collapsed = covered.collapse()
    assert type(collapsed) is type(model)
    assert [type(m) for m in collapsed.modules()] == [type(m) for m in model.modules()]
    assert list(collapsed.state_dict()) == list(model.state_dict())
    assert not collapsed.training
    for name, value in model.state_dict().items():
        torch.testing.assert_close(collapsed.state_dict()[name], value, rtol=1e-14, atol=1e-16)
    torch.testing.assert_close(collapsed(x), model.eval()(x))
    for cover in covered.eval()(x):  # equal covers do not feel the routes
        torch.testing.assert_close(cover, model(x))


@pytest.mark.parametrize("kind", **KINDS)
def test_equal_covers_collapse_to_themselves(kind):
    modules = [tiny(kind, seed=4)[0]] * 3
    collapsed = lift(tiny(kind)[0], modules, RING).collapse()
    for name, value in modules[0].state_dict().items():
        torch.testing.assert_close(collapsed.state_dict()[name], value, rtol=1e-14, atol=1e-16)


def test_mean_sign_and_functions():
    model, _ = tiny(Perceptron)
    covered = lift(model, 4, RING, noise=0.5, seed=0)
    stack = covered.net.hidden.weight.detach()
    torch.testing.assert_close(covered.collapse().hidden.weight.detach(), stack.mean(0))
    signs = covered.collapse("sign").hidden.weight.detach()
    assert torch.equal(signs, torch.where(stack.sum(0) < 0, -1.0, 1.0).double())
    median = covered.collapse(lambda stack: stack.median(0).values)
    assert torch.equal(median.out.bias.detach(), covered.net.out.bias.detach().median(0).values)


def test_tied_weights_stay_tied_and_trainable():
    covered = lift(tiny(Transformer)[0], 3, RING, noise=0.2, seed=0)
    for net in (covered.collapse(), covered.cover(1)):
        assert net.head.weight is net.embed.weight
        assert net.head.weight.requires_grad
        assert "mixer" not in " ".join(net.state_dict())


def test_buffers_are_averaged_taken_or_recalibrated():
    model, x = tiny(Convolutional)
    covered = lift(model, 3, RING, noise=0.3, seed=0)
    covered(x), covered(2 * x)
    stack = covered.net.norm.running_mean
    assert not torch.equal(stack[0], stack[1])
    assert covered.net.norm.num_batches_tracked.tolist() == [2, 2, 2]
    average, first = covered.collapse(), covered.collapse(buffers="first")
    torch.testing.assert_close(average.norm.running_mean, stack.mean(0))
    assert torch.equal(first.norm.running_mean, stack[0])
    assert average.norm.num_batches_tracked.item() == 2
    fresh = covered.collapse(buffers="recalibrate", loader=[x])
    seen = fresh.first(x)
    torch.testing.assert_close(fresh.norm.running_mean, seen.mean((0, 2, 3)))
    assert not fresh.training


def test_values_that_are_not_finite_are_refused_by_name():
    covered = lift(tiny(Perceptron)[0], 3, RING)
    with torch.no_grad():
        covered.net.middle.weight[1, 0, 0] = float("nan")
    with pytest.raises(McoverError, match=r"'middle.weight' .*not finite \(in covers \[1\]\)"):
        covered.collapse()


def test_mistakes_are_refused_with_the_remedy():
    covered = lift(tiny(Perceptron)[0], 3, RING)
    for call, message in (
        (lambda: covered.collapse("median"), "method is 'median'"),
        (lambda: covered.collapse(buffers="last"), "buffers is 'last'"),
        (lambda: covered.collapse(buffers="recalibrate"), "loader=train_loader"),
        (lambda: covered.collapse(loader=[]), "buffers='recalibrate'"),
        (lambda: covered.cover(3), "no cover 3; write 0 to 2"),
        (lambda: covered.path_loss(lambda m: 0.0, 7), "no cover 7"),
        (lambda: covered.path_loss(lambda m: 0.0, 0, points=1), "at least 2"),
    ):
        with pytest.raises(McoverError, match=message):
            call()


def test_ensemble_is_the_mean_prediction():
    model, x = tiny(Perceptron)
    covered = lift(model, 3, RING, noise=0.3, seed=0).eval()
    alone = torch.stack([covered.cover(k)(x) for k in range(3)])
    torch.testing.assert_close(covered.ensemble(x), alone.mean(0))
    torch.testing.assert_close(covered.ensemble(x, routed=True), covered(x).mean(0))
    streams = lift(model, 3, RING, noise=0.3, streams=4, seed=0)
    want = streams(x).unflatten(1, (4, -1)).mean((0, 1))
    torch.testing.assert_close(streams.ensemble(x, routed=True), want)


def test_diagnostics_measure_the_covers():
    model, x = tiny(Perceptron)
    covered = lift(model, 3, RING, noise=0.3, seed=0)
    rows = torch.stack([nn.utils.parameters_to_vector(covered.cover(k).parameters())
                        for k in range(3)]).detach()  # fmt: skip
    found = covered.diagnostics()
    want = torch.corrcoef(rows) * 0 + nn.functional.cosine_similarity(rows[:, None], rows, dim=-1)
    torch.testing.assert_close(torch.from_numpy(found.overlaps), want)
    away = (rows - rows.mean(0)).norm(dim=1)
    torch.testing.assert_close(torch.from_numpy(found.distances), away)
    loss = lambda net: net(x).square().mean().item()  # noqa: E731
    path = covered.path_loss(loss, 1, points=5)
    assert path[0] == pytest.approx(loss(covered.cover(1)))
    assert path[-1] == pytest.approx(loss(covered.collapse()))
