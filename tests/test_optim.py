"""Guarantees of every optimizer besides the laws: one set of tests over a table."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import mcover
from covering import saved
from mcover import Identity, McoverError, cover_loss, lift
from mcover.optim import ElasticSGD, EntropySGD, ReplicatedSGD
from optim_battery import CASES, REPLICAS, Quadratics
from tiny_models import Convolutional, Perceptron, tiny

COUPLED = {name: case for name, case in REPLICAS.items() if not case.walks}
every_one = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_replicated = pytest.mark.parametrize("case", REPLICAS.values(), ids=REPLICAS)
every_coupled = pytest.mark.parametrize("case", COUPLED.values(), ids=COUPLED)


def assert_same(got, want, **tolerance):
    torch.testing.assert_close(got, want, **({"rtol": 0, "atol": 0} | tolerance))


def quiet(case):
    return {"noise": 0.0} if case.walks else {}


@every_coupled
def test_infinite_coupling_keeps_replicas_together(case):
    problem = Quadratics()
    optimizer = case.make(problem.params, **case.full)
    for _ in range(3):
        problem.run(optimizer, 1)
        for stack in problem.values():
            assert torch.equal(stack, stack[:1].expand_as(stack))


@every_one
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


@every_one
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
    assert calls == [True] * case.options.get("inner_steps", 1)


@every_coupled
def test_a_step_without_closure_takes_the_gradients_that_are_there(case):
    one, other = Quadratics(), Quadratics()
    one.run(case.make(one.params), 3)
    optimizer = case.make(other.params)
    for _ in range(3):
        other.closure(optimizer)()
        assert optimizer.step() is None
    assert_same(other.values(), one.values())


@every_replicated
def test_groups_have_their_own_options(case):
    """The noise of a walk is drawn for all groups together, so it is left out."""
    together, apart = Quadratics(), Quadratics()
    first, second = together.params
    groups = [{"params": [first], "lr": 0.02}, {"params": [second], "weight_decay": 0.3}]
    together.run(case.make(groups, **quiet(case)), 4)
    one = case.make([apart.params[0]], lr=0.02, **quiet(case))
    two = case.make([apart.params[1]], weight_decay=0.3, **quiet(case))
    for _ in range(4):
        for optimizer in (one, two):
            optimizer.step(apart.closure(optimizer))
            apart.closure(optimizer)()
    assert_same(together.values(), apart.values(), rtol=1e-12, atol=1e-13)
    assert set(groups[0]) == {"params", "lr"}, "the groups given are left as they were"


@every_one
def test_a_group_added_later_trains_from_then_on(case):
    grown, apart = case.problem(), case.problem()
    optimizer = case.make([grown.params[0]], **quiet(case))
    grown.run(optimizer, 2)
    assert_same(grown.values()[1], apart.values()[1])
    optimizer.add_param_group({"params": grown.params[1], "lr": 0.05})
    grown.run(optimizer, 3)
    apart.run(case.make([apart.params[0]], **quiet(case)), 5)
    apart.run(case.make([apart.params[1]], lr=0.05, **quiet(case)), 3)
    assert_same(grown.values(), apart.values(), rtol=1e-12, atol=1e-13)


@every_one
def test_schedulers_change_the_learning_rate(case):
    scheduled, by_hand = case.problem(), case.problem()
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
    has_momentum = "betas" in optimizer.defaults or optimizer.defaults.get("momentum", 0) > 0
    torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.1, total_steps=5, cycle_momentum=has_momentum
    )  # fmt: skip


@every_one
def test_parameters_without_gradients_are_left_alone(case):
    problem = case.problem()
    frozen, still = (nn.Parameter(torch.ones(3, 2), requires_grad=g) for g in (True, False))
    optimizer = case.make([*problem.params, frozen, still])
    problem.run(optimizer, 2)
    for value in (frozen, still):
        assert torch.equal(value, torch.ones(3, 2))
    closure = problem.closure(optimizer)

    def late():
        loss = closure()
        frozen.grad = torch.ones_like(frozen)
        return loss

    optimizer.step(late)
    assert not torch.equal(frozen, torch.ones(3, 2))


@every_one
def test_named_parameters_and_an_iterator_are_taken(case):
    problem, named = case.problem(), case.problem()
    problem.run(case.make(iter(problem.params)), 2)
    optimizer = case.make(zip("ab", named.params, strict=True))
    assert optimizer.param_groups[0]["param_names"] == ["a", "b"]
    named.run(optimizer, 2)
    assert_same(named.values(), problem.values())


@every_coupled
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


@every_coupled
def test_a_checkpoint_of_the_base_is_gone_on_with(case):
    problem = Quadratics()
    base = case.base(problem.params, lr=0.1, **case.shared)
    problem.run(base, 2)
    optimizer = case.make(problem.params)
    optimizer.load_state_dict(saved(base.state_dict()))
    problem.run(optimizer, 1)
    assert optimizer.param_groups[0]["taken"] == 1


@every_coupled
def test_a_group_that_is_refused_leaves_the_optimizer_as_it_was(case):
    good, bad, scalar = (nn.Parameter(torch.zeros(s)) for s in [(3, 2), (4, 2), ()])
    optimizer = case.make([good])
    for wrong in (bad, scalar):
        with pytest.raises(McoverError, match="does not have the covers first, which are 3"):
            optimizer.add_param_group({"params": [wrong]})
    assert len(optimizer.param_groups) == len(optimizer.base.param_groups) == 1
    optimizer.add_param_group({"params": [bad, scalar], "replicas": False})


def test_narrow_integers_count_on_beyond_their_range():
    problem = Quadratics()
    optimizer = ElasticSGD(problem.params, lr=np.float32(0.1), period=np.uint8(200), coupling=1)
    problem.run(optimizer, 300)
    assert optimizer.param_groups[0]["taken"] == 300


@pytest.mark.parametrize("model", [Perceptron, Convolutional])
@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (ReplicatedSGD, {"steps": 60}),
        (ElasticSGD, {"period": 3}),
        (EntropySGD, {"lr": 1.0, "inner_lr": 0.1, "inner_steps": 3, "seed": 0}),
    ],
)
def test_a_covered_model_trains_and_collapses(kind, own, model):
    covered = lift(tiny(model)[0], 3, Identity(), "messages", noise=0.05, seed=0)
    x = torch.cat([tiny(model, seed)[1] for seed in range(6)])
    y = (x.flatten(1).sum(1) > 0).long()
    common = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-4}
    optimizer = kind(covered.stacks().values(), **common | own)
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


def test_every_optimizer_is_in_the_battery():
    assert {case.kind.__name__ for case in CASES.values()} == set(mcover.optim.__all__)
