import io

import pytest
from rich.console import Console

import probe_kind
from mcover import progress
from mcover.lab.studies import Inline, Plan, Store, run
from mcover.lab.studies.live import Watch, watching


@pytest.fixture
def plan(monkeypatch):
    monkeypatch.setitem(probe_kind.KINDS, "probe", probe_kind.KIND)
    cells = [probe_kind.cell(f"cell {number}", 3, refuse=[2]) for number in range(30)]
    return Plan(tuple(cells))


def shown(what, **options) -> str:
    console = Console(file=io.StringIO(), width=100, **options)
    console.print(what)
    return console.file.getvalue()


def test_it_counts_trials_and_shows_running_means_with_n(plan, tmp_path):
    watch = Watch(plan)
    with Store(tmp_path / "s.sqlite") as store:
        run(plan, store, Inline(), watch)
    text = shown(watch.table(1, height=24))
    assert "90/90 trials, 30 failed, 1 running" in text
    assert "about 0:00 left" in text
    assert "cell 29" in text
    assert "0.5000 [0.0000, 1.0000] (n = 2)" in text
    assert len(text.splitlines()) <= 24
    assert "cell 0" in shown(watch.table(1, height=60))


def test_where_nobody_watches_it_prints_plain_lines(plan, tmp_path, monkeypatch):
    console = Console(file=io.StringIO(), width=200)
    monkeypatch.setattr(progress, "errors", console)
    with Store(tmp_path / "s.sqlite") as store:
        for _ in range(2):
            with watching(plan) as view:
                run(plan, store, Inline(), view)
    text = console.file.getvalue()
    assert "1/90 trials" in text
    assert "cell 0: 0.0000 [–] (n = 1)" in text
    assert "90 trials are there and are not run again" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_terminal_shows_a_table_that_leaves_no_trace(plan, tmp_path, monkeypatch):
    console = Console(file=io.StringIO(), width=100, height=20, force_terminal=True)
    monkeypatch.setattr(progress, "errors", console)
    with Store(tmp_path / "s.sqlite") as store, watching(plan) as view:
        run(plan, store, Inline(), view)
    text = console.file.getvalue()
    assert "/90 trials" in text
    assert "mean [95 % interval]" in text
    assert "\x1b[2K" in text


def test_the_plain_lines_of_a_long_study_fit_a_terminal(tmp_path, monkeypatch):
    console = Console(file=io.StringIO(), width=200)
    monkeypatch.setattr(progress, "errors", console)
    monkeypatch.setattr("mcover.lab.studies.live._PLAIN_SECONDS", 0.0)
    plan = Plan((probe_kind.cell("a long name of a cell " * 5, 30, refuse=[2], shift=0.123456),))
    monkeypatch.setitem(probe_kind.KINDS, "probe", probe_kind.KIND)
    watch = Watch(plan)
    with Store(tmp_path / "s.sqlite") as store:
        run(plan, store, Inline(), watch)
    watch.begin([], 12_345, 100_000)
    monkeypatch.setattr(watch, "_begin", watch._begin - 100_000)
    watch._new = 1000
    watch.tick(128)
    lines = console.file.getvalue().splitlines()
    assert "13345/100000 trials" in lines[-2]
    assert max(map(len, lines)) <= 80
