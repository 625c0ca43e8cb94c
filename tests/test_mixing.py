"""The ways in which layers mix: whichever is taken for speed, the sums are the paper's."""

import pytest
import torch

from mcover.nn import kernels, mixing
from mcover.nn.kernels import common, messages, regions, threads
from mcover.nn.mixing import block_slices

COVERS, UNITS = 3, 5


def doubles(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mixer(blocks: int, units: int = UNITS) -> torch.Tensor:
    return doubles(units, blocks, COVERS, COVERS, seed=1).softmax(-1)


def mixed_weights(weight: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """W[β] = Σ_α Q̂[r,g,β,α] W[α], one number after the other."""
    result = torch.zeros_like(weight)
    for g, span in enumerate(block_slices(weight.shape[2], factors.shape[1])):
        for r in range(weight.shape[1]):
            for reading in range(COVERS):
                for read in range(COVERS):
                    factor = factors[r, g, reading, read]
                    result[reading, r, span] += factor * weight[read, r, span]
    return result


@pytest.fixture(params=["compiled", "compiled, two threads, small pieces", "torch"])
def way(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(kernels, "fits", lambda *tensors: False)
    elif request.param != "compiled":
        monkeypatch.setattr(regions, "ALONE", 0)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
        monkeypatch.setattr(common, "CACHE", 1)
        for name, value in {"FAR": 1, "WIDE": 1, "SAMPLES": 3}.items():
            monkeypatch.setattr(messages, name, value)
    return request.param


@pytest.mark.parametrize("blocks", [1, 3, 7])
def test_mixed_weights_are_the_sum_over_covers_in_every_way(way, blocks):
    weight, factors = doubles(COVERS, UNITS, 7), mixer(blocks)
    torch.testing.assert_close(
        mixing.mix_weights(weight, factors), mixed_weights(weight, factors), rtol=1e-12, atol=1e-12
    )


def test_gradients_of_mixed_weights_are_right_in_every_way(way):
    weight = doubles(COVERS, UNITS, 7).requires_grad_()
    assert torch.autograd.gradcheck(lambda w: mixing.mix_weights(w, mixer(3)), weight)


def test_common_inputs_give_the_product_with_mixed_weights_in_every_way(way):
    x, weight, bias = doubles(4, 7, seed=2), doubles(COVERS, UNITS, 7), doubles(COVERS, UNITS)
    expected = x @ mixed_weights(weight, mixer(3)).transpose(1, 2) + bias.unsqueeze(1)
    torch.testing.assert_close(mixing.mix_common(x, weight, mixer(3), bias), expected)
    torch.testing.assert_close(mixing.mix_common(x, weight, mixer(3)), expected - bias.unsqueeze(1))


def test_gradients_of_common_inputs_weights_and_biases_are_right_in_every_way(way):
    given = [doubles(4, 7, seed=2), doubles(COVERS, UNITS, 7), doubles(COVERS, UNITS, seed=3)]
    given = [tensor.requires_grad_() for tensor in given]
    assert torch.autograd.gradcheck(lambda x, w, b: mixing.mix_common(x, w, mixer(3), b), given)


def mixed_messages(x, weight, factors, bias):
    """a[β] = b[β] + Σ_g Σ_α Q̂[r,g,β,α] C[g,α], block by block."""
    result = 0 if bias is None else bias.unsqueeze(1)
    for g, span in enumerate(block_slices(x.shape[2], factors.shape[1])):
        c = torch.einsum("anj,arj->anr", x[:, :, span], weight[:, :, span])
        result = result + torch.einsum("rba,anr->bnr", factors[:, g], c)
    return result


def test_messages_and_their_gradients_are_right_in_every_way(way):
    given = [doubles(COVERS, 4, 7, seed=2), doubles(COVERS, UNITS, 7), doubles(COVERS, UNITS)]
    x, weight, bias = (tensor.requires_grad_() for tensor in given)
    factors = mixer(3)
    torch.testing.assert_close(
        mixing.mix_linear(x, weight, factors, bias), mixed_messages(x, weight, factors, bias)
    )
    torch.testing.assert_close(
        mixing.mix_linear(x, weight, factors), mixed_messages(x, weight, factors, None)
    )
    assert torch.autograd.gradcheck(
        lambda *tensors: mixing.mix_linear(tensors[0], tensors[1], factors, tensors[2]),
        (x, weight, bias),
    )


SIZES = {  # covers, samples, inputs, units, blocks: around the sizes of vectors, tiles and pieces
    "a vector and one": (3, 17, 33, 13, 2),
    "whole vectors": (2, 32, 64, 24, 4),
    "one of each": (1, 1, 1, 1, 1),
    "more samples than a piece": (2, 1100, 35, 14, 3),
    "more covers than a tile has rows": (14, 20, 40, 9, 5),
    "a block for each input": (4, 19, 21, 30, 21),
    "wide inputs": (5, 40, 700, 20, 2),
}


@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_compiled_kernels_equal_plain_sums_at_sizes_that_no_vector_divides(
    sizes, threads, kind, monkeypatch
):
    covers, count, inputs, units, blocks = sizes
    monkeypatch.setattr(regions, "ALONE", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    weight, bias = doubles(covers, units, inputs), doubles(covers, units, seed=3)
    factors = doubles(units, blocks, covers, covers, seed=1).softmax(-1)
    own, shared = doubles(covers, count, inputs, seed=2), doubles(count, inputs, seed=4)
    error = doubles(covers, count, units, seed=5)
    same = {"rtol": 1e-10, "atol": 1e-10} if kind is torch.float64 else {"rtol": 1e-4, "atol": 1e-3}
    for x, mix in ((own, mixing.mix_linear), (shared, mixing.mix_common)):
        every = x.expand(covers, count, inputs)
        exact = [t.clone().requires_grad_() for t in (every, weight, bias)]
        y = mixed_messages(exact[0], exact[1], factors, exact[2])
        expected = [y, *torch.autograd.grad(y, exact, error)]
        if x is shared:
            expected[1] = expected[1].sum(0)
        given = [t.to(kind).clone().requires_grad_() for t in (x, weight, bias)]
        y = mix(given[0], given[1], factors.to(kind), given[2])
        found = [y, *torch.autograd.grad(y, given, error.to(kind))]
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.double(), other, **same)


def test_the_number_of_threads_changes_no_bit(monkeypatch):
    monkeypatch.setattr(regions, "ALONE", 0)
    weight = doubles(COVERS, 40, 90).requires_grad_()
    factors = mixer(3, 40)
    seen = []
    for count in (1, 2, 5):
        monkeypatch.setattr(torch, "get_num_threads", lambda count=count: count)
        for x, mix in (
            (doubles(COVERS, 70, 90, seed=2), mixing.mix_linear),
            (doubles(70, 90, seed=2), mixing.mix_common),
        ):
            x.requires_grad_()
            y = mix(x, weight, factors)
            seen.append((y, *torch.autograd.grad(y.square().sum(), (x, weight))))
    for later in (seen[2:4], seen[4:6]):
        for first, other in zip(seen[:2], later, strict=True):
            for one, same in zip(first, other, strict=True):
                assert torch.equal(one, same)


def test_inputs_in_any_layout_mix_the_same():
    x, weight, factors = doubles(COVERS, 18, 20), doubles(COVERS, UNITS, 20), mixer(3)
    expected = mixed_messages(x, weight, factors, None)
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        back = sorted(range(3), key=order.__getitem__)
        laid = x.permute(order).contiguous().permute(back).requires_grad_()
        y = mixing.mix_linear(laid, weight, factors)
        torch.testing.assert_close(y, expected)
        grad = torch.autograd.grad(y.square().sum(), laid)[0]
        plain = x.clone().requires_grad_()
        same = torch.autograd.grad(
            mixed_messages(plain, weight, factors, None).square().sum(), plain
        )[0]
        torch.testing.assert_close(grad, same)


def test_an_empty_batch_has_an_empty_result_and_no_gradient():
    weight, factors = doubles(COVERS, UNITS, 7).requires_grad_(), mixer(3)
    for x, mix in ((doubles(COVERS, 0, 7), mixing.mix_linear), (doubles(0, 7), mixing.mix_common)):
        y = mix(x, weight, factors)
        assert y.shape == (COVERS, 0, UNITS)
        assert not torch.autograd.grad(y.sum(), weight)[0].any()


def test_gradients_have_gradients():
    given = [doubles(COVERS, 4, 7, seed=2), doubles(COVERS, UNITS, 7), doubles(COVERS, UNITS)]
    own, weight, bias = (tensor.requires_grad_() for tensor in given)
    shared = doubles(4, 7, seed=4).requires_grad_()
    factors = mixer(3)
    for x, mix in ((own, mixing.mix_linear), (shared, mixing.mix_common)):
        assert torch.autograd.gradgradcheck(
            lambda x, w, b, mix=mix: mix(x, w, factors, b), (x, weight, bias)
        )
    assert torch.autograd.gradgradcheck(lambda w: mixing.mix_weights(w, factors) ** 2, weight)


def test_mixers_in_any_layout_mix_the_same():
    own, shared = doubles(COVERS, 18, 20), doubles(18, 20)
    weight, factors = doubles(COVERS, UNITS, 20).requires_grad_(), mixer(3)
    other = factors.to(memory_format=torch.channels_last)
    assert not other.is_contiguous()
    for x, mix in (
        (own, mixing.mix_linear),
        (shared, mixing.mix_common),
        (None, lambda _, w, q: mixing.mix_weights(w, q)),
    ):
        seen = []
        for q in (factors, other):
            y = mix(x, weight, q)
            seen.append((y, torch.autograd.grad(y.square().sum(), weight)[0]))
        for one, same in zip(*seen, strict=True):
            torch.testing.assert_close(one, same)


def test_kernels_run_without_the_threads_of_torch_too(monkeypatch):
    monkeypatch.setattr(threads, "_openmp", lambda: None)
    monkeypatch.setattr(regions, "ALONE", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    x, weight, factors = doubles(COVERS, 18, 20), doubles(COVERS, UNITS, 20), mixer(3)
    y = mixing.mix_linear(x, weight, factors)
    torch.testing.assert_close(y, mixed_messages(x, weight, factors, None))
