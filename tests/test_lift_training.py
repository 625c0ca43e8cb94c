"""Training of covered models: losses, optimizers, precision, routes of a forward pass."""

import copy
import itertools
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from covering import (
    RING,
    assert_equal,
    assert_oracle,
    assert_same_gradients,
    both,
    directed_oracle,
    doubles,
    every_model,
    squares,
    train,
)
from mcover import Directed, Identity, McoverError, Messages, Uniform, cover_loss, lift
from tiny_models import Convolutional, Perceptron, Residual, routed, tiny


@both
def test_the_base_model_is_left_as_it_is(routing):
    model, x = tiny(Convolutional)
    before = copy.deepcopy(model.state_dict())
    classes = [type(module) for module in model.modules()]
    covered = lift(model, 3, Uniform(), routing, seed=0)
    train(lambda: cover_loss(squares, covered(x), 0.0), covered.parameters(), 1)
    covered.collapse()
    assert [type(module) for module in model.modules()] == classes
    assert_equal(model.state_dict(), before)


# --- losses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [Messages(), Messages(streams=2), Directed(4, destinations=2)])
def test_cover_loss_sums_over_covers_and_averages_over_passes(how):
    covered = lift(nn.Linear(4, 3).double(), 5, RING, how, noise=0.5, seed=0)
    x, y = doubles(6, 4), torch.arange(6) % 3
    outputs = covered(x)
    parts = outputs.unflatten(1, (covered.passes, 6))
    want = sum(F.cross_entropy(part, y) for cover in parts for part in cover) / covered.passes
    for criterion in (F.cross_entropy, nn.CrossEntropyLoss()):
        torch.testing.assert_close(cover_loss(criterion, outputs, y), want)
    named = cover_loss(lambda o, t: F.cross_entropy(o["logits"], t), {"logits": outputs}, y)
    torch.testing.assert_close(named, want)
    # Weights of classes are no batch, and not repeated.
    weights = torch.tensor([1.0, 2.0, 3.0]).double()
    weighted = cover_loss(lambda o, t: F.cross_entropy(o, *t), outputs, (y, weights))
    want = cover_loss(lambda o, t: F.cross_entropy(o, t, weights), outputs, y)
    torch.testing.assert_close(weighted, want)


@both
@pytest.mark.parametrize("size", [1, 2, 4, 16])
def test_a_target_of_another_batch_is_refused_as_the_base_refuses_it(routing, size):
    """Targets are repeated by the number of passes, not by any number that divides."""
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
    outputs, y = covered(torch.ones(8, 4)), torch.arange(8) % 3
    other = outputs.double().float()
    with pytest.raises(McoverError, match=r"passes=covered\.passes"):
        cover_loss(F.cross_entropy, other, y)
    got = cover_loss(F.cross_entropy, other, y, passes=covered.passes)
    assert torch.equal(got, cover_loss(F.cross_entropy, outputs, y))


def test_exceptions_of_the_users_own_loss_are_theirs():
    def own(output, target):
        raise KeyError("of the user's own")

    with pytest.raises(KeyError, match="of the user's own"):
        cover_loss(own, torch.zeros(2, 5, 3), torch.zeros(5))


# --- optimizers and precision ---------------------------------------------------------------------


OPTIMIZERS = [
    lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9),
    lambda p: torch.optim.AdamW(p, lr=0.01),
    lambda p: torch.optim.RMSprop(p, lr=0.01),
    lambda p: torch.optim.Adagrad(p, lr=0.05),
    lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=True),
]


@pytest.mark.parametrize("make", OPTIMIZERS)
@both
def test_any_optimizer_trains_the_covers(make, routing):
    model, x = tiny(Residual)
    covered = lift(model, 3, Uniform(), routed(routing, bank=2), seed=0)
    losses = train(lambda: cover_loss(squares, covered(x), 0.5), covered.parameters(), 20, make)
    assert losses[-1] < 0.6 * losses[0]


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


@both
@every_model
def test_mixed_precision_stays_close_to_full_precision(kind, routing):
    model, x = tiny(kind)
    x = x.float() if x.is_floating_point() else x
    covered = lift(model.float(), 3, RING, routing, noise=0.1, seed=0).eval()
    full = covered(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = covered(x)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), full, rtol=0.1, atol=0.1)
    cover_loss(squares, half.float(), 0.5).backward()
    for name, value in covered.named_parameters():
        assert value.grad.dtype == torch.float32, name
        assert bool(value.grad.isfinite().all()), name


# --- routes of a forward --------------------------------------------------------------------------


@both
def test_routes_are_redrawn_when_asked_and_stay_otherwise(routing):
    def routes(covered):
        return covered.mixers()["hidden"] if routing == "messages" else covered._route_index

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


def test_outputs_and_gradients_follow_redrawn_routes():
    model, x = tiny(Perceptron)
    covered = lift(model, 4, Uniform(), "directed", noise=0.3, seed=0).eval()
    first = covered.routes
    for _ in range(2):
        covered.redraw()
    assert not np.array_equal(covered.routes, first)
    assert_oracle(covered, covered(x), lambda own: directed_oracle(covered, model, x, own))


def test_no_more_routes_are_drawn_than_are_visited_before_the_next_draw():
    for options, size in (
        ({}, 8),
        ({"redraw_every": 3}, 3),
        ({"redraw_every": 3, "destinations": 2}, 6),
        ({"redraw_every": 30}, 8),
        ({"redraw_every": 3, "destinations": None}, 8),
    ):
        how = Directed(bank=8, **options)
        assert len(lift(nn.Linear(6, 5), 3, RING, how, seed=0).routes) == size


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
    assert [messages.next_routes() for _ in range(2)] == [None, None]
    assert (messages.steps, messages.redraws) == (2, 1)


def test_destinations_cycle_through_the_bank():
    model, x = tiny(Perceptron)
    covered = lift(model, 3, Uniform(), Directed(bank=4, destinations=2), noise=0.3, seed=0)
    outputs = [covered(x) for _ in range(4)]
    assert outputs[0].shape == (3, 2 * 4, 3)
    assert not torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])
    assert torch.equal(outputs[1], outputs[3])


# --- torch's own transformations ------------------------------------------------------------------


@both
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
        for model in (covered, other):
            model.zero_grad()
        want.sum().backward()
        got.sum().backward()
        assert_same_gradients(other, covered)


@both
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
    torch.testing.assert_close(list(found.values()), list(expected))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@both
@every_model
def test_on_cuda_it_computes_the_same(kind, routing):
    model, x = tiny(kind)
    covered = lift(model, 3, RING, routing, noise=0.3, seed=0)
    moved = copy.deepcopy(covered).to("cuda")
    moved.set_extra_state(covered.get_extra_state())
    values = [covered(x), moved(x.cuda())]
    for value in values:
        value.sum().backward()
    torch.testing.assert_close(values[1].cpu(), values[0], rtol=1e-7, atol=1e-9)
    assert_same_gradients(moved.cpu(), covered, rtol=1e-7, atol=1e-9)
    moved.cuda().redraw()
    assert moved.collapse()(x.cuda()).is_cuda
