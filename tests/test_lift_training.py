"""Promises of a covered model as an ordinary module: training, state, selection, errors."""

import copy
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402

from mcover import GaussianRing, Identity, McoverError, Torus, Uniform, cover_loss, lift  # noqa: E402
from tiny_models import MODELS, Convolutional, Perceptron, Recurrent, Transformer, tiny  # noqa: E402

torch.set_num_threads(1)
RING = GaussianRing(1.5, shift=2)


def loss_of(output, target):
    return ((output - target) ** 2).mean()


def train(model, loss, steps=4):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()


def targets(model, x):
    return torch.randn(model(x).shape, generator=torch.Generator().manual_seed(5)).double()


@pytest.mark.parametrize("routing", ["messages", "weights"])
@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_one_cover_is_the_base_step_for_step(kind, routing):
    model, x = tiny(kind)
    y = targets(copy.deepcopy(model), x)
    covered = lift(model, 1, RING, routing, seed=0)
    train(model, lambda m: loss_of(m(x), y))
    train(covered, lambda m: cover_loss(loss_of, m(x), y))
    collapsed = covered.collapse()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(collapsed.state_dict()[name], value, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("routing", ["messages", "weights"])
@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_identity_topology_is_independent_trainings(kind, routing):
    model, x = tiny(kind)
    y = targets(copy.deepcopy(model), x)
    covered = lift(model, 3, Identity(), routing, noise=0.2, seed=0)
    alone = [covered.cover(k).train() for k in range(3)]
    train(covered, lambda m: cover_loss(loss_of, m(x), y))
    for k, own in enumerate(alone):
        train(own, lambda m: loss_of(m(x), y))
        for name, value in own.state_dict().items():
            here = covered.cover(k).state_dict()[name]
            torch.testing.assert_close(here, value, rtol=1e-9, atol=1e-11)


def test_the_base_is_untouched_and_covers_start_around_it():
    model, _ = tiny(Perceptron)
    before = copy.deepcopy(model.state_dict())
    covered = lift(model, 400, Uniform(), noise=0.1, draws=1, blocks=1, seed=0)
    spread = covered.net.hidden.weight.detach() - before["hidden.weight"]
    assert spread.std().item() == pytest.approx(0.1, rel=0.02)
    assert abs(spread.mean().item()) < 0.005
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert not any(a.data_ptr() == b.data_ptr() for a, b in zip(
        model.parameters(), covered.parameters(), strict=True))  # fmt: skip


def test_a_seed_says_everything():
    model, x = tiny(Perceptron)
    one, two, other = (lift(model, 3, RING, noise=0.1, seed=s)(x) for s in (7, 7, 8))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    before = torch.random.get_rng_state()
    lift(model, 3, RING, seed=None)
    assert torch.equal(before, torch.random.get_rng_state())


def test_covers_from_given_modules():
    modules = [tiny(Perceptron, seed)[0] for seed in range(3)]
    covered = lift(modules[0], modules, Identity(), noise=5.0)
    _, x = tiny(Perceptron)
    for k, module in enumerate(modules):
        torch.testing.assert_close(covered(x)[k], module(x))
    with pytest.raises(
        McoverError, match=r"cover 1 does not match the model at 'attention.in_proj_bias'"
    ):
        lift(modules[0], [modules[0], tiny(Transformer)[0]], RING)


def test_select_lifts_a_part_and_shares_the_rest():
    model, x = tiny(Perceptron)
    covered = lift(model, 3, RING, select="out", freeze=True, seed=0)
    assert covered.lifted == ("out.weight", "out.bias")
    assert [n for n, p in covered.net.named_parameters() if p.requires_grad] == list(covered.lifted)
    assert covered.net.hidden.weight.shape == (6, 7)
    assert covered(x).shape == (3, 4, 3)
    by_glob = lift(model, 3, RING, select=["h*", "out.bias"])
    assert by_glob.lifted == ("hidden.weight", "hidden.bias", "out.bias")
    assert by_glob(x).shape == (3, 4, 3)
    linear = lift(
        model, 3, RING, select=lambda name, m: isinstance(m, nn.Linear) and m.bias is None
    )
    assert linear.lifted == ("middle.weight",)
    collapsed = covered.collapse()
    assert torch.equal(collapsed.hidden.weight, model.hidden.weight)


@pytest.mark.parametrize("kind", [Convolutional, Recurrent, Transformer])
def test_what_is_shared_may_come_after_what_is_lifted(kind):
    model, x = tiny(kind)
    first = next(name for name, _ in model.named_children())
    covered = lift(model, 3, RING, select=first, noise=0.2, seed=0)
    for mode in (True, False):
        covered.train(mode)
        assert len(covered(x)) == 3
    head = lift(model, 3, RING, select="out" if kind is not Transformer else "back", seed=0)
    assert len(head(x)) == 3


def test_report_names_every_treatment():
    model, _ = tiny(Transformer)
    text = str(lift(model, 3, RING, seed=0).report())
    for word in ("attention", "MultiheadAttention", "mixed", "copied", "spectral gap", "3 covers"):
        assert word in text
    report = lift(model, 3, RING, select="feed").report()
    treatments = {entry.name: entry.treatment for entry in report.entries}
    assert treatments["feed"] == "mixed"
    assert treatments["norm"] == treatments["embed"] == "shared"
    assert report.base_parameters == sum(p.numel() for p in model.parameters())
    assert report.parameters == report.base_parameters + 2 * (4 * 5 + 5)
    assert lift(model, 3, RING, "weights").report().entries[0].treatment == "gathered"
    plain = lift(tiny(Perceptron)[0], 4, Identity()).report()
    assert plain.cost == pytest.approx(4)
    assert plain.extra_bytes == 3 * 8 * plain.base_parameters


@pytest.mark.parametrize("routing", ["messages", "weights"])
@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_state_dict_deepcopy_and_files_keep_the_model(kind, routing, tmp_path):
    from mcover.nn import load

    model, x = tiny(kind)
    covered = lift(model, 3, RING, routing, noise=0.2, seed=0)
    covered(x)  # moves running statistics and the turn of destinations
    clone = copy.deepcopy(covered)
    again = lift(model, 3, RING, routing, noise=0.2, seed=9)
    again.load_state_dict(covered.state_dict())
    covered.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"covered.json", "covered.safetensors"}
    read = load(tmp_path, tiny(kind, seed=3)[0])
    probe = torch.ones(())
    want = covered(x)
    for other in (clone, again, read):
        torch.testing.assert_close(other(x), want)
        probe = probe + other(x).sum()
    probe.backward()


