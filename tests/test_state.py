"""The state of a covered model: its parameters for optimizers, checkpoints, mixer dtypes."""

import copy
import time

import pytest
import torch
from torch import nn

import mcover
from covering import RING, both, doubles, mlp
from mcover import McoverError, Messages, announce, lift
from mcover.nn import state
from tiny_models import Transformer, routed, tiny


def test_weight_decay_looks_at_single_covers():
    covered = lift(mlp(nn.LayerNorm(8)), 3, RING, "messages", noise=0.3, seed=0)
    decayed, spared = covered.parameter_groups(lr=0.1, weight_decay=0.01)
    assert {p.ndim for p in decayed["params"]} == {3}
    assert {p.ndim for p in spared["params"]} == {2}
    assert (decayed["weight_decay"], spared["weight_decay"], spared["lr"]) == (0.01, 0.0, 0.1)
    torch.optim.AdamW([decayed, spared])


class Scalars(nn.Module):
    """A learnable temperature, as CLIP has, and one that covers share."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 3)
        self.scale, self.shift = (nn.Parameter(torch.tensor(v)) for v in (2.0, 0.5))

    def forward(self, x):
        return self.out(x) * self.scale + self.shift


@pytest.mark.parametrize("max_norm", [0.1, 1e9])
def test_clipping_takes_each_cover_by_itself_with_scalars_and_what_covers_share(max_norm):
    base = Scalars().double()
    covered = lift(base, 3, mcover.Identity(), "directed", select=["out", "scale"], seed=0)
    covered(doubles(4, 6)).square().sum().backward()
    models = [copy.deepcopy(base) for _ in range(3)]
    for k, model in enumerate(models):
        for name, stack in covered.stacks().items():
            model.get_parameter(name).grad = stack.grad[k].clone()
        model.shift.grad = covered.net.shift.grad.clone()
    norms = [torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm) for model in models]
    torch.testing.assert_close(covered.clip_grad_norm_(max_norm), torch.stack(norms))
    for k, model in enumerate(models):
        for name, stack in covered.stacks().items():
            torch.testing.assert_close(stack.grad[k], model.get_parameter(name).grad)
    least = min(model.shift.grad.abs() for model in models)
    torch.testing.assert_close(covered.net.shift.grad.abs(), least)


@both
def test_loading_a_state_brings_its_own_routes(routing):
    how = routed(routing, redraw_every=2)
    one, other = (lift(mlp(), 3, RING, how, seed=s) for s in (1, [2, 3]))
    for _ in range(3):
        one(doubles(4, 6))
    other.load_state_dict(one.state_dict())
    assert other.seed.entropy == one.seed.entropy
    torch.testing.assert_close(other(doubles(4, 6)), one(doubles(4, 6)), rtol=0, atol=0)
    given = one.state_dict()
    del given["_extra_state"]
    other.load_state_dict(given, strict=False)  # keeps routes and inverses that belong together
    torch.testing.assert_close(other.eval()(doubles(4, 6)), one.eval()(doubles(4, 6)))
    wrong = lift(mlp(), 3, mcover.Uniform(), routing, seed=1)
    before = wrong.get_extra_state()
    with pytest.raises(McoverError, match="cannot be reproduced"):
        wrong.load_state_dict(one.state_dict())
    assert torch.equal(wrong.get_extra_state(), before)  # its own routes are in force again


@both
def test_complex_weights_are_right(routing):
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4, dtype=torch.complex128)

        def forward(self, x):
            return self.inner(x).abs().square()

    x = torch.complex(doubles(3, 4), doubles(3, 4, seed=1))
    covered = lift(Complex(), 2, RING, routing, noise=0.3, seed=0).eval()
    stack = covered.net.inner.weight
    assert stack.imag.std(0).min() > 0
    assert (stack[0] - stack[1]).imag.abs().min() > 0
    got = torch.autograd.grad(covered(x).sum(), stack)[0]
    for direction in (1, 1j):
        ends = []
        for size in (1e-6, -1e-6):
            with torch.no_grad():
                stack[1, 2, 3] += size * direction
                ends.append(covered(x).sum())
                stack[1, 2, 3] -= size * direction
        part = got[1, 2, 3].real if direction == 1 else got[1, 2, 3].imag
        assert float(ends[0] - ends[1]) / 2e-6 == pytest.approx(float(part), rel=1e-5)
    assert covered.collapse().inner.weight.is_complex()


def test_a_lift_that_takes_long_says_what_it_does(monkeypatch, caplog):
    model = nn.Linear(30, 20)
    lift(model, 3, RING, "directed", seed=0)
    assert not caplog.records
    monkeypatch.setattr(announce, "PATIENCE", 0.0)
    monkeypatch.setattr(announce, "BRIEF", 0)
    draw = state.draw_indexed_bank
    monkeypatch.setattr(state, "draw_indexed_bank", lambda *a: (time.sleep(0.05), draw(*a))[1])
    lift(model, 3, RING, "directed", seed=0)
    assert "drawing routes for 620 parameters of 3 covers" in caplog.text


@pytest.mark.parametrize("draws", [1, 3, 7, 10, 24, 39])
def test_a_checkpoint_does_not_depend_on_the_dtype_of_the_weights(draws):
    single, double, half = (
        lift(mlp().float(), 3, RING, Messages(draws=draws), seed=0).to(dtype)
        for dtype in (torch.float32, torch.float64, torch.bfloat16)
    )
    fresh = lift(mlp().double(), 3, RING, Messages(draws=draws), seed=0)
    models = [single, double, half]

    def check():
        for name, mixer in fresh.mixers().items():  # as if they had been drawn in that dtype
            for model in models:
                assert torch.equal(model.mixers()[name], mixer.to(model.mixers()[name].dtype))

    check()
    for source in models:
        for target in (*models, fresh):
            target.load_state_dict(source.state_dict())
    check()
    sums = double.mixers()["0"].sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-15)


@pytest.mark.parametrize("draws", [10, 30])
def test_mixers_have_the_dtype_of_their_own_layer_tied_ones_too(draws):
    model = nn.Sequential(nn.Linear(6, 8).bfloat16(), nn.Linear(8, 3).double())
    mixers = lift(model, 3, RING, Messages(draws=draws), seed=0).mixers()
    assert [mixer.dtype for mixer in mixers.values()] == [torch.bfloat16, torch.float64]
    sums = mixers["1"].sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-15)
    model, x = tiny(Transformer)
    covered = lift(model, 3, RING, Messages(draws=draws), seed=0)
    assert {mixer.dtype for mixer in covered.mixers().values()} == {torch.float64}
    assert covered(x).shape == (3, 3, 5, 6)
