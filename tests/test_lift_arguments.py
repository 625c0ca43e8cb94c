"""``lift(model, 4)``: defaults, names for values, and lifted and shared parameters."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import mcover
from covering import RING, both, doubles, mlp, train
from mcover import Directed, GaussianRing, Messages, Uniform, cover_loss, lift
from mcover.errors import McoverWarning, TooLargeError
from mcover.plain import from_plain, to_plain
from tiny_models import Perceptron, Transformer, tiny


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


TOPOLOGIES = {
    "uniform": Uniform, "ring": GaussianRing, "chain": mcover.Chain, "identity": mcover.Identity,
}  # fmt: skip
ROUTING_KINDS = {"messages": Messages, "directed": Directed}


@pytest.mark.parametrize("word", [*TOPOLOGIES, *ROUTING_KINDS])
def test_words_and_classes_stand_for_defaults(word):
    model, what = tiny(Perceptron)[0], "topology" if word in TOPOLOGIES else "routing"
    kind = (TOPOLOGIES | ROUTING_KINDS)[word]
    for given in (word, kind, kind()):
        covered = lift(model, 3, **{what: given}, seed=0)
        assert getattr(covered.settings, what) == kind()
    if word in TOPOLOGIES:
        assert mcover.MCover(3, word).topology == kind()


def test_what_was_stored_before_the_default_changed_keeps_its_meaning():
    quenched, redrawn = Directed(redraw_every=None), Directed()
    assert to_plain(quenched) == {"kind": "directed"}
    assert to_plain(redrawn) == {"kind": "directed", "redraw_every": 10}
    for value in (quenched, redrawn, Directed(4, redraw_every=3)):
        assert from_plain(mcover.lifting.Routing, to_plain(value)) == value


def test_repr_says_how_the_model_was_lifted():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    shown = repr(lift(model, 3, "ring", select="2"))
    assert "\n" not in shown
    for part in (
        "Sequential, covers=3", "GaussianRing(sigma=1.5", "routing=Directed(bank=8",
        "noise='100%'", "10 parameters lifted, 16 shared",
    ):  # fmt: skip
        assert part in shown


def test_the_public_names_are_what_dir_lists():
    listed = set(dir(mcover))
    assert set(mcover.__all__) | {"nn", "optim", "statistics", "permutations"} <= listed
    assert not listed & {"Any", "TYPE_CHECKING", "importlib", "lifting", "sys"}
    assert all(hasattr(mcover, name) for name in listed)


def test_integrations_need_no_import_of_their_own(monkeypatch):
    monkeypatch.delattr(mcover, "distributed", raising=False)  # another test may have imported it
    assert callable(mcover.distributed.spread)
    with pytest.raises(AttributeError, match="no attribute 'lightnin'"):
        mcover.lightnin  # noqa: B018


def test_stacks_and_routes_beyond_the_memory_limit_are_refused(monkeypatch):
    model = nn.Linear(100, 100)  # 39.5 KiB
    monkeypatch.setenv("MCOVER_MEMORY_LIMIT", "150000")
    lift(model, 3, Uniform(), Messages(blocks=1), seed=0)
    for covers, how, message in (
        (4, Messages(blocks=1), r"4 covers of this model .*fewer covers.*select="),
        (3, Directed(20, redraw_every=None), r"bank of 20 × 10100 routes.*fewer destinations"),
        (3, Messages(streams=10**9), r"mixers .*fewer blocks"),
    ):
        with pytest.raises(TooLargeError, match=message):
            lift(model, covers, Uniform(), how, seed=0)


# --- noise, seeds, and covers that are given ------------------------------------------------------


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
    by_hand, ours = (lift(model, 2, seed=0, **how).state_dict() for how in ({"noise": share}, {}))
    assert all(torch.equal(ours[name], by_hand[name]) for name in ours)


@pytest.mark.filterwarnings("default::mcover.errors.McoverWarning")
def test_noise_that_cannot_be_meant_warns():
    model = nn.Sequential(nn.Linear(50, 50), nn.Linear(50, 50))
    nn.init.normal_(model[1].weight, std=0.01)
    with pytest.warns(McoverWarning, match=r"\d\d+% of .* of '1.weight'.*noise='10%'"):
        lift(model, 3, RING, "messages", noise=0.01, seed=0)
    models = [nn.Linear(2, 3), nn.Linear(2, 3)]
    assert lift(models[0], models, seed=0).settings.noise == 0
    with pytest.warns(McoverWarning, match="noise='10%' has no effect on covers"):
        lift(models[0], models, noise="10%", seed=0)


def test_noise_is_a_size_or_a_share_of_each_tensors_own_spread():
    model = nn.Sequential(nn.Linear(300, 300), nn.LayerNorm(300), nn.Linear(300, 300))
    nn.init.normal_(model[2].weight, std=0.001)
    covered = lift(model, 4, RING, "messages", noise="20%", seed=0)
    for index in (0, 2):
        own = model[index].weight.detach()
        gaps = covered.net[index].weight.detach() - own
        assert float(gaps.std()) == pytest.approx(0.2 * float(own.std()), rel=0.02)
    assert torch.equal(covered.net[1].weight[3], model[1].weight)  # all ones: no spread
    stack = lift(model[0], 4, RING, "messages", noise=0.03, seed=0).net.weight.detach()
    gaps = stack - model[0].weight.detach()
    assert float(gaps.std()) == pytest.approx(0.03, rel=0.01)
    assert abs(float((gaps[0] * gaps[1]).mean())) < 0.03**2 / 50


def test_rows_of_an_embedding_that_do_not_train_get_no_noise():
    model = nn.Sequential(nn.Embedding(5, 4, padding_idx=1), nn.Linear(4, 2))
    covered = lift(model, 3, RING, "messages", noise=0.5, seed=0)
    assert not covered.net[0].weight[:, 1].any()
    assert covered.net[0].weight[:, 0].std(0).min() > 0


def test_the_seed_decides_noise_and_routes_and_no_global_state_is_touched():
    model = tiny(Perceptron)[0]
    torch.manual_seed(3)
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    one, same, other = (lift(model, 3, Uniform(), "messages", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002
    for name, value in one.state_dict().items():
        assert torch.equal(value, same.state_dict()[name])
    assert not torch.equal(one.net.hidden.weight, other.net.hidden.weight)
    assert not torch.equal(one.mixers()["hidden"], other.mixers()["hidden"])


# --- what is lifted, shared and frozen ------------------------------------------------------------


def test_names_globs_and_predicates_select_the_same():
    model = tiny(Perceptron)[0]
    ways = ["out", ["out"], "ou*", ["out.weight", "out.bias"], lambda name, module: name == "out"]
    for select in ways:
        covered = lift(model, 3, RING, "messages", select=select, seed=0)
        assert covered.lifted == ("out.weight", "out.bias")
        assert covered.net.hidden.weight.shape == (6, 7)
        assert covered.net.out.weight.shape == (3, 3, 5)
        assert type(covered.net.hidden) is nn.Linear
    everything = lambda name, module: isinstance(module, nn.Linear)  # noqa: E731
    assert len(lift(model, 3, RING, "messages", select=everything).lifted) == 5


def test_a_selected_name_of_a_tied_weight_lifts_both():
    model, x = tiny(Transformer)
    covered = lift(model, 3, RING, "messages", select="head", seed=0)
    assert covered.net.embed.weight is covered.net.head.weight
    assert covered.lifted == ("embed.weight",)
    assert covered(x).shape == (3, 3, 5, 6)


@both
@pytest.mark.parametrize("freeze", [False, True])
def test_what_is_not_selected_is_shared_and_trained_by_all_covers_unless_frozen(routing, freeze):
    model, x = tiny(Perceptron)
    how = {"select": "out", "freeze": freeze, "noise": 0.3, "seed": 0}
    covered = lift(model, 3, RING, routing, **how)
    trained = [name for name, value in covered.named_parameters() if value.requires_grad]
    assert (trained == ["net.out.weight", "net.out.bias"]) == freeze
    given = [p for p in covered.parameters() if p.requires_grad]
    train(lambda: cover_loss(F.mse_loss, covered(x), torch.zeros(4, 3).double()), given, 1)
    assert (covered.net.hidden.weight.grad is None) == freeze
    assert covered.net.hidden.weight.shape == (6, 7)
    assert torch.equal(covered.net.hidden.weight, model.hidden.weight) == freeze
    net = covered.collapse()
    assert torch.equal(net.hidden.weight, covered.net.hidden.weight)
    assert net.out.weight.shape == (3, 5)


@both
def test_frozen_parameters_are_shared_unless_they_are_named(routing):
    model = mlp()
    model[0].requires_grad_(False)
    covered = lift(model, 3, RING, routing, noise=0.5, seed=0)
    assert covered.lifted == ("2.weight", "2.bias")
    assert torch.equal(covered.net[0].weight, model[0].weight)
    assert torch.equal(covered.collapse()[0].weight, model[0].weight)
    assert covered(doubles(4, 6)).shape == (3, 4, 3)
    named = lift(model, 3, RING, routing, select=["0", "2"], noise=0.5, seed=0)
    assert named.net[0].weight.shape == (3, 8, 6)


class Adapted(nn.Module):
    """A linear map with a low-rank correction, as in LoRA."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def test_covers_of_low_rank_adapters_cost_little():
    model = nn.Sequential(Adapted(64, 2), nn.Tanh(), Adapted(64, 2))
    covered = lift(model, 5, RING, "messages", select=["*.down", "*.up"], freeze=True, seed=0)
    report = covered.report()
    assert report.covered < 1.3 * report.parameters
    assert {row.name: row.treatment for row in report.rows} == {
        "0.base": "frozen", "0.down": "mixed", "0.up": "mixed",
        "2.base": "frozen", "2.down": "mixed", "2.up": "mixed",
    }  # fmt: skip
    assert covered(torch.zeros(3, 64)).shape == (5, 3, 64)
    assert list(covered.collapse().state_dict()) == list(model.state_dict())


@pytest.mark.filterwarnings("default::mcover.errors.McoverWarning")
def test_a_message_lift_that_mixes_little_says_which_layers_do_not():
    model = nn.ModuleDict({"lstm": nn.LSTM(8, 8), "out": nn.Linear(8, 2)})
    with pytest.warns(McoverWarning, match=r"only 3% .*LSTM.*lstm.weight_ih_l0.*register"):
        lift(model, 3, RING, "messages", seed=0)
