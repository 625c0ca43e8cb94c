"""Folded networks of bits against their original models."""

import copy

import pytest
import torch
from torch import nn

from covering import doubles, saved
from mcover import Uniform, lift
from mcover.nn import binary
from mcover.nn.binary import Sign


def dense(norm=nn.BatchNorm1d, bias=False):
    return nn.Sequential(
        nn.Linear(70, 33, bias=bias), norm(33), Sign(), nn.Dropout(),
        nn.Sequential(nn.Linear(33, 130, bias=bias), norm(130), Sign()),
        nn.Linear(130, 64, bias=bias), nn.Identity(), Sign(), nn.Linear(64, 5, bias=bias), norm(5),
    )  # fmt: skip


def convolutional(padding=1, stride=1, last=4, bias=False, dilation=1):
    at = {"padding": padding, "bias": bias, "dilation": dilation}
    return nn.Sequential(
        nn.Conv2d(3, 9, 3, stride=stride, **at), nn.BatchNorm2d(9), Sign(),
        nn.Conv2d(9, 70, 3, **at), nn.MaxPool2d(2), nn.BatchNorm2d(70), Sign(),
        nn.MaxPool2d(2, padding=1), nn.Conv2d(70, 8, 1, bias=bias), Sign(),
        nn.Flatten(), nn.LazyLinear(last, bias=bias), nn.BatchNorm1d(last),
    )  # fmt: skip


def settled(net, x, seed=0, ties=True, **options):
    """A binarized model with trained norms, some of them negated, flat or at a tie."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net(x)
        for module in net.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        student = binary.binarize(net, **options)
        for _ in range(3):
            student(x)
        for module in student.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.weight.data.normal_()
                module.bias.data.normal_()
                module.weight.data[::5] = 0
                module.bias.data[::10] = -0.5
                if ties:
                    module.bias.data[1::4] = 0  # with a whole mean, z is 0 for a field there is
                    module.running_mean.round_()
    return student.eval()


def bits_of(model, x):
    """The output of a model or its fold, and the bits between its layers."""
    seen = []

    def keep(module, given, made):
        kind = type(module).__name__  # of a fold: the last layer puts out numbers
        if kind == "Sign" or (kind in ("PackedLayer", "_Signs") and made.dtype == torch.bool):
            seen.append(made > 0)

    hooks = [m.register_forward_hook(keep) for m in getattr(model, "steps", model.modules())]
    out = model(x)
    for hook in hooks:
        hook.remove()
    return out.detach(), seen


def assert_same(student, x):
    out, seen = bits_of(student, x)
    got, bits = bits_of(binary.fold(student), x)
    assert len(seen) == len(bits) > 0
    for a, b in zip(seen, bits, strict=True):
        assert torch.equal(a, b)
        assert 0 < a.float().mean() < 1
    torch.testing.assert_close(got, out)


def inputs(shape, signs, seed=0, dtype=torch.float32):
    x = doubles(*shape, seed=seed).to(dtype)
    return torch.where(x < 0, -1.0, 1.0).to(dtype) if signs else x


@pytest.mark.parametrize("signs", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_a_dense_network_of_bits_is_the_model(signs, seed):
    x = inputs((200, 70), signs, seed)
    assert_same(settled(dense(), x, seed), x)


@pytest.mark.parametrize("options", [{"bias": True}, {"norm": lambda units: nn.Identity()}])
def test_biases_and_layers_without_norms(options):
    x = inputs((200, 70), False)
    assert_same(settled(dense(**options), x), x)


def test_scales_of_channels_and_doubles():
    """Sums of scaled signs are rounded, so that a tie may fall to either side in the model."""
    x = inputs((200, 70), True, dtype=torch.float64)
    net = nn.Sequential(
        nn.Linear(70, 40), nn.BatchNorm1d(40), Sign(), nn.Linear(40, 50, bias=False),
        nn.BatchNorm1d(50), Sign(), nn.Linear(50, 3),
    )  # fmt: skip
    assert_same(settled(net.double(), x, ties=False, scale="channel"), x)


@pytest.mark.parametrize("signs", [True, False])
@pytest.mark.parametrize(
    "options",
    [{}, {"padding": 0}, {"padding": 2, "stride": 2}, {"padding": "same"}, {"padding": "valid"},
     {"padding": (2, 1)}, {"dilation": 2}, {"bias": True}],
)  # fmt: skip
def test_a_convolutional_network_of_bits_is_the_model(options, signs):
    x = inputs((20, 3, 17, 14), signs)
    assert_same(settled(convolutional(**options), x), x)


def test_ties_go_to_plus_one():
    layer = nn.Linear(4, 2, bias=False)
    norm = nn.BatchNorm1d(2, eps=0.0)
    norm.running_mean[:] = 2.0
    norm.weight.data = torch.tensor([1.0, -1.0])
    student = binary.binarize(nn.Sequential(layer, norm, Sign())).eval()
    binary.latents(student)["0.parametrizations.weight.original"].data.fill_(1.0)
    x = torch.tensor([[1.0, 1, 1, 1], [1, 1, 1, -1], [1, 1, -1, -1]])  # fields 4, 2 and 0
    want = [[1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]]
    assert student(x).tolist() == want
    assert binary.fold(student)(x).tolist() == want


def test_signs_may_come_first_and_last():
    net = nn.Sequential(Sign(), nn.Linear(40, 20), nn.BatchNorm1d(20), Sign())
    x = inputs((50, 40), False)
    student = settled(net, x)
    folded = binary.fold(student)
    assert torch.equal(folded(x), student(x))
    # Nothing is kept in floats: 20 rows of a word, 20 ways and 20 thresholds.
    assert folded.nbytes == 20 * (8 + 1 + 4)


def test_a_fold_is_saved_loaded_and_copied():
    x = inputs((30, 70), False)
    student, other = (settled(dense(), x, seed) for seed in (0, 1))
    folded, fresh = binary.fold(student), binary.fold(other)
    assert not torch.equal(folded(x), fresh(x))
    fresh.load_state_dict(saved(folded.state_dict()))
    assert torch.equal(folded(x), fresh(x))
    assert torch.equal(folded(x), copy.deepcopy(folded).train()(x))
    floats = sum(p.nbytes for p in student.parameters())
    assert folded.nbytes < floats / 10


def test_the_baked_collapse_of_covers_folds_as_well():
    x = inputs((60, 70), False)
    covered = lift(settled(dense(), x).train(), 3, Uniform(), "messages", noise="50%", seed=0)
    covered(x)
    student = binary.collapse(covered, "signs", loader=[x])
    folded = binary.fold(student)(x)
    torch.testing.assert_close(folded, student(x).detach())
    assert torch.equal(binary.fold(binary.bake(student))(x), folded)


@pytest.mark.parametrize("default", [torch.float64, torch.float16])
@pytest.mark.parametrize("padding", [0, "same"])
def test_folding_does_not_depend_on_the_default_dtype(default, padding):
    layers = [
        nn.Conv2d(2, 4, 3, padding=padding), nn.BatchNorm2d(4), binary.Sign(),
        nn.Conv2d(4, 4, 3, padding=1), nn.MaxPool2d(2), nn.BatchNorm2d(4), binary.Sign(),
        nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(3),
    ]  # fmt: skip
    model, x = nn.Sequential(*layers), torch.randn(3, 2, 9, 9)
    model(x)
    student = binary.binarize(model).eval()
    want = binary.fold(student)(x)
    torch.testing.assert_close(want, student(x))
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        got = binary.fold(student)(x)
    finally:
        torch.set_default_dtype(before)
    assert got.dtype == x.dtype
    assert torch.equal(got, want)
