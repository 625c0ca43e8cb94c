"""Lifting a part, and what a covered model can be put through: reports, files, copies."""

import copy
import json
from dataclasses import fields

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from mcover import (  # noqa: E402
    Directed,
    GaussianRing,
    McoverError,
    Messages,
    Uniform,
    cover_loss,
    lift,
)
from mcover.errors import McoverWarning  # noqa: E402
from mcover.nn import load  # noqa: E402
from mcover.nn.files import checksum, read  # noqa: E402
from mcover.plain import to_plain  # noqa: E402
from tiny_models import MODELS, Convolutional, Perceptron, Transformer, routed, tiny  # noqa: E402

torch.set_num_threads(1)

RING = GaussianRing(1.5, shift=2)
NAMES = {"argvalues": MODELS, "ids": lambda kind: kind.__name__}
ROUTINGS = ["messages", "directed"]


class Adapted(nn.Module):
    """A linear map with a low-rank correction, as in LoRA."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def test_names_globs_and_predicates_select_the_same():
    model = tiny(Perceptron)[0]
    ways = ["out", ["out"], "ou*", ["out.weight", "out.bias"], lambda name, module: name == "out"]
    for select in ways:
        covered = lift(model, 3, RING, "messages", select=select, seed=0)
        assert covered.lifted == ("out.weight", "out.bias")
        assert covered.net.hidden.weight.shape == (6, 7)
        assert covered.net.out.weight.shape == (3, 3, 5)
        assert type(covered.net.hidden) is nn.Linear
    everything = lift(
        model, 3, RING, "messages", select=lambda name, module: isinstance(module, nn.Linear)
    )
    assert len(everything.lifted) == 5


@pytest.mark.parametrize("routing", ROUTINGS)
def test_what_is_not_selected_is_shared_and_trained_by_all_covers(routing):
    model, x = tiny(Perceptron)
    covered = lift(model, 3, RING, routing, select="out", noise=0.3, seed=0)
    cover_loss(F.mse_loss, covered(x), torch.zeros(4, 3).double()).backward()
    assert covered.net.hidden.weight.grad.shape == (6, 7)
    assert covered.net.hidden.weight.grad.abs().sum() > 0
    net = covered.collapse()
    assert torch.equal(net.hidden.weight, covered.net.hidden.weight)
    assert net.out.weight.shape == (3, 5)


def test_a_frozen_trunk_is_not_trained():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    covered = lift(model, 4, RING, "messages", select="2", freeze=True, seed=0)
    trained = [name for name, value in covered.named_parameters() if value.requires_grad]
    assert trained == ["net.2.weight", "net.2.bias"]
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    before = copy.deepcopy(covered.net[0].state_dict())
    optimizer = torch.optim.AdamW([p for p in covered.parameters() if p.requires_grad], lr=0.1)
    cover_loss(F.mse_loss, covered(x), torch.zeros(5, 2)).backward()
    optimizer.step()
    assert covered.net[0].weight.grad is None
    for name, value in covered.net[0].state_dict().items():
        assert torch.equal(value, before[name])


def test_covers_of_low_rank_adapters_cost_little():
    model = nn.Sequential(Adapted(64, 2), nn.Tanh(), Adapted(64, 2))
    covered = lift(model, 5, RING, "messages", select=["*.down", "*.up"], freeze=True, seed=0)
    report = covered.report()
    assert report.covered < 1.3 * report.parameters
    treatments = {row.name: row.treatment for row in report.rows}
    assert treatments == {
        "0.base": "frozen", "0.down": "mixed", "0.up": "mixed",
        "2.base": "frozen", "2.down": "mixed", "2.up": "mixed",
    }  # fmt: skip
    assert covered(torch.zeros(3, 64)).shape == (5, 3, 64)
    assert list(covered.collapse().state_dict()) == list(model.state_dict())


def test_a_selected_name_of_a_tied_weight_lifts_both():
    model, x = tiny(Transformer)
    covered = lift(model, 3, RING, "messages", select="head", seed=0)
    assert covered.net.embed.weight is covered.net.head.weight
    assert covered.lifted == ("embed.weight",)
    assert covered(x).shape == (3, 3, 5, 6)


@pytest.mark.parametrize("select", ["haed", ["out", "nothing.*"], [], lambda n, m: False])
def test_a_selector_that_matches_nothing_shows_the_names(select):
    with pytest.raises(McoverError, match=r"matches no parameters. Available: hidden, middle, out"):
        lift(tiny(Perceptron)[0], 3, RING, "messages", select=select)


def test_the_report_says_what_became_of_each_module():
    model, _ = tiny(Transformer)
    report = lift(model, 3, RING, "messages", seed=0).report()
    treatments = {row.name: (row.treatment, row.blocks) for row in report.rows}
    assert treatments == {
        "": ("copied", 0), "embed": ("mixed", 1), "attention": ("mixed", 4),
        "attention.out_proj": ("mixed", 4), "norm": ("copied", 0), "feed": ("mixed", 4),
        "back": ("mixed", 5), "head": ("mixed", 4),
    }  # fmt: skip
    assert report.parameters == sum(p.numel() for p in model.parameters())
    assert report.covered == 3 * report.parameters
    assert report.facts == RING.facts(3)
    directed = lift(model, 3, RING, "directed", seed=0).report()
    assert {row.treatment for row in directed.rows} == {"routed"}
    for word in ("extra memory", "cost of a step", "spectral gap", "drift", "LayerNorm"):
        assert word in str(report)


def test_the_report_counts_cost_and_memory():
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))
    x = torch.zeros(4, 64)
    covered = lift(model, 4, RING, Messages(blocks=8), seed=0)
    report = covered.report(x)
    # The first layer mixes weights, once a batch: Σ_g Q̂ W. The second mixes messages.
    first = 4 * (4 * 64 * 32) + 4 * 4 * 64 * 32
    second = 4 * (4 * 32 * 16 + 4 * 4 * 8 * 16)
    assert report.cost == pytest.approx((first + second) / (4 * (64 * 32 + 32 * 16)))
    assert report.counted
    mixers = (32 + 16) * 8 * 16 * 4
    assert report.extra_bytes == 3 * 4 * report.parameters + mixers
    streams = lift(model, 4, RING, Messages(streams=2), seed=0).report()
    assert streams.cost == pytest.approx(2 * covered.report().cost)


def test_the_report_counts_convolutions_as_they_are_computed():
    model = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 6, 1))
    covered = lift(model, 5, RING, Messages(blocks=4, block_channels=1), seed=0)
    report = covered.report(torch.zeros(2, 4, 7, 7))
    places = 2 * 7 * 7
    # The first mixes weights, once a batch, since covers share its input; the second messages.
    first = 5 * (4 * 9 * 8) * places + 5 * 5 * (4 * 9 * 8)
    second = 5 * (8 * 6 + 5 * 4 * 6) * places
    base = (4 * 9 * 8 + 8 * 6) * places
    assert report.cost == pytest.approx((first + second) / base)


@pytest.mark.parametrize("routing", ["messages", "directed"])
def test_the_report_counts_a_trunk_once_for_each_cover_and_says_what_saves_it(routing):
    trunk = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)).requires_grad_(False)
    model = nn.Sequential(trunk, nn.Linear(32, 32), nn.Linear(32, 4))
    covered = lift(model, 4, RING, routing, seed=0)
    estimate, counted = covered.report(), covered.report(torch.zeros(8, 32))
    if routing == "directed":
        assert estimate.cost == counted.cost == 4
    assert counted.cost >= 4
    assert estimate.trunk == ("0.0", "0.2")
    text = str(estimate)
    assert "2 more" in text
    assert "frozen" in text
    assert "0.0     " not in text
    assert "nn.Sequential(trunk, mcover.lift(head, ...))" in text
    behind = lift(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), 4, RING, select="0", seed=0)
    assert behind.report().trunk == ()


def test_the_report_of_adapters_counts_the_model_around_them():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).requires_grad_(False)
    model.append(nn.Linear(64, 2, bias=False)).append(nn.Linear(2, 64, bias=False))
    model.append(nn.Linear(64, 64).requires_grad_(False))
    report = lift(model, 3, RING, seed=0).report()
    assert report.cost == 3
    assert report.trunk == ()
    html = report._repr_html_()
    assert html.count("<tr>") == 4
    assert "3 more" in html
    assert "<table>" in html


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("kind", **NAMES)
def test_states_files_and_copies_go_on_where_the_model_was(kind, routing, tmp_path):
    model, x = tiny(kind)
    how = routed(routing, redraw_every=2, bank=3)
    covered = lift(model, 3, RING, how, noise=0.3, seed=0)
    for _ in range(3):
        covered(x)
    other = lift(model, 3, RING, how, noise=0.1, seed=0)
    other.load_state_dict(covered.state_dict())
    assert covered.save(tmp_path / "covered") == tmp_path / "covered.safetensors"
    assert [file.name for file in tmp_path.iterdir()] == ["covered.safetensors"]
    loaded = load(tmp_path / "covered", tiny(kind, seed=9)[0])
    copied = copy.deepcopy(covered)
    assert loaded.settings == covered.settings
    want = [covered(x) for _ in range(3)]  # through a redraw
    for again in (other, loaded, copied):
        for value in want:
            torch.testing.assert_close(again(x), value, rtol=0, atol=0)
        for name, value in covered.collapse().state_dict().items():
            assert torch.equal(again.collapse().state_dict()[name], value), name


def test_files_hold_the_tied_weight_once_and_what_is_frozen(tmp_path):
    from safetensors import safe_open

    model = tiny(Transformer)[0]
    covered = lift(model, 3, RING, "messages", select=["embed", "feed"], freeze=True, seed=7)
    path = covered.save(tmp_path / "a.safetensors")
    with safe_open(path, "pt") as file:
        assert ("net.embed.weight" in file.keys()) != ("net.head.weight" in file.keys())  # noqa: SIM118
        plain = json.loads(file.metadata()["mcover"])
    loaded = load(path, model)
    assert loaded.net.head.weight is loaded.net.embed.weight
    assert [p.requires_grad for p in loaded.parameters()] == [
        p.requires_grad for p in covered.parameters()
    ]
    assert plain["settings"] == {
        "covers": 3,
        "topology": {"kind": "ring", "shift": 2.0},
        "routing": {"kind": "messages"},
        "noise": covered.settings.noise,
    }


def test_files_that_do_not_fit_are_refused(tmp_path):
    covered = lift(tiny(Perceptron)[0], 3, RING, "messages", seed=0)
    path = covered.save(tmp_path / "a")
    with pytest.raises(McoverError, match="does not exist"):
        load(tmp_path / "b", tiny(Perceptron)[0])
    with pytest.raises(McoverError, match=r"which this tiny_models.Convolutional does not have"):
        load(tmp_path / "a", tiny(Convolutional)[0])
    with pytest.raises(McoverError, match="same architecture and dtype"):
        load(tmp_path / "a", tiny(Perceptron)[0].float())
    for header, message in (({}, "not what covered.save"), ({"format": 99}, "format 99")):
        rewrite(path, header)
        with pytest.raises(McoverError, match=message):
            load(path, tiny(Perceptron)[0])


def rewrite(path, header, **changed):
    """The same file with another header, and with other tensors in the place of some.

    Its checksum is right: what is tested is what a crafted file can say.
    """
    from safetensors.torch import load_file, save_file

    tensors = {
        name: value for name, value in (load_file(path) | changed).items() if value is not None
    }
    text = header if isinstance(header, str) else json.dumps(header)
    metadata = {"mcover": text, "crc32": checksum(text, tensors)}
    save_file(tensors, path, {} if header is None else metadata)


def test_damaged_and_crafted_files_are_refused_before_anything_uses_them(tmp_path):
    """Each is our own error with the file's name: nothing raw, and nothing accepted."""
    from safetensors import safe_open

    model = tiny(Convolutional)[0]
    good = lift(model, 3, RING, "directed", seed=0).save(tmp_path / "good")
    with safe_open(good, "pt") as file:
        header = json.loads(file.metadata()["mcover"])
        state = bytes(file.get_tensor("_extra_state").tolist())
    whole = good.read_bytes()

    def encoded(**changes):
        text = json.dumps(json.loads(state) | changes)
        return torch.tensor(list(text.encode()), dtype=torch.uint8)

    settings = header["settings"]
    headers = [
        None, "", "[", "[" * 100_000, "null", "3", [], {"format": 4}, {"format": []},
        *({k: v for k, v in header.items() if k != lost} for lost in header),
        *(header | {name: wrong} for name in header for wrong in (None, 3.5, {}, [3], [[1]])),
        header | {"lifted": []}, header | {"lifted": ["norm.running_mean"]},
        header | {"lifted": ["nothing.weight"]}, header | {"state": ["out.weight"]},
        header | {"tied": [["net.out.weight", "nowhere"]]}, header | {"unknown": 1},
        *(header | {"settings": settings | changes} for changes in (
            {"covers": 4}, {"covers": 10**9}, {"covers": 0}, {"covers": True}, {"covers": "3"},
            {"topology": None}, {"topology": {"kind": "none"}},
            {"topology": {"kind": "ring", "sigma": -1}},
            {"routing": {"kind": "weights"}}, {"routing": {"kind": "directed", "bank": 3}},
            {"routing": {"kind": "messages"}}, {"noise": []}, {"extra": 1},
            {"topology": {"kind": []}}, {"topology": {"kind": {}}}, {"routing": {"kind": [3]}},
            {"topology": {"kind": "ring", "sigma": 10**400}}, {"noise": 10**400}, {"covers": 10**6},
            {"topology": {"kind": "ring", "sigma": [[]]}}, {"topology": [[[]]]},
        )),
    ]  # fmt: skip
    tensors = [
        {"net.out.weight": None}, {"net.other": torch.zeros(2)},
        {"net.out.weight": torch.zeros(3, 1)},
        {"net.norm.running_mean": torch.zeros(3, 4)}, {"_extra_state": None},
        {"_extra_state": torch.zeros(3)}, {"_extra_state": torch.full((9,), 91, dtype=torch.uint8)},
        *({"_extra_state": encoded(**changes)} for changes in (
            {"steps": -1}, {"redraws": 1.5}, {"redraws": 1}, {"entropy": -1}, {"entropy": "x"},
            {"entropy": None}, {"spawn_key": 3}, {"spawn_key": [[]]}, {"checksum": None},
        )),
    ]  # fmt: skip
    cases = [(each, {}) for each in headers] + [(header, each) for each in tensors]
    path = tmp_path / "bad.safetensors"
    for given, changed in cases:
        path.write_bytes(whole)
        rewrite(path, given, **changed)
        try:
            load(path, model)
        except McoverError:
            continue
        pytest.fail(f"accepted: {given} {changed}")
    raw = [whole[:n] for n in (0, 4, 8, 100, len(whole) - 1)]
    for content in (*raw, b"\xff" * 200, b"\xff" * 7 + b"\x7f" + whole[8:]):
        path.write_bytes(content)
        with pytest.raises(McoverError, match=r"bad\.safetensors cannot be read"):
            load(path, model)
    (tmp_path / "folder.safetensors").mkdir()
    for odd in (tmp_path / "folder", tmp_path, "", ".", "/", "a\0b", "x" * 300, None, 3, b"a"):
        with pytest.raises(McoverError):
            load(odd, model)
    assert torch.equal(load(good, model).net.out.weight, load(good, model).net.out.weight)