def test_files_that_do_not_fit_are_refused(tmp_path):
    from mcover.nn import load, save

    covered = lift(tiny(Perceptron)[0], 2, RING)
    save(covered, tmp_path)
    with pytest.raises(McoverError, match=r"no parameter 'hidden.weight'.*architecture"):
        load(tmp_path, tiny(Transformer)[0])
    with pytest.raises(McoverError, match=r"has no covered.json and no covered.safetensors"):
        load(tmp_path / "nowhere", tiny(Perceptron)[0])
    wider = nn.Module()
    wider.hidden, wider.middle, wider.out = nn.Linear(8, 6), nn.Linear(6, 5, False), nn.Linear(5, 3)
    with pytest.raises(McoverError, match=r"'net.hidden.mixer' has shape .*on disk"):
        load(tmp_path, wider)


@pytest.mark.parametrize("routing", ["messages", "weights"])
def test_routes_are_redrawn_on_time_and_only_in_training(routing):
    model, x = tiny(Perceptron)
    covered = lift(model, 4, Uniform(), routing, redraw_every=2, seed=0)
    draw = lambda: (covered.routes if routing == "weights" else covered.net.out.mixer).clone()  # noqa: E731
    first = draw()
    covered(x), covered(x)
    assert torch.equal(draw(), first)
    covered.eval()
    covered(x), covered(x)
    assert torch.equal(draw(), first)
    covered.train()
    covered(x)
    assert not torch.equal(draw(), first)
    assert covered.redraws == 1


