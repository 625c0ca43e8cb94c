"""The rules of the replica optimizers, step by step against loops written from the equations."""

import math

import pytest
import torch
from torch import nn

from covering import squares, train
from mcover import Identity, cover_loss, lift
from mcover.optim import ElasticSGD, EntropySGD, ReplicatedSGD
from optim_battery import COVERS, WALK, Quadratics, walk, walk_noise
from tiny_models import Perceptron, tiny

PLAIN = WALK | {"lr": 0.7}


def assert_close(got, want, rtol=1e-12, atol=1e-13):
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol)


def one_by_one(problem, rule, steps):
    """``rule(rows, gradients, t)`` on the replicas of each tensor, with new rows returned."""
    results = []
    for start, targets in zip(problem.values(), problem.targets, strict=True):
        rows = list(start)
        for t in range(steps):
            gradients = [problem.h * (w - a) for w, a in zip(rows, targets, strict=True)]
            rows = rule(rows, gradients, t)
        results.append(torch.stack(rows))
    return results


class Momentum:
    """SGD with Nesterov momentum and weight decay, for each replica separately."""

    def __init__(self, momentum, decay=0.0):
        self.momentum, self.decay, self.velocities = momentum, decay, {}

    def __call__(self, number, w, gradient):
        gradient, key = gradient + self.decay * w, (w.shape, number)
        self.velocities[key] = self.momentum * self.velocities.get(key, 0) + gradient
        return gradient + self.momentum * self.velocities[key]

    def options(self):
        given = {"momentum": self.momentum, "nesterov": True, "weight_decay": self.decay}
        return given if self.momentum else {}


def distance(tensors):
    return sum(float((p - p.mean(0)).detach().square().sum()) for p in tensors)


# --- replicated SGD -------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_rsgd_is_its_formula(momentum):
    problem, own = Quadratics(), Momentum(momentum, 0.2 if momentum else 0.0)
    lr, g0, growth, steps = 0.1, 0.3, 8.0, 4

    def rule(rows, gradients, t):
        g = g0 * growth ** min(t / steps, 1)
        mean = sum(rows) / len(rows)
        return [
            w - lr * own(k, w, d) - 2 * lr * g * (w - mean)
            for k, (w, d) in enumerate(zip(rows, gradients, strict=True))
        ]

    want = one_by_one(problem, rule, 7)
    how = {"coupling": g0, "growth": growth, "steps": steps} | own.options()
    assert_close(problem.run(ReplicatedSGD(problem.params, lr, **how), 7).values(), want)


def test_rsgd_from_a_whole_pull_on_is_sgd_of_the_barycentre():
    problem = Quadratics()
    starts = [p.mean(0) for p in problem.values()]
    optimizer = ReplicatedSGD(problem.params, 0.1, coupling=5.0, growth=1)  # 2ηg is 1
    problem.run(optimizer, 3)
    for start, target, stack in zip(starts, problem.targets, problem.values(), strict=True):
        mean = target.mean(0)
        assert_close(stack[0], mean + 0.9**3 * (start - mean))
        assert torch.equal(stack, stack[:1].expand_as(stack))


def test_automatic_coupling_makes_both_terms_of_one_size_once_for_all_groups():
    problem = Quadratics()
    loss, apart = problem.loss().item(), distance(problem.params)
    by_closure = ReplicatedSGD(problem.params, 0.01, steps=100)
    for _ in range(2):
        problem.run(by_closure, 1)
        assert by_closure.param_groups[0]["coupling"] * apart == pytest.approx(loss)
    problem = Quadratics()
    groups = [{"params": [p]} for p in problem.params]
    groups.append({"params": [nn.Parameter(torch.zeros(5))], "replicas": False})
    optimizer = ReplicatedSGD(groups, 0.01, steps=100)
    optimizer.start(problem.loss())
    first, second, shared = (group["coupling"] for group in optimizer.param_groups)
    assert first == second == pytest.approx(loss / apart)
    assert shared == "auto"


