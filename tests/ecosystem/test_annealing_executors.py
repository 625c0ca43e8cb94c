"""``anneal`` and ``solve`` on loky and on a Dask cluster of two processes: the same bits."""

import os
import signal

import numpy as np
import pytest

from mcover import McoverError, anneal, solve, teacher_student
from mcover.annealing.tasks import run_tasks

# Sockets that Dask leaves open, and warnings of its own, are not tested here.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("clusters")]

PROBLEM = teacher_student(101, 1.3, seed=[1, 0])
READS = {"num_reads": 7, "seed": 2, "num_sweeps": 30}
SEARCH = {"restarts": 4, "seed": 3, "time_limit": None}


def check(executor):
    here, there = anneal(PROBLEM, **READS), anneal(PROBLEM, executor=executor, workers=2, **READS)
    for name in ("weights", "energy", "training_errors", "proposals"):
        np.testing.assert_array_equal(getattr(there, name), getattr(here, name))
    one, other = solve(PROBLEM, **SEARCH), solve(PROBLEM, executor=executor, **SEARCH)
    np.testing.assert_array_equal(other.weights, one.weights)
    assert (other.restart, other.errors) == (one.restart, one.errors)


def die_once(path):
    """Kills its process at the first call."""
    if not os.path.exists(path):
        open(path, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def test_loky_gives_the_same_bits():
    import joblib.externals.loky as loky

    with loky.ProcessPoolExecutor(2) as executor:
        check(executor)


def test_dask_gives_the_same_bits_when_a_worker_dies(tmp_path, monkeypatch):
    import distributed

    monkeypatch.chdir(tmp_path)
    own = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.Client(**own) as client:
        executor = client.get_executor(pure=False, retries=2)
        check(executor)
        dying = client.submit(die_once, str(tmp_path / "died"), pure=False)
        check(executor)
        assert dying.result() != os.getpid()
        assert (tmp_path / "died").exists()


def test_a_task_that_kills_every_worker_of_dask_is_given_up(tmp_path, monkeypatch):
    import dask
    import distributed

    monkeypatch.chdir(tmp_path)
    own = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    tasks = iter([(die, ())])
    at_once = dask.config.set({"distributed.scheduler.allowed-failures": 0})
    with at_once, distributed.Client(**own) as client:
        executor = client.get_executor(pure=False)
        with pytest.raises(McoverError, match=r"killed its worker 3 times \(KilledWorker"):
            run_tasks(executor, lambda: next(tasks, None), print, 2, lambda: False)
