"""The committee machine: its two outputs, its surrogate at any sharpness, and covers of it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference_committee import votes

import mcover
from reproduction.committee import (
    FAST,
    SLOW,
    CommitteeMachine,
    Sharpening,
    SoftSign,
    collapse,
    machine_of,
    surrogates,
    unit_rows,
)
from reproduction.training.options import SHARPEST

SHARP = SLOW.at(20_000)


def patterns(count, inputs, seed=0, dtype=torch.float32):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.choice([-1.0, 1.0], size=(count, inputs))).to(dtype)


@pytest.mark.parametrize("hidden", [1, 4, 9])
def test_the_hard_output_is_the_majority_of_the_hidden_signs(hidden):
    machine = CommitteeMachine(6, hidden, seed=hidden)
    x = patterns(40, 6)
    by_hand = [votes(machine.J.tolist(), pattern.tolist()) for pattern in x]
    assert machine.classify(x).tolist() == by_hand
    assert machine.predict(x).tolist() == [int(label > 0) for label in by_hand]
    assert {-1, 1} == set(by_hand)


def test_ties_of_the_vote_and_fields_of_zero_count_as_plus():
    machine = CommitteeMachine(2, hidden=2)
    with torch.no_grad():
        machine.J.copy_(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))
    assert machine.classify(torch.tensor([[1.0, 1.0], [-1.0, -1.0]])).tolist() == [1, 1]
    one = CommitteeMachine(2, hidden=1)
    with torch.no_grad():
        one.J.copy_(torch.tensor([[1.0, -1.0]]))
    assert one.classify(torch.ones(1, 2)).tolist() == [1]
    odd = CommitteeMachine(2, hidden=3)
    with torch.no_grad():
        odd.J.copy_(torch.tensor([[1.0, -1.0], [-1.0, -1.0], [-1.0, -1.0]]))
    assert odd.classify(torch.ones(1, 2)).tolist() == [-1]


def test_the_soft_output_is_the_formula_and_tends_to_the_votes():
    machine = CommitteeMachine(6, hidden=3, seed=1).double()
    x = patterns(20, 6, dtype=torch.float64)
    fields = x @ machine.J.T
    machine.beta = 0.7
    expected = torch.tanh(0.7 * fields / math.sqrt(6)).sum(1) / math.sqrt(3)
    torch.testing.assert_close(machine(x), expected)
    torch.testing.assert_close(machine(x.reshape(20, 2, 3)), expected)
    machine.sharpen(20_000)
    torch.testing.assert_close(machine(x), torch.sign(fields).sum(1) / math.sqrt(3))


def test_weights_follow_the_seed_and_rows_have_the_norm_of_the_patterns():
    first, same, other = (CommitteeMachine(50, 5, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.J, same.J)
    assert not torch.equal(first.J, other.J)
    torch.testing.assert_close(first.J.square().sum(1), torch.full((5,), 50.0))
    assert torch.equal(unit_rows(torch.zeros(2, 3)), torch.zeros(2, 3))


@given(st.floats(-30, 30), st.floats(1e-3, 1e9))
def test_the_surrogate_lies_between_the_linear_loss_and_its_known_excess(z, gamma):
    value = float(surrogates(torch.tensor(z, dtype=torch.float64), gamma))
    exact = np.logaddexp(0, -2 * gamma * z) / (2 * gamma)
    assert value == pytest.approx(exact, rel=1e-12, abs=1e-300)
    linear = max(0.0, -z)
    assert linear - 1e-9 <= value <= linear + math.log(2) / (2 * gamma) + 1e-9


@given(st.floats(-60, 60))
def test_the_slope_of_the_soft_sign_keeps_its_digits_in_single_precision(a):
    at = torch.tensor(a, dtype=torch.float32, requires_grad=True)
    (found,) = torch.autograd.grad(SoftSign.apply(at), at)
    exact = 1 / math.cosh(float(at.detach())) ** 2
    # exp loses as many digits as its argument has before the point
    assert float(found) == pytest.approx(exact, rel=2e-5, abs=1e-37)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_stay_finite_at_the_end_of_the_longest_schedule(dtype):
    beta, gamma = SHARP
    assert beta == gamma == pytest.approx(0.5 * 1.001**20_000)
    machine = CommitteeMachine(100, 9, seed=0).to(dtype)
    machine.sharpen(20_000)
    x, y = patterns(50, 100, dtype=dtype), patterns(1, 50, seed=1, dtype=dtype)[0]
    loss = machine.loss(machine(x), y)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(machine.J.grad).all()
    z = y * torch.sign(machine.fields(x).detach()).sum(1) / 3
    assert float(loss.detach()) == pytest.approx(float((-z).clamp_min(0).mean()), rel=1e-5)


def test_schedules_grow_each_epoch_and_never_leave_the_range():
    assert SLOW.at(0) == (0.5, 0.5)
    assert FAST.at(0) == (2.0, 5.0)
    beta, gamma = FAST.at(100)
    assert beta == pytest.approx(2 * 1.0001**100)
    assert gamma == pytest.approx(5 * 1.0001**100)
    assert SLOW.at(10**7) == (SHARPEST, SHARPEST)
    own = Sharpening(1.0, 0.0, 3.0, 0.5)
    assert own.at(2) == (1.0, pytest.approx(6.75))
    assert str(SLOW) == "slow"


def test_all_covers_and_the_collapse_share_beta_and_gamma():
    covered = mcover.lift(CommitteeMachine(8, 3), 3, mcover.Identity(), "messages", seed=0)
    machine_of(covered).sharpen(500)
    assert not list(covered.buffers())
    x = patterns(5, 8)
    for index in range(3):
        one = covered.cover(index)
        assert (one.beta, one.gamma) == SLOW.at(500)
        torch.testing.assert_close(covered(x)[index], one(x))
    single = collapse(covered)
    assert (single.beta, single.gamma) == SLOW.at(500)
    mean = covered.net.J.detach().mean(0)
    torch.testing.assert_close(single.J.detach(), unit_rows(mean))
    torch.testing.assert_close(covered.collapse().J.detach(), mean)
    assert torch.equal(single.classify(x), covered.collapse().classify(x))
