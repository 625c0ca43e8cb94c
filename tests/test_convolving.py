"""Convolutions mix as the paper's sums do, whichever way is taken, at any stride and padding."""

from dataclasses import dataclass
from itertools import product

import pytest
import torch
from torch import nn

import mcover
from mcover.errors import McoverError
from mcover.nn import convolving, kernels
from mcover.nn.convolving import Geometry, convolve, convolve_common
from mcover.nn.kernels import convolutions, regions
from mcover.nn.kernels.strips import Axis, strips_of
from mcover.nn.mixing import block_slices


def doubles(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mixer(units, blocks, covers, seed=1):
    return doubles(units, blocks, covers, covers, seed=seed).softmax(-1)


def mixed_messages(x, weight, factors, bias, at):
    """a[β] = b[β] + Σ_g Σ_α Q̂[r,g,β,α] C[g,α], where C[g,α] is a convolution of block g."""
    result = 0 if bias is None else bias.view(len(bias), 1, -1, *(1,) * len(at.stride))
    for g, span in enumerate(block_slices(weight.shape[2], factors.shape[1])):
        of_block = x.unflatten(2, (at.groups, -1))[:, :, :, span].flatten(2, 3)
        c = torch.stack(
            [at.convolve(a, w[:, span], at.groups) for a, w in zip(of_block, weight, strict=True)]
        )
        result = result + torch.einsum("rba,anr...->bnr...", factors[:, g], c)
    return result


@dataclass
class Case:
    covers: int
    batch: int
    channels: int
    units: int
    blocks: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: int | tuple[int, ...] = 1  # a number where all axes have the same
    padding: int | tuple[int, ...] = 0
    dilation: int | tuple[int, ...] = 1
    groups: int = 1

    @property
    def at(self):
        each = (self.stride, self.padding, self.dilation)
        sides = [(n,) * len(self.size) if isinstance(n, int) else n for n in each]
        return Geometry(*sides, self.groups)

    def tensors(self, kind=torch.float64):
        given = (
            doubles(self.covers, self.batch, self.channels, *self.size, seed=2),
            doubles(self.covers, self.units, self.channels // self.groups, *self.kernel),
            doubles(self.covers, self.units, seed=3),
        )
        return [tensor.to(kind).requires_grad_() for tensor in given]

    def mixer(self):
        return mixer(self.units, self.blocks, self.covers)


CASES = {
    "same size": Case(5, 3, 6, 13, 3, (14, 14), (3, 3), padding=1),
    "strides and dilation": Case(3, 2, 5, 7, 2, (9, 8), (2, 3), (2, 3), (1, 0), (1, 2)),
    "stride beyond the kernel": Case(2, 2, 3, 4, 2, (11, 10), (2, 1), (3, 4), (1, 0)),
    "a line": Case(2, 3, 5, 7, 3, (50,), (5,), stride=3, padding=2),
    "a line longer than a chunk": Case(2, 2, 3, 4, 3, (1500,), (5,), padding=2, dilation=2),
    "a volume": Case(2, 2, 3, 4, 3, (5, 6, 7), (2, 3, 2), (2, 1, 2), (1, 0, 1), (1, 1, 2)),
    "lines in chunks": Case(2, 1, 3, 17, 1, (40, 43), (3, 3), padding=1),
    "one output": Case(2, 3, 4, 4, 2, (4, 4), (4, 4)),
    "one tap": Case(3, 35, 4, 5, 2, (6, 6), (1, 1), stride=2),
    "padding beyond the kernel": Case(3, 2, 4, 5, 4, (3, 3), (2, 2), padding=(3, 2)),
    "a kernel in parts": Case(2, 2, 40, 6, 1, (5, 5), (3, 3), padding=1),
    "more covers than a tile has rows": Case(14, 2, 3, 5, 3, (6, 6), (3, 3), padding=1),
    "groups": Case(3, 2, 6, 4, 2, (5, 4), (2, 2), (2, 1), (1, 0), (1, 2), groups=2),
    "wide groups": Case(3, 17, 12, 10, 4, (7, 7), (3, 3), padding=1, groups=2),
    "a group for each channel": Case(4, 3, 6, 12, 1, (9, 9), (3, 3), padding=1, groups=6),
}


@pytest.mark.parametrize("vector", [1, 8])
@pytest.mark.parametrize("wide", [1, 40, 10**6])
@pytest.mark.parametrize("given", CASES.values(), ids=CASES.keys())
def test_each_tap_of_each_output_meets_its_input(given, wide, vector):
    at = given.at
    where = (given.size, given.kernel, at.stride, at.padding, at.dilation)
    strips = strips_of(tuple(map(Axis, *where)), wide, vector)
    x = torch.arange(1, 1 + torch.Size(given.size).numel())
    space = strips.space
    some = torch.zeros(1, 1, *given.size), torch.zeros(1, 1, *given.kernel)
    assert space == at.convolve(*some, 1).shape[2:]
    met = torch.zeros(torch.Size(space).numel(), len(strips.taps), dtype=torch.int64)
    for first_in, last_in, first_out, last_out, columns in strips.chunks.tolist():
        strip = torch.zeros(strips.room, dtype=torch.int64)
        for to, of, count in strips.lines_in[first_in:last_in].tolist():
            strip[to : to + count] = x[of : of + count * strips.step : strips.step]
        for column, to, count in strips.lines_out[first_out:last_out].tolist():
            assert column >= 0
            assert column + count <= columns <= strips.columns
            for tap, shift in enumerate(strips.taps.tolist()):
                assert shift + columns <= strips.room
                met[to : to + count, tap] = strip[shift + column : shift + column + count]
    image = x.view(given.size)
    for output, at_output in enumerate(product(*map(range, space))):
        for tap, at_tap in enumerate(product(*map(range, given.kernel))):
            where = [
                o * s + t * d - p
                for o, s, t, d, p in zip(
                    at_output, at.stride, at_tap, at.dilation, at.padding, strict=True
                )
            ]
            inside = all(0 <= w < n for w, n in zip(where, given.size, strict=True))
            assert met[output, tap] == (image[tuple(where)] if inside else 0)


WAYS = ["compiled", "compiled, small pieces", "pairs", "blocks"]


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    if request.param in ("pairs", "blocks"):
        for name in ("fits", "takes"):
            monkeypatch.setattr(kernels, name, lambda *tensors: False)
        monkeypatch.setattr(convolving, "NARROW", 10**9 if request.param == "pairs" else 0)
        monkeypatch.setattr(convolving, "THICK", 10**9)
        monkeypatch.setattr(convolving, "CACHE", 1)
    elif request.param == "compiled, small pieces":
        monkeypatch.setattr(regions, "ALONE", 0)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
        for name in ("FAR", "COLUMNS", "LINES", "WIDE", "ROOM"):
            monkeypatch.setattr(convolutions, name, 1)
    return request.param


def found(mix, tensors, seed=5):
    y = mix(*tensors)
    error = doubles(*y.shape, seed=seed).to(y.dtype)
    return [y, *torch.autograd.grad(y, tensors, error)]


@pytest.mark.parametrize("kind", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("given", CASES.values(), ids=CASES.keys())
def test_values_and_gradients_are_those_of_the_plain_sums(given, kind, way):
    factors = given.mixer()
    expected = found(lambda x, w, b: mixed_messages(x, w, factors, b, given.at), given.tensors())
    other = found(
        lambda x, w, b: convolve(x, w, factors.to(kind), b, given.at), given.tensors(kind)
    )
    same = {"rtol": 1e-10, "atol": 1e-10} if kind is torch.float64 else {"rtol": 1e-4, "atol": 1e-3}
    for one, two in zip(expected, other, strict=True):
        torch.testing.assert_close(two.double(), one, **same)


@pytest.mark.parametrize("given", CASES.values(), ids=CASES.keys())
def test_one_input_for_all_covers_is_the_same_as_that_input_for_each(given, way):
    factors, (x, weight, bias) = given.mixer(), given.tensors()
    x = x[0].detach().requires_grad_()
    each = found(
        lambda x, w, b: mixed_messages(x.expand(given.covers, *x.shape), w, factors, b, given.at),
        [x, weight, bias],
    )
    once = found(lambda x, w, b: convolve_common(x, w, factors, b, given.at), [x, weight, bias])
    for one, two in zip(each, once, strict=True):
        torch.testing.assert_close(one, two)


def test_gradients_are_those_of_finite_differences(way):
    given = CASES["strides and dilation"]
    x, weight, bias = given.tensors()
    factors = given.mixer()
    for inputs, mix in ((x, convolve), (x[0], convolve_common)):
        assert torch.autograd.gradcheck(
            lambda x, w, b, mix=mix: mix(x, w, factors, b, given.at),
            (inputs, weight, bias),
            fast_mode=True,
        )


def test_gradients_have_gradients(way):
    given = Case(2, 2, 3, 2, 2, (4, 3), (2, 2), (1, 2), (1, 0))
    factors = given.mixer()
    assert torch.autograd.gradgradcheck(
        lambda x, w, b: convolve(x, w, factors, b, given.at).tanh(), given.tensors(), fast_mode=True
    )


def test_only_the_gradients_that_are_asked_for_are_made(way):
    given = CASES["same size"]
    factors = given.mixer()
    every = found(lambda x, w, b: convolve(x, w, factors, b, given.at), given.tensors())
    for asked in range(3):
        tensors = [t.detach().requires_grad_(k == asked) for k, t in enumerate(given.tensors())]
        y = convolve(*tensors[:2], factors, tensors[2], given.at)
        grad = torch.autograd.grad(y, tensors[asked], doubles(*y.shape, seed=5))[0]
        torch.testing.assert_close(grad, every[1 + asked])


def test_the_number_of_threads_changes_no_bit(monkeypatch):
    monkeypatch.setattr(regions, "ALONE", 0)
    given = CASES["one tap"]
    factors = given.mixer()
    seen = []
    for count in (1, 2, 5):
        monkeypatch.setattr(torch, "get_num_threads", lambda count=count: count)
        seen.append(found(lambda x, w, b: convolve(x, w, factors, b, given.at), given.tensors()))
    for later in seen[1:]:
        for first, other in zip(seen[0], later, strict=True):
            assert torch.equal(first, other)


def test_inputs_weights_and_mixers_in_any_layout_mix_the_same(way):
    given = CASES["same size"]
    factors, tensors = given.mixer(), given.tensors()
    expected = found(lambda x, w, b: convolve(x, w, factors, b, given.at), tensors)
    x, weight, bias = (tensor.detach() for tensor in tensors)
    turned = [
        x.permute(1, 3, 4, 2, 0).contiguous().permute(4, 0, 3, 1, 2),
        weight.transpose(0, 1).contiguous().transpose(0, 1),
        bias.T.contiguous().T,
    ]
    laid = factors.transpose(0, 3).contiguous().transpose(0, 3)
    assert not any(tensor.is_contiguous() for tensor in [*turned, laid])
    turned = [tensor.requires_grad_() for tensor in turned]
    other = found(lambda x, w, b: convolve(x, w, laid, b, given.at), turned)
    for one, two in zip(expected, other, strict=True):
        torch.testing.assert_close(one, two)


def test_an_empty_batch_has_an_empty_result_and_no_gradient():
    weight = doubles(3, 5, 4, 3, 3).requires_grad_()
    y = convolve(doubles(3, 0, 4, 8, 8), weight, mixer(5, 2, 3), None, CASES["same size"].at)
    assert y.shape == (3, 0, 5, 8, 8)
    assert not torch.autograd.grad(y.sum(), weight)[0].any()


RING = mcover.GaussianRing(sigma=1.0)


@pytest.mark.parametrize(
    ("make", "shape", "said"),
    [
        (lambda: nn.Linear(8, 6), (4, 9), r"\(4, 9\).* 8 numbers"),
        (lambda: nn.Linear(8, 6), (7,), r"\(7,\).* 8 numbers"),
        (lambda: nn.Conv2d(4, 6, 3), (2, 5, 9, 9), "4 channels and 4 axes, or 3"),
        (lambda: nn.Conv2d(4, 6, 3), (4, 9), "4 channels and 4 axes, or 3"),
        (lambda: nn.Conv1d(4, 6, 3, groups=2), (2, 2, 9), "4 channels and 3 axes, or 2"),
        (lambda: nn.Conv2d(4, 6, 3, padding=1, dilation=3), (2, 4, 4, 5), r"size \(4, 5\)"),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit_a_layer_are_refused(make, shape, said):
    covered = mcover.lift(nn.Sequential(make()), 3, RING, blocks=2, seed=0)
    with pytest.raises(McoverError, match=said):
        covered(torch.randn(shape))
