"""Every engine computes the same rows; clusters are processes of this machine."""

import os
from pathlib import Path

import pytest

import mcover
from reproduction.executors import InlineExecutor, make_executor
from reproduction.runner import run
from reproduction.store import Store
from reproduction.study import Plan

TESTS = Path(__file__).parents[1] / "reproduction"
# Sockets that Dask and Ray leave open, and warnings of their own, are not tested here.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.xdist_group("clusters"),  # two Rays on one machine disturb each other
]


@pytest.mark.parametrize(("engine", "address"), [("dask", None), ("ray", None), ("slurm", "local")])
def test_engines_give_the_rows_of_this_process(engine, address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(TESTS))
    source = Path(mcover.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (source, TESTS))))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    import probe_kind

    plan = Plan((probe_kind.cell(trials=4, crash=(2,)),))
    found = {}
    with Store("inline.db") as store:
        run(plan, store, InlineExecutor(), 0, progress=False)
        found["inline"] = _facts(store)
    with Store("rows.db") as store, make_executor(engine, 2, address) as executor:
        ran = run(plan, store, executor, 2, progress=False)
        found[engine] = _facts(store)
        elsewhere = {row.outcome["pid"] for row in store.rows() if row.outcome}
    assert (ran.new, ran.failed) == (4, 1)
    assert found[engine] == found["inline"]
    assert os.getpid() not in elsewhere


def _facts(store: Store) -> list[tuple]:
    return [(row.key, row.status, row.outcome.get("value")) for row in store.rows()]
