"""Covers in lockstep: the base's own code runs unchanged, and nothing leaks between covers."""

import contextlib
import copy
import dataclasses
import inspect
import multiprocessing
import pickle
import subprocess
import sys
import threading
import time
import traceback
from collections import namedtuple

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402
from torch.nn.utils import prune  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import mcover  # noqa: E402
from mcover import Directed, GaussianRing, McoverError, Messages, cover_loss, lift  # noqa: E402
from mcover.errors import McoverWarning  # noqa: E402
from mcover.nn import Shape, lockstep, register  # noqa: E402
from tiny_models import routed  # noqa: E402

torch.set_num_threads(1)

RING = GaussianRing(1.0, shift=1)
ROUTINGS = ["messages", "directed"]
both = pytest.mark.parametrize("routing", ROUTINGS)


def doubles(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mlp(*more):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), *more, nn.Tanh(), nn.Linear(8, 3)).double()


def assert_same_gradients(a, b):
    for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=lambda m, n=name: f"{n}: {m}")


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.conv = nn.Conv1d(1, 1, 3, padding=1)

    def forward(self, x):
        h = F.relu(self.a(x))
        k = self.b(h) + h
        k = F.relu(self.conv(k.unsqueeze(1)).squeeze(1)) + 1
        return self.c(k) * 2


class InPlace(Plain):
    def forward(self, x):
        h = self.a(x).relu_()
        k = self.b(h)
        k += h
        k = F.dropout(k, 0.0, self.training, inplace=True)
        k = self.conv(k.unsqueeze(1)).relu_().squeeze(1) + 1
        return self.c(k).mul_(2)


@both
def test_in_place_operations_behind_layers_change_nothing(routing):
    base, other = Plain().double(), InPlace().double()
    other.load_state_dict(base.state_dict())
    x = doubles(4, 6)
    covered, changing = (lift(m, 3, RING, routing, seed=0) for m in (base, other))
    want, got = covered(x), changing(x)
    torch.testing.assert_close(got, want)
    want.square().sum().backward()
    got.square().sum().backward()
    assert_same_gradients(changing, covered)


class Eats(nn.Module):
    """Changes its input, and counts."""

    def __init__(self):
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        x.mul_(0.5)
        return self.out(self.norm(x)) * self.calls


@both
def test_a_model_that_changes_its_input_does_so_for_each_cover_alone(routing):
    base = Eats().double()
    covered = lift(base, 3, RING, routing, noise=0, seed=0)
    x = doubles(4, 6)
    for _ in range(2):
        for mode in (True, False):
            want = base.train(mode)(x.clone())
            got = covered.train(mode)(x.clone())
            torch.testing.assert_close(got, want.expand(3, *want.shape))
    assert covered.net.norm.num_batches_tracked.tolist() == [2, 2, 2]


@pytest.mark.parametrize("covers", [1, 3])
def test_passes_of_a_model_that_changes_its_input_all_see_the_input_as_it_was(covers):
    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(6, 3)

        def forward(self, x):
            return self.out(x.mul_(0.5))

    base, x = Halves().double(), doubles(4, 6)
    how = Directed(bank=3, destinations=3)
    covered = lift(base, covers, RING, how, noise=0, seed=0)
    want = base(x.clone()).repeat(3, 1).expand(covers, 12, 3)
    for _ in range(2):
        torch.testing.assert_close(covered(x.clone()), want)
        torch.testing.assert_close(covered.each(x.expand(covers, 4, 6).clone()), want)


@both
def test_an_input_that_is_changed_has_its_gradient_and_keeps_its_values(routing):
    base = Eats().double()
    covered = lift(base, 3, RING, routing, noise=0, seed=0)
    before = doubles(4, 6)
    for calls in (1, 2):
        inputs = [before.clone().requires_grad_() for _ in range(2)]
        base.calls = calls - 1
        base(own := inputs[0] * 1).square().sum().backward()
        covered(common := inputs[1] * 1).square().sum().backward()
        assert not torch.equal(own, before)
        assert torch.equal(common, before)
        torch.testing.assert_close(inputs[1].grad, 3 * inputs[0].grad)


