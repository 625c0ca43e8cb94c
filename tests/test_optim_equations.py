"""The rules of the replica optimizers, step by step against loops written from the equations."""

import math

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from mcover import Identity, McoverError, cover_loss, lift  # noqa: E402
from mcover.optim import ElasticSGD, EntropySGD, ReplicatedSGD  # noqa: E402
from optim_battery import COVERS, WALK, Quadratics, walk, walk_noise  # noqa: E402
from tiny_models import Perceptron, tiny  # noqa: E402

torch.set_num_threads(1)

CLOSE = {"rtol": 1e-12, "atol": 1e-13}


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


def assert_close(got, want, **tolerance):
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, **(CLOSE | tolerance))


def test_rsgd_is_its_formula():
    problem = Quadratics()
    lr, g0, growth, steps = 0.1, 0.3, 8.0, 4

    def rule(rows, gradients, t):
        g = g0 * growth ** min(t / steps, 1)
        mean = sum(rows) / len(rows)
        return [w - lr * (d + 2 * g * (w - mean)) for w, d in zip(rows, gradients, strict=True)]

    want = one_by_one(problem, rule, 7)
    optimizer = ReplicatedSGD(problem.params, lr, coupling=g0, growth=growth, steps=steps)
    assert_close(problem.run(optimizer, 7).values(), want)


def test_rsgd_pulls_beside_the_momentum_of_its_base():
    problem = Quadratics()
    lr, g, decay = 0.05, 2.0, 0.2
    velocities = {}

    def rule(rows, gradients, t):
        mean = sum(rows) / len(rows)
        new = []
        for number, (w, d) in enumerate(zip(rows, gradients, strict=True)):
            key = (w.shape, number)
            d = d + decay * w
            velocities[key] = 0.9 * velocities.get(key, 0) + d
            step = d + 0.9 * velocities[key]
            new.append(w - lr * step - 2 * lr * g * (w - mean))
        return new

    want = one_by_one(problem, rule, 6)
    optimizer = ReplicatedSGD(problem.params, lr, coupling=g, growth=1, momentum=0.9, nesterov=True,
                              weight_decay=decay)  # fmt: skip
    assert_close(problem.run(optimizer, 6).values(), want)


def test_rsgd_from_a_whole_pull_on_is_sgd_of_the_barycentre():
    problem = Quadratics()
    starts = [p.mean(0) for p in problem.values()]
    optimizer = ReplicatedSGD(problem.params, 0.1, coupling=5.0, growth=1)  # 2ηg is 1
    problem.run(optimizer, 3)
    for start, target, stack in zip(starts, problem.targets, problem.values(), strict=True):
        mean = target.mean(0)
        torch.testing.assert_close(stack[0], mean + 0.9**3 * (start - mean), **CLOSE)
        assert torch.equal(stack, stack[:1].expand_as(stack))


def test_rsgd_rests_where_forces_balance():
    problem = Quadratics(h=0.7)
    g = 0.4
    problem.run(ReplicatedSGD(problem.params, 0.2, coupling=g, growth=1), 400)
    want = [(0.7 * a + 2 * g * a.mean(0)) / (0.7 + 2 * g) for a in problem.targets]
    assert_close(problem.values(), want, atol=1e-10)


def test_rsgd_of_one_cover_is_the_base_optimizer():
    for base, options in [
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        (torch.optim.Adam, {"betas": (0.8, 0.9)}),
    ]:
        model, x = tiny(Perceptron)
        covered = lift(model, 1, Identity(), "messages", seed=0)
        plain = base(model.parameters(), lr=0.05, **options)
        own = ReplicatedSGD(covered.stacks().values(), 0.05, steps=5, base=base, **options)
        for _ in range(5):
            for module, optimizer in ((model, plain), (covered, own)):
                optimizer.zero_grad()
                loss = module(x).square().sum()
                loss.backward()
                optimizer.step((lambda value=loss: value) if optimizer is own else None)
        for name, value in covered.collapse().named_parameters():
            torch.testing.assert_close(value, model.get_parameter(name), **CLOSE)


