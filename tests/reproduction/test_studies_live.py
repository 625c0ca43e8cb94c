import io

import pytest
from reproduction.studies import Inline, Plan, Store, run
from reproduction.studies import runner as running
from rich.console import Console

import probe_kind
from mcover import progress


@pytest.fixture
def plan(monkeypatch):
    monkeypatch.setitem(probe_kind.KINDS, "probe", probe_kind.KIND)
    cells = [probe_kind.cell(f"cell {number}", 3, refuse=[2]) for number in range(30)]
    return Plan(tuple(cells))


def shown(plan, path, monkeypatch, **options) -> str:
    console = Console(file=io.StringIO(), width=100, **options)
    monkeypatch.setattr(progress, "errors", console)
    monkeypatch.setattr(running, "errors", console)
    with Store(path) as store, progress.live_line() as line:
        run(plan, store, Inline(), line)
    return console.file.getvalue()


def test_it_counts_trials_failures_and_the_time_left(plan, tmp_path):
    said = []
    with Store(tmp_path / "s.sqlite") as store:
        run(plan, store, Inline(), lambda share, text: said.append((share, text)))
        run(plan, store, Inline(), lambda share, text: pytest.fail("nothing was missing"))
    assert [share for share, _ in said] == [pytest.approx((n + 1) / 90) for n in range(90)]
    assert said[0][1].startswith("1/90 trials, 0 running, about 0:00:")
    assert said[-1][1] == "90/90 trials, 30 failed, 0 running, about 0:00:00 left"


def test_where_nobody_watches_it_prints_plain_lines(plan, tmp_path, monkeypatch):
    text = shown(plan, tmp_path / "s.sqlite", monkeypatch)
    assert "1%  1/90 trials" in text
    assert "left" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_terminal_shows_a_line_that_leaves_no_trace(plan, tmp_path, monkeypatch):
    text = shown(plan, tmp_path / "s.sqlite", monkeypatch, force_terminal=True)
    assert "/90 trials" in text
    assert "about" not in text
    assert "\x1b[2K" in text
