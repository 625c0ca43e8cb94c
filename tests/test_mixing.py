"""Layers mix by the paper's sums, for every way to compute the sums."""

from dataclasses import dataclass

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import reference
from mcover.errors import McoverError
from mcover.nn import contributions, mixing
from mcover.nn.blocks import block_slices
from mcover.nn.contributions import Geometry
from mcover.nn.mixing import mix_product, mix_slices

TOLERANCE = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-10},
    torch.complex128: {"rtol": 1e-10, "atol": 1e-10},
    torch.float32: {"rtol": 1e-4, "atol": 1e-3},
    torch.complex64: {"rtol": 1e-4, "atol": 1e-3},
    torch.bfloat16: {"rtol": 0.1, "atol": 0.3},
    torch.float16: {"rtol": 0.02, "atol": 0.05},
}
DTYPES = list(TOLERANCE)


def draw(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype)


def mixer(units, blocks, covers, seed=1):
    return draw(units, blocks, covers, covers, seed=seed).softmax(-1)


@dataclass(frozen=True)
class Linear:
    """A layer, its mixers, and the same as slow loops."""

    covers: int
    shape: tuple[int, ...]
    units: int
    blocks: int
    exact: bool = False

    def mixer(self):
        return (
            mixer(1, 1, self.covers) if self.exact else mixer(self.units, self.blocks, self.covers)
        )

    def tensors(self, dtype=torch.float64):
        return [
            draw(self.covers, self.units, self.shape[-1], dtype=dtype),
            draw(self.covers, self.units, seed=3, dtype=dtype),
            *(draw(*self.shape, seed=10 + a, dtype=dtype) for a in range(self.covers)),
        ]

    @property
    def rule(self):
        return mixing.Linear()

    def mix(self, factors, weight, bias, *xs):
        return mix_product(self.rule, xs if len(xs) > 1 else xs[0], weight, factors, bias)

    def loops(self, factors, weight, bias, *xs):
        xs = [*xs] if len(xs) > 1 else [*xs] * self.covers
        biases = [None] * self.covers if bias is None else list(bias)
        return self.by_loops(xs, list(weight), biases, factors)

    def by_loops(self, *given):
        return reference.message_linear(*given)


@dataclass(frozen=True)
class Convolution(Linear):
    kernel: tuple[int, ...] = (3, 3)
    stride: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0)
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1

    @property
    def rule(self):
        at = Geometry(self.stride, self.padding, self.dilation, self.groups)
        return mixing.Convolution(at)

    def tensors(self, dtype=torch.float64):
        weight = draw(
            self.covers, self.units, self.shape[1] // self.groups, *self.kernel, dtype=dtype
        )
        return [weight, *super().tensors(dtype)[1:]]

    def by_loops(self, *given):
        return reference.message_convolution(*given, self)


LAYERS = {
    "linear": Linear(3, (4, 8), 5, 4),
    "linear, uneven blocks": Linear(3, (4, 7), 5, 3),
    "linear, a block for each input": Linear(2, (6, 5), 3, 5),
    "linear, more units and samples than a piece": Linear(2, (21, 6), 40, 2),
    "linear, tokens": Linear(3, (2, 3, 6), 4, 2),
    "linear, one vector": Linear(3, (6,), 4, 2),
    "linear, exact": Linear(3, (4, 8), 5, 1, exact=True),
    "linear, one cover": Linear(1, (4, 8), 5, 2),
    "convolution": Convolution(5, (3, 4, 6, 6), 6, 2, padding=(1, 1)),
    "uneven blocks": Convolution(3, (2, 7, 5, 5), 4, 3, padding=(1, 1)),
    "strides and dilation": Convolution(
        3, (2, 5, 9, 8), 7, 2, kernel=(2, 3), stride=(2, 3), padding=(1, 0), dilation=(1, 2)
    ),
    "a line": Convolution(
        2, (3, 6, 20), 7, 3, kernel=(5,), stride=(3,), padding=(2,), dilation=(1,)
    ),
    "a volume": Convolution(
        2, (2, 4, 5, 6, 4), 4, 2, kernel=(2, 3, 2), stride=(2, 1, 2), padding=(1, 0, 1),
        dilation=(1, 1, 2),
    ),
    "one tap": Convolution(3, (5, 4, 6, 6), 5, 2, kernel=(1, 1), stride=(2, 2)),
    "more positions than a tile": Convolution(2, (1, 2, 40, 43), 3, 2, padding=(1, 1)),
    "padding beyond the kernel": Convolution(3, (2, 4, 3, 3), 5, 4, (2, 2), padding=(3, 2)),
    "groups": Convolution(3, (2, 8, 5, 4), 4, 2, kernel=(2, 2), padding=(1, 0), groups=2),
    "groups, uneven blocks": Convolution(2, (2, 6, 4, 4), 4, 2, kernel=(2, 2), groups=2),
    "depthwise": Convolution(4, (3, 6, 5, 5), 12, 1, padding=(1, 1), groups=6),
    "convolution, exact": Convolution(3, (2, 4, 5, 5), 6, 1, exact=True),
}  # fmt: skip
SOME = ["linear, uneven blocks", "linear, exact", "groups, uneven blocks", "convolution, exact"]


