"""The state of a covered model: stacks, noise, routes, and what optimizers see of them."""

import copy
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import mcover  # noqa: E402
from covering import RING, ROUTINGS, doubles, mlp  # noqa: E402
from mcover import Directed, McoverError, Messages, lift  # noqa: E402
from mcover.errors import McoverWarning  # noqa: E402
from tiny_models import routed  # noqa: E402


def test_frozen_parameters_are_shared_and_stay_what_they_are():
    model = mlp()
    model[0].requires_grad_(False)
    covered = lift(model, 3, RING, "messages", noise=0.5, seed=0)
    assert covered.lifted == ("2.weight", "2.bias")
    assert torch.equal(covered.net[0].weight, model[0].weight)
    assert torch.equal(covered.collapse()[0].weight, model[0].weight)
    assert covered(doubles(4, 6)).shape == (3, 4, 3)
    named = lift(model, 3, RING, "messages", select=["0", "2"], noise=0.5, seed=0)
    assert named.net[0].weight.shape == (3, 8, 6)
    for value in model.parameters():
        value.requires_grad_(False)
    with pytest.raises(McoverError, match="no parameter of the model trains"):
        lift(model, 3, RING, "messages")


def test_rows_of_an_embedding_that_do_not_train_get_no_noise():
    model = nn.Sequential(nn.Embedding(5, 4, padding_idx=1), nn.Linear(4, 2))
    covered = lift(model, 3, RING, "messages", noise=0.5, seed=0)
    assert not covered.net[0].weight[:, 1].any()
    assert covered.net[0].weight[:, 0].std(0).min() > 0


def test_noise_is_a_share_of_each_tensors_own_spread():
    model = nn.Sequential(nn.Linear(300, 300), nn.LayerNorm(300), nn.Linear(300, 300))
    nn.init.normal_(model[2].weight, std=0.001)
    covered = lift(model, 4, RING, "messages", noise="20%", seed=0)
    for index in (0, 2):
        own = model[index].weight.detach()
        gaps = covered.net[index].weight.detach() - own
        assert float(gaps.std()) == pytest.approx(0.2 * float(own.std()), rel=0.02)
    assert torch.equal(covered.net[1].weight[3], model[1].weight)  # all ones: no spread
    for wrong in ("20", "-5%", "much", None, -0.1, float("nan"), True):
        with pytest.raises(McoverError, match="noise is"):
            lift(model, 3, RING, "messages", noise=wrong)


@pytest.mark.filterwarnings("default::mcover.errors.McoverWarning")
def test_absolute_noise_that_drowns_a_tensor_warns_with_its_name():
    model = nn.Sequential(nn.Linear(50, 50), nn.Linear(50, 50))
    nn.init.normal_(model[1].weight, std=0.01)
    with pytest.warns(McoverWarning, match=r"\d\d+% of .* of '1.weight'.*noise='10%'"):
        lift(model, 3, RING, "messages", noise=0.01, seed=0)


def test_weight_decay_and_clipping_look_at_single_covers():
    covered = lift(mlp(nn.LayerNorm(8)), 3, RING, "messages", noise=0.3, seed=0)
    decayed, spared = covered.parameter_groups(lr=0.1, weight_decay=0.01)
    assert {p.ndim for p in decayed["params"]} == {3}
    assert {p.ndim for p in spared["params"]} == {2}
    assert (decayed["weight_decay"], spared["weight_decay"], spared["lr"]) == (0.01, 0.0, 0.1)
    torch.optim.AdamW([decayed, spared])
    covered(doubles(4, 6)).square().sum().backward()
    grads = {name: stack.grad.clone() for name, stack in covered.stacks().items()}
    norms = covered.clip_grad_norm_(1.0)
    for k in range(3):
        model = mlp(nn.LayerNorm(8))
        for name, value in model.named_parameters():
            value.grad = grads[name][k].clone()
        total = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        torch.testing.assert_close(norms[k], total)
        for name, value in model.named_parameters():
            torch.testing.assert_close(covered.stacks()[name].grad[k], value.grad)


def test_loading_a_state_brings_its_own_routes():
    for routing in ROUTINGS:
        how = routed(routing, redraw_every=2)
        one, other = (lift(mlp(), 3, RING, how, seed=s) for s in (1, [2, 3]))
        for _ in range(3):
            one(doubles(4, 6))
        other.load_state_dict(one.state_dict())
        assert other.seed.entropy == one.seed.entropy
        torch.testing.assert_close(other(doubles(4, 6)), one(doubles(4, 6)), rtol=0, atol=0)
        state = one.state_dict()
        del state["_extra_state"]
        other.load_state_dict(state, strict=False)  # keeps routes and inverses that belong together
        torch.testing.assert_close(other.eval()(doubles(4, 6)), one.eval()(doubles(4, 6)))
        wrong = lift(mlp(), 3, mcover.Uniform(), routing, seed=1)
        before = wrong.get_extra_state()
        with pytest.raises(McoverError, match="cannot be drawn again"):
            wrong.load_state_dict(one.state_dict())
        assert torch.equal(wrong.get_extra_state(), before)  # its own routes are in force again