@both
def test_inputs_are_changed_for_each_cover_alone_in_inference_mode_too(routing):
    base = Eats().double().eval()
    covered = lift(base, 3, RING, routing, noise=0, seed=0).eval()
    with torch.inference_mode():
        x = doubles(4, 6).clone()
        want = base(x.clone())
        torch.testing.assert_close(covered.ensemble(x), want)
        torch.testing.assert_close(covered(x), want.expand(3, *want.shape))


@both
def test_a_tensor_that_is_given_twice_is_one_tensor_to_each_cover(routing):
    class Asks(Eats):
        def forward(self, x, y):
            return self.out(x) * (2 if x is y else 1)

    covered = lift(Asks(), 3, RING, routing, noise=0, seed=0)
    x = torch.ones(2, 6)
    for _ in range(2):
        torch.testing.assert_close(covered(x, x), 2 * covered(x, x.clone()))
    own = x.expand(3, 2, 6)
    torch.testing.assert_close(covered.each(own, own), 2 * covered(x, x.clone()))


def test_a_model_that_begins_to_change_its_input_is_refused():
    class Sometimes(Eats):
        def forward(self, x):
            return self.out(x if self.norm.momentum == 0.1 else x.mul_(2))

    covered = lift(Sometimes(), 3, RING, seed=0)
    covered(torch.ones(4, 6))
    covered.net.norm.momentum = 0.2
    with pytest.raises(McoverError, match=r"changed its input in place.*x\.clone\(\)"):
        covered(torch.ones(4, 6))


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
    covered = lift(Checkpointed(reentrant).double(), 3, RING, seed=0)
    with pytest.raises(McoverError, match=message):
        covered(doubles(4, 6)).sum().backward()


