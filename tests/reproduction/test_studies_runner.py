import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
from reproduction.rows import by_key
from reproduction.runner import ATTEMPTS, EngineError
from reproduction.studies import Inline, Plan, Processes, Store, run
from reproduction.study import Cell, Choosing

import probe_kind
from interrupting import interruptible
from mcover import McoverError

TESTS = Path(__file__).parent


@pytest.fixture(autouse=True)
def _probe(monkeypatch):
    monkeypatch.setitem(probe_kind.KINDS, "probe", probe_kind.KIND)


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "s.sqlite") as opened:
        yield opened


def plan(*cells: Cell, **choosing: object) -> Plan:
    return Plan(cells, Choosing(**choosing))


def lines(log: Path) -> list[str]:
    return [line.rsplit(" ", 1)[0] for line in log.read_text().splitlines()]


def test_a_process_has_one_core_for_blas_as_well():
    engine = Processes(1)
    try:
        row = engine.submit(probe_kind.Probe("p", threads=(3,)), 3).result()
    finally:
        engine.shutdown()
    assert row.outcome["value"] == 1


def test_what_is_there_is_not_run_again(store, tmp_path):
    log = tmp_path / "log"
    few = probe_kind.cell(trials=2, log=str(log))
    more = probe_kind.cell(trials=5, log=str(log))
    assert run(plan(few), store, Inline()).new == 2
    assert run(plan(more), store, Inline()).new == 3
    assert run(plan(more), store, Inline()).new == 0
    assert lines(log) == [f"plain {seed}" for seed in range(5)]


def test_cells_with_the_same_settings_share_their_rows(store):
    one = probe_kind.cell("same")
    two = Cell(one.trial, "another name", panel="elsewhere", trials=4)
    assert one.config == two.config
    assert run(plan(one, two), store, Inline()).new == 4


def test_trials_come_seed_by_seed_so_that_a_stopped_study_is_paired():
    missing = plan(probe_kind.cell("a", 2), probe_kind.cell("b", 3)).missing({})
    assert [(cell.label, seed) for cell, seed in missing] == [
        ("a", 0), ("b", 0), ("a", 1), ("b", 1), ("b", 2),
    ]  # fmt: skip


def test_outcomes_do_not_depend_on_the_workers(tmp_path):
    cells = (probe_kind.cell("a", 4), probe_kind.cell("b", 4, shift=1.0))
    found = []
    for number, engine in enumerate((Inline(), Processes(2))):
        with Store(tmp_path / f"{number}.sqlite") as store:
            run(plan(*cells), store, engine)
            found.append([(row.key, row.outcome) for row in store.rows()])
    assert found[0] == found[1]


def test_a_trial_that_refuses_is_a_failed_row_and_the_rest_goes_on(store):
    ran = run(plan(probe_kind.cell(trials=4, refuse=[1], nan=[2])), store, Inline())
    assert (ran.new, ran.failed) == (4, 2)
    rows = {row.seed: row for row in store.rows()}
    assert rows[1].message == "no trial 1 today; write another seed."
    assert "not finite" in rows[2].message
    assert rows[3].status == "done"
    assert run(plan(probe_kind.cell(trials=4, refuse=[1], nan=[2])), store, Inline()).new == 0


def test_any_other_error_is_a_failed_row_with_its_traceback_and_the_rest_goes_on(tmp_path):
    broken = probe_kind.cell(trials=6, crash=[2], leave=[4])
    found = []
    for number, engine in enumerate((Inline(), Processes(2))):
        with Store(tmp_path / f"{number}.sqlite") as store:
            ran = run(plan(broken), store, engine)
            assert (ran.new, ran.failed) == (6, 2)
            found.append({row.seed: row.message for row in store.rows()})
    assert found[0] == found[1]
    assert re.match(r"Traceback(.|\n)*RuntimeError: broken at 2$", found[0][2])
    assert re.match(r"Traceback(.|\n)*SystemExit: 4$", found[0][4])


def test_an_engine_that_cannot_run_a_trial_stops_the_study_and_keeps_the_rest(store):
    class Broken(Inline):
        def submit(self, trial, seed):
            future = super().submit(trial, seed)
            if seed == 2:
                future = Future()
                future.set_exception(EngineError("no worker here"))
            return future

    cell = probe_kind.cell(trials=8)
    with pytest.raises(EngineError, match=r"seed 2(.|\n)*no worker here"):
        run(plan(cell), store, Broken())
    assert [row.seed for row in store.rows()] == [0, 1]
    with Store(store.path) as other:
        assert other.claim((cell.config, 2)) == "ours"


def test_a_trial_whose_process_always_dies_is_a_failed_row_and_the_others_go_on(store, tmp_path):
    log = tmp_path / "log"
    cell = probe_kind.cell(trials=6, die=[2], log=str(log))
    ran = run(plan(cell), store, Processes(2))
    assert (ran.new, ran.failed) == (6, 1)
    (failed,) = [row for row in store.rows() if row.status == "failed"]
    assert failed.seed == 2
    assert re.search(r"its process ended 3 times(.|\n)*SIGKILL\(-9\)", failed.message)
    assert sorted(lines(log)) == sorted(
        [f"plain {seed}" for seed in range(6)] + ["plain 2"] * (ATTEMPTS - 1)
    )


