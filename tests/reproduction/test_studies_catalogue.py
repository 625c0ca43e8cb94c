from dataclasses import fields, replace

import numpy as np
import pytest
from probe_kind import Probe

from mcover.statistics import mean, time_to_solution
from reproduction.executors import InlineExecutor
from reproduction.figures import COLUMN, save, study_figure
from reproduction.rows import KINDS, by_key, make_row
from reproduction.runner import run
from reproduction.store import Store
from reproduction.studies import STUDIES, find_study, league
from reproduction.study import SCALES, Choosing, Plan
from reproduction.summary import Summary, Table, gain_title, summarize, text
from reproduction.training import Soup

CANDIDATES = "Chosen on held-out data"


def computed(plan: Plan, path) -> dict:
    """The rows of a plan, computed in this process."""
    with Store(path) as store:
        run(plan, store, InlineExecutor(), 0, progress=False)
        return by_key(store.rows())


def titled(summary: Summary, title: str) -> Table:
    (found,) = [table for table in summary.tables if table.title == title]
    return found


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_runs_at_smoke_scale_and_is_drawn(name, tmp_path):
    study = find_study(name)
    plan = study.plan("smoke")
    with Store(tmp_path / "rows.db") as store:
        ran = run(plan, store, InlineExecutor(), 0, progress=False)
        assert ran.failed == 0
        assert (ran.new, ran.new) == plan.progress(by_key(store.rows()))
        rows = by_key(store.rows())
    summary = summarize(study, "smoke", plan, rows)
    assert summary.done == summary.total == len(rows)
    for point in summary.points:
        assert point.value.n >= 2
        assert not point.value.low > point.value.value  # nan: two seeds have no interval
        assert not point.value.value > point.value.high
    titles = {table.title for table in summary.further}
    assert titles & {"Paired comparisons", "Growth", gain_title(study)}
    assert all(table.lines for table in summary.tables)
    figure = study_figure(summary)
    assert figure.get_size_inches()[0] in (COLUMN, 7.0)
    assert "n = " in figure.get_suptitle()
    for ending, mark in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        assert save(figure, tmp_path / f"{name}.{ending}").read_bytes().startswith(mark)


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("scale", SCALES)
def test_cells_are_told_apart_and_contrasts_name_series_that_exist(name, scale):
    study = find_study(name)
    cells = study.at(scale)
    assert len({cell.label for cell in cells}) == len(cells)
    assert {cell.kind for cell in cells} <= set(KINDS)
    if scale == "paper":
        series = {cell.series for cell in cells}
        assert {one for pair in study.contrasts for one in pair} <= series
        assert {*study.rivals, *study.gains} <= series
        assert not set(study.rivals) & set(study.gains)
        assert bool(study.rivals) == (study.picture == "gain")
        assert set(study.growth) <= {(cell.panel, cell.series) for cell in cells}
    assert study.title
    assert study.about


def test_methods_meet_the_same_instances():
    for scale in SCALES:
        met = {}
        for cell in find_study("table-1").at(scale):
            met.setdefault(cell.kind, set()).add(without_method(cell.trial))
        assert {kind: len(given) for kind, given in met.items()} == dict.fromkeys(met, 1)
        assert set(met) == {"perceptron", "committee", "network"}


def without_method(trial):
    return repr([getattr(trial, one.name) for one in fields(trial) if one.name != "method"])


def spent(name, only="", candidates=False):
    """The proposals or gradients of the lines at each panel and x of a study."""
    found = {}
    for cell in find_study(name).at("smoke", only=only):
        for trial in (
            (cell.trial, *list(cell.choices.values())[-1:]) if candidates else (cell.trial,)
        ):
            outcome = trial.run(0)
            unit = "proposals" if cell.kind == "perceptron" else "gradients"
            place = found.setdefault((unit, cell.panel, cell.x), {})
            place.setdefault(cell.series, set()).add(outcome[unit])
    return found


