"""The directed lift's kin and its parts: DropConnect, soups, students, growth, distances."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.random import SeedSequence
from torch.func import functional_call
from torch.nn import functional

import mcover
from mcover import Directed, Identity, McoverError, Uniform
from reproduction import data
from reproduction.committee import CommitteeMachine
from reproduction.models import Mlp, one_thread
from reproduction.studies import find_study
from reproduction.studies.league import LIFT, SHORT
from reproduction.training import (
    RSGD,
    SGD,
    CoverTrial,
    DistilledTrial,
    Lifted,
    NetworkTrial,
    Soup,
    Training,
    draws,
    fit,
    loop,
)
from reproduction.training.draws import Batches
from reproduction.training.objectives import DistillingObjective, distance

TINY = Mlp((64, 12, 10))
SMALL = {"images": 100, "model": "small-mlp"}


@pytest.fixture(scope="module")
def digits():
    return data.subset(data.load("digits"), 200, seed=0)


@pytest.fixture(scope="module")
def pair():
    return data.subset(data.load("digits:3,8", binarize="median"), 100, seed=0)


@pytest.fixture(autouse=True)
def alone():
    with one_thread():
        yield


def same(model, other):
    return all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))


def seeds_of(seed):
    """Seeds of the order of the images and of noise, as the loop has them."""
    _, order, noise, _ = SeedSequence(seed).spawn(4)
    return order, noise


def batches_of(dataset, size, seed):
    images = torch.from_numpy(dataset.train_images)
    return Batches(images, torch.from_numpy(dataset.train_labels), size, seeds_of(seed)[0], None)


def sgd(parameters, lr=0.05):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, nesterov=True)


def test_drop_connect_is_the_gradient_through_masked_weights(digits):
    model, twin, share = TINY.build(0), TINY.build(0), 0.3
    fit(model, digits, Training(2, 50, drop_connect=share), seed=3)
    rng, batches = draws.generator(seeds_of(3)[1]), batches_of(digits, 50, 3)
    optimizer = sgd(twin.parameters())
    for _ in range(8):
        x, y = batches.next()
        masked = {
            name: one * (torch.rand(one.shape, generator=rng) >= share) / (1 - share)
            for name, one in twin.named_parameters()
        }
        optimizer.zero_grad()
        functional.cross_entropy(functional_call(twin, masked, (x,)), y).backward()
        optimizer.step()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_drop_connect_drops_its_share_keeps_the_mean_and_takes_all_back():
    weights = [torch.nn.Parameter(torch.ones(200, 200)), torch.nn.Parameter(torch.ones(5))]
    before = [one.detach().clone() for one in weights]

    def crash():
        with draws.dropped(weights, 0.25, torch.Generator().manual_seed(0)):
            assert weights[0].detach().unique().tolist() == pytest.approx([0, 4 / 3])
            assert abs(float((weights[0] == 0).float().mean()) - 0.25) < 0.01
            assert abs(weights[0].mean().item() - 1) < 0.02
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        crash()
    assert all(map(torch.equal, weights, before))


def test_without_a_share_nothing_is_drawn(digits):
    rng = torch.Generator().manual_seed(0)
    state = rng.get_state()
    with draws.dropped([torch.nn.Parameter(torch.ones(3))], 0.0, rng):
        pass
    assert torch.equal(rng.get_state(), state)
    plain, twin = TINY.build(0), TINY.build(0)
    fit(plain, digits, Training(3, 50, drop_connect=0.0))
    optimizer, batches = sgd(twin.parameters()), batches_of(digits, 50, 0)
    for _ in range(12):
        x, y = batches.next()
        optimizer.zero_grad()
        functional.cross_entropy(twin(x), y).backward()
        optimizer.step()
    assert same(plain, twin)


def test_covers_drop_weights_of_their_own(digits):
    covered = mcover.lift(TINY.build(0), 3, Identity(), "directed", noise=0.0, seed=0)
    fit(covered, digits, Training(1, 50, drop_connect=0.3))
    assert distance(covered) > 0


@pytest.mark.parametrize("trunk", [0.0, 0.5])
def test_a_soup_of_one_branch_is_plain_sgd_bit_by_bit(trunk, digits):
    plain, soup = TINY.build(0), TINY.build(0)
    settings = Training(4, 50, weight_noise=0.01)
    fit(plain, digits, settings)
    history = fit(soup, digits, settings, Soup(branches=1, trunk=trunk))
    assert same(plain, soup)
    assert same(plain, history.model)


@pytest.mark.parametrize("trunk", [0.0, 0.3])
def test_a_soup_is_the_mean_of_branches_that_leave_the_trunk(trunk, digits):
    how, epochs = Soup(branches=3, trunk=trunk), 9
    (before, each), model = how.split(epochs), TINY.build(0)
    assert (before, each) == ((3, 2) if trunk else (0, 3))
    history = fit(model, digits, Training(epochs, 50, evaluate_every=epochs), how, seed=1)
    base, batches = TINY.build(0), batches_of(digits, 50, 1)
    optimizer, ends = sgd(base.parameters()), []

    def train(passes):
        for _ in range(passes * batches.length):
            x, y = batches.next()
            optimizer.zero_grad()
            functional.cross_entropy(base(x), y).backward()
            optimizer.step()

    train(before)
    left = copy.deepcopy(base.state_dict()), copy.deepcopy(optimizer.state_dict())
    for _ in range(3):
        base.load_state_dict(left[0])
        optimizer.load_state_dict(copy.deepcopy(left[1]))
        train(each)
        ends.append(copy.deepcopy(base.state_dict()))
    assert same(model, base)  # the last branch
    for name, tensor in history.model.state_dict().items():
        mean = torch.stack([end[name] for end in ends]).mean(0)
        torch.testing.assert_close(tensor, mean, rtol=1e-5, atol=1e-6)
    assert history.gradients.tolist() == [epochs * 4]


def test_branches_of_a_committee_are_as_sharp_as_a_training_of_their_length(pair, monkeypatch):
    seen = []
    monkeypatch.setattr(CommitteeMachine, "sharpen", lambda self, epoch: seen.append(epoch))
    settings = Training(8, 50, 1.0, 0.0, stop_error=1.0)
    history = fit(CommitteeMachine(64, 5, seed=0), pair, settings, Soup(branches=2, trunk=0.5))
    assert seen == [0, 1, 2, 3, 4, 5, 4, 5]
    assert history.stopped == "errors"  # in the end, not as soon as the rule is met
    assert history.epoch[-1] == 8


def test_a_soup_needs_an_epoch_for_each_branch(digits):
    with pytest.raises(McoverError, match="3 epochs leave none for each of 4 branches"):
        fit(TINY.build(0), digits, Training(3, 50), Soup())


def test_a_student_follows_labels_and_teachers(digits):
    """Against Kullback-Leibler divergences written out: they differ by what no weight moves."""
    student, twin = TINY.build(0), TINY.build(0)
    teachers = [TINY.build(1), TINY.build(2)]
    x = torch.from_numpy(digits.train_images[:20])
    y = torch.from_numpy(digits.train_labels[:20])
    DistillingObjective(student, teachers, 3.0, 0.7).gradient(x, y, each=False)
    target = torch.stack([(one(x).detach() / 3).softmax(-1) for one in teachers]).mean(0)
    logits = twin(x)
    soft = (target * (target.log() - (logits / 3).log_softmax(-1))).sum(-1).mean()
    hard = -logits.log_softmax(-1)[torch.arange(20), y].mean()
    (0.3 * hard + 0.7 * 9 * soft).backward()
    for one, other in zip(student.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


def test_a_student_of_labels_alone_is_the_plain_network():
    plain = NetworkTrial("digits", Training(2, 50), SGD(), **SMALL).run(4)
    trial = DistilledTrial("digits", Training(2, 50), members=2, weight=0.0, **SMALL)
    found = trial.run(4)
    assert (found["error"], found["loss"]) == (plain["error"], plain["loss"])
    assert found["gradients"] == 3 * plain["gradients"]
    other = replace(trial, weight=1.0).run(4)
    assert other["loss"] != plain["loss"]


def test_a_student_is_one_model(digits):
    covered = mcover.lift(TINY.build(0), 2, Uniform(), "directed", seed=0)
    with pytest.raises(McoverError, match="is covered"):
        DistillingObjective(covered, [], 1.0, 0.5)


def test_a_cover_trial_counts_single_covers():
    method = Lifted(noise=0.05, routing=Directed(redraw_every=2))
    whole = NetworkTrial("digits", Training(3, 50), method, **SMALL).run(1)
    cover = CoverTrial("digits", Training(3, 50), method, **SMALL).run(1)
    assert cover["error"] == cover["cover_error"] == whole["cover_error"]
    assert cover["collapse_error"] == whole["error"] != cover["error"]


def test_all_lines_of_the_league_take_as_many_gradients():
    counted = {cell.series: cell.trial.run(0) for cell in find_study("league").at("smoke")}
    gradients = {series: found["gradients"] for series, found in counted.items()}
    assert gradients.pop(SHORT) == gradients[LIFT] / 4
    assert set(gradients.values()) == {4 * 5 * 2}
    # Without noise all covers are equal, and routes change nothing.
    assert counted["no noise"]["error"] == counted[SHORT]["error"]
    for cell in find_study("league").at("paper"):
        for trial in cell.choices.values():
            if isinstance(getattr(trial, "method", None), Soup):
                trunk, each = trial.method.split(trial.training.epochs)
                assert trunk == trial.method.trunk * 240 == 240 - 4 * each


def test_growth_over_all_epochs_is_that_of_before(digits):
    def trained(**how):
        covered = mcover.lift(TINY.build(0), 3, Identity(), "messages", noise=0.1, seed=0)
        method = RSGD(covers=3, growth=100.0, **how)
        return fit(covered, digits, Training(4, 50), method).model

    assert same(trained(), trained(growth_epochs=4))
    assert not same(trained(), trained(growth_epochs=2))


def test_a_coupling_that_has_grown_stays(digits):
    covered = mcover.lift(TINY.build(0), 3, Identity(), "messages", noise=0.1, seed=0)
    method = RSGD(covers=3, coupling=0.01, growth=100.0, growth_epochs=2)
    course = loop.Loop(covered, digits, Training(6, 50), method, 0)
    (group,) = course.optimizer.param_groups
    pulls = []
    for taken in (0, 4, 8, 20):  # of 4 batches an epoch
        group["taken"] = taken
        pulls.append(course.optimizer._pull(group))
    np.testing.assert_allclose(pulls, 2 * 0.05 * 0.01 * np.array([1, 10, 100, 100]))


@pytest.mark.parametrize("covers", [1, 2, 4])
def test_the_distance_is_that_of_pairs_of_rows(covers):
    machines = [CommitteeMachine(30, 5, seed=seed) for seed in range(covers)]
    rows = [machine.J.detach() for machine in machines]
    covered = mcover.lift(machines[0], machines, Uniform(), Directed(), noise=0.0, seed=0)
    pairs = [
        float((rows[a] - rows[b]).square().sum(-1).mean() / 30)
        for a in range(covers)
        for b in range(a)
    ]
    assert distance(covered) == pytest.approx(np.mean(pairs) if pairs else 0.0, rel=1e-5)
    assert distance(machines[0]) is None


def test_equal_covers_have_no_distance_and_the_trial_keeps_it():
    covered = mcover.lift(TINY.build(0), 3, Uniform(), "directed", noise=0.0, seed=0)
    assert distance(covered) == 0
    method = RSGD(covers=3, noise=0.1, coupling=float("inf"))
    found = NetworkTrial("digits", Training(1, 50), method, **SMALL).run(0)
    assert found["distance"] < 1e-12
    assert "distance" not in NetworkTrial("digits", Training(1, 50), SGD(), **SMALL).run(0)
