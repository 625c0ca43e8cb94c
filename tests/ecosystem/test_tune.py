"""``mcover tune`` with the real Optuna: it finds, prunes, keeps, goes on, and tests only once."""

import io
import json
import os
import signal
import sqlite3
import sys
import time
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from rich.console import Console

import mcover
from mcover import LinearSchedule, MCover, progress
from mcover.cli import main
from mcover.errors import McoverError
from mcover.lab import tune
from mcover.lab.perceptron import PerceptronTrial
from mcover.lab.studies import Inline, Processes
from mcover.lab.training import NetworkTrial, Training
from mcover.lab.tune import NetworkSearch, PerceptronSearch, Tuning
from mcover.lab.tune.search import FIRST_SEED, FIRST_TEST_SEED

sys.path.append(str(Path(__file__).parent.parent))
from interrupting import interruptible

SHORT = LinearSchedule(step=0.02)
PERCEPTRON = PerceptronTrial(21, 4.0, method=MCover(3, bank=2), schedule=SHORT)
TINY = "perceptron --n 21 --alpha 4 --schedule linear:0.4:0.01:0.02 mcover --bank 2"
COMMAND = ["tune", *TINY.split(), "--seeds", "4", "--test-seeds", "5", "--fix", "temperatures"]


def command(folder, trials=10, *more):
    workers = () if "--workers" in more else ("--workers", "0")
    given = ("--trials", str(trials), "--output", str(folder / "tune"), *workers, *more)
    return [*COMMAND, *given]


def trials_of(file, *states):
    study = optuna.load_study(storage=f"sqlite:///{file}", study_name=None)
    return [one for one in study.get_trials() if not states or one.state.name in states]


@pytest.fixture
def ran(monkeypatch):
    """Perceptrons whose cost is their number of covers, all solved; and what was run of them."""
    seen = []

    def run(trial, seed):
        seen.append((trial, seed))
        cost = trial.method.covers + 0.01 * (seed % 10)
        return {"solved": 1.0, "core_seconds": cost, "proposals": cost, "generalization_error": 0.0}

    monkeypatch.setattr(PerceptronTrial, "run", run)
    return seen


def test_it_finds_what_is_better_and_gives_up_what_is_not(ran, tmp_path):
    search = PerceptronSearch(replace(PERCEPTRON, method=MCover(6, bank=2)), seeds=8)
    with Tuning(search, tmp_path / "a.db") as tuning:
        tuning.run(Inline(), trials=25)
        best, found = tuning.best, tuning.candidates()
        assert tuning.defaults.params == search.first()
        assert sum(tuning.importances().values()) == pytest.approx(1)
        assert max(tuning.importances(), key=tuning.importances().get) == "covers"
    assert best.params["covers"] == 2
    assert len(found) == 25
    pruned = [one for one in found if not one.complete]
    assert pruned
    assert all(4 <= len(one.outcomes) < 8 for one in pruned)  # p < 0.1 takes four pairs
    assert all(one.value > best.value for one in pruned)
    assert all(one.params["covers"] >= 2 for one in found)
    runs = sum(len(one.outcomes) for one in found)
    assert len(ran) == runs < 25 * 8


def test_without_pruning_every_candidate_meets_the_same_seeds(ran, tmp_path):
    with Tuning(PerceptronSearch(PERCEPTRON, seeds=5, prune=0.0), tmp_path / "a.db") as tuning:
        tuning.run(Inline(), trials=6)
        assert all(one.complete for one in tuning.candidates())
    seeds = [seed for _, seed in ran]
    assert seeds == [*range(FIRST_SEED, FIRST_SEED + 5)] * 6


def test_the_search_is_the_same_with_the_same_seed(ran, tmp_path):
    found = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        with Tuning(PerceptronSearch(PERCEPTRON, seeds=2), tmp_path / name, seed) as tuning:
            tuning.run(Inline(), trials=12)
            found.append([one.params for one in tuning.candidates()])
    assert found[0] == found[1] != found[2]