def test_any_flipped_bit_of_a_file_is_noticed(tmp_path):
    model = tiny(Convolutional)[0]
    whole = lift(model, 3, RING, "directed", seed=0).save(tmp_path / "a").read_bytes()
    path = tmp_path / "b.safetensors"
    rng = np.random.default_rng(0)
    for place in rng.integers(len(whole), size=300):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        with pytest.raises(McoverError, match=r"b\.safetensors"):
            load(path, model)


def test_covers_of_a_header_are_compared_with_the_tensors_before_anything_is_copied(tmp_path):
    model = tiny(Perceptron)[0]
    path = lift(model, 3, RING, "directed", seed=0).save(tmp_path / "a")
    _, config, _ = read(path)
    plain = to_plain(config)
    plain["settings"]["covers"] = 4
    rewrite(path, plain)
    with pytest.raises(McoverError, match=r"its header says 4 covers, and '.*' has the shape \(3,"):
        load(path, model)


def test_a_file_that_cannot_be_written_whole_leaves_the_old_one(tmp_path, monkeypatch):
    covered = lift(tiny(Perceptron)[0], 3, RING, "messages", seed=0)
    path = covered.save(tmp_path / "a")
    before = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o666 & ~current_umask()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with torch.no_grad():
        covered.net.out.weight.zero_()
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(McoverError, match=r"a\.safetensors: No space left"):
        covered.save(tmp_path / "a")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def current_umask():
    import os

    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def test_nested_containers_and_a_covered_part_of_a_larger_model():
    part = nn.ModuleDict({"a": nn.ModuleList([nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 3))])})

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = part
            self.again = part["a"][0]  # a module under two names

        def forward(self, x):
            return self.inner["a"][1](torch.tanh(self.again(self.inner["a"][0](x))))

    covered = lift(Outer(), 3, RING, "messages", seed=0)
    assert covered.net.again is covered.net.inner["a"][0]
    larger = nn.Sequential(nn.Linear(2, 4), covered)
    larger(torch.zeros(5, 2)).sum().backward()
    assert larger[0].weight.grad is not None
    assert set(covered.collapse().state_dict()) == set(Outer().state_dict())


