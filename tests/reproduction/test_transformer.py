"""The small transformer: its equations, its dropout, and both lifts of it."""

import math

import pytest
import torch
from torch.nn import functional

import mcover
from mcover import Directed, Identity, McoverError, Messages, Uniform
from reproduction.models import Transformer

KIND = Transformer((6, 4), width=8, layers=2, heads=2, classes=3)
IMAGES = torch.randn(5, 6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


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
    model = KIND.build(seed=0).double().train(training)
    expected = torch.stack([by_equations(model, image) for image in IMAGES])
    with torch.set_grad_enabled(training):  # without gradients torch has another path
        torch.testing.assert_close(model(IMAGES), expected)


def test_weights_follow_the_seed_alone():
    state = torch.get_rng_state()
    one, same, other = (KIND.build(seed) for seed in (0, 0, 1))
    assert torch.equal(state, torch.get_rng_state())
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, same.state_dict()[name])
    assert not torch.equal(one.place, other.place)


def test_dropout_acts_inside_and_in_training_only():
    plain, dropped = (
        Transformer((6, 4), width=8, dropout=share).build(seed=0).double() for share in (0.0, 0.4)
    )
    assert not torch.equal(dropped(IMAGES), dropped(IMAGES))
    torch.testing.assert_close(dropped.eval()(IMAGES), plain.eval()(IMAGES))


@pytest.mark.parametrize("routing", [Directed(), Messages(blocks=4)], ids=["directed", "messages"])
def test_covers_that_agree_are_the_model_itself(routing):
    """Wherever a route reads from, it reads the same: values, gradients and collapse."""
    model = KIND.build(seed=0).double()
    covered = mcover.lift(model, 3, Uniform(), routing, noise=0.0, seed=1)
    labels = torch.tensor([0, 1, 2, 0, 1])
    mcover.cover_loss(functional.cross_entropy, covered(IMAGES), labels).backward()
    functional.cross_entropy(model(IMAGES), labels).backward()
    for output in covered(IMAGES):
        torch.testing.assert_close(output, model(IMAGES))
    stacks = covered.stacks()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(stacks[name].grad.sum(0), 3 * weight.grad)
    torch.testing.assert_close(covered.collapse()(IMAGES), model(IMAGES))


def test_covers_apart_are_models_apart_and_routes_mix_them():
    model = KIND.build(seed=0).double()
    apart = mcover.lift(model, 3, Identity(), Directed(), noise="50%", seed=1)
    for index, output in enumerate(apart(IMAGES)):
        torch.testing.assert_close(output, apart.cover(index)(IMAGES))
    routed = mcover.lift(model, 3, Uniform(), Directed(), noise="50%", seed=1)
    assert not torch.allclose(routed(IMAGES), apart(IMAGES))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": (7, 4)}, "a divisor of the height"),
        ({"heads": 3}, "a divisor of the width"),
        ({"layers": 0}, "layers is 0"),
        ({"dropout": 1.0}, "dropout is 1.0"),
    ],
)
def test_transformers_that_cannot_be_are_refused(options, message):
    with pytest.raises(McoverError, match=message):
        Transformer(**{"size": (8, 8)} | options)