def each_layer(names=LAYERS):
    return pytest.mark.parametrize("layer", [LAYERS[name] for name in names], ids=list(names))


@pytest.fixture(params=["whole", "small pieces"])
def way(request, monkeypatch):
    """The ways to compute the same sum."""
    if request.param == "small pieces":
        for name in ("WORKSPACE", "SAMPLES"):
            monkeypatch.setattr(contributions, name, 3)


def found(mix, factors, tensors, seed=50):
    """Results and gradients of one scalar that weighs all results differently."""
    tensors = [tensor.detach().requires_grad_() for tensor in tensors]
    ys = mix(factors, *tensors)
    wide = torch.complex128 if ys[0].is_complex() else torch.float64
    errors = [draw(*y.shape, seed=seed + b, dtype=wide).to(y.dtype) for b, y in enumerate(ys)]
    return [*ys, *torch.autograd.grad(ys, tensors, errors)]


def check(layer, tensors, dtype=torch.float64):
    wide = torch.complex128 if dtype.is_complex else torch.float64
    expected = found(layer.loops, layer.mixer().to(dtype).to(wide), [t.to(wide) for t in tensors])
    seen = found(layer.mix, layer.mixer().to(dtype), tensors)
    for one, two in zip(seen, expected, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one.to(wide), two, **TOLERANCE[dtype])


@each_layer()
def test_values_and_gradients_are_those_of_the_loops(layer, way):
    check(layer, layer.tensors())
    check(layer, layer.tensors()[:3])  # one input for all covers


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each_layer(SOME)
def test_every_dtype_mixes_and_stays(layer, dtype):
    if dtype is torch.float16:
        tensors = [tensor.half() for tensor in layer.tensors(torch.float32)]
    else:
        tensors = layer.tensors(dtype)
    check(layer, tensors, dtype)
    check(layer, tensors[:3], dtype)


@each_layer()
def test_a_bias_may_be_missing(layer):
    weight, _, *xs = layer.tensors()
    for own in (xs, xs[:1]):
        ys = layer.mix(layer.mixer(), weight, None, *own)
        loops = layer.loops(layer.mixer(), weight, None, *own)
        torch.testing.assert_close(list(ys), loops)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@each_layer(SOME)
def test_gradients_are_those_of_finite_differences_twice(layer, dtype):
    tensors = [tensor.requires_grad_() for tensor in layer.tensors(dtype)]
    factors = layer.mixer().to(dtype)
    if dtype.is_complex:  # a mixer that equals its own conjugate would hide a missing one
        factors = factors * torch.exp(1j * draw(*factors.shape, seed=9))
    for given in (tensors, tensors[:3]):
        assert torch.autograd.gradcheck(lambda *t: layer.mix(factors, *t), given, fast_mode=True)
        assert torch.autograd.gradgradcheck(
            lambda *t: [y**2 for y in layer.mix(factors, *t)], given, fast_mode=True
        )


@each_layer(SOME)
def test_function_transforms_see_the_same_gradients(layer):
    factors, tensors = layer.mixer(), layer.tensors()

    def energy(*tensors):
        return sum((y**3).sum() for y in layer.mix(factors, *tensors))

    every = tuple(range(len(tensors)))
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    expected = torch.autograd.grad(energy(*leaves), leaves, create_graph=True)
    torch.testing.assert_close(torch.func.grad(energy, every)(*tensors), expected)
    twice = torch.func.grad(lambda *t: sum(g.sum() for g in torch.func.grad(energy, every)(*t)))
    again = torch.autograd.grad(sum(g.sum() for g in expected), leaves[0])[0]
    torch.testing.assert_close(twice(*tensors), again)


@each_layer(SOME)
def test_only_the_gradients_that_are_asked_for_are_made(layer):
    factors, tensors = layer.mixer(), layer.tensors()
    every = found(layer.mix, factors, tensors)[layer.covers :]
    for asked in range(len(tensors)):
        given = [t.detach().requires_grad_(k == asked) for k, t in enumerate(tensors)]
        ys = layer.mix(factors, *given)
        errors = [draw(*y.shape, seed=50 + b) for b, y in enumerate(ys)]
        grad = torch.autograd.grad(ys, given[asked], errors)[0]
        torch.testing.assert_close(grad, every[asked])


@each_layer(SOME)
def test_a_cover_whose_result_is_not_used_has_no_error(layer):
    factors, tensors = layer.mixer(), [t.requires_grad_() for t in layer.tensors()]
    grads = torch.autograd.grad(layer.mix(factors, *tensors)[1].sum(), tensors)
    expected = torch.autograd.grad(layer.loops(factors, *tensors)[1].sum(), tensors)
    torch.testing.assert_close(grads, expected)