def distance(problem):
    return sum(float((p - p.mean(0)).square().sum()) for p in problem.values())


def test_automatic_coupling_makes_both_terms_of_one_size():
    problem = Quadratics()
    loss = problem.loss().item()
    optimizer = ReplicatedSGD(problem.params, 0.01, steps=100)
    apart = distance(problem)
    optimizer.start(problem.loss())
    assert optimizer.param_groups[0]["coupling"] * apart == pytest.approx(loss)
    by_closure = ReplicatedSGD(problem.params, 0.01, steps=100)
    problem.run(by_closure, 1)
    assert by_closure.param_groups[0]["coupling"] * apart == pytest.approx(loss)
    problem.run(by_closure, 1)
    assert by_closure.param_groups[0]["coupling"] * apart == pytest.approx(loss)


def test_automatic_coupling_is_one_for_all_groups_that_ask_for_it():
    problem = Quadratics()
    groups = [{"params": [problem.params[0]]}, {"params": [problem.params[1]]},
              {"params": [nn.Parameter(torch.zeros(5))], "replicas": False}]  # fmt: skip
    optimizer = ReplicatedSGD(groups, 0.01, steps=100)
    optimizer.start(3.0)
    first, second, shared = (group["coupling"] for group in optimizer.param_groups)
    assert first == second == pytest.approx(3.0 / distance(problem))
    assert shared == "auto"
    with pytest.raises(McoverError, match="leave start"):
        optimizer.start(3.0)


def test_automatic_coupling_needs_a_loss_and_a_distance():
    problem = Quadratics()
    optimizer = ReplicatedSGD(problem.params, 0.01, steps=100)
    problem.closure(optimizer)()
    before = problem.values()
    with pytest.raises(McoverError, match=r"optimizer.start\(loss\).*closure"):
        optimizer.step()
    assert_close(problem.values(), before, atol=0, rtol=0)
    for wrong in (0.0, -1.0, math.inf):
        with pytest.raises(McoverError, match=r"loss at the start is .* positive"):
            optimizer.start(wrong)
    with pytest.raises(McoverError, match=r"loss is nan; write a number"):
        optimizer.start(math.nan)
    covered = lift(tiny(Perceptron)[0].float(), 3, Identity(), "messages", noise=0.0, seed=0)
    optimizer = ReplicatedSGD(covered.stacks().values(), 0.01, steps=100)
    with pytest.raises(McoverError, match=r"equal at the start.*noise"):
        optimizer.start(1.0)


def test_the_default_coupling_joins_the_covers_by_the_end_of_training():
    model, x = tiny(Perceptron)
    covered = lift(model, 4, Identity(), "messages", noise=0.1, seed=0)
    optimizer = ReplicatedSGD(covered.stacks().values(), 0.1, steps=40)

    def closure():
        optimizer.zero_grad()
        loss = cover_loss(lambda y, t: (y - t).square().mean(), covered(x), 0.5)
        loss.backward()
        return loss

    gaps = []
    for _ in range(40):
        optimizer.step(closure)
        gaps.append(
            float(sum((s - s.mean(0)).square().sum() for s in covered.stacks().values()).detach())
        )
    assert gaps[0] > 0.1
    assert gaps[-1] < 1e-10


@pytest.mark.parametrize("period", [1, 3])
def test_elastic_is_its_formula(period):
    problem = Quadratics()
    lr, rho = 0.1, 1.5
    alpha = lr * rho
    beta = COVERS * alpha
    centres = {}

    def rule(rows, gradients, t):
        shape = rows[0].shape
        mean = sum(rows) / len(rows)
        centre = centres.get(shape, mean) if t else mean
        force = 0 if t % period else alpha
        centres[shape] = centre if t % period else centre + beta * (mean - centre)
        return [w - lr * d - force * (w - centre) for w, d in zip(rows, gradients, strict=True)]

    want = one_by_one(problem, rule, 8)
    optimizer = ElasticSGD(problem.params, lr, coupling=rho, period=period)
    assert_close(problem.run(optimizer, 8).values(), want)
    for stack in problem.params:
        torch.testing.assert_close(optimizer.centre(stack), centres[stack.shape[1:]], **CLOSE)