def test_the_default_coupling_joins_the_covers_by_the_end_of_training():
    model, x = tiny(Perceptron)
    covered = lift(model, 4, Identity(), "messages", noise=0.1, seed=0)
    optimizer = ReplicatedSGD(covered.stacks().values(), 0.1, steps=40)

    def closure():
        optimizer.zero_grad()
        loss = cover_loss(squares, covered(x), 0.5)
        loss.backward()
        return loss

    gaps = []
    for _ in range(40):
        optimizer.step(closure)
        gaps.append(distance(covered.stacks().values()))
    assert gaps[0] > 0.1
    assert gaps[-1] < 1e-10


# --- elastic averaging ----------------------------------------------------------------------------


@pytest.mark.parametrize(("period", "momentum"), [(1, 0.0), (3, 0.0), (1, 0.9)])
def test_elastic_is_its_formula(period, momentum):
    problem, own, centres = Quadratics(), Momentum(momentum), {}
    lr, rho = 0.1, 1.5
    alpha = lr * rho

    def rule(rows, gradients, t):
        shape, mean = rows[0].shape, sum(rows) / len(rows)
        centre = centres[shape] if t else mean
        is_pulled = t % period == 0
        centres[shape] = centre + is_pulled * COVERS * alpha * (mean - centre)
        return [
            w - lr * own(k, w, d) - is_pulled * alpha * (w - centre)
            for k, (w, d) in enumerate(zip(rows, gradients, strict=True))
        ]

    want = one_by_one(problem, rule, 8)
    optimizer = ElasticSGD(problem.params, lr, coupling=rho, period=period, **own.options())
    assert_close(problem.run(optimizer, 8).values(), want)
    for stack in problem.params:
        assert_close(optimizer.centre(stack), centres[stack.shape[1:]])


def test_elastic_with_infinite_coupling_averages_in_every_period():
    problem = Quadratics()
    optimizer = ElasticSGD(problem.params, 0.1, coupling=math.inf, period=2)
    for step in range(4):
        problem.run(optimizer, 1)
        for stack in problem.params:
            together = torch.equal(stack, stack[:1].expand_as(stack))
            assert together == (step % 2 == 0)
            if together:
                assert torch.equal(optimizer.centre(stack), stack[0])


def test_elastic_couples_by_the_published_rate_unless_told():
    first, second = Quadratics().params
    optimizer = ElasticSGD([{"params": [first]}, {"params": [second], "lr": 0.02}], 0.1)
    for group in optimizer.param_groups:
        assert COVERS * group["lr"] * group["coupling"] == pytest.approx(0.9)


@pytest.mark.parametrize("rho", [3.0, 6.0, 9.0])
def test_elastic_does_not_oscillate_away_when_the_coupling_is_strong(rho):
    """α is up to 0.9 here; β = Mα without a limit would make the centre diverge."""
    problem = Quadratics()
    optimizer = ElasticSGD(problem.params, 0.1, coupling=rho)
    problem.run(optimizer, 2000)
    for stack, a in zip(problem.params, problem.targets, strict=True):
        assert_close(optimizer.centre(stack), a.mean(0), rtol=0, atol=1e-6)


def test_elastic_collapses_at_its_centre_and_returns():
    model, x = tiny(Perceptron)
    covered = lift(model, 3, Identity(), "messages", noise=0.3, seed=0)
    optimizer = ElasticSGD(covered.stacks().values(), 0.1, coupling=1.0)
    at_start = covered.collapse()
    with optimizer.at_centre():
        torch.testing.assert_close(covered.collapse().state_dict(), at_start.state_dict())
    train(lambda: cover_loss(squares, covered(x), 0.5), None, 3, lambda _: optimizer)
    before = {name: stack.detach().clone() for name, stack in covered.stacks().items()}
    centres = {name: optimizer.centre(stack) for name, stack in covered.stacks().items()}
    with optimizer.at_centre():
        net = covered.collapse()
    for name, stack in covered.stacks().items():
        assert torch.equal(stack, before[name])
        torch.testing.assert_close(net.get_parameter(name), centres[name])
        assert not torch.allclose(centres[name], stack.mean(0), atol=1e-5)
    stack = next(iter(covered.stacks().values()))
    optimizer.centre(stack).zero_()  # a copy
    assert bool(optimizer.centre(stack).any())