def test_destinations_are_taken_in_turn():
    model, x = tiny(Perceptron)
    covered = lift(model, 3, Uniform(), "weights", bank=4, destinations=3, noise=0.3, seed=0)
    everything = lift(model, 3, Uniform(), "weights", bank=4, destinations=None, noise=0.3, seed=0)
    whole = everything(x).unflatten(1, (4, -1))
    for turn in ([0, 1, 2], [3, 0, 1]):
        torch.testing.assert_close(covered(x).unflatten(1, (3, -1)), whole[:, turn])


def test_cover_loss_sums_covers_and_averages_streams():
    outputs, y = torch.randn(3, 8, 5), torch.randint(0, 5, (4,))
    want = sum(F.cross_entropy(outputs[a, s * 4 : s * 4 + 4], y) for a in range(3) for s in (0, 1))
    torch.testing.assert_close(cover_loss(F.cross_entropy, outputs, y), want / 2)
    as_dict = cover_loss(lambda o, t: F.cross_entropy(o["a"], t), {"a": outputs, "b": None}, y)
    torch.testing.assert_close(as_dict, want / 2)
    with pytest.raises(McoverError, match="covers come first"):
        cover_loss(F.cross_entropy, torch.tensor(1.0), y)


def test_dropout_differs_between_covers():
    covered = lift(nn.Sequential(nn.Linear(50, 50), nn.Dropout(0.5)), 2, Identity(), noise=0.0)
    a, b = covered(torch.ones(4, 50))
    assert not torch.equal(a == 0, b == 0)


def test_mixed_precision_accumulation_and_clipping():
    model, x = tiny(Convolutional)
    covered = lift(model.float(), 3, RING, noise=0.1, seed=0)
    optimizer = torch.optim.AdamW(covered.parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = covered(x.float())
    assert low.dtype == torch.bfloat16
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = covered(x.float())
        out.float().square().mean().backward()
    assert torch.isfinite(nn.utils.clip_grad_norm_(covered.parameters(), 1.0))
    optimizer.step()
    torch.testing.assert_close(low.float(), covered.float().eval()(x.float()), atol=1.5, rtol=1)


def test_changing_dtype_moves_mixers_too():
    model, x = tiny(Perceptron)
    covered = lift(model, 3, RING, seed=0).float()
    assert covered(x.float()).dtype == torch.float32
    assert covered.net.hidden.mixer.dtype == torch.float32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("routing", ["messages", "weights"])
@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_cuda_is_the_cpu(kind, routing):
    model, x = tiny(kind)
    covered = lift(model, 3, RING, routing, noise=0.2, seed=0)
    moved = copy.deepcopy(covered).to("cuda")
    torch.testing.assert_close(moved(x.to("cuda")).cpu(), covered(x))


def test_outputs_keep_their_structure():
    class Several(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x, *, scale):
            y = self.layer(x) * scale
            return {"y": y, "none": None, "pair": (y.sum(), 3)}

    output = lift(Several(), 4, RING)(torch.ones(5, 3), scale=2.0)
    assert output["y"].shape == (4, 5, 2)
    assert output["none"] is None
    assert output["pair"][0].shape == (4,)
    assert output["pair"][1] == 3


def test_transformer_layers_of_torch_run_in_both_modes():
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True).double()
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    hidden = torch.zeros(3, 5, dtype=torch.bool)
    hidden[:, -1] = True
    covered = lift(model, 3, Identity(), noise=0.2, seed=0)
    for mode in (True, False):
        covered.train(mode)
        with torch.no_grad():
            ours = covered(x, src_key_padding_mask=hidden)
            for k in range(3):
                own = covered.cover(k).train()  # training mode: the plain kernels
                torch.testing.assert_close(ours[k], own(x, src_key_padding_mask=hidden))