def test_layers_of_torch_that_hold_attention_run_in_both_modes():
    layer = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2,
        enable_nested_tensor=False,
    ).double()  # fmt: skip
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    hidden = torch.zeros(2, 5, dtype=torch.bool)
    hidden[0, 3:] = True
    covered = lift(layer, 3, RING, Messages(mixer="exact"), noise=0.0, seed=0)
    for model in (covered, covered.eval()):  # equal covers: mixing changes nothing
        got = model(x, src_key_padding_mask=hidden)
        want = layer(x, src_key_padding_mask=hidden)
        torch.testing.assert_close(got[1], want, rtol=1e-9, atol=1e-9)


MIXING = [
    lambda: nn.Conv1d(4, 6, 3, padding="same", padding_mode="circular"),
    lambda: nn.Conv1d(4, 4, 3, groups=4),
    lambda: nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2),
    lambda: nn.Conv1d(4, 6, 4, padding="same"),
]
COPIED = [
    lambda: nn.GRU(7, 3),
    lambda: nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.InstanceNorm1d(4, affine=True)),
    lambda: nn.ConvTranspose1d(4, 6, 3),
    lambda: nn.Bilinear(7, 7, 2),
    lambda: nn.BatchNorm1d(4, momentum=None),
]


@pytest.mark.filterwarnings("ignore:Using padding='same'", "ignore:There is a performance drop")
@pytest.mark.parametrize(
    ("make", "routing"),
    [(make, "messages") for make in MIXING] + [(make, "directed") for make in MIXING + COPIED],
)
def test_equal_covers_compute_what_the_base_computes(make, routing):
    """Mixers have rows that sum to one, so equal covers pass through any lift unchanged."""
    layer = make().double()
    x = torch.randn(2, 4, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    args = (x, x) if isinstance(layer, nn.Bilinear) else (x,)
    got = lift(layer, 3, RING, routing, noise=0.0, seed=0)(*args)
    got, want = (y[0] if isinstance(y, tuple) else y for y in (got, layer(*args)))
    for cover in got:
        torch.testing.assert_close(cover, want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("make", COPIED)
def test_a_message_lift_in_which_nothing_mixes_is_refused(make):
    with pytest.raises(McoverError, match=r"nothing in this model would mix.*routing='directed'"):
        lift(make(), 3, RING, "messages", seed=0)


@pytest.mark.filterwarnings("default::mcover.errors.McoverWarning")
def test_a_message_lift_that_mixes_little_says_which_layers_do_not():
    model = nn.ModuleDict({"lstm": nn.LSTM(8, 8), "out": nn.Linear(8, 2)})
    with pytest.warns(McoverWarning, match=r"only 3% .*LSTM.*lstm.weight_ih_l0.*register"):
        lift(model, 3, RING, "messages", seed=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"covers": 0}, "covers"),
        ({"routing": "both"}, "routing is 'both'"),
        ({"noise": -1}, "noise is -1"),
        ({"routing": 3}, "mcover.Directed"),
        ({"freeze": 1}, "freeze is 1"),
        ({"select": 3}, "select is 3"),
        ({"seed": -1}, "seed is -1"),
        ({"topology": "rings"}, "'ring'"),
        ({"buffers": "norm.*"}, "matches no buffer"),
    ],
)
def test_bad_arguments_are_refused_with_what_to_write(given, message):
    with pytest.raises(McoverError, match=message):
        lift(tiny(Perceptron)[0], **{"covers": 3, "topology": RING, "routing": "messages"} | given)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (Messages, {"blocks": 0}, "blocks is 0"),
        (Messages, {"draws": 1.5}, "draws is 1.5"),
        (Messages, {"mixer": "mean"}, "mixer is 'mean'"),
        (Messages, {"streams": 2, "mixer": "exact"}, "mixer='sampled'"),
        (Messages, {"redraw_every": 0}, "redraw_every is 0"),
        (Directed, {"granularity": "layer"}, "granularity is 'layer'"),
        (Directed, {"bank": 0}, "bank is 0"),
    ],
)
def test_bad_options_of_a_routing_are_refused(kind, options, message):
    with pytest.raises(McoverError, match=message):
        kind(**options)