class Stateful(nn.Module):
    """State in all the places where modules keep it."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 3)
        self.register_buffer("average", torch.zeros(3))
        self.register_buffer("last", None)
        self.register_buffer("mask", torch.ones(3), persistent=False)
        self.count, self.history, self.hidden = 0, [], None

    def forward(self, x):
        y = self.inner(x) * self.mask
        self.average = 0.9 * self.average + 0.1 * y.mean(0)
        self.last = y.detach().sum(0)
        self.count += 1
        self.history.append(float(y.detach().sum()))
        y = y if self.hidden is None else y + self.hidden
        self.hidden = y.detach()
        return y + self.average


@both
@pytest.mark.parametrize("covers", [1, 3])
def test_state_of_a_module_stays_in_its_cover(routing, covers):
    models = [Stateful().double() for _ in range(covers)]
    covered = lift(models[0], models, mcover.Identity(), routing, seed=0)
    for step in range(3):
        x = doubles(4, 6, seed=step)
        want = torch.stack([model(x) for model in models])
        torch.testing.assert_close(covered(x), want)
    for name in ("average", "last"):
        rows = torch.stack([getattr(model, name) for model in models])
        torch.testing.assert_close(getattr(covered.net, name), rows.detach())
        torch.testing.assert_close(getattr(covered.collapse(), name), rows.detach().mean(0))
    others = copy.deepcopy(covered), pickle.loads(pickle.dumps(covered))
    x = doubles(4, 6, seed=9)
    want = torch.stack([model(x) for model in models])
    for again in others:
        torch.testing.assert_close(again(x), want)


@both
def test_a_buffer_that_is_assigned_leaves_what_backward_saved_and_can_be_undone(routing):
    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(6, 3)
            self.register_buffer("scale", torch.ones(3))
            self.register_buffer("last", None)

        def forward(self, x):
            y = self.inner(x.mul_(0.5)) * self.scale  # the old scale is saved for backward
            last = 0 if self.last is None else self.last
            self.scale = 0.9 * self.scale + 0.1 * y.detach().mean(0)
            self.last = y.detach().sum(0)
            return y + last

    base = Remembers().double()
    covered = lift(base, 3, RING, routing, noise=0, seed=0)
    for step in range(2):  # the first forward is computed twice: the model changes its input
        x = doubles(4, 6, seed=step)
        want, got = base(x.clone()), covered(x.clone())
        torch.testing.assert_close(got, want.expand(3, *want.shape))
        want.square().sum().backward()
        got.square().sum().backward()
    torch.testing.assert_close(covered.net.inner.weight.grad[1], base.inner.weight.grad)
    torch.testing.assert_close(covered.net.scale, base.scale.expand(3, 3))
    assert covered.state == ("scale", "last")


def test_a_shared_buffer_that_is_written_to_is_named():
    for name, write in (("in place", lambda b: b.add_(1)), ("assigned", lambda b: b + 1)):

        class Writes(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(6, 3)
                self.register_buffer("count", torch.zeros(()))

            def forward(self, x, write=write):
                self.count = write(self.count)
                return self.inner(x)

        covered = lift(Writes(), 3, RING, buffers=[], seed=0)
        with pytest.raises(McoverError, match=r"writes to its buffer 'count'.*buffers=\['count'\]"):
            covered(torch.ones(2, 6))
        assert lift(Writes(), 3, RING, seed=0)(torch.ones(2, 6)).shape == (3, 2, 3), name


def test_buffers_that_are_named_are_kept_for_each_cover_and_others_shared():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.norm = nn.Linear(6, 3), nn.BatchNorm1d(3)
            self.register_buffer("table", torch.ones(3))

        def forward(self, x):
            return self.norm(self.inner(x)) * self.table

    x = doubles(4, 6).float()
    for named in ("norm", ["norm.*"]):
        covered = lift(Scaled(), 3, RING, buffers=named, seed=0)
        assert covered(x).shape == (3, 4, 3)
        assert covered.state == (
            "norm.running_mean",
            "norm.running_var",
            "norm.num_batches_tracked",
        )
        assert covered.net.table.shape == (3,)
    covered = lift(Scaled(), 3, RING, buffers="norm.running_*", seed=0)
    with pytest.raises(McoverError, match=r"buffers=\['norm.num_batches_tracked'\]"):
        covered(x)


def test_a_sparse_buffer_that_is_assigned_is_named():
    class Assigns(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(6, 3)
            self.register_buffer("graph", torch.eye(4).to_sparse())

        def forward(self, x):
            self.graph = self.graph * 2
            return self.graph @ self.inner(x)

    with pytest.raises(McoverError, match=r"writes to its buffer 'graph'.*make it dense"):
        lift(Assigns(), 3, RING, seed=0)(torch.ones(4, 6))


@both
@pytest.mark.parametrize("covers", [1, 5])
def test_threads_share_a_covered_model_as_they_share_a_plain_one(routing, covers):
    covered = lift(mlp(), covers, RING, routing, seed=0).eval()
    inputs = [doubles(4, 6, seed=k) for k in range(6)]
    want = [covered(x) for x in inputs]
    wrong = []

    def work(k):
        for _ in range(10):
            if not torch.equal(covered(inputs[k]), want[k]):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert torch.equal(covered(inputs[0]), want[0])


@both
def test_copies_and_pickles_between_forward_and_backward_go_their_own_way(routing, tmp_path):
    covered = lift(mlp(nn.BatchNorm1d(8)), 3, RING, routed(routing, bank=3), seed=0)
    x = doubles(4, 6)
    loss = covered(x).sum()
    torch.save(covered, tmp_path / "covered.pt")
    others = [
        copy.deepcopy(covered),
        pickle.loads(pickle.dumps(covered)),
        torch.load(tmp_path / "covered.pt", weights_only=False),
    ]
    loss.backward()
    want = covered(x)
    for other in others:
        torch.testing.assert_close(other(x), want, rtol=0, atol=0)
        assert other.net[1].num_batches_tracked.tolist() == [2, 2, 2]


def _worker(covered, x, queue):
    queue.put(covered(x).detach().numpy())


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_other_processes_run_a_covered_model(method, routing, monkeypatch):
    monkeypatch.setattr(
        torch, "get_num_threads", lambda: 2
    )  # our own threads do not survive a fork
    layers = nn.Conv1d(6, 600, 1), nn.Conv1d(600, 300, 1), nn.Flatten(), nn.Linear(300, 2)
    covered = lift(nn.Sequential(*layers).double(), 3, RING, routing, seed=0).eval()
    x = doubles(4, 6, 1)
    covered(x)
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    process = context.Process(target=_worker, args=(covered, x, queue))
    process.start()
    got = queue.get()
    process.join()
    torch.testing.assert_close(torch.from_numpy(got), covered(x).detach())


class Embedding(torch.utils.data.Dataset):
    """A data set that puts its items through a covered model, in workers."""

    def __init__(self, covered):
        self.covered = covered

    def __len__(self):
        return 4

    def __getitem__(self, index):
        with torch.no_grad():
            return self.covered(torch.full((1, 6), float(index), dtype=torch.float64))


def test_workers_of_a_data_loader_run_a_covered_model():
    covered = lift(mlp(), 3, RING, seed=0).eval()
    loader = torch.utils.data.DataLoader(Embedding(covered), batch_size=2, num_workers=1)
    want = torch.stack([Embedding(covered)[k] for k in range(4)])
    torch.testing.assert_close(torch.cat(list(loader)), want)


class Parting(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        h = self.a(x)
        return self.b(h) if float(h.detach().sum()) > 0 else self.c(h)


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
        lift(Wrong(), 3, RING, seed=0)(torch.ones(*x))
    assert "this line is at fault" in "".join(traceback.format_tb(caught.tb))


def test_gradients_inside_a_forward_are_refused_where_covers_meet():
    class Slope(Parting):
        def forward(self, x):
            x = x.clone().requires_grad_()
            energy = self.b(torch.tanh(self.a(x))).sum()
            return torch.autograd.grad(energy, x, create_graph=True)[0]

    base, x = Slope(), torch.randn(2, 4)
    with pytest.raises(McoverError, match=r"computes gradients in its forward.*routing='directed'"):
        lift(base, 3, RING, seed=0)(x)
    directed = lift(base, 3, RING, "directed", noise=0, seed=0)
    torch.testing.assert_close(directed(x)[1], base(x))


def test_a_model_that_goes_around_its_layers_is_refused():
    class Around(Parting):
        def forward(self, x):
            return x @ self.a.weight.T

    with pytest.raises(McoverError, match="no covers met"):
        lift(Around(), 3, RING, seed=0)(torch.ones(2, 4))


class Modes(nn.Module):
    """Enters torch's modes around layers that mix, and looks at them behind."""

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
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(covered(x)[1], covered.cover(1)(x))
    covered(x).sum().backward()
    assert covered.net.a.weight.grad is None or not covered.net.a.weight.grad.any()
    assert covered.net.c.weight.grad.any()
    with torch.inference_mode():
        assert lift(mlp(), 3, RING, routing, seed=0)(doubles(2, 6)).is_inference()
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