# --- Entropy-SGD ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        PLAIN,
        PLAIN | {"momentum": 0.5},
        PLAIN | {"scope": math.inf, "average": 0.0},
        PLAIN | {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "average": 0.6},
    ],
)
def test_entropy_is_its_published_loop(options):
    problem = Quadratics(h=0.8)
    optimizer = EntropySGD(problem.params, **options)
    want = problem.values()
    for t in range(4):
        noises = walk_noise(optimizer, t, want)
        want = [
            walk(x, lambda w, a=target: 0.8 * (w - a), t, options, noise)
            for x, target, noise in zip(want, problem.targets, noises, strict=True)
        ]
    assert_close(problem.run(optimizer, 4).values(), want)


def test_entropy_defaults_are_the_published_ones():
    group = EntropySGD([nn.Parameter(torch.zeros(2))]).param_groups[0]
    published = {
        "inner_steps": 20, "inner_lr": 0.1, "scope": 1e-4, "scoping": 1e-3, "noise": 1e-4,
        "average": 0.75,
    }  # fmt: skip
    assert published.items() <= group.items()


def test_entropy_noise_is_gaussian_of_the_asked_size_and_new_in_each_step():
    x = nn.Parameter(torch.zeros(4, 5000, dtype=torch.float64))
    how = {"inner_lr": 0.25, "noise": 0.3, "inner_steps": 1, "average": 0.0, "scope": 0.0}
    optimizer = EntropySGD([x], seed=0, **how)
    steps = []
    for _ in range(2):
        before = x.detach().clone()
        optimizer.step(lambda: setattr(x, "grad", torch.zeros_like(x)))
        steps.append((x.detach() - before) / (0.3 * 0.25**0.5))
    for drawn in steps:
        assert float(drawn.mean()) == pytest.approx(0, abs=5 / 20_000**0.5)
        assert float(drawn.var()) == pytest.approx(1, abs=5 * (2 / 20_000) ** 0.5)
        assert float((drawn**4).mean()) == pytest.approx(3, abs=5 * (96 / 20_000) ** 0.5)
    assert abs(float((steps[0] * steps[1]).mean())) < 5 / 20_000**0.5


def test_entropy_noise_follows_its_seed_and_touches_no_global_state():
    def ends(seed):
        problem = Quadratics()
        return problem.run(EntropySGD(problem.params, **PLAIN | {"seed": seed}), 2).values()[0]

    torch.manual_seed(3)
    state = torch.get_rng_state()
    assert torch.equal(ends(1), ends(1))
    assert not torch.equal(ends(1), ends(2))
    assert not torch.equal(ends(None), ends(None))
    assert torch.equal(torch.get_rng_state(), state)


def test_entropy_returns_to_x_when_a_walk_is_interrupted():
    problem = Quadratics()
    optimizer = EntropySGD(problem.params, **PLAIN)
    before, calls = problem.values(), []

    def closure():
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return problem.closure(optimizer)()

    with pytest.raises(KeyboardInterrupt):
        optimizer.step(closure)
    assert_close(problem.values(), before, rtol=0, atol=0)
    assert optimizer.param_groups[0]["taken"] == 0


def test_entropy_walks_on_when_the_scope_has_grown_beyond_all_numbers():
    problem = Quadratics()
    optimizer = EntropySGD(problem.params, **PLAIN | {"scoping": 9.0})
    optimizer.param_groups[0]["taken"] = 10**6
    problem.run(optimizer, 1)
    assert all(bool(value.isfinite().all()) for value in problem.values())