def test_elastic_with_momentum_is_its_formula():
    problem = Quadratics()
    lr, rho = 0.05, 3.0
    alpha, velocities, centres = lr * rho, {}, {}

    def rule(rows, gradients, t):
        shape = rows[0].shape
        mean = sum(rows) / len(rows)
        centre = centres[shape] if t else mean
        centres[shape] = centre + COVERS * alpha * (mean - centre)
        new = []
        for number, (w, d) in enumerate(zip(rows, gradients, strict=True)):
            key = (shape, number)
            velocities[key] = 0.9 * velocities.get(key, 0) + d
            new.append(w - lr * (d + 0.9 * velocities[key]) - alpha * (w - centre))
        return new

    want = one_by_one(problem, rule, 6)
    optimizer = ElasticSGD(problem.params, lr, coupling=rho, momentum=0.9, nesterov=True)
    assert_close(problem.run(optimizer, 6).values(), want)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_elastic_rests_where_forces_balance(momentum):
    """h/(1−m) (x_i − a_i) + ρ(x_i − x̃) = 0 and x̃ = mean x, hence x̃ = mean a."""
    problem = Quadratics(h=0.7)
    rho, h = 1.3, 0.7 / (1 - momentum)
    optimizer = ElasticSGD(problem.params, 0.1, coupling=rho, momentum=momentum)
    problem.run(optimizer, 600)
    want = [(h * a + rho * a.mean(0)) / (h + rho) for a in problem.targets]
    assert_close(problem.values(), want, atol=1e-9)
    for stack, a in zip(problem.params, problem.targets, strict=True):
        torch.testing.assert_close(optimizer.centre(stack), a.mean(0), rtol=0, atol=1e-9)


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
    problem = Quadratics()
    optimizer = ElasticSGD([{"params": problem.params[:1]}, {"params": problem.params[1:],
                            "lr": 0.02}], 0.1)  # fmt: skip
    for group in optimizer.param_groups:
        assert COVERS * group["lr"] * group["coupling"] == pytest.approx(0.9)


@pytest.mark.parametrize("rho", [3.0, 6.0, 9.0])
def test_elastic_does_not_oscillate_away_when_the_coupling_is_strong(rho):
    """α is up to 0.9 here, where β = Mα without a limit would throw the centre ever further."""
    problem = Quadratics()
    optimizer = ElasticSGD(problem.params, 0.1, coupling=rho)
    problem.run(optimizer, 2000)
    for stack, a in zip(problem.params, problem.targets, strict=True):
        torch.testing.assert_close(optimizer.centre(stack), a.mean(0), rtol=0, atol=1e-6)


def test_elastic_collapses_at_its_centre_and_returns():
    model, x = tiny(Perceptron)
    covered = lift(model, 3, Identity(), "messages", noise=0.3, seed=0)
    optimizer = ElasticSGD(covered.stacks().values(), 0.1, coupling=1.0)
    at_start = covered.collapse()
    with optimizer.at_centre():
        for (name, a), b in zip(at_start.named_parameters(), covered.collapse().parameters(),
                                strict=True):  # fmt: skip
            torch.testing.assert_close(a, b, msg=name)
    for _ in range(3):
        optimizer.zero_grad()
        cover_loss(lambda y, t: (y - t).square().mean(), covered(x), 0.5).backward()
        optimizer.step()
    before = {name: stack.detach().clone() for name, stack in covered.stacks().items()}
    centres = {name: optimizer.centre(stack) for name, stack in covered.stacks().items()}
    with optimizer.at_centre():
        net = covered.collapse()
    for name, stack in covered.stacks().items():
        assert torch.equal(stack, before[name])
        torch.testing.assert_close(net.get_parameter(name), centres[name])
        assert not torch.allclose(centres[name], stack.mean(0), atol=1e-5)