Pair = namedtuple("Pair", "first second")


@dataclasses.dataclass(frozen=True)
class Result:
    logits: torch.Tensor
    parts: dict
    name: str = "result"


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x, *, scale=1.0):
        y = scale * self.inner(x)
        parts = {
            "pair": Pair(y.argmax(-1), [y > 0]),
            "none": None,
            "size": 7,
            "item": y[0, 0].item(),
        }
        return Result(y, parts)


@both
def test_outputs_keep_their_form_with_covers_first(routing):
    covered = lift(Nested(), 3, RING, routing, noise=0.5, seed=0).eval()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    out = covered(x, scale=2.0)
    assert isinstance(out, Result)
    assert isinstance(out.parts["pair"], Pair)
    assert out.logits.shape == (3, 5, 3)
    assert out.parts["pair"].first.shape == (3, 5)
    assert out.parts["pair"].second[0].dtype == torch.bool
    assert (out.parts["none"], out.parts["size"], out.name) == (None, 7, "result")
    torch.testing.assert_close(out.parts["item"], out.logits[:, 0, 0].detach())
    mean = covered.ensemble(x)
    votes = torch.stack([covered.cover(k)(x).parts["pair"].first for k in range(3)])
    assert torch.equal(mean.parts["pair"].first, votes.mode(0).values)
    assert mean.parts["pair"].second[0].dtype == torch.bool
    assert mean.logits.shape == (5, 3)