@pytest.mark.parametrize(
    ("name", "only", "short", "places"),
    [
        ("equal-budget", "", None, 2),
        ("league", "", league.SHORT, 1),
        ("binary-networks", "digits, conv", None, 1),
        ("when", "label noise 0.4", "plain or dropout, a quarter of the steps", 1),
    ],
)
def test_all_lines_of_a_place_have_one_budget_but_the_short_one(name, only, short, places):
    found = spent(name, only, candidates=name in ("when", "binary-networks"))
    assert len(found) >= places
    for (unit, *_), of in found.items():
        quarter = of.pop(short, None)
        budgets = set.union(*of.values())
        assert max(budgets) <= (1.02 if unit == "proposals" else 1) * min(budgets)
        assert quarter is None or {4 * one for one in quarter} == budgets


@pytest.mark.parametrize("scale", ["smoke", "paper"])
def test_candidates_of_a_panel_of_binary_networks_have_one_budget(scale):
    panels = {}
    for cell in find_study("binary-networks").at(scale):
        for trial in cell.choices.values():
            images = trial.images or 60_000
            steps = -(-(images - images // 10) // trial.training.batch) * trial.training.epochs
            panels.setdefault(cell.panel, set()).add(steps * trial.covers)
    assert {len(found) for found in panels.values()} == {1}
    assert len(panels) == {"smoke": 2, "paper": 8}[scale]


def test_soups_of_the_league_divide_their_epochs():
    for cell in find_study("league").at("paper"):
        for trial in cell.choices.values():
            if isinstance(getattr(trial, "method", None), Soup):
                trunk, each = trial.method.split(trial.training.epochs)
                assert trunk == trial.method.trunk * 240 == 240 - 4 * each


def test_contrasts_are_paired_and_corrected(tmp_path):
    study = find_study("table-1")
    plan = study.plan("smoke", trials=6, only="perceptron")
    rows = computed(plan, tmp_path / "rows.db")
    lost = plan.cells[0].trial_id, 3
    del rows[lost]
    summary = summarize(study, "smoke", plan, rows)
    table = titled(summary, "Paired comparisons")
    n = {name: int(n) for name, *_, n in table.lines}
    assert n == {
        "RSA M=3 − vanilla": 5,
        "M-cover M=3 − vanilla": 5,
        "M-cover M=3 − RSA M=3": 6,
        "M-cover M=3, γ=0.3 − M-cover M=3": 6,
        "M-cover M=3, S=2, γ=0.3 − M-cover M=3": 6,
    }
    assert all(float(corrected) >= float(p) for *_, p, corrected, _ in table.lines)
    assert summary.done == summary.total - 1
    assert table.markdown().count("\n") == 6


def test_failed_trials_are_counted_and_shown(tmp_path):
    study = find_study("covers")
    plan = study.plan("smoke")
    rows = computed(plan, tmp_path / "rows.db")
    assert all(table.header[-1] == "n" for table in summarize(study, "smoke", plan, rows).measured)
    key = plan.cells[1].trial_id, 0
    rows[key] = replace(rows[key], status="failed", outcome={}, message="diverged")
    summary = summarize(study, "smoke", plan, rows)
    assert sum(len(point.failures) for point in summary.points) == 1
    (table,) = summary.measured
    assert table.header[-2:] == ("n", "failed")
    assert [line[-2:] for line in table.lines] == [("2", "0"), ("1", "1"), ("2", "0"), ("2", "0")]


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """The smallest study with candidates, each tried with three seeds."""
    study = find_study("low-data")
    plan = Plan(study.at("smoke"), replace(study.plan("smoke").choosing, seeds=3))
    return study, plan, computed(plan, tmp_path_factory.mktemp("store") / "rows.db")


def held_out(rows) -> dict[str, list[float]]:
    """Errors of the candidates by dropout rate, computed from the rows only."""
    found: dict[str, list[float]] = {}
    for row in rows.values():
        if "validation" in row.settings:
            found.setdefault(str(row.settings["dropout"]), []).append(row.outcome["error"])
    return found


def test_held_out_errors_of_all_candidates_are_shown_and_the_least_is_marked(searched):
    study, plan, rows = searched
    expected = {label: sum(errors) / 3 for label, errors in held_out(rows).items()}
    summary = summarize(study, "smoke", plan, rows)
    table = titled(summary, CANDIDATES)
    assert table.header == (
        "cell", "candidate", "held-out error, mean [95 % interval]", "n", "chosen",
    )  # fmt: skip
    assert len(expected) == len(table.lines) == 4
    for cell, label, error, n, _ in table.lines:
        assert cell == "dropout"
        assert error.startswith(f"{expected[label]:.4f} [")
        assert n == "3"
    (best,) = [line[1] for line in table.lines if line[-1] == "✓"]
    assert expected[best] == pytest.approx(min(expected.values()))
    for _, label, error, *_ in table.lines:
        assert error == text(mean(held_out(rows)[label]), ".4f")
    (picked,) = [point.cell for point in summary.points if point.cell.choices]
    assert picked.chosen == best


def test_a_candidate_that_failed_is_shown_and_not_marked(searched):
    study, plan, rows = searched
    before = titled(summarize(study, "smoke", plan, rows), CANDIDATES).lines
    (best,) = [line[1] for line in before if line[-1]]
    tries = [
        key
        for key, row in rows.items()
        if "validation" in row.settings and str(row.settings["dropout"]) == best
    ]
    for lost, shown in ((tries[:1], ("2", "1", "")), (tries, ("0", "3", ""))):
        failed = {key: replace(rows[key], status="failed", outcome={}) for key in lost}
        table = titled(summarize(study, "smoke", plan, rows | failed), CANDIDATES)
        assert table.header[-3:] == ("n", "failed", "chosen")
        found = {line[1]: line[-3:] for line in table.lines}
        assert found.pop(best) == shown
        assert sorted(found.values()) == [("3", "0", ""), ("3", "0", ""), ("3", "0", "✓")]


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    """Times to solution at smoke scale."""
    study = find_study("time-to-solution")
    plan = study.plan("smoke", trials=4)
    return study, plan, computed(plan, tmp_path_factory.mktemp("store") / "rows.db")


def test_times_to_solution_are_chosen_on_other_instances_and_tested_on_fresh_ones(timed):
    study, plan, rows = timed
    summary = summarize(study, "smoke", plan, rows)
    for point in summary.points:
        assert {row.seed for row in point.rows} == set(range(4))  # not those it was chosen by
        scores = {}
        for label, tries in plan.tried(point.cell, rows).items():
            assert [row.seed for row in tries] == [1000, 1001]
            solved = [row.outcome["solved"] > 0 for row in tries]
            cost = [row.outcome["core_seconds"] for row in tries]
            scores[label] = (time_to_solution(solved, cost).value, -np.mean(cost))
        assert point.cell.chosen == min(scores, key=lambda label: scores[label])
        solved = [row.outcome["solved"] > 0 for row in point.rows]
        cost = [row.outcome["core_seconds"] for row in point.rows]
        assert point.value == time_to_solution(solved, cost)
    (table,) = summary.measured
    assert table.header[3:6] == ("TTS99, core seconds", "TTS99, 10⁶ proposals", "solved")
    ratios = titled(summary, "Paired comparisons")
    assert ratios.header[1:3] == ("ratio of TTS99", "of core seconds [95 % interval]")
    (line,) = [line for line in ratios.lines if line[1] == "M-cover / RSA"]
    values = {point.cell.series: point.value.value for point in summary.points}
    ratio = values["M-cover"] / values["RSA"]
    assert line[2].startswith(f"{ratio:.3g} [") or not np.isfinite(ratio)


def test_candidates_are_scored_by_what_a_solution_costs():
    def tried(cost, solved):
        found = [{"core_seconds": cost, "solved": float(one)} for one in solved]
        return [make_row(Probe("p"), seed, one, "", 0.0) for seed, one in enumerate(found)]

    choosing = Choosing(extra={}, outcome="core_seconds", how="tts", seeds=4)
    often, rarely = tried(2.0, [1, 1, 0, 1]), tried(1.0, [0, 0, 0, 1])
    assert choosing.score(often) < choosing.score(rarely)
    never, dear = tried(1.0, [0] * 4), tried(5.0, [0] * 4)
    assert choosing.score(rarely) < choosing.score(dear) < choosing.score(never)
    failed = [replace(often[0], status="failed", outcome={}), *often[1:]]
    assert choosing.score(never) < choosing.score(failed)
