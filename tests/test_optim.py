"""What every replica optimizer promises: one battery over a table of them."""

import copy
import io
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

import mcover  # noqa: E402
from mcover import Identity, McoverError, cover_loss, lift  # noqa: E402
from mcover.optim import ElasticSGD, EntropySGD, ReplicatedSGD  # noqa: E402
from optim_battery import ALL, CASES, Quadratics  # noqa: E402
from tiny_models import Convolutional, Perceptron, tiny  # noqa: E402

torch.set_num_threads(1)

EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
ANY = pytest.mark.parametrize("case", ALL.values(), ids=ALL)
COUPLED = {name: case for name, case in CASES.items() if not case.walks}
EVERY_COUPLED = pytest.mark.parametrize("case", COUPLED.values(), ids=COUPLED)


def assert_same(got, want, **tolerance):
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, **({"rtol": 0, "atol": 0} | tolerance))


@EVERY
def test_coupling_makes_a_difference(case):
    problem, free = Quadratics(), Quadratics()
    problem.run(case.make(problem.params), 3)
    free.run(case.make(free.params, **case.off), 3)
    for a, b in zip(problem.values(), free.values(), strict=True):
        assert (a - b).abs().max() > 1e-3


@EVERY_COUPLED
def test_infinite_coupling_keeps_replicas_together(case):
    problem = Quadratics()
    optimizer = case.make(problem.params, **case.full)
    for _ in range(3):
        problem.run(optimizer, 1)
        for stack in problem.values():
            assert torch.equal(stack, stack[:1].expand_as(stack))


@EVERY_COUPLED
def test_replicas_that_start_together_and_see_the_same_stay_together(case):
    problem = Quadratics()
    with torch.no_grad():
        for tensors in (problem.params, problem.targets):
            for stack in tensors:
                stack.copy_(stack[:1].expand_as(stack).clone())
    problem.run(case.make(problem.params), 4)
    for stack in problem.values():
        assert torch.equal(stack, stack[:1].expand_as(stack))


@EVERY
def test_a_common_minimum_is_where_everything_ends(case):
    problem = Quadratics(h=0.5)
    for target in problem.targets:
        target.copy_(target[:1].expand_as(target).clone())
    quiet = {"noise": 0.0, "lr": 1.0} if case.walks else {"lr": 0.05}
    problem.run(case.make(problem.params, weight_decay=0.0, **quiet), 800)
    assert_same(problem.values(), problem.targets, atol=1e-4)