def test_elastic_hands_out_copies_of_its_centre():
    problem = Quadratics()
    optimizer = ElasticSGD(problem.params, 0.1, coupling=1.0)
    problem.run(optimizer, 1)
    kept = optimizer.centre(problem.params[0])
    optimizer.centre(problem.params[0]).zero_()
    problem.run(optimizer, 1)
    assert not torch.equal(kept, torch.zeros_like(kept))
    assert not torch.equal(kept, optimizer.centre(problem.params[0]))


PLAIN = WALK | {"lr": 0.7}
ALL = PLAIN | {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "average": 0.6}


@pytest.mark.parametrize("options", [PLAIN, PLAIN | {"momentum": 0.5}, ALL])
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


def test_entropy_with_an_infinite_scope_begins_each_step_of_the_walk_at_x():
    """Then μ is a mean of gradient steps, and the method is gradient descent."""
    problem = Quadratics()
    options = PLAIN | {"scope": math.inf, "noise": 0.0, "average": 0.0, "inner_steps": 1}
    want = [x - 0.7 * 0.2 * (x - a) for x, a in zip(problem.values(), problem.targets, strict=True)]
    assert_close(problem.run(EntropySGD(problem.params, **options), 1).values(), want)


def test_entropy_defaults_are_the_published_ones():
    group = EntropySGD([nn.Parameter(torch.zeros(2))]).param_groups[0]
    published = {"inner_steps": 20, "inner_lr": 0.1, "scope": 1e-4, "scoping": 1e-3, "noise": 1e-4,
                 "average": 0.75}  # fmt: skip
    assert {name: group[name] for name in published} == published


def test_entropy_noise_is_gaussian_of_the_asked_size_and_new_in_each_step():
    x = nn.Parameter(torch.zeros(4, 5000, dtype=torch.float64))
    optimizer = EntropySGD([x], inner_lr=0.25, noise=0.3, inner_steps=1, average=0.0, scope=0.0,
                           seed=0)  # fmt: skip
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
    def train(seed):
        problem = Quadratics()
        problem.run(EntropySGD(problem.params, **(PLAIN | {"seed": seed})), 2)
        return problem.values()[0]

    torch.manual_seed(3)
    state = torch.get_rng_state()
    assert torch.equal(train(1), train(1))
    assert not torch.equal(train(1), train(2))
    assert not torch.equal(train(None), train(None))
    assert torch.equal(torch.get_rng_state(), state)


def test_entropy_stacks_are_independent_runs():
    together, apart = Quadratics(), Quadratics()
    options = PLAIN | {"noise": 0.0}
    together.run(EntropySGD(together.params, **options), 3)
    for cover in range(COVERS):
        one = Quadratics()
        one.params = [nn.Parameter(p.detach()[cover].clone()) for p in apart.params]
        one.targets = [t[cover] for t in apart.targets]
        one.run(EntropySGD(one.params, **options), 3)
        assert_close([stack[cover] for stack in together.values()], one.values())


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


def test_entropy_needs_a_closure_and_one_length_of_walks():
    problem = Quadratics()
    optimizer = EntropySGD([problem.params[0]], inner_steps=5)
    with pytest.raises(McoverError, match=r"step\(closure\)"):
        optimizer.step()
    with pytest.raises(McoverError, match="inner_steps is 3 in one group and 5"):
        optimizer.add_param_group({"params": [problem.params[1]], "inner_steps": 3})
    assert len(optimizer.param_groups) == 1


def test_entropy_walks_on_when_the_scope_has_grown_beyond_all_numbers():
    problem = Quadratics()
    optimizer = EntropySGD(problem.params, **(PLAIN | {"scoping": 9.0}))
    optimizer.param_groups[0]["taken"] = 10**6
    problem.run(optimizer, 1)
    assert all(bool(value.isfinite().all()) for value in problem.values())
