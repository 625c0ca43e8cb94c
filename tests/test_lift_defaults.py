"""``lift(model, 4)``: defaults, words that stand for values, and slips with their remedies."""

import numpy as np
import pytest
import torch
from torch import nn

import mcover
from mcover import Directed, GaussianRing, McoverError, Messages, Uniform, lift
from mcover.errors import McoverWarning
from mcover.plain import from_plain, to_plain
from tiny_models import Perceptron, tiny


def test_a_model_and_a_number_are_enough():
    model, x = tiny(Perceptron)
    covered = lift(model, 4, seed=0)
    assert covered.settings.topology == Uniform()
    assert covered.settings.routing == Directed(redraw_every=10)
    same = lift(model, 4, "uniform", "directed", seed=0)
    assert torch.equal(covered(x), same(x))
    assert covered(x).shape[0] == 4
    for _ in range(21):
        covered(x)
    assert covered.redraws == 2


@pytest.mark.parametrize(
    ("word", "kind"),
    [("uniform", Uniform), ("ring", GaussianRing), ("chain", mcover.Chain),
     ("identity", mcover.Identity)],
)  # fmt: skip
def test_words_and_classes_stand_for_default_topologies(word, kind):
    model, _ = tiny(Perceptron)
    for given in (word, kind, kind()):
        assert lift(model, 3, given, seed=0).settings.topology == kind()
    assert mcover.MCover(3, word).topology == kind()


def test_words_and_classes_stand_for_default_routings():
    model, _ = tiny(Perceptron)
    for word, kind in {"messages": Messages, "directed": Directed}.items():
        for given in (word, kind, kind()):
            assert lift(model, 3, routing=given, seed=0).settings.routing == kind()


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((4, "directed"), {}, "'directed', which is a routing; write routing='directed'"),
        ((4, Directed), {}, "Directed, which is a routing; write routing=Directed"),
        ((4, Messages(blocks=2)), {}, r"which is a routing; write routing=Messages\(blocks=2"),
        ((4,), {"routing": Uniform()}, r"which is a topology; write topology=Uniform\(\)"),
        ((4,), {"routing": "ring"}, "which is a topology; write topology='ring'"),
        ((4, "unifrom"), {}, "topology is 'unifrom'; write 'uniform', 'ring', 'chain' or"),
        ((4,), {"routing": "direct"}, "routing is 'direct'; write 'directed' or 'messages'"),
        ((4, np.eye(4)), {}, r"topology is a ndarray; write mcover.Custom\(matrix\)"),
        ((4, mcover.Custom), {}, "Custom.*write 'uniform'.*GaussianRing"),
        ((4, None), {}, "topology is None; write 'uniform'"),
        (("4",), {}, "covers is '4'; write how many, or a list of modules"),
        ((4.0,), {}, "covers is 4.0; write how many"),
        ((4,), {"noise": "10"}, "noise is '10'; write 'auto', a standard deviation"),
        ((4,), {"noise": None}, "noise is None; write 'auto'"),
    ],
)
def test_slips_get_the_remedy(arguments, options, message):
    with pytest.raises(McoverError, match=message):
        lift(tiny(Perceptron)[0], *arguments, **options)


def test_swapped_arguments_and_a_class_get_the_remedy():
    with pytest.raises(McoverError, match=r"the model comes first; write lift\(model, 4\)"):
        lift(4, nn.Linear(2, 2))
    with pytest.raises(McoverError, match=r"got its class; write lift\(Linear\(\.\.\.\)"):
        lift(nn.Linear, 4)


def test_noise_for_modules_that_are_given_warns():
    models = [nn.Linear(2, 3), nn.Linear(2, 3)]
    assert lift(models[0], models, seed=0).settings.noise == 0
    with pytest.warns(McoverWarning, match="noise='10%' does nothing"):
        lift(models[0], models, noise="10%", seed=0)


def test_what_was_stored_before_the_default_changed_keeps_its_meaning():
    quenched, redrawn = Directed(redraw_every=None), Directed()
    assert to_plain(quenched) == {"kind": "directed"}
    assert to_plain(redrawn) == {"kind": "directed", "redraw_every": 10}
    for value in (quenched, redrawn, Directed(4, redraw_every=3)):
        assert from_plain(mcover.lifting.Routing, to_plain(value)) == value


@pytest.mark.parametrize(
    ("model", "share"),
    [
        (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), "100%"),
        (nn.Sequential(nn.Flatten(), nn.Linear(3, 4), nn.Dropout(), nn.Linear(4, 2)), "100%"),
        (nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(4, 2)), "10%"),
        (nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)), "10%"),
        (nn.TransformerEncoderLayer(4, 2, 8), "10%"),
        (nn.MultiheadAttention(4, 2, bias=False), "10%"),
        (nn.LSTM(4, 2), "10%"),
    ],
)
def test_noise_auto_is_large_for_perceptrons_only(model, share):
    assert lift(model, 2, seed=0).settings.noise == share
    frozen = nn.Sequential(model, nn.Linear(2, 2))
    assert lift(frozen, 2, select="1", seed=0).settings.noise == share
    by_hand = lift(model, 2, noise=share, seed=0).state_dict()
    ours = lift(model, 2, seed=0).state_dict()
    assert all(torch.equal(ours[name], by_hand[name]) for name in ours)


def test_repr_says_how_the_model_was_lifted():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    shown = repr(lift(model, 3, "ring", select="2"))
    assert "\n" not in shown
    for part in ("Sequential, covers=3", "GaussianRing(sigma=1.5", "routing=Directed(bank=8",
                 "noise='100%'", "10 parameters lifted, 16 shared"):  # fmt: skip
        assert part in shown


def test_the_public_names_are_what_dir_lists():
    listed = set(dir(mcover))
    assert set(mcover.__all__) | {"nn", "optim", "statistics", "permutations"} <= listed
    assert not listed & {"Any", "TYPE_CHECKING", "importlib", "lifting", "sys"}
    assert all(hasattr(mcover, name) for name in listed)