def test_selection_never_sees_what_the_test_sees(monkeypatch, tmp_path):
    seen = []

    def run(trial, seed):
        seen.append((trial.validation, seed))
        return {"error": trial.method.noise, "gradients": 1.0, "core_seconds": 1.0}

    monkeypatch.setattr(NetworkTrial, "run", run)
    trial = NetworkTrial(training=Training(2), images=100, validation=200)
    with Tuning(NetworkSearch(trial, seeds=3), tmp_path / "a.db") as tuning:
        tuning.run(Inline(), trials=8)
        searched = len(seen)
        outcomes = tuning.test(Inline(), seeds=6)
    assert {held for held, _ in seen[:searched]} == {200}
    assert {held for held, _ in seen[searched:]} == {None}
    assert not {seed for _, seed in seen[:searched]} & {seed for _, seed in seen[searched:]}
    assert {name: len(of) for name, of in outcomes.items()} == {"winner": 6, "defaults": 6}
    assert outcomes["winner"][0]["error"] < outcomes["defaults"][0]["error"] == 0.05


def test_a_test_is_run_once_and_another_winner_has_fresh_seeds(ran, tmp_path):
    search = PerceptronSearch(replace(PERCEPTRON, method=MCover(9, bank=2)), seeds=2)
    with Tuning(search, tmp_path / "a.db") as tuning:
        tuning.run(Inline(), trials=2)
        first, before = tuning.test(Inline(), 3), len(ran)
        assert tuning.test(Inline(), 3) == first
        assert len(ran) == before
        winner = tuning.best
        tuning.run(Inline(), trials=25)
        assert tuning.best.value < winner.value
        before = len(ran)
        tuning.test(Inline(), 3)
        fresh = {seed for _, seed in ran[before:]}
        assert len(fresh) == 3
        assert min(fresh) >= FIRST_TEST_SEED + 10_000


def test_the_winners_schedule_is_tested_with_the_defaults_too(ran, tmp_path):
    with Tuning(PerceptronSearch(PERCEPTRON, seeds=2), tmp_path / "a.db") as tuning:
        tuning.run(Inline(), trials=15)
        schedule = tuning.search.candidate(tuning.best.params).schedule
        found = tuning.test(Inline(), 2)
    assert schedule != SHORT
    assert list(found) == ["winner", "defaults", "defaults, winner's schedule"]
    assert {t.schedule for t, s in ran if s >= FIRST_TEST_SEED} == {schedule, SHORT}


def test_where_nothing_is_better_it_says_so(tmp_path, capsys, monkeypatch):
    cost = {"solved": 1.0, "proposals": 1.0, "core_seconds": 1.0, "generalization_error": 0.0}
    monkeypatch.setattr(PerceptronTrial, "run", lambda self, seed: dict(cost))
    main(command(tmp_path, 5))
    printed = capsys.readouterr().out
    assert "nothing better than the defaults was found" in printed
    assert "winner minus" not in printed
    assert tune.read(tmp_path / "tune.json").trial == PERCEPTRON


def test_candidates_that_are_refused_do_not_end_the_search(ran, tmp_path, monkeypatch):
    fine = PerceptronTrial.run

    def run(trial, seed):
        if trial.method.covers > 4:
            raise McoverError("too many covers")
        return fine(trial, seed)

    monkeypatch.setattr(PerceptronTrial, "run", run)
    with Tuning(PerceptronSearch(PERCEPTRON, seeds=2), tmp_path / "a.db") as tuning:
        tuning.run(Inline(), trials=12)
        refused = [one for one in tuning.candidates() if one.message]
        assert tuning.best.params["covers"] <= 4
    assert refused
    assert all(one.value is None and not one.complete for one in refused)
    many = PerceptronSearch(replace(PERCEPTRON, method=MCover(5, bank=2)))
    with (
        Tuning(many, tmp_path / "b.db") as tuning,
        pytest.raises(McoverError, match="begins with fails: too many covers"),
    ):
        tuning.run(Inline(), trials=12)


