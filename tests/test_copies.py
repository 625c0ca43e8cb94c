"""Copies of module trees: across threads and processes, and changes that reach them."""

import multiprocessing
import threading

import pytest
import torch
from torch import nn

from covering import RING, both, doubles, mlp
from mcover import McoverError, lift


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


def _worker(covered, x, queue):
    queue.put(covered(x).detach().numpy())


@pytest.mark.parametrize("method", ["spawn", "fork"])
@both
def test_other_processes_run_a_covered_model(method, routing, monkeypatch):
    # Our own threads do not survive a fork.
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
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


def _replace(net):
    net[1] = nn.Tanh()


def _replace_lifted(net):
    net[0] = nn.Linear(6, 8).double()


def _add(net):
    net.add_module("last", nn.Tanh())


def _remove(net):
    del net[2]


@both
@pytest.mark.parametrize("ran", [False, True])
@pytest.mark.parametrize("change", [_replace, _replace_lifted, _add, _remove])
def test_other_submodules_are_refused(change, ran, routing):
    covered, x = lift(mlp(nn.ReLU()), 3, RING, routing, seed=0), doubles(4, 6)
    if ran:
        covered(x)
    modules = dict(covered.net._modules)
    change(covered.net)
    with pytest.raises(McoverError, match=r"the module 'net\.\w+' of a covered model was replaced"):
        covered(x)
    covered.net._modules.clear()
    covered.net._modules.update(modules)
    assert covered(x).shape == (3, 4, 3)


def test_the_collapse_of_other_submodules_is_refused():
    covered = lift(mlp(), 3, RING, seed=0)
    covered.net[1] = nn.ReLU()
    with pytest.raises(McoverError, match=r"models = \[covered\.cover"):
        covered.collapse()