def saved(state):
    """A state through a file that may hold nothing but tensors and plain values."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@ANY
def test_a_saved_training_goes_on_as_if_it_had_not_stopped(case):
    problem = case.problem()
    optimizer = case.make(problem.params)
    problem.run(optimizer, 3)
    values, state = problem.values(), saved(optimizer.state_dict())
    want = problem.run(optimizer, 4).values()

    again = case.problem(seed=5)
    again.targets = problem.targets
    with torch.no_grad():
        for p, value in zip(again.params, values, strict=True):
            p.copy_(value)
    resumed = case.make(again.params, lr=0.9)
    again.run(resumed, 1)  # what a new optimizer may hold already is replaced
    with torch.no_grad():
        for p, value in zip(again.params, values, strict=True):
            p.copy_(value)
    resumed.load_state_dict(state)
    assert_same(again.run(resumed, 4).values(), want)
    assert saved(resumed.state_dict())["param_groups"] == optimizer.state_dict()["param_groups"]


@ANY
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_is_independent_and_goes_the_same_way(case, clone):
    problem = case.problem()
    optimizer = case.make(problem.params)
    problem.run(optimizer, 2)
    twin, same = clone((problem, optimizer))
    want = problem.run(optimizer, 3).values()
    assert_same(twin.run(same, 3).values(), want)
    assert_same(problem.values(), want)


@ANY
def test_gradients_may_be_accumulated(case):
    whole, parts = case.problem(), case.problem()
    whole.run(case.make(whole.params), 3)
    optimizer = case.make(parts.params)

    def closure():
        optimizer.zero_grad()
        losses = [parts.loss() / 4 for _ in range(4)]
        for loss in losses:
            loss.backward()
        return sum(losses)

    for _ in range(3):
        optimizer.step(closure)
    assert_same(parts.values(), whole.values(), rtol=1e-12, atol=1e-13)


@ANY
def test_the_closure_runs_with_gradients_and_its_loss_is_returned(case):
    problem = case.problem()
    optimizer = case.make(problem.params)
    want = problem.loss().item()
    calls = []

    def closure():
        calls.append(torch.is_grad_enabled())
        return problem.closure(optimizer)()

    with torch.no_grad():
        assert optimizer.step(closure).item() == want
    assert calls == [True] * (case.options.get("inner_steps", 1))


@EVERY_COUPLED
def test_a_step_without_closure_takes_the_gradients_that_are_there(case):
    one, other = Quadratics(), Quadratics()
    one.run(case.make(one.params), 3)
    optimizer = case.make(other.params)
    for _ in range(3):
        other.closure(optimizer)()
        assert optimizer.step() is None
    assert_same(other.values(), one.values())


@EVERY
def test_groups_have_their_own_options(case):
    together, apart = Quadratics(), Quadratics()
    quiet = {"noise": 0.0} if case.walks else {}  # the noise is drawn for all groups together
    first, second = together.params
    groups = [{"params": [first], "lr": 0.02}, {"params": [second], "weight_decay": 0.3}]
    together.run(case.make(groups, **quiet), 4)
    one = case.make([apart.params[0]], lr=0.02, **quiet)
    two = case.make([apart.params[1]], weight_decay=0.3, **quiet)
    for _ in range(4):
        for optimizer in (one, two):
            optimizer.step(apart.closure(optimizer))
            apart.closure(optimizer)()
    assert_same(together.values(), apart.values(), rtol=1e-12, atol=1e-13)
    assert set(groups[0]) == {"params", "lr"}, "the groups given are left as they were"


@ANY
def test_a_group_added_later_trains_from_then_on(case):
    grown, apart = case.problem(), case.problem()
    quiet = {"noise": 0.0} if case.walks else {}
    optimizer = case.make([grown.params[0]], **quiet)
    grown.run(optimizer, 2)
    untouched = grown.values()[1]
    assert torch.equal(untouched, apart.values()[1])
    optimizer.add_param_group({"params": grown.params[1], "lr": 0.05})
    grown.run(optimizer, 3)
    apart.run(case.make([apart.params[0]], **quiet), 5)
    apart.run(case.make([apart.params[1]], lr=0.05, **quiet), 3)
    assert_same(grown.values(), apart.values(), rtol=1e-12, atol=1e-13)


@EVERY
def test_schedulers_change_the_learning_rate(case):
    scheduled, by_hand = Quadratics(), Quadratics()
    optimizer, other = case.make(scheduled.params), case.make(by_hand.params)
    start = optimizer.param_groups[0]["lr"]
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    for step in range(6):
        scheduled.run(optimizer, 1)
        scheduler.step()
        other.param_groups[0]["lr"] = start * 0.5 ** (step // 2)
        by_hand.run(other, 1)
    assert_same(scheduled.values(), by_hand.values())
    assert optimizer.param_groups[0]["lr"] == pytest.approx(start / 8)
    torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.1, total_steps=5, cycle_momentum="betas" in optimizer.defaults
        or optimizer.defaults["momentum"] > 0,
    )  # fmt: skip


@EVERY
def test_parameters_without_gradients_are_left_alone(case):
    problem = Quadratics()
    frozen = nn.Parameter(torch.arange(6.0).view(3, 2))
    still = nn.Parameter(torch.arange(6.0).view(3, 2), requires_grad=False)
    before = frozen.detach().clone()
    optimizer = case.make([*problem.params, frozen, still])
    problem.run(optimizer, 2)
    assert torch.equal(frozen, before)
    assert torch.equal(still, before)
    frozen.grad = torch.ones_like(frozen)
    closure = problem.closure(optimizer)

    def late():
        loss = closure()
        frozen.grad = torch.ones_like(frozen)
        return loss

    optimizer.step(late)
    assert not torch.equal(frozen, before)


@ANY
def test_named_parameters_and_an_iterator_are_taken(case):
    problem, named = case.problem(), case.problem()
    problem.run(case.make(iter(problem.params)), 2)
    optimizer = case.make(zip("ab", named.params, strict=True))
    assert optimizer.param_groups[0]["param_names"] == ["a", "b"]
    named.run(optimizer, 2)
    assert_same(named.values(), problem.values())


@EVERY_COUPLED
def test_what_replicas_share_is_stepped_by_the_base_alone(case):
    problem = Quadratics()
    shared = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    plain = nn.Parameter(shared.detach().clone())
    groups = [{"params": problem.params}, {"params": [shared], "replicas": False}]
    optimizer = case.make(groups, **case.full)
    base = case.base([plain], lr=0.1, **case.shared)
    for _ in range(3):
        problem.closure(optimizer)()
        for p in (shared, plain):
            p.grad = p.detach() - 1
        optimizer.step()
        base.step()
    assert torch.equal(shared, plain)
    assert optimizer.covers == 3


@EVERY_COUPLED
def test_a_checkpoint_of_the_base_is_gone_on_with(case):
    problem = Quadratics()
    base = case.base(problem.params, lr=0.1, **case.shared)
    problem.run(base, 2)
    optimizer = case.make(problem.params)
    optimizer.load_state_dict(saved(base.state_dict()))
    problem.run(optimizer, 1)
    assert optimizer.param_groups[0]["taken"] == 1


@EVERY_COUPLED
def test_stacks_of_different_covers_are_refused(case):
    good, bad, scalar = (nn.Parameter(torch.zeros(s)) for s in [(3, 2), (4, 2), ()])
    message = r"shape \(4, 2\) does not have the covers first, which are 3.*'replicas': False"
    with pytest.raises(McoverError, match=message):
        case.make([good, bad])
    optimizer = case.make([good])
    for wrong in (bad, scalar):
        with pytest.raises(McoverError, match="does not have the covers first"):
            optimizer.add_param_group({"params": [wrong]})
    assert len(optimizer.param_groups) == len(optimizer.base.param_groups) == 1
    optimizer.add_param_group({"params": [bad, scalar], "replicas": False})
    with pytest.raises(McoverError, match="write True or False"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))], "replicas": 3})


BAD = {
    ReplicatedSGD: [
        ({"coupling": -1.0}, "coupling is -1.0.*'auto'"), ({"coupling": "strong"}, "'strong'"),
        ({"coupling": float("nan")}, "coupling is nan"), ({"growth": 0}, "growth is 0.*above 0"),
        ({"growth": -2.0}, "growth is -2.0"), ({"lr": float("nan")}, "lr is nan"),
        ({"lr": True}, "lr is True"), ({"growth": float("inf")}, "growth is inf"),
        ({"steps": 0}, "steps is 0.*whole"),
        ({"steps": None}, r"write steps=.*growth=1"), ({"period": 3}, "period"),
        ({"momentun": 0.9}, "SGD refuses .*momentun.*It takes .*momentum"),
        ({"momentum": -1.0}, "SGD refuses .*momentum"), ({"lr": -1.0}, "SGD refuses"),
        ({"base": 3}, "base is 3"), ({"base": torch.optim.LBFGS}, "without a closure"),
        ({"base": lambda *_, **__: 3}, "makes a int"), ({"base": dict}, "dict refuses"),
        ({"base": torch.optim.Adam, "momentum": 0.9}, "Adam refuses .*momentum.*betas"),
    ],
    ElasticSGD: [
        ({"coupling": -1.0}, "coupling is -1.0"), ({"coupling": True}, "coupling is True"),
        ({"period": 0}, "period is 0"), ({"period": 1.5}, "period is 1.5"),
        ({"growth": 2}, "growth"), ({"nesterov": True}, "SGD refuses"),
        ({"lr": 0.0}, "positive lr, or a number"),
    ],
    EntropySGD: [
        ({"lr": -1.0}, "lr is -1.0"), ({"inner_lr": "x"}, "inner_lr is 'x'"),
        ({"inner_steps": 0}, "inner_steps is 0"), ({"scope": -1}, "scope is -1.* or inf"),
        ({"scoping": -0.1}, "scoping"), ({"noise": float("inf")}, "noise is inf"),
        ({"average": 1.0}, "average is 1.0"), ({"momentum": 1}, "momentum is 1"),
        ({"nesterov": True}, "write momentum=0.9"), ({"seed": -1}, "seed is -1"),
        ({"weight_decay": -1}, "weight_decay is -1"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [(kind, *row) for kind, rows in BAD.items() for row in rows],
)
def test_bad_options_are_refused(kind, options, message):
    stack = nn.Parameter(torch.zeros(3, 2))
    good = {"lr": 0.1} | ({"steps": 5} if kind is ReplicatedSGD else {})
    with pytest.raises(McoverError, match=message):
        kind([stack], **(good | options))
    own = {"coupling", "growth", "steps", "period"} & kind([stack], **good).defaults.keys()
    if set(options) <= own and len(options) == 1:
        with pytest.raises(McoverError, match=message):
            kind([{"params": [stack], **options}], **good)


def test_narrow_integers_count_on_beyond_their_range():
    problem = Quadratics()
    optimizer = ElasticSGD(problem.params, lr=np.float32(0.1), period=np.uint8(200), coupling=1)
    problem.run(optimizer, 300)
    assert optimizer.param_groups[0]["taken"] == 300


def test_parameters_must_be_many():
    for kind in (ReplicatedSGD, ElasticSGD, EntropySGD):
        for odd in (nn.Parameter(torch.zeros(3, 2)), None, "text", {}):
            with pytest.raises(McoverError, match=r"params is a .*covered\.stacks"):
                kind(odd, lr=0.1)


def test_options_of_another_method_are_refused():
    stack = nn.Parameter(torch.zeros(3, 2))
    with pytest.raises(TypeError, match="coupling"):
        EntropySGD([stack], coupling=1.0)


def training(kind, covered):
    """The three in one way of building them."""
    common = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}
    own = {
        ReplicatedSGD: {"steps": 60},
        ElasticSGD: {"period": 3},
        EntropySGD: {"lr": 1.0, "inner_lr": 0.1, "inner_steps": 3, "seed": 0},
    }
    return kind(covered.stacks().values(), **{**common, **own[kind]})


@pytest.mark.parametrize("model", [Perceptron, Convolutional])
@pytest.mark.parametrize("kind", [ReplicatedSGD, ElasticSGD, EntropySGD])
def test_a_covered_model_trains_and_collapses(kind, model):
    base, _ = tiny(model)
    covered = lift(base, covers=3, topology=Identity(), routing="messages", noise=0.05, seed=0)
    x = torch.cat([tiny(model, seed)[1] for seed in range(6)])
    y = (x.flatten(1).sum(1) > 0).long()
    optimizer = training(kind, covered)
    draw = torch.Generator().manual_seed(0)

    def closure():
        rows = torch.stack([torch.randperm(len(x), generator=draw)[:12] for _ in range(3)])
        optimizer.zero_grad()
        loss = cover_loss(F.cross_entropy, covered.each(x[rows]), y[rows], each=True)
        loss.backward()
        return loss

    first = F.cross_entropy(covered.collapse()(x), y).item()
    for _ in range(60):
        optimizer.step(closure)
    net = covered.collapse(loader=[x] if model is Convolutional else None)
    assert type(net) is model
    assert F.cross_entropy(net(x), y).item() < 0.7 * first


def test_the_package_has_its_optimizers_as_lazy_attributes():
    assert mcover.optim.ReplicatedSGD is ReplicatedSGD


def test_every_optimizer_is_in_the_battery():
    assert {case.kind.__name__ for case in ALL.values()} == set(mcover.optim.__all__)