def test_outputs_of_different_shapes_are_refused():
    class Ragged(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x):
            y = self.inner(x)
            return y[y > 0]

    models = [Ragged() for _ in range(2)]
    for sign, model in zip((1, -1), models, strict=True):
        nn.init.constant_(model.inner.weight, sign)
    covered = lift(models[0], models, mcover.Identity(), seed=0)
    with pytest.raises(McoverError, match="which cannot be stacked"):
        covered(torch.ones(5, 4))


def test_the_signature_is_the_base_models():
    covered = lift(Nested(), 3, RING, seed=0)
    assert str(inspect.signature(covered.forward)) == "(x, *, scale=1.0)"


def test_models_that_compute_their_loss_need_no_criterion():
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x, labels):
            logits = self.inner(x)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    x, y = torch.randn(6, 4), torch.arange(6) % 3
    for how in ("messages", Directed(bank=4, destinations=2)):
        covered = lift(WithLoss(), 3, RING, how, noise=0.5, seed=0).eval()
        out = covered(x, labels=y)
        want = cover_loss(F.cross_entropy, out["logits"], y)
        torch.testing.assert_close(cover_loss(out), want)
    with pytest.raises(McoverError, match="give the model its labels"):
        cover_loss({"logits": torch.zeros(3, 2)})


def test_changes_to_the_covered_models_own_modules_are_followed():
    covered = lift(mlp(nn.Dropout(0.9)), 3, RING, seed=0)
    x, seen = doubles(4, 6), []
    covered(x)
    covered.net[1].p = 0.0
    handle = covered.net[2].register_forward_hook(lambda module, args, out: seen.append(module))
    got = covered(x)
    assert len(set(map(id, seen))) == 3  # in each cover's own copy
    torch.testing.assert_close(got, covered.eval()(x))
    handle.remove()
    seen.clear()
    covered(x)
    assert not seen


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
    covered = lift(nn.Sequential(OwnForward(6, 8)), 3, RING, noise=0.5, seed=0)
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    got = covered(x)
    plain = lift(nn.Sequential(nn.Linear(6, 8)), 3, RING, noise=0.5, seed=0)
    plain.load_state_dict(covered.state_dict())
    assert torch.equal(plain.mixers()["0"], covered.mixers()["0"])
    torch.testing.assert_close(got, plain(x) + 1)
    with pytest.raises(McoverError, match=r"nothing in this model would mix.*Scaled"):
        lift(Scaled(), 3, RING, seed=0)
    register(Scaled, lambda layer: [Shape(*layer.weight.shape)])
    try:
        covered = lift(Scaled(), 3, RING, noise=0.5, seed=0)
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
        same = nn.Linear(8, 3, bias=False)
        plain = lift(same, 3, RING, noise=0.5, seed=0)
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

    covered = lift(Unused(), 3, RING, seed=0)
    treatments = {row.name: row.treatment for row in covered.report().rows}
    assert treatments == {"a": "mixed", "b": "mixed", "c": "mixed"}
    with pytest.warns(McoverWarning, match=r"met at 1 layers of 3: not at \['b', 'c'\]"):
        report = covered.report(torch.ones(2, 4))
    treatments = {row.name: row.treatment for row in report.rows}
    assert treatments == {"a": "mixed", "b": "copied", "c": "copied"}


