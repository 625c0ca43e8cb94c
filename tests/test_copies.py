"""Copies of module trees: across threads, processes and pickles, and changes that reach them."""

import copy
import multiprocessing
import pickle
import threading

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from covering import RING, ROUTINGS, both, doubles, mlp  # noqa: E402
from mcover import lift  # noqa: E402
from tiny_models import routed  # noqa: E402


@both
@pytest.mark.parametrize("covers", [1, 5])
def test_threads_share_a_covered_model_as_they_share_a_plain_one(routing, covers):
    covered = lift(mlp(), covers, RING, routing, seed=0).eval()
    inputs = [doubles(4, 6, seed=k) for k in range(6)]
    want = [covered(x) for x in inputs]
    wrong = []

    def work(k):
        for _ in range(10):
            if not torch.equal(covered(inputs[k]), want[k]):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert torch.equal(covered(inputs[0]), want[0])


@both
def test_copies_and_pickles_between_forward_and_backward_go_their_own_way(routing, tmp_path):
    covered = lift(mlp(nn.BatchNorm1d(8)), 3, RING, routed(routing, bank=3), seed=0)
    x = doubles(4, 6)
    loss = covered(x).sum()
    torch.save(covered, tmp_path / "covered.pt")
    others = [
        copy.deepcopy(covered),
        pickle.loads(pickle.dumps(covered)),
        torch.load(tmp_path / "covered.pt", weights_only=False),
    ]
    loss.backward()
    want = covered(x)
    for other in others:
        torch.testing.assert_close(other(x), want, rtol=0, atol=0)
        assert other.net[1].num_batches_tracked.tolist() == [2, 2, 2]


def _worker(covered, x, queue):
    queue.put(covered(x).detach().numpy())


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_other_processes_run_a_covered_model(method, routing, monkeypatch):
    monkeypatch.setattr(
        torch, "get_num_threads", lambda: 2
    )  # our own threads do not survive a fork
    layers = nn.Conv1d(6, 600, 1), nn.Conv1d(600, 300, 1), nn.Flatten(), nn.Linear(300, 2)
    covered = lift(nn.Sequential(*layers).double(), 3, RING, routing, seed=0).eval()
    x = doubles(4, 6, 1)
    covered(x)
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    process = context.Process(target=_worker, args=(covered, x, queue))
    process.start()
    got = queue.get()
    process.join()
    torch.testing.assert_close(torch.from_numpy(got), covered(x).detach())


class Embedding(torch.utils.data.Dataset):
    """A data set that puts its items through a covered model, in workers."""

    def __init__(self, covered):
        self.covered = covered

    def __len__(self):
        return 4

    def __getitem__(self, index):
        with torch.no_grad():
            return self.covered(torch.full((1, 6), float(index), dtype=torch.float64))


def test_workers_of_a_data_loader_run_a_covered_model():
    covered = lift(mlp(), 3, RING, "messages", seed=0).eval()
    loader = torch.utils.data.DataLoader(Embedding(covered), batch_size=2, num_workers=1)
    want = torch.stack([Embedding(covered)[k] for k in range(4)])
    torch.testing.assert_close(torch.cat(list(loader)), want)


def test_changes_to_the_covered_models_own_modules_are_followed():
    covered = lift(mlp(nn.Dropout(0.9)), 3, RING, "messages", seed=0)
    x, seen = doubles(4, 6), []
    covered(x)
    covered.net[1].p = 0.0
    handle = covered.net[2].register_forward_hook(lambda module, args, out: seen.append(module))
    got = covered(x)
    assert len(set(map(id, seen))) == 3  # in each cover's own copy
    torch.testing.assert_close(got, covered.eval()(x))
    handle.remove()
    seen.clear()
    covered(x)
    assert not seen
