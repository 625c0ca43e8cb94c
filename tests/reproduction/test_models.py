"""The networks of the studies: sizes, seeds, and what their layers compute."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from mcover.nn import binary
from reproduction import data
from reproduction.binary_models import BinaryConv, BinaryMlp
from reproduction.models import Conv, Mlp, Transformer
from reproduction.training import NetworkTrial

TRANSFORMER = Transformer((6, 4), width=8, layers=2, heads=2, classes=3)
IMAGES = torch.randn(5, 6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_networks_have_the_sizes_of_the_paper():
    def sizes(kind):
        layers = [layer for layer in kind.build(seed=0) if isinstance(layer, nn.Linear)]
        return [layers[0].in_features] + [layer.out_features for layer in layers]

    images, labels = np.zeros((1, 28, 28), np.float32), np.zeros(1, np.int64)
    mnist = data.Dataset("as large as MNIST", images, labels, images, labels)
    assert sizes(NetworkTrial().architecture(mnist)) == [784, 512, 512, 10]
    small = NetworkTrial(model="small-mlp")
    assert sizes(small.architecture(data.load("digits"))) == [64, 256, 256, 10]


KINDS = (
    Mlp((24, 12, 10)),
    Conv((6, 4), (4,), 3),
    TRANSFORMER,
    BinaryMlp((24, 12, 12, 10)),
    BinaryConv((6, 4), (4,)),
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_weights_follow_the_seed_alone(kind):
    state = torch.get_rng_state()
    one, same, other = (kind.build(seed) for seed in (0, 0, 1))
    assert torch.equal(state, torch.get_rng_state())
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, same.state_dict()[name])
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs)


def test_convolutions_halve_the_image_and_end_in_classes():
    model = Conv((9, 8), channels=(4, 6), classes=3, dropout=0.2).build(seed=0)
    assert model(torch.ones(5, 9, 8)).shape == (5, 3)
    kinds = [type(layer).__name__ for layer in model]
    part = ["Conv2d", "ReLU", "MaxPool2d"]
    assert kinds == ["Unflatten", *part, *part, "Flatten", "Dropout", "Linear"]
    assert model[-1].in_features == 6 * 2 * 2


@pytest.mark.parametrize("kind", [BinaryMlp((64, 12, 12, 10)), BinaryConv((8, 8), (4, 6))])
def test_all_that_binary_layers_multiply_is_a_sign(kind):
    digits, net, seen = data.load("digits", normalize=True), kind.build(seed=1).eval(), []
    for layer in net:
        if hasattr(layer, "parametrizations"):
            layer.register_forward_pre_hook(lambda layer, given: seen.append((layer, given[0])))
    assert net(torch.from_numpy(digits.test_images)).shape == (len(digits.test_labels), 10)
    assert len(seen) == 3
    for layer, given in seen:
        assert set(given.unique().tolist()) == set(layer.weight.unique().tolist()) == {-1, 1}
    for latent in binary.latents(net).values():
        assert float(latent.detach().abs().max()) <= 0.05


def normalized(x, norm):
    centred = x - x.mean(-1, keepdim=True)
    spread = (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    return centred / spread * norm.weight + norm.bias


def by_equations(model, image):
    """Logits of one image, head by head and token by token."""
    tokens = torch.stack([torch.cat([image[2 * t], image[2 * t + 1]]) for t in range(3)])
    x = tokens @ model.embed.weight.T + model.embed.bias + model.place
    for layer in model.layers:
        inside, attention = normalized(x, layer.norm1), layer.self_attn
        q, k, v = (inside @ attention.in_proj_weight.T + attention.in_proj_bias).chunk(3, -1)
        heads = []
        for at in (slice(0, 4), slice(4, 8)):
            weights = torch.exp(q[:, at] @ k[:, at].T / math.sqrt(4))
            heads.append(weights / weights.sum(-1, keepdim=True) @ v[:, at])
        x = x + layer.self_attn.out_proj(torch.cat(heads, -1))
        hidden = layer.linear1(normalized(x, layer.norm2))
        hidden = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
        x = x + hidden @ layer.linear2.weight.T + layer.linear2.bias
    return model.answer(normalized(x, model.norm).mean(0))


@pytest.mark.parametrize("training", [True, False])
def test_the_transformer_is_its_equations(training):
    model = TRANSFORMER.build(seed=0).double().train(training)
    expected = torch.stack([by_equations(model, image) for image in IMAGES])
    with torch.set_grad_enabled(training):  # without gradients torch has another path
        torch.testing.assert_close(model(IMAGES), expected)


def test_dropout_acts_inside_and_in_training_only():
    plain, dropped = (
        Transformer((6, 4), width=8, dropout=share).build(seed=0).double() for share in (0.0, 0.4)
    )
    assert not torch.equal(dropped(IMAGES), dropped(IMAGES))
    torch.testing.assert_close(dropped.eval()(IMAGES), plain.eval()(IMAGES))