def test_a_test_run_that_fails_counts_as_all_wrong(tmp_path, capsys, monkeypatch):
    def run(trial, seed):
        if seed == FIRST_TEST_SEED + 1 and trial.method.noise != 0.05:
            raise McoverError("training diverged")
        return {"error": trial.method.noise, "gradients": 8.0, "core_seconds": 1.0}

    monkeypatch.setattr(NetworkTrial, "run", run)
    words = "tune network --trials 8 --seeds 2 --test-seeds 4 --workers 0 --output"
    main([*words.split(), str(tmp_path / "tune")])
    assert "winner: 1 of 4 failed, which count as all wrong" in capsys.readouterr().out
    plain = json.loads((tmp_path / "tune.json").read_text())
    errors = plain["test"]["outcomes"]["winner"]["error"]
    assert errors[1] == 1
    assert max(errors[:1] + errors[2:]) < 0.05


def test_the_command_writes_a_winner_that_others_take(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mcover.progress._PLAIN_SECONDS", -1.0)
    main(command(tmp_path))
    said = capsys.readouterr()
    assert "test, n = 5 fresh seeds, 20000 to 20004" in said.out
    assert "TTS99, core seconds" in said.out
    assert (tmp_path / "tune.png").read_bytes().startswith(b"\x89PNG")
    assert max(map(len, said.err.splitlines())) < 80
    shares = [int(line[:3]) for line in said.err.splitlines() if "trials" in line]
    assert shares == sorted(shares)
    plain = json.loads((tmp_path / "tune.json").read_text())
    assert len(plain["candidates"]) == 10
    assert plain["test"]["seeds"] == [20000, 5]
    assert len(plain["test"]["outcomes"]["defaults"]["solved"]) == 5
    assert str(tmp_path) not in (tmp_path / "tune.json").read_text()
    options = tune.read(tmp_path / "tune.json").anneal_options()
    mcover.anneal(mcover.teacher_student(21, 4.0, seed=0), **options, seed=0)
    main(["anneal", "--config", str(tmp_path / "tune.json"), "--output", str(tmp_path / "run")])
    assert f"mcover, {options['method'].covers} covers" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "run.npz",
        "run.png",
        "tune.db",
        "tune.json",
        "tune.png",
    ]


def test_a_network_is_tuned_trained_and_lifted(tmp_path, capsys):
    pytest.importorskip("sklearn")
    words = "network --images 50 --validation 100 --epochs 1 --batch 25 --model small-mlp"
    words += f" --trials 3 --seeds 2 --test-seeds 2 --workers 0 --output {tmp_path / 'tune'}"
    main(["tune", *words.split()])
    assert "held-out error" in capsys.readouterr().out
    found = tune.read(tmp_path / "tune.json")
    assert found.trial.validation is None
    model = found.trial.architecture(found.trial.images_of(0)).build(0)
    assert mcover.lift(model, **found.lift_options()).settings.covers == found.trial.covers
    main(["train", "--config", str(tmp_path / "tune.json"), "--output", str(tmp_path / "net")])
    assert tune.read(tmp_path / "net.json").trial == found.trial


def test_the_same_command_again_computes_nothing_and_more_trials_go_on(ran, tmp_path, capsys):
    main(command(tmp_path, 4))
    first, before = (tmp_path / "tune.json").read_bytes(), len(ran)
    main(command(tmp_path, 4))
    assert (tmp_path / "tune.json").read_bytes() == first
    assert len(ran) == before
    main(command(tmp_path, 9))
    candidates = json.loads((tmp_path / "tune.json").read_text())["candidates"]
    assert len(candidates) == 9
    assert candidates[:4] == json.loads(first)["candidates"]
    assert len({json.dumps(one["params"]) for one in candidates}) == 9  # no draw comes twice


def test_no_candidate_is_started_after_its_time(ran, tmp_path, capsys):
    main(command(tmp_path, 1000, "--seconds", "1e-9"))
    assert len(json.loads((tmp_path / "tune.json").read_text())["candidates"]) == 1


