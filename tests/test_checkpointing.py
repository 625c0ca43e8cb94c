"""A forward that is computed again takes the routes and tensors that it had."""

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from covering import RING, assert_same_gradients, both, doubles, mlp  # noqa: E402
from mcover import Directed, McoverError, Messages, lift  # noqa: E402
from tiny_models import routed  # noqa: E402


@both
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("redraw_every", [None, 1])
def test_checkpointing_around_a_covered_model_takes_the_same_routes_again(
    routing, reentrant, redraw_every
):
    ours = lift(mlp(), 3, RING, routed(routing, bank=4, redraw_every=redraw_every), seed=0)
    plain = copy.deepcopy(ours)
    optimizers = [torch.optim.SGD(model.parameters(), 0.01) for model in (ours, plain)]
    for step in range(4):
        x, y = (doubles(4, 6, seed=2 * step + k).requires_grad_() for k in (0, 1))
        outputs = [checkpoint(ours, t, use_reentrant=reentrant) for t in (x, y)]
        wanted = [plain(t) for t in (x, y)]
        for model, values in ((ours, outputs), (plain, wanted)):
            model.zero_grad()
            sum(value.square().sum() for value in values).backward()
        torch.testing.assert_close(outputs, wanted)
        assert_same_gradients(ours, plain)
        for optimizer in optimizers:
            optimizer.step()
    assert (ours.steps, ours.redraws) == (plain.steps, plain.redraws)


class Checkpointed(nn.Module):
    def __init__(self, reentrant=None):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.reentrant = reentrant

    def inner(self, h):
        return torch.tanh(self.b(torch.tanh(h)))

    def forward(self, x):
        h = self.a(x)
        if self.reentrant is None:
            return self.c(self.inner(h))
        return self.c(checkpoint(self.inner, h, use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [False, True])
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
    [(False, "is in force inside the model at 'b'"), (True, "the layer 'b'.*outside")],
)
def test_checkpointing_around_a_layer_that_mixes_is_refused(reentrant, message):
    covered = lift(Checkpointed(reentrant).double(), 3, RING, "messages", seed=0)
    with pytest.raises(McoverError, match=message):
        covered(doubles(4, 6)).sum().backward()


def test_two_forwards_in_one_loss_outlive_a_redraw():
    covered = lift(mlp(), 3, RING, Messages(redraw_every=1), seed=0)
    twin = copy.deepcopy(covered)
    x = doubles(4, 6)
    (covered(x).square().sum() + covered(2 * x).square().sum()).backward()
    for part in (x, 2 * x):
        twin(part).square().sum().backward()
    assert_same_gradients(covered, twin)


@both
@pytest.mark.parametrize("reentrant", [False, True])
def test_every_forward_is_counted_whatever_memory_its_input_has(routing, reentrant):
    """Inputs that are freed leave their addresses to later ones, which are no recomputations."""
    ours = lift(mlp(), 3, RING, routed(routing, bank=4), seed=0)
    plain = copy.deepcopy(ours)
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


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_graph_that_is_kept_computes_a_forward_again_in_each_backward(reentrant):
    ours = lift(mlp(), 3, RING, Directed(bank=4, redraw_every=1), seed=0)
    plain = copy.deepcopy(ours)
    x = doubles(4, 6).requires_grad_()
    losses = [checkpoint(ours, x, use_reentrant=reentrant).square().sum(), plain(x).square().sum()]
    for _ in range(2):
        for loss in losses:
            loss.backward(retain_graph=True)
    assert_same_gradients(ours, plain)
    assert ours.steps == plain.steps == 1


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_recomputation_that_could_be_of_several_forwards_is_refused(reentrant):
    covered = lift(mlp(), 3, RING, "directed", seed=0)
    x = doubles(4, 6).requires_grad_()
    loss = sum(checkpoint(covered, x, use_reentrant=reentrant).sum() for _ in range(2))
    with pytest.raises(McoverError, match=r"2 forwards had this input.*x\.clone\(\)"):
        loss.backward()
    covered.zero_grad()
    with torch.no_grad():
        covered.net[0].weight.mul_(1.0)  # weights change: what ran before is over
    checkpoint(covered, x, use_reentrant=reentrant).sum().backward()
    assert covered.net[0].weight.grad is not None


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_covered_model_inside_a_checkpointed_function_is_refused_in_the_backward(reentrant):
    covered = lift(mlp(), 3, RING, "directed", seed=0)
    x = doubles(4, 6).requires_grad_()
    loss = checkpoint(lambda x: covered(2 * x), x, use_reentrant=reentrant).sum()
    with pytest.raises(McoverError, match=r"none had this input.*Checkpoint the covered model"):
        loss.backward()
    loss = checkpoint(lambda x: covered(x).square(), x, use_reentrant=reentrant).sum()
    loss.backward()  # its own input is that of the function
