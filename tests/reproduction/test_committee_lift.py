"""The fused gradient against the general lift, and both against loops over the paper's sums."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from reference_committee import routed_loss

import mcover
from mcover.errors import McoverError
from reproduction.committee import SLOW, CommitteeMachine, machine_of, unit_rows
from reproduction.training.fused import FusedGradient, paths
from reproduction.training.objectives import CommitteeObjective

INPUTS, HIDDEN, COVERS = 4, 3, 3
LIFTS = {
    "all destinations of a bank": {"bank": 5, "destinations": None},
    "the exact lift": {"bank": None, "destinations": None},
    "destinations in turn": {"bank": 5, "destinations": 2},
    "routes drawn anew": {"bank": 3, "destinations": None, "redraw_every": 2},
    "routes of units": {"bank": 2, "destinations": None, "granularity": "unit"},
    "routes of the tensor": {"bank": 1, "destinations": None, "granularity": "tensor"},
    "a ring": {"bank": 4, "destinations": None, "topology": mcover.GaussianRing(0.8, shift=1)},
    "nothing routed": {"bank": 4, "destinations": None, "topology": mcover.Identity()},
}


def machine(inputs=INPUTS, hidden=HIDDEN, dtype=torch.float64):
    return CommitteeMachine(inputs, hidden, seed=1).to(dtype)


def lifted(base, covers=COVERS, **options):
    given = {"topology": mcover.Uniform(), "noise": 0.7, "seed": 5, "redraw_every": None} | options
    names = {field.name for field in dataclasses.fields(mcover.Directed)}
    how = mcover.Directed(**{name: given.pop(name) for name in names & given.keys()})
    return mcover.lift(base, covers, **{"routing": how} | given)


def batch(count=6, inputs=INPUTS, covers=None, dtype=torch.float64, seed=0):
    rng = np.random.default_rng(seed)
    shape = (count,) if covers is None else (covers, count)
    x, y = (rng.choice([-1.0, 1.0], size=size) for size in ((*shape, inputs), shape))
    return torch.from_numpy(x).to(dtype), torch.from_numpy(y).to(dtype)


@pytest.mark.parametrize("bank", [None, 5], ids=["exact", "sampled"])
@pytest.mark.parametrize("epoch", [0, 2000])
def test_general_lift_and_fused_gradient_are_the_paper_s_equations(bank, epoch):
    covered = lifted(machine(), bank=bank, destinations=None)
    machine_of(covered).sharpen(epoch)
    routes = covered.routes
    assert len(routes) == (bank or INPUTS * HIDDEN)
    x, y = batch()
    stack = covered.net.J.detach().clone().requires_grad_()
    total, each = routed_loss(stack, x, y, routes, *SLOW.at(epoch))
    (expected,) = torch.autograd.grad(total, stack)
    for fused in (True, False):
        loss = CommitteeObjective(covered, fused).gradient(x, y, each=False)
        torch.testing.assert_close(loss, each.mean())
        torch.testing.assert_close(covered.net.J.grad, expected)


@pytest.mark.parametrize("name", LIFTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_fused_path_walks_the_trajectory_of_the_general_lift(name, dtype):
    steps = 60
    inputs, hidden = 20, 5
    if name == "the exact lift":
        inputs, hidden = 6, 3
    base = machine(inputs, hidden, dtype)
    ends, losses = [], []
    for fused in (True, False):
        model = lifted(base, **LIFTS[name])
        objective = CommitteeObjective(model, fused)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
        said = []
        for step in range(steps):
            objective.begin_epoch(40 * step)
            size = 10 if step % 3 else 7  # the last batch of a pass is often smaller
            said.append(float(objective.gradient(*batch(size, inputs, None, dtype, step), False)))
            optimizer.step()
            objective.after_step()
        ends.append(model.net.J.detach())
        losses.append(said)
        assert model.steps == steps
        assert model.redraws == (steps // 2 - 1 if "anew" in name else 0)
    tight = dtype == torch.float64
    np.testing.assert_allclose(*losses, rtol=1e-9 if tight else 1e-2, atol=1e-12 if tight else 1e-3)
    if tight:
        torch.testing.assert_close(*ends, rtol=1e-8, atol=1e-8)
    norm = ends[0].square().sum(-1)
    torch.testing.assert_close(norm, torch.full_like(norm, inputs))


def test_one_machine_has_the_gradient_of_autograd():
    alone = machine()
    x, y = batch()
    objective = CommitteeObjective(alone)
    loss = objective.gradient(x, y, each=False)
    found = alone.J.grad.clone()
    alone.zero_grad()
    expected = alone.loss(alone(x), y)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(found, alone.J.grad)


@pytest.mark.parametrize("options", [{"topology": mcover.Identity()}, {"destinations": None}])
def test_every_cover_may_see_a_batch_of_its_own(options):
    x, y = batch(covers=COVERS)
    ends = []
    for fused in (True, False):
        model = lifted(machine(), **options)
        loss = CommitteeObjective(model, fused).gradient(x, y, each=True)
        ends.append((loss, model.net.J.grad.clone()))
    torch.testing.assert_close(*ends)
    common = lifted(machine(), **options)
    CommitteeObjective(common).gradient(x[0], y[0], each=False)
    assert not torch.allclose(common.net.J.grad, ends[0][1])


def test_covers_without_routes_are_machines_side_by_side():
    model = lifted(machine(), routing="messages", topology=mcover.Identity())
    x, y = batch()
    CommitteeObjective(model).gradient(x, y, each=False)
    for index in range(COVERS):
        alone = model.cover(index)
        alone.loss(alone(x), y).backward()
        torch.testing.assert_close(model.net.J.grad[index], alone.J.grad)


def test_single_precision_is_right_where_units_are_about_to_flip():
    """At the end of the schedule only fields of about 1e-8 still have a gradient."""
    beta, gamma = SLOW.at(20_000)
    # Two inputs: one sum a field, so that single precision has it exactly whatever the order.
    rows = [[0.125, -0.125 + 2.0**-27], [0.125, -0.125 - 2.0**-26], [1, 1]]
    weights = torch.tensor([rows], dtype=torch.float64)
    x = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]], dtype=torch.float64)
    y = torch.tensor([-1.0, 1.0, 1.0], dtype=torch.float64)
    found = {}
    for dtype in (torch.float32, torch.float64):
        fused = FusedGradient(weights.to(dtype))
        loss = fused(x.to(dtype), y.to(dtype), beta, gamma)
        found[dtype] = loss.double(), fused.gradient.double()
    torch.testing.assert_close(found[torch.float32], found[torch.float64], rtol=1e-4, atol=1e-6)
    assert found[torch.float64][1].abs().max() > 1e4  # steep, and yet finite
    stack = weights.clone().requires_grad_()
    identity = np.zeros((1, 6, 1), dtype=int)
    # With the last γ the exponentials of the loop would overflow.
    total, _ = routed_loss(stack, x, y, identity, beta, 1.0)
    (expected,) = torch.autograd.grad(total, stack)
    fused = FusedGradient(weights)
    fused(x, y, beta, 1.0)
    torch.testing.assert_close(fused.gradient, expected, rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize("epoch", [0, 3000, 8000, 20_000])
def test_single_precision_follows_double_along_the_schedule(epoch):
    grads = []
    for dtype in (torch.float32, torch.float64):
        model = lifted(machine(50, 5, torch.float32), covers=4, bank=6, destinations=None).to(dtype)
        objective = CommitteeObjective(model)
        objective.begin_epoch(epoch)
        loss = objective.gradient(*batch(40, 50, None, dtype), each=False)
        grads.append((loss.double(), model.net.J.grad.double()))
        assert torch.isfinite(model.net.J.grad).all()
    torch.testing.assert_close(*grads, rtol=2e-2, atol=1e-5 * float(grads[1][1].abs().max() + 1))


def test_weights_that_are_not_numbers_are_not_hidden():
    weights = torch.ones(1, 3, 4)
    weights[0, 1, 2] = torch.nan
    assert FusedGradient(weights)(torch.ones(2, 4), torch.ones(2), 1.0, 1.0).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_row_norms_are_those_of_the_machine(dtype):
    covered = lifted(machine(7, 3, dtype))
    with torch.no_grad():
        covered.net.J.mul_(3)
        covered.net.J[1, 2] = 0
    expected = unit_rows(covered.net.J.detach())
    CommitteeObjective(covered).after_step()
    torch.testing.assert_close(covered.net.J.detach(), expected)


def test_the_gradient_is_that_of_the_weights_as_they_are_now():
    alone = machine()
    x, y = batch()
    objective = CommitteeObjective(alone)
    objective.gradient(x, y, each=False)
    before = alone.J.grad.clone()
    alone.J.data = alone.J.data.clone() * 1.5  # another tensor in the parameter's place
    objective.gradient(x, y, each=False)
    assert not torch.allclose(before, alone.J.grad)
    fresh = copy.deepcopy(alone)
    CommitteeObjective(fresh).gradient(x, y, each=False)
    torch.testing.assert_close(alone.J.grad, fresh.J.grad)


def test_routes_from_a_checkpoint_are_followed():
    first, second = (lifted(machine(), seed=seed, destinations=None) for seed in (5, 9))
    x, y = batch()
    objective = CommitteeObjective(second)
    objective.gradient(x, y, each=False)
    second.load_state_dict(first.state_dict())
    objective.gradient(x, y, each=False)
    CommitteeObjective(first).gradient(x, y, each=False)
    torch.testing.assert_close(first.net.J.grad, second.net.J.grad)


@pytest.mark.parametrize("value", [0, 3, 255])
def test_routes_that_are_no_permutations_never_reach_the_kernels(value):
    """Routes index memory: a wrong route would read and write beyond the arrays."""
    routes = lifted(machine(), bank=2, destinations=None).routes.copy()
    assert paths(routes, HIDDEN * INPUTS) is not None
    routes[1, 3] = value
    with pytest.raises(McoverError, match="not permutations"):
        paths(routes, HIDDEN * INPUTS)
    with pytest.raises(McoverError, match="not permutations"):
        paths(routes[:, :5], HIDDEN * INPUTS)


def test_routes_of_another_model_are_refused():
    given = paths(lifted(machine(), bank=2, destinations=None).routes, HIDDEN * INPUTS)
    x, y = batch()
    good = FusedGradient(lifted(machine()).net.J.detach())
    good(x, y, 1.0, 1.0, given)
    for odd in (given._replace(chosen=np.array([2])), given._replace(back=given.back[:2])):
        with pytest.raises(McoverError, match="do not belong to this model"):
            good(x, y, 1.0, 1.0, odd)
    with pytest.raises(McoverError, match="do not belong to this model"):
        FusedGradient(torch.zeros(2, HIDDEN, INPUTS).double())(x, y, 1.0, 1.0, given)


def test_gradients_are_counted_for_every_virtual_machine():
    assert CommitteeObjective(machine()).width == 1
    assert CommitteeObjective(lifted(machine(), bank=5, destinations=None)).width == COVERS * 5
    assert CommitteeObjective(lifted(machine(), bank=5, destinations=2)).width == COVERS * 2
    apart = lifted(machine(), routing="messages", topology=mcover.Identity())
    assert CommitteeObjective(apart).width == COVERS


def test_judging_collapse_and_covers_is_judging_machines_by_themselves():
    model = lifted(machine())
    objective = CommitteeObjective(model)
    objective.begin_epoch(700)
    x, y = batch(30)
    for on, alone in (
        ("collapse", [objective.collapse(model)]),
        ("covers", [model.cover(index) for index in range(COVERS)]),
    ):
        losses, wrong = objective.evaluate(model, x, y, on)
        expected = [one.loss(one(x), y).item() for one in alone]
        np.testing.assert_allclose(losses, expected)
        assert wrong.tolist() == [float((one.classify(x) != y).double().mean()) for one in alone]


def test_more_than_two_classes_are_refused():
    objective = CommitteeObjective(machine())
    with pytest.raises(McoverError, match=r"separates two classes.*up to 2"):
        objective.tensors(np.zeros((3, 4), np.float32), np.array([0, 1, 2]))
    with pytest.raises(McoverError, match="give the covered model"):
        CommitteeObjective(lifted(machine()).net)