def test_a_worker_that_is_killed_once_costs_nothing(store, tmp_path):
    """Killed while it works: its trial runs again. Killed while it waits: another is started."""
    log = tmp_path / "log"
    engine = Processes(2)
    killed = set()

    def kill(share: float, text: str) -> None:
        workers = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        if workers and not killed:
            killed.add(int(workers[-1][2]))
            os.kill(int(workers[-1][2]), signal.SIGKILL)

    ran = run(plan(probe_kind.cell(trials=6, sleep=0.4, log=str(log))), store, engine, kill)
    assert killed
    assert (ran.new, ran.failed) == (6, 0)

    engine = Processes(1)
    first = engine.submit(probe_kind.Probe("a", log=str(log)), 0)
    assert first.result().status == "done"
    os.kill(int(log.read_text().split()[-1]), signal.SIGKILL)
    time.sleep(0.3)
    try:
        assert engine.submit(probe_kind.Probe("a"), 1).result().seed == 1
    finally:
        engine.shutdown()


def test_what_no_trial_can_do_without_is_said_before_any_starts(store):
    with pytest.raises(McoverError, match="no data here"):
        run(plan(probe_kind.cell(unprepared="no data here")), store, Inline())
    assert store.rows() == []


def choosing_cell(trials: int = 2, **more: object) -> Cell:
    shifts = {"far": 5.0, "near": 1.0, "middle": 2.0}
    choices = {
        label: probe_kind.Probe("c", shift=shift, **(more if label == "near" else {}))
        for label, shift in shifts.items()
    }
    return Cell(choices["far"], "chosen", trials=trials, choices=choices)


def test_strengths_are_chosen_with_seeds_and_settings_of_their_own(store):
    one = plan(choosing_cell(), extra={"validation": 7}, outcome="value", seeds=2, first_seed=50)
    assert one.progress({}) == (0, 2 + 3 * 2)
    run(one, store, Inline())
    rows = by_key(store.rows())
    picked = one.resolve(one.cells[0], rows)
    assert (picked.chosen, picked.trial.shift) == ("near", 1.0)
    tried = [row for row in rows.values() if row.seed >= 50]
    assert {row.settings["validation"] for row in tried} == {7}
    tests = [row for row in rows.values() if row.seed < 50]
    assert {row.config for row in tests} == {picked.config}
    assert "validation" not in tests[0].settings


def test_a_candidate_that_failed_is_not_chosen(store):
    one = plan(choosing_cell(refuse=[51]), outcome="value", seeds=2, first_seed=50)
    run(one, store, Inline())
    assert one.resolve(one.cells[0], by_key(store.rows())).chosen == "middle"


def test_killed_at_any_point_it_loses_only_what_was_in_flight(tmp_path):
    path = tmp_path / "s.sqlite"
    arguments = [sys.executable, str(TESTS / "running_probe.py"), str(path), "12", "1", "0.1"]
    for _ in range(2):
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
        before = len(_seeds(path))
        _wait_for(lambda before=before: len(_seeds(path)) >= before + 2)
        process.send_signal(signal.SIGKILL)
        process.wait()
    killed = _seeds(path)
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) == 12 - len(killed)
    assert _seeds(path) == list(range(12))
    computed = lines(path.with_suffix(".log"))
    assert len(computed) - len(set(computed)) <= 2  # what was in flight when it was killed


def test_workers_end_with_the_process_that_leads_them(tmp_path):
    path = tmp_path / "s.sqlite"
    arguments = [sys.executable, str(TESTS / "running_probe.py"), str(path), "2", "1", "60"]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    log = path.with_suffix(".log")
    _wait_for(log.exists)
    _wait_for(lambda: log.read_text().endswith("\n"))
    worker = int(log.read_text().split()[-1])
    process.kill()
    process.wait()
    _wait_for(lambda: not _runs(worker))


def test_two_runs_that_share_a_file_share_the_work(tmp_path):
    path = tmp_path / "s.sqlite"
    arguments = [sys.executable, str(TESTS / "running_probe.py"), str(path), "16", "1", "0.15"]
    both = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    new = [int(process.communicate(timeout=60)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum(new) == 16
    assert min(new) > 0
    computed = lines(path.with_suffix(".log"))
    assert sorted(computed) == sorted(set(computed))
    assert _seeds(path) == list(range(16))


def test_ctrl_c_keeps_what_is_finished(tmp_path):
    path = tmp_path / "s.sqlite"
    arguments = [sys.executable, str(TESTS / "running_probe.py"), str(path), "500", "1", "0.05"]
    with interruptible(arguments, tmp_path) as process:
        _wait_for(lambda: len(_seeds(path)) >= 2)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
    assert process.returncode == 0, output
    assert 0 <= len(_seeds(path)) - int(output) <= 1  # and no traceback of a worker


@pytest.mark.parametrize("after", [0.05, 0.3, 0.6, 1.0, 1.5])
def test_ctrl_c_to_the_whole_group_gives_no_tracebacks_of_workers(after, tmp_path):
    """As a terminal sends it: to the workers, too, also while they start."""
    path = tmp_path / "s.sqlite"
    arguments = [sys.executable, str(TESTS / "running_probe.py"), str(path), "500", "2", "0.05"]
    with interruptible(arguments, tmp_path, group=True) as process:
        _wait_for(path.exists)
        time.sleep(after)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate()
    assert process.returncode == 0, output
    assert output.strip().isdecimal()


def _seeds(path: Path) -> list[int]:
    if not path.exists():
        return []
    with Store(path, create=False) as store:
        return [row.seed for row in store.rows()]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def _wait_for(happened, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.02)