@each_layer()
def test_results_are_fresh_contiguous_tensors_that_may_change_in_place(layer):
    factors, (weight, bias, *xs) = layer.mixer(), layer.tensors()
    for own in (xs, xs[:1]):
        given = [t.clone().requires_grad_() for t in (weight, bias, *own)]
        ys = layer.mix(factors, *given)
        assert all(y.is_contiguous() for y in ys)
        energy = (ys[-1] ** 2).sum()  # keeps the last result, which no other one may disturb
        for y in ys[:-1]:
            y += 0.5
            torch.relu_(y)
            energy = energy + (y**2).sum()
        grads = torch.autograd.grad(energy, given)
        *first, last = layer.loops(factors, *given)
        expected = (last**2).sum() + sum(((y + 0.5).relu() ** 2).sum() for y in first)
        torch.testing.assert_close(energy, expected)
        torch.testing.assert_close(grads, torch.autograd.grad(expected, given))


@each_layer(["linear", "convolution", "groups", "linear, exact", "convolution, exact"])
def test_inputs_weights_and_mixers_in_any_layout_mix_the_same(layer):
    factors, tensors = layer.mixer(), layer.tensors()
    expected = found(layer.mix, factors, tensors)
    turned = [t.transpose(0, -1).contiguous().transpose(0, -1) for t in (factors, *tensors)]
    other = found(layer.mix, *turned[:1], turned[1:])
    torch.testing.assert_close(other, expected)
    if tensors[2].ndim == 4:
        tensors[2:] = [x.contiguous(memory_format=torch.channels_last) for x in tensors[2:]]
        torch.testing.assert_close(found(layer.mix, factors, tensors), expected)


@pytest.mark.parametrize("batch", [0, 1])
@each_layer(["linear", "linear, exact", "groups", "convolution, exact"])
def test_a_batch_may_be_empty_or_a_single_sample(layer, batch):
    weight, bias, *xs = layer.tensors()
    tensors = [weight, bias, *(x[:batch] for x in xs)]
    loops = found(layer.loops, layer.mixer(), tensors)
    torch.testing.assert_close(found(layer.mix, layer.mixer(), tensors), loops)


@each_layer(["linear, tokens", "convolution", "groups"])
def test_the_number_of_threads_changes_no_bit(layer):
    before = torch.get_num_threads()
    seen = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            seen.append(found(layer.mix, layer.mixer().float(), layer.tensors(torch.float32)))
    finally:
        torch.set_num_threads(before)
    for later in seen[1:]:
        torch.testing.assert_close(later, seen[0], rtol=0, atol=0)


@pytest.mark.parametrize("units", [1, 6], ids=["exact", "for each unit"])
def test_slices_mix_as_the_loops_say(units):
    factors = mixer(units, 1, 3)
    ids, tables = torch.tensor([[0, 3], [3, 1]]), [draw(5, 6, seed=a) for a in range(3)]
    expected = reference.message_embedding(ids, tables, factors)
    rows = tuple(table[ids].requires_grad_() for table in tables)
    for one, two in zip(mix_slices(rows, factors), expected, strict=True):
        assert one.is_contiguous()
        torch.testing.assert_close(one, two)
    assert torch.autograd.gradcheck(lambda *r: mix_slices(r, factors), rows)
    assert torch.autograd.gradgradcheck(lambda *r: [y**2 for y in mix_slices(r, factors)], rows)
    mix_slices(rows, factors)[1].relu_()


def test_a_counter_of_flops_sees_all_of_the_mixing():
    for layer, products in (
        (LAYERS["linear"], 4 * 8 * 5),
        (LAYERS["convolution"], 3 * 6 * 36 * 4 * 9),
    ):
        with FlopCounterMode(display=False) as counter:
            ys = layer.mix(layer.mixer(), *layer.tensors())
        mixing_them = layer.covers**2 * layer.blocks * ys[0].numel()
        assert counter.get_total_flops() == 2 * (layer.covers * products + mixing_them)


def test_blocks_are_near_equal_and_cover_all_inputs():
    for inputs, blocks in ((7, 3), (8, 4), (5, 5), (1, 1)):
        spans = block_slices(inputs, blocks)
        assert [i for span in spans for i in range(inputs)[span]] == list(range(inputs))
        widths = [span.stop - span.start for span in spans]
        assert widths == sorted(widths, reverse=True)
        assert widths[0] - widths[-1] <= 1


@pytest.mark.parametrize(
    ("layer", "shape", "said"),
    [
        (LAYERS["linear"], (4, 9), r"\(4, 9\).* 8 numbers"),
        (LAYERS["linear"], (7,), r"\(7,\).* 8 numbers"),
        (LAYERS["convolution"], (2, 5, 9, 9), r"\(2, 5, 9, 9\)"),
        (LAYERS["convolution"], (4, 9), r"\(4, 9\)"),
        (LAYERS["groups"], (2, 4, 9, 9), r"\(2, 4, 9, 9\)"),
        (LAYERS["strides and dilation"], (2, 5, 1, 4), r"\(2, 5, 1, 4\)"),
    ],
)
def test_inputs_that_do_not_fit_a_layer_are_refused(layer, shape, said):
    weight, bias, *_ = layer.tensors()
    for xs in ([draw(*shape)] * layer.covers, [draw(*shape)]):
        with pytest.raises(McoverError, match=said):
            layer.mix(layer.mixer(), weight, bias, *xs)