@pytest.mark.parametrize("options", [
    {}, {"kdim": 3, "vdim": 5}, {"batch_first": True}, {"bias": False},
    {"add_bias_kv": True}, {"add_zero_attn": True},
])  # fmt: skip
@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_options_match_torch(options, need_weights):
    layer = nn.MultiheadAttention(4, 2, **options).double()
    q, k, v = (torch.randn(3, 3, options.get(d, 4)).double() for d in ("", "kdim", "vdim"))
    mask = torch.triu(torch.ones(3, 3, dtype=torch.bool), 1)
    per_head = torch.randn(6, 3, 3).double()
    covered = lift(layer, 2, Identity(), noise=0.2, seed=0)
    for extra in ({}, {"attn_mask": mask}, {"attn_mask": per_head},
                  {"average_attn_weights": False}):  # fmt: skip
        ours, scores = covered(q, k, v, need_weights=need_weights, **extra)
        for index in range(2):
            own, weights = covered.cover(index).train()(q, k, v, need_weights=need_weights, **extra)
            torch.testing.assert_close(ours[index], own)
            if need_weights:
                torch.testing.assert_close(scores[index], weights)


@pytest.mark.parametrize(("call", "message"), [
    (lambda m: lift(m, 0, RING), "covers is 0"),
    (lambda m: lift(m, 3, 1.5), "topology is 1.5; write e.g. mcover.GaussianRing"),
    (lambda m: lift(m, 3, RING, "weight"), "routing is 'weight'; write 'messages' or 'weights'"),
    (lambda m: lift(m, 3, RING, blocks=0), "blocks is 0"),
    (lambda m: lift(m, 3, RING, noise=-1), "noise is -1"),
    (lambda m: lift(m, 3, RING, mixer="q"), "mixer is 'q'"),
    (lambda m: lift(m, 3, RING, "weights", streams=2), "write bank=S"),
    (lambda m: lift(m, 3, RING, streams=2, mixer="exact"), "write mixer='sampled'"),
    (lambda m: lift(m, 3, RING, select="hed"), "'hed' matches no parameters. Available: hidden"),
    (lambda m: lift(m, 3, RING, select=[]), "an empty list matches no parameters"),
    (lambda m: lift(m, 3, RING, select=lambda n, m: False), "the predicate matches no"),
    (lambda m: lift(m, 3, RING, buffers="mean"), "matches no buffer"),
    (lambda m: lift(m, 3, Torus(2, 2)), "write covers=4"),
    (lambda m: lift(nn.ReLU(), 3, RING), "no parameters"),
    (lambda m: lift(nn.LazyLinear(3), 3, RING), "run one batch through"),
    (lambda m: lift("net", 3, RING), "takes a torch.nn.Module, got str"),
    (lambda m: lift(m, 3, RING).net.hidden(torch.ones(2, 7).double()), "called by itself"),
])  # fmt: skip
def test_mistakes_are_refused_with_the_remedy(call, message):
    with pytest.raises(McoverError, match=message.replace("(", r"\(")):
        call(tiny(Perceptron)[0])


def test_importing_the_package_does_not_import_torch():
    code = "import mcover, sys; assert 'torch' not in sys.modules; mcover.lift; import torch"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("routing", ["messages", "weights"])
def test_compiled_models_give_the_same_step(routing):
    model, x = tiny(Perceptron)
    covered = lift(model, 3, RING, routing, bank=1, noise=0.2, seed=0)
    want = torch.autograd.grad(covered(x).square().sum(), list(covered.parameters()))
    compiled = torch.compile(covered, backend="aot_eager")
    got = torch.autograd.grad(compiled(x).square().sum(), list(covered.parameters()))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
