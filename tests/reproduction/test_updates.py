"""The training loop and every method against explicit updates."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from by_hand import (
    WHOLE,
    assert_same_weights,
    batches_of,
    same_state,
    seeds_of,
    sgd,
    train,
    weights,
)
from torch import nn
from torch.func import functional_call
from torch.nn import functional

import mcover
from mcover import Identity, Uniform
from mcover.nn import binary
from reproduction.binary_models import BinaryMlp
from reproduction.committee import CommitteeMachine
from reproduction.models import Mlp
from reproduction.training import (
    EMA,
    RSGD,
    SAM,
    SWA,
    Elastic,
    Entropy,
    Flips,
    Lifted,
    Soup,
    Training,
    draws,
)
from reproduction.training.loop import Loop, fit
from reproduction.training.objectives import DistillingObjective, distance

TINY = Mlp((64, 12, 10))
ADAM = Training(3, 60, lr=0.01, evaluate_every=3, optimizer="adam", lr_schedule="cosine")


def lifted(base, topology, noise=0.05, covers=3, routing="messages"):
    return mcover.lift(base, covers, topology, routing, noise=noise, seed=0)


def twins(kind=TINY):
    return kind.build(seed=0), kind.build(seed=0)


def cosine(optimizer, epochs, batches):
    """Learning rates lr (1 + cos πt/T)/2."""
    first, total = [group["lr"] for group in optimizer.param_groups], epochs * batches.length

    def before(step):
        for group, lr in zip(optimizer.param_groups, first, strict=True):
            group["lr"] = lr * (1 + math.cos(math.pi * step / total)) / 2

    return before


def test_plain_training_is_sgd_with_nesterov_momentum_written_out(digits):
    model, twin = twins()
    history = fit(model, digits, Training(epochs=4, batch=WHOLE, weight_decay=0.01))
    x, y = torch.from_numpy(digits.train_images), torch.from_numpy(digits.train_labels)
    velocity = [torch.zeros_like(one) for one in twin.parameters()]
    for _ in range(4):
        grads = torch.autograd.grad(functional.cross_entropy(twin(x), y), list(twin.parameters()))
        with torch.no_grad():
            for one, grad, v in zip(twin.parameters(), grads, velocity, strict=True):
                grad = grad + 0.01 * one  # weight decay
                v.mul_(0.9).add_(grad)
                one.sub_(0.05 * (grad + 0.9 * v))
    assert_same_weights(model, twin)
    assert history.model is model
    assert history.cover_error.shape == (4, 1)
    np.testing.assert_array_equal(history.cover_error[:, 0], history.collapse_error)
    wrong = model(torch.from_numpy(digits.test_images)).argmax(1).numpy() != digits.test_labels
    assert history.collapse_error[-1] == wrong.mean()


def test_without_noise_or_dropped_weights_it_is_torchs_sgd_bit_by_bit(digits):
    plain, twin = twins()
    fit(plain, digits, Training(3, 50, drop_connect=0.0, weight_noise=0.0))
    train(twin, batches_of(digits, 50, 0), sgd(twin), 3)
    assert same_state(plain, twin)
    rng = torch.Generator().manual_seed(0)
    state = rng.get_state()
    with draws.dropped([nn.Parameter(torch.ones(3))], 0.0, rng):
        assert torch.equal(rng.get_state(), state)


def test_adam_and_its_schedule_are_the_loop_written_out(digits):
    ours, theirs = twins()
    fit(ours, digits, replace(ADAM, momentum=0.8), seed=3)
    adam, batches = (
        torch.optim.Adam(theirs.parameters(), 0.01, (0.8, 0.999)),
        batches_of(digits, 60, 3),
    )
    train(theirs, batches, adam, 3, before=cosine(adam, 3, batches))
    assert_same_weights(ours, theirs)


def test_plain_binary_training_is_the_loop_written_out(digits):
    """At a rate so large that latents are clipped."""
    ours, theirs = twins(BinaryMlp((64, 12, 10)))
    fit(ours, digits, replace(ADAM, lr=0.5), seed=3)
    adam, batches = torch.optim.Adam(theirs.parameters(), 0.5), batches_of(digits, 60, 3)
    schedule = cosine(adam, 3, batches)

    def before(step):
        binary.clip_latents(theirs)
        schedule(step)

    train(theirs, batches, adam, 3, before=before)
    binary.clip_latents(theirs)
    assert_same_weights(ours, theirs)
    assert max(float(one.detach().abs().max()) for one in binary.latents(ours).values()) == 1


def test_bop_is_the_loop_written_out(digits):
    ours, theirs = twins(BinaryMlp((64, 12, 10)))
    fit(ours, digits, ADAM, Flips(1e-2, 1e-6), seed=3)
    binary.snap_latents(theirs)
    rest = torch.optim.Adam(binary.other_parameters(theirs), lr=0.01)
    flips = mcover.optim.Bop(binary.latents(theirs).values(), 1e-2, 1e-6, rest=rest)
    batches = batches_of(digits, 60, 3)
    train(theirs, batches, flips, 3, before=cosine(flips, 3, batches))
    assert_same_weights(ours, theirs)
    assert all(bool((one.abs() == 1).all()) for one in binary.latents(ours).values())


def test_drop_connect_is_the_gradient_through_masked_weights(digits):
    model, twin = twins()
    share, rng = 0.3, draws.generator(seeds_of(3)[1])
    fit(model, digits, Training(2, 50, drop_connect=share), seed=3)

    def loss(x, y):
        masked = {
            name: one * (torch.rand(one.shape, generator=rng) >= share) / (1 - share)
            for name, one in twin.named_parameters()
        }
        return functional.cross_entropy(functional_call(twin, masked, (x,)), y)

    train(twin, batches_of(digits, 50, 3), sgd(twin), 2, loss)
    assert_same_weights(model, twin)
    covered = lifted(TINY.build(0), Identity(), noise=0.0, routing="directed")
    fit(covered, digits, Training(1, 50, drop_connect=share))
    assert distance(covered) > 0  # each cover drops weights of its own


@pytest.mark.parametrize("change", [draws.dropped, draws.noisy])
def test_dropped_and_noisy_weights_are_taken_back_bit_by_bit(change):
    parameters = [nn.Parameter(torch.ones(200, 200)), nn.Parameter(torch.ones(5))]
    before = [one.detach().clone() for one in parameters]

    def crash():
        with change(parameters, 0.25, torch.Generator().manual_seed(0)):
            seen = parameters[0].detach()
            assert abs(seen.mean() - 1) < 0.02
            if change is draws.dropped:
                assert seen.unique().tolist() == pytest.approx([0, 4 / 3])
                assert abs(float((seen == 0).float().mean()) - 0.25) < 0.01
            else:
                assert abs(seen.std().item() - 0.25) < 0.01
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        crash()
    assert all(map(torch.equal, parameters, before))


def test_sam_takes_the_gradient_uphill(digits):
    model, twin = twins()
    fit(model, digits, Training(3, WHOLE, 0.1, 0.0), SAM(rho=0.2))
    x, y = torch.from_numpy(digits.train_images), torch.from_numpy(digits.train_labels)

    def gradient():
        loss = functional.cross_entropy(twin(x), y)
        return torch.autograd.grad(loss, list(twin.parameters()))

    for _ in range(3):
        kept, grads = [one.detach().clone() for one in twin.parameters()], gradient()
        norm = torch.sqrt(sum(grad.square().sum() for grad in grads))
        with torch.no_grad():
            for one, grad in zip(twin.parameters(), grads, strict=True):
                one.add_(0.2 * grad / norm)
        grads = gradient()
        with torch.no_grad():
            for one, grad, before in zip(twin.parameters(), grads, kept, strict=True):
                one.copy_(before - 0.1 * grad)
    assert_same_weights(model, twin)


@pytest.mark.parametrize("method", [EMA(decay=0.8), SWA(average_from=0.5)])
def test_averages_are_those_of_the_weights_along_the_way(method, digits):
    """EMA's of every step, SWA's of the second half of the epochs, which are one step each."""
    steps = [
        weights(fit(TINY.build(0), digits, Training(n, WHOLE, 0.1, 0.0)).model) for n in range(1, 5)
    ]
    mean = (steps[2] + steps[3]) / 2
    if isinstance(method, EMA):
        mean = steps[0]
        for one in steps[1:]:
            mean = 0.8 * mean + 0.2 * one
    model = TINY.build(seed=0)
    history = fit(model, digits, Training(4, WHOLE, 0.1, 0.0), method)
    torch.testing.assert_close(weights(history.model), mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weights(model), steps[-1])


@pytest.mark.parametrize("method", [SWA(average_from=0.0), EMA(decay=0.5)])
@pytest.mark.parametrize("routing", [None, "messages", "directed"])
def test_averages_of_models_with_batch_norm_measure_it_anew(method, routing, digits):
    torch.manual_seed(0)
    base = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    model = base if routing is None else lifted(base, Uniform(), routing=routing)
    found = fit(model, digits, Training(3, 100), method).model
    assert type(found) is nn.Sequential
    assert found[2].num_batches_tracked == 3
    with torch.no_grad():
        seen = found[1](torch.from_numpy(digits.train_images).flatten(1))
    if routing is None:
        torch.testing.assert_close(found[2].running_mean, seen.mean(0), rtol=1e-3, atol=1e-4)
    assert bool(found[2].running_var.isfinite().all())


@pytest.mark.parametrize("trunk", [0.0, 0.5])
def test_a_soup_of_one_branch_is_plain_sgd_bit_by_bit(trunk, digits):
    plain, soup = twins()
    settings = Training(4, 50, weight_noise=0.01)
    fit(plain, digits, settings)
    history = fit(soup, digits, settings, Soup(branches=1, trunk=trunk))
    assert same_state(plain, soup)
    assert same_state(plain, history.model)


@pytest.mark.parametrize("trunk", [0.0, 0.3])
def test_a_soup_is_the_mean_of_branches_that_leave_the_trunk(trunk, digits):
    how, epochs = Soup(branches=3, trunk=trunk), 9
    (before, each), (model, base) = how.split(epochs), twins()
    assert (before, each) == ((3, 2) if trunk else (0, 3))
    history = fit(model, digits, Training(epochs, 50, evaluate_every=epochs), how, seed=1)
    batches, optimizer, ends = batches_of(digits, 50, 1), sgd(base), []
    train(base, batches, optimizer, before)
    left = copy.deepcopy(base.state_dict()), copy.deepcopy(optimizer.state_dict())
    for _ in range(3):
        base.load_state_dict(left[0])
        optimizer.load_state_dict(copy.deepcopy(left[1]))
        train(base, batches, optimizer, each)
        ends.append(weights(base))
    assert same_state(model, base)  # the last branch
    mean = torch.stack(ends).mean(0)
    torch.testing.assert_close(weights(history.model), mean, rtol=1e-5, atol=1e-6)
    assert history.gradients.tolist() == [epochs * batches.length]


def test_a_student_follows_labels_and_teachers(digits):
    """Against explicit Kullback-Leibler divergences, which differ by a constant."""
    student, twin = twins()
    teachers = [TINY.build(1), TINY.build(2)]
    x, y = (torch.from_numpy(one[:20]) for one in (digits.train_images, digits.train_labels))
    DistillingObjective(student, teachers, 3.0, 0.7).gradient(x, y, each=False)
    target = torch.stack([(one(x).detach() / 3).softmax(-1) for one in teachers]).mean(0)
    logits = twin(x)
    soft = (target * (target.log() - (logits / 3).log_softmax(-1))).sum(-1).mean()
    hard = -logits.log_softmax(-1)[torch.arange(20), y].mean()
    (0.3 * hard + 0.7 * 9 * soft).backward()
    for one, other in zip(student.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "training", [Training(2, 64), replace(ADAM, epochs=2)], ids=["sgd", "adam"]
)
@pytest.mark.parametrize("method", [RSGD(covers=3, coupling=0.0), Elastic(covers=3, coupling=0.0)])
@pytest.mark.parametrize("kind", ["mlp", "committee"])
def test_replicas_without_coupling_train_alone_on_batches_of_their_own(
    kind, method, training, digits, pair
):
    """The first has the batches of a plain training; Adam enlarges rounding of small gradients."""
    base = TINY.build(seed=0).double() if kind == "mlp" else CommitteeMachine(64, 5, seed=0)
    routing = "messages" if kind == "mlp" else "directed"
    covered = lifted(base, Identity(), routing=routing)
    dataset, start = digits if kind == "mlp" else pair, [covered.cover(index) for index in range(3)]
    fit(covered, dataset, training, method, seed=4)
    fit(start[0], dataset, training, seed=4)
    assert_same_weights(covered.cover(0), start[0])
    fit(start[1], dataset, training, seed=4)
    assert not torch.allclose(weights(covered.cover(1)), weights(start[1]), atol=1e-4)


@pytest.mark.parametrize("method", [RSGD(covers=3, coupling=np.inf), Elastic(3, coupling=np.inf)])
def test_replicas_of_infinite_coupling_stay_together(method, digits):
    covered = lifted(TINY.build(0), Identity())
    history = fit(covered, digits, Training(2, 64), method)
    torch.testing.assert_close(weights(covered.cover(0)), weights(covered.cover(2)))
    np.testing.assert_array_equal(history.cover_error[-1], history.collapse_error[-1])


def test_elastic_hands_back_its_centre(digits):
    covered = lifted(TINY.build(0), Identity())
    history = fit(covered, digits, Training(2, 64), Elastic(covers=3, coupling=0.1, period=7))
    assert not torch.allclose(weights(history.model), weights(covered.collapse()), atol=1e-6)


def test_a_walk_longer_than_an_epoch_takes_its_batches_from_the_next(digits):
    settings = Training(epochs=3, batch=150, evaluate_every=2)
    history = fit(TINY.build(seed=0), digits, settings, Entropy(inner_steps=5))
    np.testing.assert_array_equal(history.epoch, [2.5, 5.0])
    assert history.gradients.tolist() == [5, 10]


def test_a_coupling_grows_over_its_epochs_and_stays(digits):
    def pulls(epochs, **how):
        covered = lifted(TINY.build(0), Identity(), noise=0.1)
        method = RSGD(covers=3, coupling=0.01, growth=100.0, **how)
        course = Loop(covered, digits, Training(epochs, 75), method, 0)
        (group,) = course.optimizer.param_groups
        found = []
        for taken in (0, 4, 8, 20):  # of 4 batches an epoch
            group["taken"] = taken
            found.append(course.optimizer._pull(group))
        return found

    np.testing.assert_allclose(
        pulls(6, growth_epochs=2), 2 * 0.05 * 0.01 * np.array([1, 10, 100, 100])
    )
    assert pulls(2) == pulls(2, growth_epochs=2)  # all epochs by default


@pytest.mark.parametrize("covers", [1, 2, 4])
def test_the_distance_is_that_of_pairs_of_rows(covers):
    machines = [CommitteeMachine(30, 5, seed=seed) for seed in range(covers)]
    rows = [machine.J.detach() for machine in machines]
    covered = mcover.lift(machines[0], machines, Uniform(), mcover.Directed(), noise=0.0, seed=0)
    pairs = [
        float((rows[a] - rows[b]).square().sum(-1).mean() / 30)
        for a in range(covers)
        for b in range(a)
    ]
    assert distance(covered) == pytest.approx(np.mean(pairs) if pairs else 0.0, rel=1e-5)
    assert distance(machines[0]) is None


def numbered(count):
    return torch.arange(count, dtype=torch.float32).reshape(-1, 1), torch.arange(count)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("each", [None, 3])
def test_a_pass_has_every_image_once_for_every_cover(each, whole, monkeypatch):
    monkeypatch.setattr("reproduction.training.draws._GATHER_BYTES", 1 << 25 if whole else 0)
    batches, plain = (
        draws.Batches(*numbered(10), 4, np.random.SeedSequence(1), of) for of in (each, None)
    )
    seen = []
    for _ in range(2):
        parts = [batches.next() for _ in range(3)]
        assert [part[1].shape[-1] for part in parts] == [4, 4, 2]
        labels = torch.cat([part[1] for part in parts], dim=-1).reshape(each or 1, 10)
        assert all(sorted(row) == list(range(10)) for row in labels.tolist())
        images = torch.cat([part[0] for part in parts], dim=-2).reshape(each or 1, 10)
        assert torch.equal(images, labels.float())
        # The first cover has the batches of a plain training.
        assert labels[0].tolist() == [one for _ in range(3) for one in plain.next()[1].tolist()]
        seen += labels.tolist()
    assert len({tuple(row) for row in seen}) == len(seen)
    assert batches.passes == 2


def test_routes_are_redrawn_after_each_epoch_where_asked_for(digits):
    for each in (True, False):
        covered = lifted(TINY.build(0), Uniform())
        fit(covered, digits, Training(4, 50), Lifted(covers=3, redraw_each_epoch=each))
        assert covered.redraws == (4 if each else 0)
