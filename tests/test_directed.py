"""The gather of virtual models against plain loops, in compiled code and in torch."""

import itertools
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

from mcover import Directed, GaussianRing, McoverError, Uniform, lift
from mcover.nn import directed
from mcover.nn.directed import gather, sources
from mcover.routing import draw_indexed_bank

COVERS = range(1, 10)
DTYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.bool,
    torch.int64, torch.complex64, torch.complex128,
]  # fmt: skip
GRANULARITIES = ("weight", "unit", "tensor")
SHAPE = (3, 2, 5)


def routes_of(covers, shape=SHAPE, granularity="weight", topology=None):
    """Index, tables and elements per source of one tensor, and its routes (sources, M)."""
    shape = torch.Size(shape)
    count = sources(shape, granularity)
    bank = draw_indexed_bank(topology or Uniform(), covers, count, 1, seed=covers)
    given = [torch.from_numpy(a) for a in (bank.index[0], bank.table, bank.inverse_table)]
    return (*given, shape.numel() // count), bank.routes[0]


def by_loops(stack, routes, per):
    """Element i of model α is stack[ρ(α), i], with the route of the source that i belongs to."""
    covers = len(stack)
    flat = stack.reshape(covers, -1)
    rows = [
        [flat[int(routes[i // per][alpha]), i] for i in range(flat.shape[1])]
        for alpha in range(covers)
    ]
    return [torch.stack(row).reshape(stack.shape[1:]) for row in rows]


@pytest.fixture(params=["compiled", "torch"])
def path(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(directed, "fits_loops", lambda *_: False)
    return request.param


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("covers", COVERS)
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_values_and_gradients_are_those_of_plain_loops(path, covers, granularity, dtype):
    given, routes = routes_of(covers, granularity=granularity)
    stack = torch.randn(covers, *SHAPE).mul(50).to(dtype)
    is_trained = dtype.is_floating_point or dtype.is_complex
    stack.requires_grad_(is_trained)
    out, expected = gather(stack, *given), by_loops(stack, routes, given[-1])
    assert isinstance(out, tuple)
    for ours, theirs in zip(out, expected, strict=True):
        assert ours.dtype == dtype
        assert torch.equal(ours, theirs)
    if is_trained:
        errors = [torch.randn(SHAPE).to(dtype).conj() for _ in out]
        (ours,) = torch.autograd.grad(out, stack, errors)
        (theirs,) = torch.autograd.grad(expected, stack, errors)
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("covers", [1, 2, 3, 6, 8, 9])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_gradients_and_their_gradients_are_exact(path, covers, granularity):
    given, _ = routes_of(covers, (2, 3), granularity, GaussianRing(1.0, shift=1))
    stack = torch.randn(covers, 2, 3, dtype=torch.float64, requires_grad=True)

    def curved(stack):
        first, *others = gather(stack, *given)
        return first.sin() * sum((t**2 for t in others), first)

    assert gradcheck(lambda s: gather(s, *given), stack)
    assert gradcheck(curved, stack)
    assert gradgradcheck(curved, stack)


def test_functional_gradients_agree_with_autograd(path):
    given, _ = routes_of(3)
    stack = torch.randn(3, *SHAPE)

    def loss(stack):
        return sum((t**k).sum() for k, t in enumerate(gather(stack, *given), start=2))

    leaf = stack.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(stack), expected)
    twice = torch.func.grad(lambda s: (torch.func.grad(loss)(s) ** 2).sum())(stack)
    first = torch.autograd.grad(loss(leaf), leaf, create_graph=True)[0]
    torch.testing.assert_close(twice, torch.autograd.grad((first**2).sum(), leaf)[0])


def test_outputs_are_tensors_of_their_own():
    """Code that modifies its parameters in place must work, without the other covers noticing."""
    given, routes = routes_of(3)
    stack = torch.randn(3, *SHAPE, requires_grad=True)
    out = gather(stack, *given)
    expected = by_loops(stack.detach(), routes, 1)
    assert not any(t._is_view() for t in out)
    doubled = out[0].mul_(2)
    assert [t._version for t in out] == [1, 0, 0]
    assert torch.equal(doubled, 2 * expected[0])
    assert torch.equal(out[1], expected[1])
    (grad,) = torch.autograd.grad(doubled.sum() + out[1].sum() + out[2].sum(), stack)
    (wanted,) = torch.autograd.grad(
        sum(w * t.sum() for w, t in zip((2, 1, 1), by_loops(stack, routes, 1), strict=True)), stack
    )
    assert torch.equal(grad, wanted)


@pytest.mark.parametrize("per", [1, 5])
def test_memory_may_lie_in_any_order(per):
    covers = 4
    given, routes = routes_of(covers, (6, 5), "weight" if per == 1 else "unit")
    index, table, inverse_table, _ = given
    spread = torch.zeros(2 * len(index), dtype=index.dtype)
    spread[::2] = index
    stack = torch.randn(5, covers, 6).permute(1, 2, 0).requires_grad_()
    expected = by_loops(stack, routes, per)
    out = gather(stack, spread[::2], table.contiguous(), inverse_table.contiguous(), per)
    assert all(torch.equal(a, b) for a, b in zip(out, expected, strict=True))
    errors = [torch.randn(5, 6).T, torch.ones(()).expand(6, 5), *torch.randn(2, 6, 5)]
    (ours,) = torch.autograd.grad(out, stack, errors)
    (theirs,) = torch.autograd.grad(expected, stack, errors)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("covers", [5, 6, 9])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_large_tensors_on_several_threads_meet_torch(covers, granularity, monkeypatch):
    """More than a tile and more than a thread's part, with a remainder of each."""
    shape = (1037, 131)
    given, _ = routes_of(covers, shape, granularity)
    stack = torch.randn(covers, *shape, requires_grad=True)
    errors = list(torch.randn(covers, *shape))
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            out = gather(stack, *given)
            results.append([*out, *torch.autograd.grad(out, stack, errors)])
    finally:
        torch.set_num_threads(before)
    monkeypatch.setattr(directed, "fits_loops", lambda *_: False)
    out = gather(stack, *given)
    for expected, *ours in zip(
        [*out, *torch.autograd.grad(out, stack, errors)], *results, strict=True
    ):
        assert all(torch.equal(expected, t) for t in ours)


def test_several_threads_may_gather_at_once():
    given, _ = routes_of(4, (700, 300))
    stacks = [torch.randn(4, 700, 300) for _ in range(4)]
    expected = [gather(stack, *given) for stack in stacks]
    found = [None] * len(stacks)

    def work(k):
        found[k] = gather(stacks[k], *given)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(stacks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_other_devices_take_the_path_through_torch():
    given, _ = routes_of(4)
    *tensors, per = given
    out = gather(torch.empty(4, *SHAPE, device="meta"), *(t.to("meta") for t in tensors), per)
    assert [(t.device.type, t.shape) for t in out] == [("meta", torch.Size(SHAPE))] * 4


def test_only_indices_and_tables_are_kept_for_backward():
    given, _ = routes_of(4, (64, 64))
    stack = torch.randn(4, 64, 64, requires_grad=True)
    node = gather(stack, *given)[0].grad_fn
    kept = [value for value in vars(node).values() if isinstance(value, list)]
    assert sum(t.nbytes for t in kept[0]) == 64 * 64 + 2 * 24 * 4


def test_single_rows_can_be_differentiated_one_after_the_other():
    """As activation checkpointing does that is reentrant; and a row that is not used has none."""
    given, routes = routes_of(3, (5,))
    stack = torch.randn(3, 5, requires_grad=True)
    rows = gather(stack, *given)
    (one,) = torch.autograd.grad(rows[2].sum(), stack, retain_graph=True)
    (wanted,) = torch.autograd.grad(by_loops(stack, routes, 1)[2].sum(), stack)
    assert torch.equal(one, wanted)
    whole = torch.autograd.grad(sum(row.square().sum() for row in rows), stack)[0]
    rows = gather(stack, *given)
    for row in rows:
        row.square().sum().backward()
    torch.testing.assert_close(stack.grad, whole)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (4, 0)])
@pytest.mark.parametrize("covers", [2, 6])
def test_scalars_and_empty_tensors(shape, covers):
    _, table, inverse_table, _ = routes_of(covers)[0]
    count = torch.Size(shape).numel()
    index = torch.ones(count, dtype=torch.uint8 if covers < 6 else torch.uint16)
    stack = torch.randn(covers, *shape, requires_grad=True)
    out = gather(stack, index, table, inverse_table, 1)
    expected = by_loops(stack, table[index.long()], 1) if count else [torch.empty(shape)] * covers
    assert all(torch.equal(a, b) for a, b in zip(out, expected, strict=True))
    assert torch.autograd.grad(sum(t.sum() for t in out), stack)[0].shape == stack.shape


def test_every_permutation_of_five_covers_is_followed():
    table = np.array(list(itertools.permutations(range(5))), dtype=np.uint8)
    index = torch.arange(120, dtype=torch.uint8)
    stack = torch.arange(5.0).repeat_interleave(120).view(5, 120)
    out = gather(stack, index, torch.from_numpy(table), torch.from_numpy(table), 1)
    np.testing.assert_array_equal(torch.stack(out).numpy(), table.T)


def test_routes_that_do_not_cover_the_tensor_are_refused():
    (index, table, inverse_table, _), _ = routes_of(3)
    with pytest.raises(McoverError, match=r"29 routes of 1 elements .* \(3, 2, 5\)"):
        gather(torch.randn(3, *SHAPE), index[1:], table, inverse_table, 1)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_models_with_empty_parameters_are_lifted(granularity):
    class Empty(nn.Linear):
        def __init__(self):
            super().__init__(4, 2)
            self.nothing = nn.Parameter(torch.zeros(0))
            self.rows = nn.Parameter(torch.zeros(3, 0))

        def forward(self, x):
            return super().forward(x) + self.nothing.sum() + self.rows.sum()

    base = Empty()
    covered = lift(base, 3, Uniform(), Directed(granularity=granularity), noise=0, seed=0)
    x = torch.ones(5, 4)
    covered(x).sum().backward()
    assert covered.stacks()["rows"].grad.shape == (3, 3, 0)
    torch.testing.assert_close(covered.collapse()(x), base(x))