def test_complex_weights_are_right_in_both_routings():
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4, dtype=torch.complex128)

        def forward(self, x):
            return self.inner(x).abs().square()

    x = torch.complex(doubles(3, 4), doubles(3, 4, seed=1))
    for routing in ROUTINGS:
        covered = lift(Complex(), 2, RING, routing, noise=0.3, seed=0).eval()
        stack = covered.net.inner.weight
        assert stack.imag.std(0).min() > 0
        assert (stack[0] - stack[1]).imag.abs().min() > 0
        got = torch.autograd.grad(covered(x).sum(), stack)[0]
        for direction in (1, 1j):
            with torch.no_grad():
                stack[1, 2, 3] += 1e-6 * direction
                higher = covered(x).sum()
                stack[1, 2, 3] -= 2e-6 * direction
                lower = covered(x).sum()
                stack[1, 2, 3] += 1e-6 * direction
            slope = float(higher - lower) / 2e-6
            part = got[1, 2, 3].real if direction == 1 else got[1, 2, 3].imag
            assert slope == pytest.approx(float(part), rel=1e-5)
        assert covered.collapse().inner.weight.is_complex()
        with pytest.raises(McoverError, match="no sign"):
            covered.collapse("sign")


def test_a_collapse_of_the_wrong_shape_is_refused():
    covered = lift(mlp(), 3, RING, "messages", seed=0)
    with pytest.raises(McoverError, match=r"\(3, 8, 6\).*shape \(8, 6\)"):
        covered.collapse(lambda stack: stack)
    with pytest.raises(McoverError, match=r"IndexError.*'0.weight'.*shape \(8, 6\)"):
        covered.collapse(lambda stack: stack[7])


def test_a_lift_that_takes_long_says_what_it_does(monkeypatch, caplog):
    from mcover import announce
    from mcover.nn import state as module

    model = nn.Linear(30, 20)
    lift(model, 3, RING, "directed", seed=0)
    assert not caplog.records
    monkeypatch.setattr(announce, "PATIENCE", 0.0)
    monkeypatch.setattr(announce, "BRIEF", 0)
    draw = module.draw_indexed_bank
    monkeypatch.setattr(module, "draw_indexed_bank", lambda *a: (time.sleep(0.05), draw(*a))[1])
    lift(model, 3, RING, "directed", seed=0)
    assert "drawing routes for 620 parameters of 3 covers" in caplog.text


@pytest.mark.parametrize("which", [slice(0, 2), 3, -1, None])
def test_a_destination_outside_the_bank_is_refused_before_compiled_loops_read_it(which):
    covered = lift(mlp(), 3, RING, Directed(bank=3), seed=0)
    assert [len(slices) for slices in covered._slices(2)] == [3] * 4
    with pytest.raises(McoverError, match="destination"):
        covered._slices(which)


class Scalars(nn.Module):
    """A learnable temperature, as CLIP has, and one that covers share."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 3)
        self.scale, self.shift = (nn.Parameter(torch.tensor(v)) for v in (2.0, 0.5))

    def forward(self, x):
        return self.out(x) * self.scale + self.shift


@pytest.mark.parametrize("max_norm", [0.1, 1e9])
def test_clipping_takes_scalars_of_covers_and_those_they_share(max_norm):
    base = Scalars().double()
    covered = lift(base, 3, mcover.Identity(), "directed", select=["out", "scale"], seed=0)
    covered(doubles(4, 6)).square().sum().backward()
    shared = covered.net.shift.grad.clone()
    models = []
    for k in range(3):
        model = copy.deepcopy(base)
        for name, stack in covered.stacks().items():
            model.get_parameter(name).grad = stack.grad[k].clone()
        model.shift.grad = shared.clone()
        models.append(model)
    norms = [torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm) for model in models]
    torch.testing.assert_close(covered.clip_grad_norm_(max_norm), torch.stack(norms))
    for k, model in enumerate(models):
        for name, stack in covered.stacks().items():
            torch.testing.assert_close(stack.grad[k], model.get_parameter(name).grad)
    least = min(model.shift.grad.abs() for model in models)
    torch.testing.assert_close(covered.net.shift.grad.abs(), least)


@pytest.mark.parametrize("draws", [1, 3, 7, 10, 24, 39])
def test_a_checkpoint_does_not_depend_on_the_dtype_of_the_weights(draws):
    single, double, half = (
        lift(mlp().float(), 3, RING, Messages(draws=draws), seed=0).to(dtype)
        for dtype in (torch.float32, torch.float64, torch.bfloat16)
    )
    fresh = lift(mlp().double(), 3, RING, Messages(draws=draws), seed=0)
    models = [single, double, half]
    for source in models:
        for target in (*models, fresh):
            target.load_state_dict(source.state_dict())
    for name, mixer in fresh.mixers().items():  # as if they had been drawn in that dtype
        for model in models:
            assert torch.equal(model.mixers()[name], mixer.to(model.mixers()[name].dtype))
    sums = double.mixers()["0"].sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-15)


@pytest.mark.parametrize("draws", [10, 30])
def test_mixers_have_the_dtype_of_their_own_layer(draws):
    model = nn.Sequential(nn.Linear(6, 8).bfloat16(), nn.Linear(8, 3).double())
    mixers = lift(model, 3, RING, Messages(draws=draws), seed=0).mixers()
    assert [mixer.dtype for mixer in mixers.values()] == [torch.bfloat16, torch.float64]
    sums = mixers["1"].sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-15)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 6), nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.embed(ids))


def test_tied_layers_that_mix_have_mixers_of_one_dtype():
    covered = lift(Tied().double(), 3, RING, "messages", seed=0)
    assert {mixer.dtype for mixer in covered.mixers().values()} == {torch.float64}
    assert covered(torch.arange(4)).shape == (3, 4, 7)


def test_slices_of_destinations_are_numbers_that_were_checked():
    """Compiled loops read the bank without bounds checks."""
    covered = lift(mlp(), 3, RING, Directed(bank=4), seed=0)
    assert len(covered._slices(3)) == len(covered.stacks())
    for which in (slice(0, 2), 4, -1, None, 1.0, True, np.arange(2), torch.tensor([1])):
        with pytest.raises(McoverError, match="destination is"):
            covered._slices(which)
