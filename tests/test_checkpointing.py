"""A recomputed forward pass uses its original routes and tensors."""

import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from covering import (
    RING,
    Checkpointed,
    assert_same_gradients,
    both,
    doubles,
    mlp,
    reentrant_or_not,
)
from mcover import Directed, McoverError, lift
from tiny_models import routed


def twins(how):
    covered = lift(mlp(), 3, RING, how, seed=0)
    return covered, copy.deepcopy(covered)


@both
@reentrant_or_not
@pytest.mark.parametrize("redraw_every", [None, 1])
def test_checkpointing_around_a_covered_model_takes_the_same_routes_again(
    routing, reentrant, redraw_every
):
    """Two forward passes in one loss survive a redraw, checkpointed or not."""
    ours, plain = twins(routed(routing, bank=4, redraw_every=redraw_every))
    optimizers = [torch.optim.SGD(model.parameters(), 0.01) for model in (ours, plain)]
    for step in range(4):
        x, y = (doubles(4, 6, seed=2 * step + k).requires_grad_() for k in (0, 1))
        outputs = [checkpoint(ours, t, use_reentrant=reentrant) for t in (x, y)]
        sum(value.square().sum() for value in outputs).backward()
        for t, value in zip((x, y), outputs, strict=True):
            wanted = plain(t)
            torch.testing.assert_close(value, wanted)
            wanted.square().sum().backward()
        assert_same_gradients(ours, plain)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert (ours.steps, ours.redraws) == (plain.steps, plain.redraws)


@reentrant_or_not
def test_checkpointing_inside_a_directed_lift_computes_each_forward_again(reentrant):
    base, other = Checkpointed().double(), Checkpointed(reentrant).double()
    other.load_state_dict(base.state_dict())
    how = Directed(bank=4, destinations=2)
    plain, ours = (lift(m, 3, RING, how, seed=0) for m in (base, other))
    x = doubles(4, 6)
    for model in (plain, ours):  # two forwards of two passes each before the backward
        (model(x) + model(2 * x)).square().sum().backward()
    assert_same_gradients(ours, plain)


@pytest.mark.parametrize(
    ("reentrant", "message"),
    [(False, "is active inside the model at 'b'"), (True, "the layer 'b'.*outside")],
)
def test_checkpointing_around_a_layer_that_mixes_is_refused(reentrant, message):
    covered = lift(Checkpointed(reentrant).double(), 3, RING, "messages", seed=0)
    with pytest.raises(McoverError, match=message):
        covered(doubles(4, 6)).sum().backward()


@both
@reentrant_or_not
def test_every_forward_is_counted_whatever_memory_its_input_has(routing, reentrant):
    """Later inputs may reuse the addresses of freed ones, but are not recomputations."""
    ours, plain = twins(routed(routing, bank=4))
    for k in range(12):
        x, z = (doubles(4, 6, seed=k).requires_grad_() for _ in range(2))
        checkpoint(ours, x, use_reentrant=reentrant).square().sum().backward()
        plain(z).square().sum().backward()
        del x, z
        assert ours.steps == k + 1
    assert_same_gradients(ours, plain)
    x = doubles(4, 6)
    for _ in range(4):  # the same input again: also forwards of their own
        checkpoint(ours, x, use_reentrant=False).square().sum().backward()
        plain(x).square().sum().backward()
    assert (ours.steps, plain.steps) == (16, 16)
    assert_same_gradients(ours, plain)
    with torch.no_grad():
        for k in range(16):
            ours(doubles(4, 6, seed=k) if k % 2 else x)
    assert ours.steps == 32


@reentrant_or_not
def test_a_graph_that_is_kept_computes_a_forward_again_in_each_backward(reentrant):
    ours, plain = twins(Directed(bank=4, redraw_every=1))
    x = doubles(4, 6).requires_grad_()
    losses = [checkpoint(ours, x, use_reentrant=reentrant).square().sum(), plain(x).square().sum()]
    for _ in range(2):
        for loss in losses:
            loss.backward(retain_graph=True)
    assert_same_gradients(ours, plain)
    assert ours.steps == plain.steps == 1


@reentrant_or_not
def test_a_recomputation_that_could_be_of_several_forwards_is_refused(reentrant):
    covered, _ = twins("directed")
    x = doubles(4, 6).requires_grad_()
    loss = sum(checkpoint(covered, x, use_reentrant=reentrant).sum() for _ in range(2))
    with pytest.raises(McoverError, match=r"2 forwards had this input.*x\.clone\(\)"):
        loss.backward()
    covered.zero_grad()
    with torch.no_grad():
        covered.net[0].weight.mul_(1.0)  # weights change: what ran before is over
    checkpoint(covered, x, use_reentrant=reentrant).sum().backward()
    assert covered.net[0].weight.grad is not None


@reentrant_or_not
def test_a_covered_model_inside_a_checkpointed_function_is_refused_in_the_backward(reentrant):
    covered, _ = twins("directed")
    x = doubles(4, 6).requires_grad_()
    loss = checkpoint(lambda x: covered(2 * x), x, use_reentrant=reentrant).sum()
    with pytest.raises(McoverError, match=r"none had this input.*Checkpoint the covered model"):
        loss.backward()
    loss = checkpoint(lambda x: covered(x).square(), x, use_reentrant=reentrant).sum()
    loss.backward()  # its own input is that of the function
