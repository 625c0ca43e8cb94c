"""What training a covered model means: one cover is the base, uncoupled covers are M models."""

import copy
import itertools
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

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
from mcover.errors import TooLargeError  # noqa: E402
from tiny_models import MODELS, Convolutional, Perceptron, Residual, routed, tiny  # noqa: E402

torch.set_num_threads(1)

RING = GaussianRing(1.5, shift=2)
NAMES = {"argvalues": MODELS, "ids": lambda kind: kind.__name__}
ROUTINGS = ["messages", "directed"]


def squares(output, target):
    return ((output - target) ** 2).mean()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)


def step(model, optimizer, x, loss):
    optimizer.zero_grad()
    value = loss(model(x))
    value.backward()
    optimizer.step()
    return value.item()


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("kind", **NAMES)
def test_one_cover_is_the_base_model_step_for_step(kind, routing):
    base, x = tiny(kind)
    covered = lift(base, 1, RING, routing, seed=0)
    base = base.train()
    plain, over = sgd(base), sgd(covered)
    for _ in range(4):
        want = step(base, plain, x, lambda y: squares(y, 0.5))
        got = step(covered, over, x, lambda y: cover_loss(squares, y, 0.5))
        assert got == pytest.approx(want, rel=1e-12)
    for (name, a), b in zip(base.state_dict().items(), covered.collapse().state_dict().values(),
                            strict=True):  # fmt: skip
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13, msg=name)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("kind", **NAMES)
def test_identity_topology_is_independent_trainings(kind, routing):
    models = [tiny(kind, seed)[0].train() for seed in range(3)]
    x = tiny(kind)[1]
    covered = lift(models[0], models, Identity(), routing, seed=0)
    optimizers, over = [sgd(model) for model in models], sgd(covered)
    for _ in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            step(model, optimizer, x, lambda y: squares(y, 0.5))
        step(covered, over, x, lambda y: cover_loss(squares, y, 0.5))
    for index, model in enumerate(models):
        own = covered.cover(index).state_dict()
        for name, value in model.state_dict().items():
            torch.testing.assert_close(own[name], value, rtol=1e-9, atol=1e-11, msg=name)


