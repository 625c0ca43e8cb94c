"""Covers meet at layers that mix; what prevents a meeting is refused, with its place."""

import contextlib
import copy
import traceback

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402
from torch.nn.utils import prune  # noqa: E402

import mcover  # noqa: E402
from covering import RING, Parting, both, doubles, mlp  # noqa: E402
from mcover import McoverError, Messages, lift  # noqa: E402
from mcover.errors import McoverWarning  # noqa: E402
from mcover.nn import Shape, lockstep, register  # noqa: E402


def test_the_conductor_runs_covers_without_layers_to_the_end():
    assert lockstep.run([lambda: 1, lambda: 2]) == [1, 2]
    with pytest.raises(McoverError, match="outside of the covered model's forward"):
        lockstep.meet("here", None, list)


def test_meetings_hand_each_cover_its_part():
    def cover(k):
        total = lockstep.meet("sum", k, lambda all_: [sum(all_) + own for own in all_])
        return lockstep.meet("product", total, lambda all_: [2 * own for own in all_])

    assert lockstep.run([lambda k=k: cover(k) for k in range(3)]) == [6, 8, 10]


class Ending(Parting):
    def forward(self, x):
        h = self.a(x)
        return h if float(h.detach().sum()) > 0 else self.b(h)


@pytest.mark.parametrize(
    ("kind", "message"),
    [(Parting, r"cover 0 is at '[bc]', cover 1 at '[bc]'"), (Ending, "at its end|at 'b'")],
)
def test_covers_that_part_ways_are_refused_with_both_places(kind, message):
    models = [kind() for _ in range(2)]
    for sign, model in zip((1, -1), models, strict=True):
        nn.init.constant_(model.a.weight, sign)
        nn.init.zeros_(model.a.bias)
    topology = mcover.mix(mcover.Identity(), mcover.Uniform(), weights=[0.9, 0.1])
    covered = lift(models[0], models, topology, Messages(draws=1000), seed=0)
    with pytest.raises(McoverError, match=message) as caught:
        covered(torch.ones(1, 4))
    assert "routing='directed'" in str(caught.value)
    directed = lift(models[0], models, mcover.Identity(), "directed", seed=0)
    torch.testing.assert_close(directed(torch.ones(1, 4))[1], models[1](torch.ones(1, 4)))