def test_frozen_parameters_are_shared_and_stay_what_they_are():
    model = mlp()
    model[0].requires_grad_(False)
    covered = lift(model, 3, RING, noise=0.5, seed=0)
    assert covered.lifted == ("2.weight", "2.bias")
    assert torch.equal(covered.net[0].weight, model[0].weight)
    assert torch.equal(covered.collapse()[0].weight, model[0].weight)
    assert covered(doubles(4, 6)).shape == (3, 4, 3)
    named = lift(model, 3, RING, select=["0", "2"], noise=0.5, seed=0)
    assert named.net[0].weight.shape == (3, 8, 6)
    for value in model.parameters():
        value.requires_grad_(False)
    with pytest.raises(McoverError, match="no parameter of the model trains"):
        lift(model, 3, RING)


def test_rows_of_an_embedding_that_do_not_train_get_no_noise():
    model = nn.Sequential(nn.Embedding(5, 4, padding_idx=1), nn.Linear(4, 2))
    covered = lift(model, 3, RING, noise=0.5, seed=0)
    assert not covered.net[0].weight[:, 1].any()
    assert covered.net[0].weight[:, 0].std(0).min() > 0


def test_noise_is_a_share_of_each_tensors_own_spread():
    model = nn.Sequential(nn.Linear(300, 300), nn.LayerNorm(300), nn.Linear(300, 300))
    nn.init.normal_(model[2].weight, std=0.001)
    covered = lift(model, 4, RING, noise="20%", seed=0)
    for index in (0, 2):
        own = model[index].weight.detach()
        gaps = covered.net[index].weight.detach() - own
        assert float(gaps.std()) == pytest.approx(0.2 * float(own.std()), rel=0.02)
    assert torch.equal(covered.net[1].weight[3], model[1].weight)  # all ones: no spread
    for wrong in ("20", "-5%", "much", None, -0.1, float("nan"), True):
        with pytest.raises(McoverError, match="noise is"):
            lift(model, 3, RING, noise=wrong)


@pytest.mark.filterwarnings("default::mcover.errors.McoverWarning")
def test_absolute_noise_that_drowns_a_tensor_warns_with_its_name():
    model = nn.Sequential(nn.Linear(50, 50), nn.Linear(50, 50))
    nn.init.normal_(model[1].weight, std=0.01)
    with pytest.warns(McoverWarning, match=r"\d\d+% of .* of '1.weight'.*noise='10%'"):
        lift(model, 3, RING, noise=0.01, seed=0)


def test_weight_decay_and_clipping_look_at_single_covers():
    covered = lift(mlp(nn.LayerNorm(8)), 3, RING, noise=0.3, seed=0)
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


def test_two_forwards_in_one_loss_outlive_a_redraw():
    covered = lift(mlp(), 3, RING, Messages(redraw_every=1), seed=0)
    twin = copy.deepcopy(covered)
    x = doubles(4, 6)
    (covered(x).square().sum() + covered(2 * x).square().sum()).backward()
    for part in (x, 2 * x):
        twin(part).square().sum().backward()
    assert_same_gradients(covered, twin)


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


