import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import probe_kind
import pytest
from probe_kind import Probe

import mcover
import reproduction
from interrupting import interruptible
from mcover import McoverError
from reproduction.executors import InlineExecutor, make_executor
from reproduction.rows import by_key
from reproduction.runner import run
from reproduction.store import Store
from reproduction.study import Cell, Choosing, Plan

SCRIPT = Path(__file__).parent / "running_probe.py"


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "rows.db") as opened:
        yield opened


def run_inline(plan, store, **options):
    return run(plan, store, InlineExecutor(), 0, progress=False, **options)


def test_only_missing_rows_are_computed(store, tmp_path):
    log = tmp_path / "log"
    plan = Plan((probe_kind.cell(log=str(log)),))
    assert run_inline(plan, store).new == 3
    more = Plan((replace(plan.cells[0], trials=5),))
    assert run_inline(more, store).new == 2
    assert log.read_text().split() == ["0", "1", "2", "3", "4"]


def test_known_rows_are_not_computed_and_old_revisions_only_on_request(store, tmp_path):
    plan = Plan((probe_kind.cell(),))
    with Store(tmp_path / "other.db") as other:
        run_inline(plan, other)
        known = by_key(other.rows())
    first = next(iter(known))
    known[first] = replace(known[first], revision=1)
    assert run_inline(plan, store, known=known).new == 0
    assert run_inline(plan, store, known=known, renew=True).new == 1
    assert [row.key for row in store.rows()] == [first]
    assert run_inline(plan, store, known=known, renew=True).new == 0


def test_trials_that_raise_become_failed_rows(store):
    plan = Plan((probe_kind.cell(trials=4, refuse=(0,), crash=(1,), nan=(2,)),))
    ran = run_inline(plan, store)
    assert (ran.new, ran.failed, ran.interrupted) == (4, 3, False)
    messages = [row.message for row in store.rows()]
    assert messages[0] == "seed 0 is refused"
    assert "RuntimeError: broken at 1" in messages[1]
    assert "not finite" in messages[2]
    assert messages[3] == ""


def test_what_no_seed_can_do_without_is_refused_before_any_trial(store):
    plan = Plan((probe_kind.cell(), probe_kind.cell("b", unprepared="no data")))
    with pytest.raises(McoverError, match="no data"):
        run_inline(plan, store)
    assert store.rows() == []


def test_the_best_candidate_is_tested(store):
    choices = {str(shift): Probe("c", shift=shift) for shift in (3.0, 1.0, 2.0)}
    choices["failing"] = Probe("c", shift=-1.0, refuse=(1001,))
    cell = Cell(choices["3.0"], "chosen", trials=2, choices=choices)
    plan = Plan((cell,), Choosing({"validation": 7}, "value", seeds=2))
    assert plan.resolve(cell, {}) is None
    assert plan.progress({}) == (0, 10)
    assert run_inline(plan, store).new == 10
    rows = by_key(store.rows())
    resolved = plan.resolve(cell, rows)
    assert resolved.chosen == "1.0"
    assert {seed for trial, seed in rows if trial == resolved.trial_id} == {0, 1}
    assert plan.progress(rows) == (10, 10)


def test_candidates_are_tried_on_what_the_study_and_the_cell_say():
    choices = {"a": Probe("c"), "b": Probe("c", shift=1.0)}
    cell = Cell(choices["a"], "line", choices=choices, tried_on={"sleep": 0.1})
    plan = Plan((cell,), Choosing(extra={"validation": 50}, seeds=1))
    tries = [(one.trial, seed) for one, seed in plan.pending({})]
    assert tries == [(replace(one, sleep=0.1, validation=50), 1000) for one in choices.values()]


def test_processes_give_the_rows_of_this_process_with_one_thread_each(store, tmp_path):
    plan = Plan((probe_kind.cell(trials=6),))
    with make_executor("local", 2) as executor:
        assert run(plan, store, executor, 2, progress=False).new == 6
    assert {row.outcome["threads"] for row in store.rows()} == {1.0}
    assert os.getpid() not in {row.outcome["pid"] for row in store.rows()}
    with Store(tmp_path / "inline.db") as inline:
        run_inline(plan, inline)
        values = [[row.outcome["value"] for row in one.rows()] for one in (store, inline)]
    assert values[0] == values[1]


def test_a_killed_worker_ends_the_run_and_rows_are_kept(store):
    plan = Plan((probe_kind.cell(trials=8, die=(7,)),))
    with (
        pytest.raises(McoverError, match="run the same command again"),
        make_executor("local", 1) as executor,
    ):
        run(plan, store, executor, 1, progress=False)
    assert {row.seed for row in store.rows()} >= {0, 1, 2, 3, 4}


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_ended_loses_and_repeats_nothing(tmp_path, ending, monkeypatch):
    path, log = tmp_path / "rows.db", tmp_path / "rows.log"
    roots = [Path(mcover.__file__).parents[1], Path(reproduction.__file__).parents[1]]
    tests = [SCRIPT.parent, SCRIPT.parents[1]]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (*roots, *tests))))
    command = [sys.executable, str(SCRIPT), str(path), "12", "2", "0.3"]
    with interruptible(command, tmp_path, group=True) as process:
        while not log.exists() or len(log.read_text().split()) < 5:
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.02)
        process.send_signal(ending)
        said, _ = process.communicate()
    assert ending == signal.SIGKILL or "interrupted=True" in said
    with Store(path) as store:
        kept = {row.seed for row in store.rows()}
    assert 0 < len(kept) < 12
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    with Store(path) as store:
        assert [row.seed for row in store.rows()] == list(range(12))
    started = Counter(map(int, log.read_text().split()))
    assert all(started[seed] == 1 for seed in kept)
