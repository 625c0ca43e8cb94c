"""Covers meet at layers that mix; code that prevents a meeting raises an error with its place.

Torch's thread-local modes, context variables and warning handlers belong to a cover.
"""

import contextlib
import contextvars
import subprocess
import sys
import traceback

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import mcover
from covering import RING, Parting, both, doubles, mlp, squares, train
from mcover import McoverError, Messages, cover_loss, lift
from mcover.nn import Shape, lockstep, register


def test_the_conductor_runs_covers_without_layers_to_the_end():
    variable = contextvars.ContextVar("variable", default="lost")
    variable.set("found")
    assert lockstep.run([lambda: 1, variable.get]) == [1, "found"]
    with pytest.raises(McoverError, match="outside of the covered model's forward"):
        lockstep.meet("here", None, list)


def test_meetings_hand_each_cover_its_part():
    def cover(k):
        total = lockstep.meet("sum", k, lambda all_: [sum(all_) + own for own in all_])
        return lockstep.meet("product", total, lambda all_: [2 * own for own in all_])

    assert lockstep.run([lambda k=k: cover(k) for k in range(3)]) == [6, 8, 10]


# --- what prevents a meeting ----------------------------------------------------------------------


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
        assert "this line is at fault" in "".join(traceback.format_tb(caught.tb))
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


# --- which layers mix -----------------------------------------------------------------------------


class Scaled(nn.Module):
    """A layer of an unknown kind."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 8))

    def forward(self, x):
        return x @ (2 * self.weight).T


class OwnForward(nn.Linear):
    def forward(self, x):
        return F.linear(x.clamp(min=-9), self.weight * 1.0, self.bias) + 1


def test_subclasses_mix_by_themselves():
    covered = lift(nn.Sequential(OwnForward(6, 8)), 3, RING, "messages", noise=0.5, seed=0)
    x = doubles(4, 6).float()
    got = covered(x)
    plain = lift(nn.Sequential(nn.Linear(6, 8)), 3, RING, "messages", noise=0.5, seed=0)
    plain.load_state_dict(covered.state_dict())
    assert torch.equal(plain.mixers()["0"], covered.mixers()["0"])
    torch.testing.assert_close(got, plain(x) + 1)


def test_layers_that_are_registered_mix():
    with pytest.raises(McoverError, match=r"nothing in this model would mix.*Scaled"):
        lift(Scaled(), 3, RING, "messages", seed=0)
    register(Scaled, lambda layer: [Shape(*layer.weight.shape)])
    try:
        covered = lift(Scaled(), 3, RING, "messages", noise=0.5, seed=0)
        plain = lift(nn.Linear(8, 3, bias=False), 3, RING, "messages", noise=0.5, seed=0)
        with torch.no_grad():
            plain.net.weight.copy_(2 * covered.net.weight)
        x = doubles(4, 8).float()
        torch.testing.assert_close(covered(x), plain(x))
    finally:
        register(Scaled, lambda layer: [])


def test_a_covered_model_is_part_of_a_larger_one():
    larger = nn.Sequential(nn.Linear(2, 6).double(), lift(mlp(), 3, RING, "messages", seed=0))
    larger(doubles(5, 2)).sum().backward()
    assert larger[0].weight.grad is not None


def test_computed_weights_mix():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8).double())
    covered = lift(mlp(layer), 3, RING, "messages", seed=0)
    losses = train(
        lambda: cover_loss(squares, covered(doubles(4, 6)), 0.5), covered.parameters(), 5
    )
    assert losses[-1] < losses[0]
    assert {row.name: row.treatment for row in covered.report().rows}[
        "1.parametrizations.weight"
    ] == "mixed"


@both
def test_attention_with_padding_runs_in_both_modes(routing):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).double()
    x, hidden = doubles(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)
    hidden[0, 3:] = True
    covered = lift(layer, 3, RING, routing, noise=0.0, seed=0)
    for model in (covered, covered.eval()):  # equal covers: mixing changes nothing
        got, want = (one(x, src_key_padding_mask=hidden) for one in (model, layer))
        torch.testing.assert_close(got[1], want, rtol=1e-9, atol=1e-9)


def test_causal_attention_wants_its_mask_as_in_torch():
    covered = lift(nn.MultiheadAttention(4, 2), 3, RING, "messages", seed=0)
    x = torch.zeros(5, 2, 4)
    with pytest.raises(RuntimeError, match="Need attn_mask"):
        covered(x, x, x, is_causal=True, need_weights=False)


def test_inputs_without_a_batch_axis_pass_through():
    covered, x = lift(mlp(), 3, RING, "messages", noise=0.3, seed=0), doubles(3, 6)
    torch.testing.assert_close(covered(x[0]), covered(x)[:, 0])
    deep = x.view(1, 3, 1, 6)
    torch.testing.assert_close(covered(deep), covered(x).view(3, 1, 3, 1, 3))


# --- modes of a thread ----------------------------------------------------------------------------


class Modes(nn.Module):
    """Enters torch's modes around layers that mix, and checks the modes afterwards."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        assert torch.is_grad_enabled()
        with torch.no_grad():
            h = self.a(x)
            assert not torch.is_grad_enabled()
            h = self.b(h)
            assert not torch.is_grad_enabled()
        assert not h.requires_grad
        assert torch.is_grad_enabled()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            k = self.c(h)
            assert torch.is_autocast_enabled("cpu")
            assert k.dtype == torch.bfloat16
            with torch.autocast("cpu", enabled=False):
                k = self.c(h)
                assert k.dtype == torch.float32
            assert self.c(h).dtype == torch.bfloat16
        assert not torch.is_autocast_enabled("cpu")
        with torch.inference_mode():
            free = self.b(h)
            assert torch.is_inference_mode_enabled()
            assert self.b(free).is_inference()
        assert not torch.is_inference_mode_enabled()
        return self.c(h) + k


@both
def test_modes_of_torch_belong_to_a_cover(routing):
    covered = lift(Modes(), 3, RING, routing, noise=0, seed=0)
    x = doubles(2, 4).float()
    torch.testing.assert_close(covered(x)[1], covered.cover(1)(x))
    covered(x).sum().backward()
    assert covered.net.a.weight.grad is None or not covered.net.a.weight.grad.any()
    assert covered.net.c.weight.grad.any()
    plain = lift(mlp(), 3, RING, routing, seed=0)
    with torch.inference_mode():
        assert plain(doubles(2, 6)).is_inference()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert plain(doubles(2, 6)).dtype == torch.float64
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_warnings_of_torch_after_a_forward_find_their_handler(tmp_path):
    """Covers stop inside calls of torch, each of which notes its own handler for the thread.

    A handler that is not removed is read by a warning outside such a call, as in the reducer of
    DistributedDataParallel. That ends the process, so the test uses a separate one.
    """
    script = """
import sys, torch, mcover
torch.distributed.init_process_group("gloo", init_method=sys.argv[1], rank=0, world_size=1)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
covered = mcover.lift(net, 3, mcover.Uniform(), seed=0)
model = torch.nn.parallel.DistributedDataParallel(covered, find_unused_parameters=True)
model(torch.ones(3, 4)).sum().backward()
"""
    store = (tmp_path / "store").as_uri()
    done = subprocess.run(
        [sys.executable, "-c", script, store], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "find_unused_parameters=True" in done.stderr