def test_running_averages_of_covers_with_batch_norm():
    from torch.optim.swa_utils import AveragedModel, update_bn

    covered = lift(mlp(nn.BatchNorm1d(8)), 3, RING, seed=0)
    batches = [doubles(4, 6, seed=k) for k in range(3)]
    average = AveragedModel(covered)
    average.update_parameters(covered)
    update_bn(batches, covered)
    update_bn(batches, average)
    for model in (covered, average.module):
        assert model.net[1].running_mean.shape == (3, 8)
        assert model.net[1].num_batches_tracked.tolist() == [3, 3, 3]
        assert model.collapse()(batches[0]).shape == (4, 3)


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
    covered = lift(mlp(), 3, RING, seed=0)
    with pytest.raises(McoverError, match=r"\(3, 8, 6\).*shape \(8, 6\)"):
        covered.collapse(lambda stack: stack)
    with pytest.raises(McoverError, match=r"IndexError.*'0.weight'.*shape \(8, 6\)"):
        covered.collapse(lambda stack: stack[7])


def test_causal_attention_wants_its_mask_as_in_torch():
    covered = lift(nn.MultiheadAttention(4, 2), 3, RING, seed=0)
    x = torch.zeros(5, 2, 4)
    with pytest.raises(RuntimeError, match="Need attn_mask"):
        covered(x, x, x, is_causal=True, need_weights=False)


def test_layers_in_double_precision_stay_so_under_autocast():
    covered = lift(mlp(), 3, RING, seed=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert covered(doubles(2, 6)).dtype == torch.float64


def test_the_conductor_runs_covers_without_layers_to_the_end():
    assert lockstep.run([lambda: 1, lambda: 2]) == [1, 2]
    with pytest.raises(McoverError, match="outside of the covered model's forward"):
        lockstep.meet("here", None, list)


def test_meetings_hand_each_cover_its_part():
    def cover(k):
        total = lockstep.meet("sum", k, lambda all_: [sum(all_) + own for own in all_])
        return lockstep.meet("product", total, lambda all_: [2 * own for own in all_])

    assert lockstep.run([lambda k=k: cover(k) for k in range(3)]) == [6, 8, 10]


def test_context_variables_reach_the_covers():
    import contextvars

    variable = contextvars.ContextVar("variable", default="lost")
    variable.set("found")
    assert lockstep.run([variable.get, variable.get]) == ["found", "found"]


def test_a_lift_that_takes_long_says_what_it_does(monkeypatch, caplog):
    from mcover import progress
    from mcover.nn import state as module

    model = nn.Linear(30, 20)
    lift(model, 3, RING, "directed", seed=0)
    assert not caplog.records
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    draw = module.draw_indexed_bank
    monkeypatch.setattr(module, "draw_indexed_bank", lambda *a: (time.sleep(0.05), draw(*a))[1])
    lift(model, 3, RING, "directed", seed=0)
    assert "drawing routes for 620 parameters of 3 covers" in caplog.text


@both
def test_ensembles_of_single_numbers_are_single_numbers(routing):
    class Energy(Parting):
        def forward(self, x):
            return self.b(torch.tanh(self.a(x))).square().mean()

    how = routed(routing, bank=4, destinations=2, streams=2)
    covered = lift(Energy(), 3, RING, how, seed=0).eval()
    x = torch.ones(2, 4)
    assert covered.ensemble(x).shape == ()
    torch.testing.assert_close(covered.ensemble(x, routed=True), covered(x).mean())


def test_targets_that_are_no_batches_are_not_repeated_for_streams():
    covered = lift(nn.Linear(4, 3), 2, RING, Messages(streams=2), noise=0.5, seed=0)
    x, y, weights = torch.randn(6, 4), torch.arange(6) % 3, torch.tensor([1.0, 2.0, 3.0])

    def criterion(output, target):
        labels, weight = target
        return F.cross_entropy(output, labels, weight)

    outputs = covered(x)
    want = sum(F.cross_entropy(output, torch.cat([y, y]), weights) for output in outputs)
    torch.testing.assert_close(cover_loss(criterion, outputs, (y, weights)), want)


def test_warnings_of_torch_after_a_forward_find_their_handler(tmp_path):
    """Covers stop inside calls of torch, each of which notes its own handler for the thread.

    One that is left behind is read when something warns outside of such a call, as the reducer of
    DistributedDataParallel does; that ends the process, so the test has one of its own.
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