def test_processes_find_as_this_one_does(tmp_path):
    found = []
    for name, engine in (("a", Inline()), ("b", Processes(2))):
        search = PerceptronSearch(PERCEPTRON, score="solved", seeds=2, prune=0.0)
        with Tuning(search, tmp_path / name) as tuning:
            try:
                tuning.run(engine, trials=3)
            finally:
                engine.shutdown()
            found.append(tuning.candidates())
    alike = ("generalization_error", "proposals", "energy")
    first = [[[o[name] for name in alike] for o in one[0].outcomes] for one in found]
    assert first[0] == first[1]
    assert [len(one) for one in found] == [3, 3]


def stop(folder, how, after=1):
    """Runs the command until so many candidates are there, and ends it; what it said."""
    words = [sys.executable, "-m", "mcover", *command(folder, 500, "--workers", "1")]
    file = folder / "tune.db"
    with interruptible(words, folder, group=True) as process:
        while process.poll() is None:
            time.sleep(0.05)
            if file.exists() and _count(file) > after:
                break
        if how == signal.SIGKILL:
            os.killpg(process.pid, how)
        else:
            process.send_signal(how)
        return process.wait(), process.stdout.read()


def _count(file):
    try:
        with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as base:
            return base.execute("SELECT count(*) FROM trials").fetchone()[0]
    except sqlite3.OperationalError:  # not made yet
        return 0


def test_ctrl_c_leaves_the_file_whole_and_the_same_command_goes_on(tmp_path, capsys):
    code, said = stop(tmp_path, signal.SIGINT)
    assert code == 130, said
    assert "the same command goes on" in said
    assert "Traceback" not in said
    there = len(trials_of(tmp_path / "tune.db", "COMPLETE", "PRUNED"))
    main(command(tmp_path, there + 2))
    assert f"{there + 2} candidates" in capsys.readouterr().out


def test_killed_anywhere_it_loses_at_most_the_candidate_in_flight(tmp_path, capsys):
    file, kept = tmp_path / "tune.db", 0
    for after in (0, 2, 4):
        stop(tmp_path, signal.SIGKILL, after)
        done = trials_of(file, "COMPLETE", "PRUNED")
        assert len(done) >= kept
        assert len(trials_of(file, "RUNNING")) <= 1
        kept = len(done)
    main(command(tmp_path, kept + 3))
    found = trials_of(file, "COMPLETE", "PRUNED")
    assert len(found) == kept + 3
    assert not trials_of(file, "RUNNING", "WAITING")
    assert sum(one.user_attrs.get("first", False) for one in found) == 1
    lost = [one.params for one in trials_of(file, "FAIL") if "redraw" in one.params]
    assert all(params in [one.params for one in found] for params in lost)


def test_another_search_or_another_file_is_refused(ran, tmp_path, capsys):
    main(command(tmp_path, 2))
    for name, value in (("alpha", "3"), ("seeds", "5"), ("bank", "4")):
        words = command(tmp_path, 4)
        words[words.index(f"--{name}") + 1] = value
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main(words)
        assert stopped.value.code == 2
        assert f"is of another search: {name} differs" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "tune.db").write_bytes(b"no database" * 100)
    with pytest.raises(SystemExit) as stopped:
        main(command(tmp_path, 4))
    assert stopped.value.code == 2
    assert "is no file of mcover tune" in " ".join(capsys.readouterr().err.split())


def test_two_runs_do_not_share_a_file(tmp_path):
    search = PerceptronSearch(PERCEPTRON)
    with (
        Tuning(search, tmp_path / "a.db"),
        pytest.raises(McoverError, match="held by another run"),
        Tuning(search, tmp_path / "a.db"),
    ):
        pass
    with Tuning(search, tmp_path / "a.db"):  # and afterwards it is free
        pass


def test_the_live_line_fits_80_columns(ran, tmp_path, monkeypatch):
    said = io.StringIO()
    monkeypatch.setattr(progress, "errors", Console(file=said, force_terminal=True, width=80))
    main(command(tmp_path, 1000, "--seconds", "2"))
    lines = [line for line in said.getvalue().replace("\r", "\n").split("\n") if "trials" in line]
    plain = [Console().render_str(line).plain for line in lines]
    assert any("/1000 trials" in line and "from" in line for line in plain)
    assert all("left" in line for line in plain)  # nothing was cut off at the end