def test_the_base_model_is_left_as_it_is():
    model, x = tiny(Convolutional)
    before = copy.deepcopy(model.state_dict())
    classes = [type(module) for module in model.modules()]
    covered = lift(model, 3, Uniform(), "messages", seed=0)
    optimizer = sgd(covered)
    step(covered, optimizer, x, lambda y: cover_loss(squares, y, 0.0))
    covered.collapse()
    assert [type(module) for module in model.modules()] == classes
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_the_seed_decides_noise_and_routes_and_no_global_state_is_touched():
    model = tiny(Perceptron)[0]
    torch.manual_seed(3)
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    one, same, other = (lift(model, 3, Uniform(), "messages", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002
    for name, value in one.state_dict().items():
        assert torch.equal(value, same.state_dict()[name])
    assert not torch.equal(one.net.hidden.weight, other.net.hidden.weight)
    assert not torch.equal(one.mixers()["hidden"], other.mixers()["hidden"])


def test_noise_has_the_asked_size():
    model = nn.Linear(300, 300)
    stack = lift(model, 4, Uniform(), "messages", noise=0.03, seed=0).net.weight.detach()
    gaps = stack - model.weight.detach()
    assert float(gaps.std()) == pytest.approx(0.03, rel=0.01)
    assert abs(float((gaps[0] * gaps[1]).mean())) < 0.03**2 / 50


def test_given_modules_become_the_covers_as_they_are():
    models = [tiny(Convolutional, seed)[0] for seed in range(3)]
    covered = lift(models[0], models, Uniform(), "messages", seed=0)
    for index, model in enumerate(models):
        for name, value in covered.cover(index).state_dict().items():
            assert torch.equal(value, model.state_dict()[name])


def test_given_modules_of_another_architecture_are_refused():
    with pytest.raises(McoverError, match=r"cover 1 does not match the model at 'weight'"):
        lift(nn.Linear(2, 3), [nn.Linear(2, 3), nn.Linear(3, 3)], Uniform(), "messages")
    with pytest.raises(McoverError, match=r"not a torch.nn.Module"):
        lift(nn.Linear(2, 3), [1, 2], Uniform(), "messages")
    with pytest.raises(McoverError, match="write how many"):
        lift(nn.Linear(2, 3), 2.5, Uniform(), "messages")


def test_cover_loss_sums_over_covers_and_takes_any_criterion():
    covered = lift(nn.Linear(4, 3), 5, RING, "messages", noise=0.5, seed=0)
    x, y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3
    outputs = covered(x)
    want = sum(F.cross_entropy(outputs[a], y) for a in range(5))
    torch.testing.assert_close(cover_loss(F.cross_entropy, outputs, y), want)
    torch.testing.assert_close(cover_loss(nn.CrossEntropyLoss(), outputs, y), want)
    pairs = cover_loss(lambda o, t: F.cross_entropy(o["logits"], t), {"logits": outputs}, y)
    torch.testing.assert_close(pairs, want)


def test_losses_of_streams_are_averaged_over_them():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    covered = lift(model, 3, Uniform(), Messages(streams=2), noise=0.5, seed=0)
    x, y = torch.ones(6, 4), torch.zeros(6, 2)
    outputs = covered(x).unflatten(1, (2, 6))
    want = sum(F.mse_loss(outputs[a, s], y) for a in range(3) for s in range(2)) / 2
    torch.testing.assert_close(cover_loss(F.mse_loss, covered(x), y), want)


@pytest.mark.parametrize("routing", ["messages", "directed"])
@pytest.mark.parametrize("size", [1, 2, 4, 16])
def test_a_target_of_another_batch_is_refused_as_the_base_refuses_it(routing, size):
    """Targets are repeated by the number of passes, and not by what happens to divide."""
    x, y = torch.ones(8, 4), torch.zeros(size, dtype=torch.long)
    for passes in (1, 2):
        how = routed(routing, bank=4, destinations=passes, streams=None if passes == 1 else 2)
        covered = lift(nn.Linear(4, 3), 3, Uniform(), how, seed=0)
        with pytest.raises(McoverError, match="loss refuses a cover's output of shapes"):
            cover_loss(F.cross_entropy, covered(x), y)
        with pytest.raises(McoverError, match="loss refuses a cover's output of shapes"):
            cover_loss(F.cross_entropy, covered.each(x.expand(3, 8, 4)), y.expand(3, -1), each=True)


def test_outputs_that_were_computed_on_need_the_number_of_passes():
    covered = lift(nn.Linear(4, 3), 3, Uniform(), Directed(destinations=2), noise=0.5, seed=0)
    x, y = torch.ones(8, 4), torch.arange(8) % 3
    outputs = covered(x)
    want = cover_loss(F.cross_entropy, outputs, y)
    with pytest.raises(McoverError, match=r"passes=covered\.passes"):
        cover_loss(F.cross_entropy, outputs.double().float(), y)
    got = cover_loss(F.cross_entropy, outputs.double().float(), y, passes=covered.passes)
    assert torch.equal(got, want)
    weights = torch.tensor([1.0, 2.0, 3.0])  # of classes: no batch, and not repeated

    def weighted(output, target):
        return F.cross_entropy(output, target[0], target[1])

    want = cover_loss(lambda o, t: F.cross_entropy(o, t, weights), outputs, y)
    assert torch.equal(cover_loss(weighted, outputs, (y, weights)), want)
    for wrong in (0, 1.5, "two"):
        with pytest.raises(McoverError, match="passes is"):
            cover_loss(F.cross_entropy, outputs, y, passes=wrong)


def test_accumulated_gradients_are_those_of_the_whole_batch():
    covered = lift(tiny(Perceptron)[0], 3, RING, "messages", noise=0.3, seed=0)
    x = torch.randn(8, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cover_loss(squares, covered(x), 0.5).backward()
    whole = {name: value.grad.clone() for name, value in covered.named_parameters()}
    covered.zero_grad()
    for part in x.split(2):
        (cover_loss(squares, covered(part), 0.5) / 4).backward()
    for name, value in covered.named_parameters():
        torch.testing.assert_close(value.grad, whole[name])


def test_clipping_takes_the_norm_over_all_covers():
    covered = lift(tiny(Perceptron)[0], 3, RING, "messages", noise=0.3, seed=0)
    cover_loss(squares, covered(tiny(Perceptron)[1]), 50.0).backward()
    before = torch.sqrt(sum((value.grad**2).sum() for value in covered.parameters()))
    total = torch.nn.utils.clip_grad_norm_(covered.parameters(), 0.1)
    torch.testing.assert_close(total, before)
    after = torch.sqrt(sum((value.grad**2).sum() for value in covered.parameters()))
    assert float(after) == pytest.approx(0.1, rel=1e-4)


OPTIMIZERS = [
    lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9),
    lambda p: torch.optim.AdamW(p, lr=0.01),
    lambda p: torch.optim.RMSprop(p, lr=0.01),
    lambda p: torch.optim.Adagrad(p, lr=0.05),
    lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=True),
]


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_any_optimizer_trains_the_covers(make, routing):
    model, x = tiny(Residual)
    covered = lift(model, 3, Uniform(), routed(routing, bank=2), seed=0)
    optimizer = make(covered.parameters())
    losses = [step(covered, optimizer, x, lambda y: cover_loss(squares, y, 0.5)) for _ in range(20)]
    assert losses[-1] < 0.6 * losses[0]


def test_lbfgs_trains_the_covers():
    covered = lift(tiny(Perceptron)[0], 3, Uniform(), "messages", seed=0)
    x = tiny(Perceptron)[1]
    optimizer = torch.optim.LBFGS(covered.parameters(), max_iter=10)

    def closure():
        optimizer.zero_grad()
        loss = cover_loss(squares, covered(x), 0.5)
        loss.backward()
        return loss

    first = optimizer.step(closure).item()
    assert closure().item() < 0.1 * first


def test_dropout_draws_for_each_cover_and_rests_in_evaluation():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 64))
    covered = lift(model, 3, Identity(), "messages", noise=0.0, seed=0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        a, b, c = covered(torch.ones(4, 64))
    assert not torch.equal(a, b)
    assert not torch.equal(b, c)
    outputs = covered.eval()(torch.ones(4, 64))
    torch.testing.assert_close(outputs[0], model.eval()(torch.ones(4, 64)))
    torch.testing.assert_close(outputs[0], outputs[2])


def test_running_statistics_are_per_cover():
    model, x = tiny(Convolutional)
    covered = lift(model, 3, Uniform(), "messages", noise=0.3, seed=0)
    covered(x)
    norm = covered.net.norm
    assert norm.running_mean.shape == (3, 4)
    assert norm.num_batches_tracked.tolist() == [1, 1, 1]
    assert not torch.equal(norm.running_mean[0], norm.running_mean[1])
    kept = norm.running_mean.clone()
    covered.eval()(x)
    assert torch.equal(norm.running_mean, kept)


@pytest.mark.parametrize("kind", **NAMES)
def test_mixed_precision_stays_close_to_full_precision(kind):
    model, x = tiny(kind)
    x = x.float() if x.is_floating_point() else x
    covered = lift(model.float(), 3, RING, "messages", noise=0.1, seed=0)
    full = covered(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        try:
            model(x)
        except RuntimeError as error:
            pytest.skip(f"the base model itself does not run in bfloat16 here: {error}")
        half = covered(x)
        loss = cover_loss(squares, half.float(), 0.5)
    torch.testing.assert_close(half.float(), full, rtol=0.1, atol=0.1)
    loss.backward()
    for name, value in covered.named_parameters():
        assert value.grad.dtype == torch.float32, name
        assert bool(value.grad.isfinite().all()), name


def test_autocast_computes_in_the_lower_precision():
    covered = lift(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), 3, RING, "messages", seed=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert covered(torch.ones(2, 8)).dtype == torch.bfloat16


def test_the_whole_model_moves_to_another_dtype():
    model, x = tiny(Convolutional)
    covered = lift(model, 3, RING, "messages", seed=0)
    want = covered(x)
    torch.testing.assert_close(covered.float()(x.float()).double(), want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("routing", ["messages", "directed"])
def test_compiled_it_takes_the_same_steps_without_a_warning_about_kernels(routing):
    model, x = tiny(Perceptron)
    covered = lift(model, 3, RING, routing, noise=0.3, seed=0)
    other = copy.deepcopy(covered)
    torch._dynamo.reset()
    compiled = torch.compile(other, backend="aot_eager")
    for _ in range(3):  # the directed lift goes to another destination in each
        want = covered(x)
        with warnings.catch_warnings(record=True) as seen:  # dynamo has some about itself
            warnings.simplefilter("always")
            got = compiled(x)
        assert not [w for w in seen if "mcover" in str(w.message)]
        torch.testing.assert_close(got, want)
        expected = torch.autograd.grad(want.sum(), list(covered.parameters()))
        found = torch.autograd.grad(got.sum(), list(other.parameters()))
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_routes_are_redrawn_when_asked_and_stay_otherwise(routing):
    def routes(covered):
        return covered.mixers()["hidden"] if routing == "messages" else covered.route_index

    model, x = tiny(Perceptron)
    covered = lift(model, 4, Uniform(), routed(routing, redraw_every=2), seed=0)
    quenched = lift(model, 4, Uniform(), routing, seed=0)
    seen, kept = [], routes(quenched).clone()
    for _ in range(5):
        covered(x)
        quenched(x)
        seen.append(routes(covered).clone())
    same = [torch.equal(a, b) for a, b in itertools.pairwise(seen)]
    assert same == [True, False, True, False]
    assert torch.equal(routes(quenched), kept)
    for _ in range(5):
        covered.eval()(x)
    assert torch.equal(routes(covered), seen[-1])


def test_no_more_routes_are_drawn_than_are_visited_before_the_next_draw():
    def bank(**options) -> int:
        model = lift(nn.Linear(6, 5), 3, RING, Directed(bank=8, **options), seed=0)
        return len(model.routes)

    assert bank() == 8
    assert bank(redraw_every=3) == 3
    assert bank(redraw_every=3, destinations=2) == 6
    assert bank(redraw_every=30) == 8
    assert bank(redraw_every=3, destinations=None) == 8


def test_gradients_return_along_redrawn_routes():
    model, x = tiny(Perceptron)
    covered = lift(model, 4, Uniform(), "directed", noise=0.3, seed=0).eval()
    covered.redraw()
    covered.redraw()
    stacks = covered.stacks()
    loss = cover_loss(squares, covered(x), 0.5)
    got = torch.autograd.grad(loss, stacks["out.bias"])[0]
    bumped = stacks["out.bias"].detach()
    step_size = 1e-6
    for index in np.ndindex(*bumped.shape):
        bumped[index] += step_size
        higher = cover_loss(squares, covered(x), 0.5).item()
        bumped[index] -= step_size
        assert (higher - loss.item()) / step_size == pytest.approx(float(got[index]), abs=1e-5)


@pytest.mark.parametrize("destinations", [1, 2, None])
def test_routes_asked_for_are_those_that_a_forward_would_take(destinations):
    model, x = tiny(Perceptron)
    how = Directed(bank=4, destinations=destinations, redraw_every=3)
    covered = lift(model, 3, Uniform(), how, noise=0.3, seed=0)
    asked = copy.deepcopy(covered)
    banks = []
    for step in range(8):
        with torch.no_grad():  # whoever asks need not differentiate through torch
            routes = asked.next_routes()
        covered(x)
        assert (asked.steps, asked.redraws) == (covered.steps, covered.redraws)
        np.testing.assert_array_equal(routes.bank, covered.routes)
        count = destinations or 4
        wanted = [(step * count + k) % len(routes.bank) for k in range(count)]
        assert list(routes.destinations) == wanted
        banks.append(routes.bank)
    assert [a is b for a, b in itertools.pairwise(banks)] == [1, 1, 0, 1, 1, 0, 1]
    with pytest.raises(ValueError, match="read-only"):
        banks[0][0] = 0
    before = asked.eval().next_routes()
    assert asked.next_routes().destinations == before.destinations  # evaluation does not count
    messages = lift(model, 3, Uniform(), Messages(redraw_every=1), seed=0)
    assert messages.next_routes() is None
    assert messages.next_routes() is None
    assert (messages.steps, messages.redraws) == (2, 1)


def test_stacks_and_routes_beyond_the_memory_limit_are_refused(monkeypatch):
    model = nn.Linear(100, 100)  # 39.5 KiB
    monkeypatch.setenv("MCOVER_MEMORY_LIMIT", "150000")
    lift(model, 3, Uniform(), Messages(blocks=1), seed=0)
    with pytest.raises(TooLargeError, match=r"4 covers of this model .*fewer covers.*select="):
        lift(model, 4, Uniform(), Messages(blocks=1), seed=0)
    with pytest.raises(TooLargeError, match=r"bank of 20 × 10100 routes.*fewer destinations"):
        lift(model, 3, Uniform(), Directed(bank=20, redraw_every=None), seed=0)
    with pytest.raises(TooLargeError, match=r"mixers .*fewer blocks"):
        lift(model, 3, Uniform(), Messages(streams=10**9), seed=0)


def test_losses_that_refuse_their_arguments_are_shown_with_their_shapes():
    outputs, y = torch.zeros(2, 5, 3), torch.zeros(4, dtype=torch.long)
    with pytest.raises(
        McoverError, match=r"shapes \[\(5, 3\)\] with a target of shapes \[\(4,\)\]"
    ):
        cover_loss(F.cross_entropy, outputs, y)
    with pytest.raises(McoverError, match="with its parentheses"):
        cover_loss(nn.CrossEntropyLoss, outputs, y)

    def own(output, target):
        raise KeyError("of the user's own")

    with pytest.raises(KeyError, match="of the user's own"):
        cover_loss(own, outputs, y)


def test_destinations_are_gone_through_in_turn():
    model, x = tiny(Perceptron)
    how = Directed(bank=4, destinations=2)
    covered = lift(model, 3, Uniform(), how, noise=0.3, seed=0)
    outputs = [covered(x) for _ in range(4)]
    assert outputs[0].shape == (3, 2 * 4, 3)
    assert not torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])
    assert torch.equal(outputs[1], outputs[3])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("kind", **NAMES)
def test_on_cuda_it_computes_the_same(kind, routing):
    model, x = tiny(kind)
    covered = lift(model, 3, RING, routing, noise=0.3, seed=0)
    want = covered(x)
    gradients = torch.autograd.grad(want.sum(), list(covered.parameters()))
    moved = copy.deepcopy(covered).to("cuda")
    moved.set_extra_state(lift(model, 3, RING, routing, noise=0.3, seed=0).get_extra_state())
    got = moved(x.cuda())
    torch.testing.assert_close(got.cpu(), want, rtol=1e-7, atol=1e-9)
    for a, b in zip(torch.autograd.grad(got.sum(), list(moved.parameters())), gradients,
                    strict=True):  # fmt: skip
        torch.testing.assert_close(a.cpu(), b, rtol=1e-7, atol=1e-9)
    moved.redraw()
    assert moved.collapse()(x.cuda()).is_cuda


@pytest.mark.parametrize("routing", ["messages", "directed"])
@pytest.mark.parametrize("kind", [Perceptron, Convolutional], ids=lambda kind: kind.__name__)
def test_torch_func_differentiates_it_with_respect_to_given_parameters(kind, routing):
    model, x = tiny(kind)
    covered = lift(model, 3, RING, routing, noise=0.3, seed=0).eval()
    given = {name: p.detach() + 0.1 for name, p in covered.named_parameters()}

    def loss(parameters):
        return torch.func.functional_call(covered, parameters, (x,)).square().sum()

    found = torch.func.grad(loss)(given)
    with torch.no_grad():
        for name, p in covered.named_parameters():
            p.copy_(given[name])
    expected = torch.autograd.grad(covered(x).square().sum(), list(covered.parameters()))
    for one, other in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(one, other)