def test_options_of_the_other_routing_cannot_be_written():
    names = {kind: {field.name for field in fields(kind)} for kind in (Messages, Directed)}
    assert names[Messages] & names[Directed] == {"redraw_every"}
    with pytest.raises(TypeError):
        Directed(streams=2)
    with pytest.raises(TypeError):
        lift(tiny(Perceptron)[0], 3, RING, "directed", streams=2)


def test_models_that_cannot_be_lifted_are_refused():
    with pytest.raises(McoverError, match=r"takes a torch.nn.Module"):
        lift(lambda x: x, 3, RING, "messages")
    with pytest.raises(McoverError, match="no parameters"):
        lift(nn.ReLU(), 3, RING, "messages")
    with pytest.raises(McoverError, match="run one batch"):
        lift(nn.LazyLinear(3), 3, RING, "messages")
    with pytest.raises(McoverError, match="covered already"):
        lift(lift(nn.Linear(2, 2), 3, RING, "messages"), 3, RING, "messages")


def test_a_layer_called_by_itself_says_what_to_call():
    covered = lift(tiny(Perceptron)[0], 3, RING, "messages", seed=0)
    with pytest.raises(McoverError, match="call the covered model"):
        covered.net.hidden(torch.zeros(2, 7, dtype=torch.float64))


def test_inputs_without_a_batch_axis_pass_through():
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    covered = lift(model, 3, RING, "messages", noise=0.3, seed=0)
    torch.testing.assert_close(covered(x[0]), covered(x)[:, 0])
    deep = x.view(1, 3, 1, 4)
    torch.testing.assert_close(covered(deep), covered(x).view(3, 1, 3, 1, 2))


def test_uniform_noise_free_covers_stay_equal_under_training():
    model, x = tiny(Perceptron)
    covered = lift(model, 3, Uniform(), Messages(mixer="exact"), noise=0.0, seed=0)
    cover_loss(F.mse_loss, covered(x), torch.zeros(4, 3).double()).backward()
    for value in covered.parameters():
        torch.testing.assert_close(value.grad[0], value.grad[2])
