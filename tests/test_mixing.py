"""The ways in which layers mix: whichever is taken for speed, the sums are the paper's."""

import pytest
import torch

from mcover.nn import convolving, mixing, mixing_kernels
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


@pytest.fixture(params=["compiled", "compiled, two threads, small tiles", "torch"])
def way(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(mixing, "fits", lambda *tensors: False)
    elif request.param != "compiled":
        monkeypatch.setattr(mixing_kernels, "_ALONE", 0)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
        monkeypatch.setattr(mixing, "CACHE", 2 * COVERS * 7)  # two units at a time
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


@pytest.mark.parametrize("small", [0, 2**40])
def test_large_and_small_products_mix_the_same(small, monkeypatch):
    monkeypatch.setattr(mixing, "SMALL", small)
    given = [doubles(COVERS, 4, 7, seed=2), doubles(COVERS, UNITS, 7), doubles(COVERS, UNITS)]
    x, weight, bias = (tensor.requires_grad_() for tensor in given)
    factors = mixer(3)
    y = mixing.mix_linear(x, weight, factors, bias)
    expected = torch.zeros(COVERS, 4, UNITS, dtype=torch.float64) + bias.unsqueeze(1)
    for g, span in enumerate(block_slices(7, 3)):
        c = torch.einsum("anj,arj->anr", x[:, :, span], weight[:, :, span])
        expected = expected + torch.einsum("rba,anr->bnr", factors[:, g], c)
    torch.testing.assert_close(y, expected)
    assert torch.autograd.gradcheck(
        lambda *tensors: mixing.mix_linear(tensors[0], tensors[1], factors, tensors[2]),
        (x, weight, bias),
    )


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("narrow", [0, 10**9], ids=["blocks", "pairs"])
def test_thin_and_thick_blocks_of_convolutions_mix_the_same(groups, narrow, monkeypatch):
    monkeypatch.setattr(convolving, "NARROW", narrow)
    at = convolving.Geometry((2, 1), (1, 0), (1, 1), groups)
    channels, units = 3 * groups, 2 * groups
    x = doubles(COVERS, 2, channels, 5, 4, seed=2).requires_grad_()
    weight = doubles(COVERS, units, 3, 2, 2).requires_grad_()
    factors = mixer(2, units)
    expected = 0
    for g, span in enumerate(block_slices(3, 2)):
        of_block = x.unflatten(2, (groups, 3))[:, :, :, span].flatten(2, 3)
        c = torch.stack(
            [at.convolve(a, w[:, span], groups) for a, w in zip(of_block, weight, strict=True)]
        )
        expected = expected + torch.einsum("rba,anrhw->bnrhw", factors[:, g], c)
    torch.testing.assert_close(convolving.convolve(x, weight, factors, at), expected)
    assert torch.autograd.gradcheck(
        lambda x, w: convolving.convolve(x, w, factors, at), (x, weight), fast_mode=True
    )
