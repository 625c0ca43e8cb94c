"""Covers on several ranks are the covers of one process, and ranks fail together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from ranks import DiedError, run
from torch.nn.parallel import DistributedDataParallel
from training import KINDS, RING, alone, assert_same, batches, lifted, sgd, train

import mcover
from mcover import Directed, McoverError, Messages, distributed
from mcover.distributed.spread import traffic

ROOT = Path(__file__).parent.parent.parent
BLOCKS = {"blocks": 2, "block_channels": 1}
ROUTINGS = {
    "messages": Messages(**BLOCKS),
    "redrawn": Messages(**BLOCKS, redraw_every=1),
    "exact": Messages(mixer="exact"),
    "streams": Messages(**BLOCKS, streams=2),
    "directed": Directed(bank=3, destinations=2, redraw_every=2),
    "by cover": Directed(bank=3, destinations=2, redraw_every=2),
    "units": Directed(granularity="unit"),
    "all destinations": Directed(bank=3, destinations=None),
}
SHARED = {"mlp": "[!m]*", "conv": ["*o*"], "transformer": ["attention", "feed"]}
# Kind, routing, layout, and what to lift: everything, or a part.
CASES = [(kind, routing, "auto", None) for kind in KINDS for routing in ROUTINGS]
CASES += [(kind, how, "whole", None) for kind in KINDS for how in ("directed", "by cover")]
CASES += [(kind, how, "auto", SHARED[kind]) for kind in KINDS for how in ("messages", "directed")]


def spread_out(cases: Any, covers: int, cover_ranks: int) -> list[Any]:
    """Losses, first gradients and state of each case, gathered, and the layout it took."""
    mesh = distributed.start(cover_ranks, timeout=60)
    place, places = mesh.get_local_rank("data"), mesh.size(1)
    results = []
    for kind, routing, layout, select in cases:
        covered = lifted(kind, ROUTINGS[routing], covers, select=select)
        part = distributed.spread(covered, mesh, layout=layout)
        model: Any = part
        if places > 1:
            model = DistributedDataParallel(part, process_group=mesh.get_group("data"))
        given = {"place": place, "places": places, "by_cover": routing == "by cover"}
        losses, grads = train(model, part, kind, **given)
        for name, value in part.net.named_parameters():
            if name in part.lifted and len(value) < covers:
                grads[name] = torch.stack(part.exchange.all_gather(grads[name].unbind()))
        total = torch.stack([part.total(loss) for loss in losses])
        results.append((total, grads, part.gather().state_dict(), part.layout))
    return results


@cache
def results(size: int, covers: int, cover_ranks: int) -> list[Any]:
    return run(size, spread_out, cases_of(size, covers, cover_ranks), covers, cover_ranks)


def cases_of(size: int, covers: int, cover_ranks: int) -> list[Any]:
    """All cases on two ranks, the main cases on other meshes.

    Batch norm has separate statistics on each rank along "data", so models with it are excluded.
    """
    if covers == 6:  # routes are numbers of two bytes
        return [("mlp", how, "auto", None) for how in ("messages", "directed", "units")]
    main = CASES if size == 2 else [case for case in CASES if case[1] in ("messages", "directed")]
    return [case for case in main if size == cover_ranks or case[0] != "conv"]


SHAPES = [(2, 4, 2), (4, 4, 4), (4, 4, 2), (4, 6, 2)]  # ranks, covers, ranks that share them


@pytest.mark.parametrize(
    ("size", "covers", "cover_ranks", "case"),
    [(*shape, case) for shape in SHAPES for case in cases_of(*shape)],
    ids=str,
)
def test_ranks_train_as_one_process(size, covers, cover_ranks, case):
    kind, routing, _, select = case
    expected = alone(kind, ROUTINGS[routing], covers, select=select)
    position = cases_of(size, covers, cover_ranks).index(case)
    for of_rank in results(size, covers, cover_ranks):
        assert_same(of_rank[position], expected)


def test_the_layout_is_the_one_that_moves_fewer_bytes():
    """D = 2 destinations and f = 1/2 on two ranks: as many bytes; with all three, more."""
    taken = {case[:3]: result[3] for case, result in zip(CASES, results(2, 4, 2)[0], strict=True)}
    assert taken["mlp", "messages", "auto"] is None
    assert taken["mlp", "units", "auto"] == "routed"
    assert taken["mlp", "all destinations", "auto"] == "whole"
    assert taken["mlp", "directed", "whole"] == "whole"
    uniform = mcover.lift(torch.nn.Linear(300, 300), 4, mcover.Uniform(), Directed(), seed=0)
    routed, whole = traffic(uniform, Directed(), ranks=2)
    assert whole == 2 * 0.5 * 4 * (300 * 301)
    assert routed == pytest.approx(2 * 0.5 * 2 * (300 * 301), rel=0.01)


def sending() -> Any:
    mesh = distributed.start(timeout=60)
    layers = [torch.nn.Linear(6, 10), torch.nn.Tanh(), torch.nn.Linear(10, 3)]
    model = torch.nn.Sequential(*layers)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view(parameter.shape))
    sent = {}
    for name, routing in {"messages": Messages(blocks=2), "directed": Directed()}.items():
        covered = mcover.lift(model, 4, mcover.Uniform(), routing, seed=0)
        part = distributed.spread(covered, mesh)
        loss = mcover.cover_loss(F.mse_loss, part(torch.ones(5, 6)), torch.zeros(5, 3))
        before = part.exchange.sent
        loss.backward()
        sent[name] = before, part.exchange.sent - before
    return sent


def test_bytes_are_those_of_the_formula():
    """A batch of 5 has fewer results than a unit has weights: messages are moved, not weights."""
    for sent in run(2, sending):
        assert sent["messages"] == (4 * 5 * (10 + 3) * 4 // 2,) * 2
        elements = 6 * 10 + 10 + 10 * 3 + 3
        # Half of 2 · P elements on average, a few more or less by the routes.
        assert sent["directed"][0] == pytest.approx(elements * 4, rel=0.3)
        assert sent["directed"][1] == pytest.approx(elements * 4, rel=0.3)


# --- the way back, and evaluation -----------------------------------------------------------------


def saved_and_loaded(folder: str) -> Any:
    mesh = distributed.start(timeout=60)
    seen = {}
    for routing in ("redrawn", "directed"):
        part = distributed.spread(lifted("conv", ROUTINGS[routing]), mesh)
        optimizer = sgd(part)
        train(part, part, "conv", optimizer)
        distributed.save(part, Path(folder, routing), optimizer)
        losses, _ = train(part, part, "conv", optimizer)
        again = distributed.spread(lifted("conv", ROUTINGS[routing]), mesh)
        optimizer = sgd(again)
        distributed.load(again, Path(folder, routing), optimizer)
        resumed, _ = train(again, again, "conv", optimizer)
        seen[routing] = torch.stack(losses), torch.stack(resumed)
        file = part.gather().save(Path(folder, f"{routing}_{dist.get_rank()}"))
        (x, _), *_ = batches("conv")
        with torch.no_grad():
            outputs = part.eval()(x)
        seen[routing] += str(file), outputs, part.gather().collapse().state_dict()
        with pytest.raises(McoverError, match=r"part\.gather\(\)"):
            part.collapse()
    return seen


def test_a_checkpoint_goes_on_where_it_was_and_is_read_by_one_process(tmp_path):
    answers = run(2, saved_and_loaded, str(tmp_path))
    for routing in ("redrawn", "directed"):
        for losses, resumed, *_ in (answer[routing] for answer in answers):
            assert torch.equal(losses, resumed)
        covered, reference = (lifted("conv", ROUTINGS[routing]) for _ in range(2))
        optimizer, plain = sgd(covered), sgd(reference)
        distributed.load(covered, tmp_path / routing, optimizer)
        train(reference, reference, "conv", plain)
        torch.testing.assert_close(covered.state_dict(), reference.state_dict())
        torch.testing.assert_close(
            covered.collapse().state_dict(), reference.collapse().state_dict()
        )
        for model, own in ((covered, optimizer), (reference, plain)):  # momenta came too
            train(model, model, "conv", own)
        torch.testing.assert_close(covered.state_dict(), reference.state_dict())
        (x, _), *_ = batches("conv")
        with torch.no_grad():
            outputs = reference.eval()(x)
        for rank, (_, _, file, own, collapsed) in enumerate(a[routing] for a in answers):
            torch.testing.assert_close(own, outputs[2 * rank : 2 * rank + 2])
            torch.testing.assert_close(collapsed, reference.collapse().state_dict())
            loaded = mcover.nn.load(file, reference.collapse())
            torch.testing.assert_close(loaded.state_dict(), reference.state_dict())


def loaded_by_four(folder: str) -> Any:
    mesh = distributed.start(timeout=60)
    part = distributed.spread(lifted("conv", ROUTINGS["redrawn"], seed=8), mesh)  # another seed
    distributed.load(part, Path(folder, "redrawn"))
    return part.gather().state_dict()


def test_a_checkpoint_of_one_process_is_read_by_four_ranks(tmp_path):
    reference = lifted("conv", ROUTINGS["redrawn"])
    train(reference, reference, "conv")
    distributed.save(reference, tmp_path / "redrawn")
    for state in run(4, loaded_by_four, str(tmp_path)):
        torch.testing.assert_close(state, reference.state_dict())


# --- ranks that fail ------------------------------------------------------------------------------


def disagreeing(what: str) -> Any:
    rank = dist.get_rank()
    cover_ranks = rank + 1 if what == "cover_ranks" else None
    mesh = distributed.start(cover_ranks, timeout=20)
    model = KINDS["mlp"]().double() if what == "weights" else None  # of the global generator
    kind = "conv" if what == "the model's class" and rank else "mlp"
    if model is None:
        model = lifted(kind, "messages").collapse()
    topology = mcover.Uniform() if what == "topology" and rank else RING
    covers = 3 if what == "divisible" else 4
    seed: Any = rank if what == "seed" else 0
    routing = "directed" if what == "routing" and rank else "messages"
    if what == "problem" and rank:
        return distributed.spread(model, mesh)
    covered = mcover.lift(model, covers, topology, routing, seed=seed)
    part = distributed.spread(covered, mesh)
    (x, _), (other, _), *_ = batches("mlp")
    if what == "inputs" and rank:
        x = other
    if what == "shapes" and rank:
        x = x[:2]
    if what == "training forwards" and rank:
        part.steps += 1
    if what == "train() or eval()" and rank:
        part.eval()
    return part(x).detach()


MESSAGES = {
    "cover_ranks": "ranks disagree on cover_ranks: rank 0 has 1, rank 1 2",
    "weights": "ranks disagree on weights.*build the model from the same seed",
    "the model's class": "ranks disagree on the model's class.*Perceptron.*Convolutional",
    "topology": "ranks disagree on topology.*ring.*uniform",
    "divisible": "3 covers cannot be divided evenly among 2 ranks.*1, 3.*or 4 covers",
    "seed": "ranks disagree on seed.*give lift the same seed",
    "routing": "ranks disagree on routing",
    "problem": "rank 1: covered is Perceptron",
    "inputs": "out of step in: inputs, which all covers share",
    "shapes": "out of step in: shapes of the inputs",
    "training forwards": "out of step in: training forwards so far",
    "train() or eval()": r"out of step in: train\(\) or eval\(\)",
}


def all_disagreements() -> list[Any]:
    seen = []
    for what in MESSAGES:
        try:
            seen.append(disagreeing(what))
        except McoverError as error:
            seen.append(error)
    return seen


def test_ranks_that_disagree_are_refused_on_all_of_them():
    for errors in run(2, all_disagreements):
        for (what, message), error in zip(MESSAGES.items(), errors, strict=True):
            assert isinstance(error, McoverError), what
            with pytest.raises(McoverError, match=f"(?s){message}"):
                raise error


def losing_one(how: str) -> Any:
    """Rank 1 dies during training, or does not reach a forward pass."""
    mesh = distributed.start(timeout=5)
    routing = "directed" if how == "dies, directed" else "messages"
    part = distributed.spread(lifted("mlp", routing), mesh)
    (x, y), *_ = batches("mlp")
    for step in range(3):
        if dist.get_rank() == 1 and step == 1:
            if how == "absent":
                return None
            if how == "dies in backward":
                part.net.out.weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        mcover.cover_loss(F.mse_loss, part(x), y).backward()
    return "it went on"


@pytest.mark.parametrize("how", ["dies, directed", "dies in backward", "absent"])
def test_a_rank_that_is_lost_ends_the_others(how):
    answers = run(4, losing_one, how)
    assert isinstance(answers[1], DiedError) or how == "absent"
    for rank in (0, 2, 3):
        with pytest.raises(McoverError, match=rf"rank {rank} lost the others in .*has died, or"):
            raise answers[rank]


def test_a_process_by_itself_is_told_of_torchrun(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(McoverError, match="torchrun"):
        distributed.start()


def test_torchrun_starts_the_example(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(ROOT / "examples" / "spread.py")]
    command += ["--covers", "4", "--epochs", "2", "--output", str(tmp_path / "net.pt")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.rsplit(maxsplit=1)[-1]) < 0.2, done.stdout
    assert torch.load(tmp_path / "net.pt", weights_only=True)


def saving_without_one(folder: str) -> Any:
    """Rank 1 dies before the others save."""
    mesh = distributed.start(timeout=5)
    part = distributed.spread(lifted("mlp", "directed"), mesh)
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    distributed.save(part, folder)
    return "it went on"


def test_a_checkpoint_that_one_rank_does_not_write_ends_the_others(tmp_path):
    answers = run(2, saving_without_one, str(tmp_path / "a"))
    assert isinstance(answers[1], DiedError)
    with pytest.raises(McoverError, match="could not be written"):
        raise answers[0]


def saving_where_no_file_can_be(folder: str) -> Any:
    mesh = distributed.start(timeout=20)
    part = distributed.spread(lifted("mlp", "directed"), mesh)
    if dist.get_rank() == 1:  # as a disk that is full, on one rank
        folder = str(Path(folder, "file", "below"))
    distributed.save(part, folder)
    return "it went on"


def test_a_checkpoint_that_cannot_be_written_is_refused_on_all_ranks(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for error in run(2, saving_where_no_file_can_be, str(tmp_path)):
        with pytest.raises(McoverError, match=r"could not be written: rank 1.*Not a directory"):
            raise error


def test_a_checkpoint_that_does_not_fit_or_is_damaged_is_refused(tmp_path):
    covered = lifted("mlp", "directed")
    distributed.save(covered, tmp_path / "a", sgd(covered))
    for model, optimizer in (
        (lifted("conv", "directed"), None),
        (covered, torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], 0.1)),
        (lifted("mlp", "messages"), None),  # routes that its seed does not draw
    ):
        with pytest.raises(McoverError):
            distributed.load(model, tmp_path / "a", optimizer)
    (tmp_path / "a" / ".metadata").write_bytes(b"damaged")
    with pytest.raises(McoverError, match="could not be read"):
        distributed.load(covered, tmp_path / "a")
    (tmp_path / "b").write_bytes(b"")
    with pytest.raises(McoverError, match="is a file"):
        distributed.save(covered, tmp_path / "b")


def malformed_starts() -> Any:
    """Each is refused on both ranks, and the ranks stay together."""
    seen = []
    for wrong in (0, 1.5, "two", [], 3, object):
        try:
            distributed.start(wrong if dist.get_rank() else None, timeout=20)
        except McoverError as error:
            seen.append(str(error))
    return seen


def test_a_malformed_number_of_ranks_is_refused_on_all_of_them():
    for seen in run(2, malformed_starts):
        assert len(seen) == 6
        assert all("rank 1: cover_ranks is" in text for text in seen)