@both
def test_an_error_comes_with_the_line_of_the_model_and_leaves_nothing_behind(routing):
    closed = []

    class Broken(Parting):
        def forward(self, x):
            with contextlib.ExitStack() as stack:
                stack.callback(closed.append, 1)
                with torch.no_grad():
                    h = self.a(x)
                    return h.view(7, 7)  # this line is at fault

    covered = lift(Broken(), 3, RING, routing, seed=0)
    for _ in range(2):
        closed.clear()
        with pytest.raises(RuntimeError, match="invalid for input") as caught:
            covered(torch.ones(2, 4))
        lines = "".join(traceback.format_tb(caught.tb))
        assert "this line is at fault" in lines
        assert len(closed) == (3 if routing == "messages" else 1)
        assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("layer", "x"),
    [(nn.Linear(4, 2), (2, 3)), (nn.Conv1d(3, 2, 5), (2, 3, 4)), (nn.Conv1d(3, 2, 1), (2, 4, 4))],
)
def test_an_input_that_does_not_fit_is_torchs_error_at_the_line_of_the_model(layer, x):
    class Wrong(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = layer

        def forward(self, x):
            return self.inner(x)  # this line is at fault

    with pytest.raises(RuntimeError) as caught:
        lift(Wrong(), 3, RING, "messages", seed=0)(torch.ones(*x))
    assert "this line is at fault" in "".join(traceback.format_tb(caught.tb))


def test_gradients_inside_a_forward_are_refused_where_covers_meet():
    class Slope(Parting):
        def forward(self, x):
            x = x.clone().requires_grad_()
            energy = self.b(torch.tanh(self.a(x))).sum()
            return torch.autograd.grad(energy, x, create_graph=True)[0]

    base, x = Slope(), torch.randn(2, 4)
    with pytest.raises(McoverError, match=r"computes gradients in its forward.*routing='directed'"):
        lift(base, 3, RING, "messages", seed=0)(x)
    directed = lift(base, 3, RING, "directed", noise=0, seed=0)
    torch.testing.assert_close(directed(x)[1], base(x))


def test_a_model_that_goes_around_its_layers_is_refused():
    class Around(Parting):
        def forward(self, x):
            return x @ self.a.weight.T

    with pytest.raises(McoverError, match="no covers met"):
        lift(Around(), 3, RING, "messages", seed=0)(torch.ones(2, 4))


class Scaled(nn.Module):
    """A layer of nobody's kind."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 8))

    def forward(self, x):
        return x @ (2 * self.weight).T


class OwnForward(nn.Linear):
    def forward(self, x):
        return F.linear(x.clamp(min=-9), self.weight * 1.0, self.bias) + 1


def test_layers_that_are_registered_mix_and_subclasses_do_by_themselves():
    covered = lift(nn.Sequential(OwnForward(6, 8)), 3, RING, "messages", noise=0.5, seed=0)
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    got = covered(x)
    plain = lift(nn.Sequential(nn.Linear(6, 8)), 3, RING, "messages", noise=0.5, seed=0)
    plain.load_state_dict(covered.state_dict())
    assert torch.equal(plain.mixers()["0"], covered.mixers()["0"])
    torch.testing.assert_close(got, plain(x) + 1)
    with pytest.raises(McoverError, match=r"nothing in this model would mix.*Scaled"):
        lift(Scaled(), 3, RING, "messages", seed=0)
    register(Scaled, lambda layer: [Shape(*layer.weight.shape)])
    try:
        covered = lift(Scaled(), 3, RING, "messages", noise=0.5, seed=0)
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
        same = nn.Linear(8, 3, bias=False)
        plain = lift(same, 3, RING, "messages", noise=0.5, seed=0)
        with torch.no_grad():
            plain.net.weight.copy_(2 * covered.net.weight)
        torch.testing.assert_close(covered(x), plain(x))
    finally:
        register(Scaled, lambda layer: [])
    with pytest.raises(McoverError, match="a function of a layer"):
        register(Scaled, 3)
    for odd in (None, 3, "Linear", int, nn.Linear(2, 2)):
        with pytest.raises(McoverError, match=r"kind is .*full name"):
            register(odd, lambda layer: [])


def test_the_report_counts_what_was_really_called():
    class Unused(Parting):
        def forward(self, x):
            return self.a(x) + x @ self.b.weight.T

    covered = lift(Unused(), 3, RING, "messages", seed=0)
    treatments = {row.name: row.treatment for row in covered.report().rows}
    assert treatments == {"a": "mixed", "b": "mixed", "c": "mixed"}
    with pytest.warns(McoverWarning, match=r"met at 1 layers of 3: not at \['b', 'c'\]"):
        report = covered.report(torch.ones(2, 4))
    treatments = {row.name: row.treatment for row in report.rows}
    assert treatments == {"a": "mixed", "b": "copied", "c": "copied"}


@both
@pytest.mark.parametrize("method", ["old", "new"])
@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm", "prune"])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
def test_computed_weights_mix_train_and_collapse(routing, kind, method):
    layer = nn.Linear(8, 8).double()
    if kind == "prune":
        prune.l1_unstructured(layer, "weight", 0.5)
    else:
        getattr(nn.utils if method == "old" else nn.utils.parametrizations, kind)(layer)
    model = mlp(layer)
    x = doubles(4, 6)
    model(x)  # leaves a weight that is no leaf of the graph
    covered = lift(model, 3, RING, routing, seed=0)
    optimizer = torch.optim.SGD(covered.parameters(), 0.05)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = covered(x).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    if routing == "messages":
        assert "1" in covered._met
    net = covered.collapse()
    assert list(net.state_dict()) == list(model.state_dict())
    assert net(x).shape == (4, 3)
    copy.deepcopy(covered)(x)


def test_causal_attention_wants_its_mask_as_in_torch():
    covered = lift(nn.MultiheadAttention(4, 2), 3, RING, "messages", seed=0)
    x = torch.zeros(5, 2, 4)
    with pytest.raises(RuntimeError, match="Need attn_mask"):
        covered(x, x, x, is_causal=True, need_weights=False)
