from dataclasses import fields, replace

import numpy as np
import pytest
from probe_kind import Probe

from mcover import (
    GaussianRing,
    LinearSchedule,
    MCover,
    McoverError,
    Vanilla,
    anneal,
    lift,
    teacher_student,
)
from mcover.statistics import mean, time_to_solution
from reproduction.data import load, subset
from reproduction.executors import InlineExecutor
from reproduction.figures import COLUMN, save, study_figure
from reproduction.models import Mlp
from reproduction.rows import KINDS, by_key, make_row
from reproduction.runner import run
from reproduction.store import Store
from reproduction.studies import STUDIES, find_study
from reproduction.study import SCALES, Choosing, Plan
from reproduction.summary import Summary, Table, gain_title, summarize, text
from reproduction.training import Training, fit

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


def test_a_network_trial_is_the_plain_call():
    (cell,) = find_study("mlp-errors").at("smoke", only="M-cover")
    found = cell.trial.run(3)
    data = subset(load("digits", normalize=True), 200, 3)
    base = Mlp((64, 256, 256, 10)).build([3, 0])
    covered = lift(base, 5, GaussianRing(1.5, shift=2), "messages", noise=0.01, seed=[3, 1])
    history = fit(covered, data, Training(epochs=2, batch=50), seed=[3, 2])
    assert found["error"] == history.collapse_error[-1]
    assert found["cover_error"] == history.cover_error[-1].mean()
    assert found["gradients"] == 2 * 4 * 5


def test_a_perceptron_trial_is_the_plain_call():
    (cell,) = find_study("table-1").at("smoke", only="perceptron: M-cover")
    found = cell.trial.run(7)
    problem = teacher_student(51, 3.0, seed=[7, 0])
    plain = anneal(
        problem,
        MCover(covers=3, topology=GaussianRing(3, shift=2), bank=10),
        schedule=LinearSchedule(0.4, 0.01, 0.01),
        seed=[7, 1],
    )
    assert found["generalization_error"] == plain.generalization_error[0]
    assert found["energy"] == plain.energy[0]
    assert found["solved"] == plain.solved[0]
    assert found["proposals"] == 40 * 3 * 51


def test_the_best_restart_is_the_one_of_least_training_energy():
    (cell,) = find_study("equal-budget").at("smoke", only="3 restarts")
    found = replace(cell.trial, n=31, alpha=1.5).run(1)
    problem = teacher_student(31, 1.5, seed=[1, 0])
    schedule = LinearSchedule(0.4, 0.01, 0.01)
    plain = anneal(problem, Vanilla(), schedule=schedule, num_reads=3, seed=[1, 1])
    assert found["collapsed_energy"] == plain.collapsed_energy.min()
    best = np.argmin(plain.collapsed_energy)
    assert found["generalization_error"] == plain.generalization_error[best]


def test_budgets_are_equal():
    counted: dict[str, set[float]] = {"proposals": set(), "gradients": set()}
    for cell in find_study("equal-budget").at("smoke"):
        outcome = cell.trial.run(0)
        name = "proposals" if cell.kind == "perceptron" else "gradients"
        counted[name].add(outcome[name])
    assert max(counted["proposals"]) <= 1.02 * min(counted["proposals"])
    assert len(counted["gradients"]) == 1


def test_unknown_studies_and_cells_are_refused():
    with pytest.raises(McoverError, match="table-1"):
        find_study("table-7")
    with pytest.raises(McoverError, match="no cell"):
        find_study("covers").at("smoke", only="banana")
    with pytest.raises(McoverError, match="at least 1"):
        find_study("covers").at("smoke", trials=0)


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
    }
    assert all(float(corrected) >= float(p) for *_, p, corrected, _ in table.lines)
    assert summary.done == summary.total - 1
    assert table.markdown().count("\n") == 4


def test_failed_trials_are_counted_and_shown(tmp_path):
    study = find_study("covers")
    plan = study.plan("smoke")
    rows = computed(plan, tmp_path / "rows.db")
    assert all(table.header[-1] == "n" for table in summarize(study, "smoke", plan, rows).measured)
    key = plan.cells[1].trial_id, 0
    rows[key] = replace(rows[key], status="failed", outcome={}, message="diverged")
    summary = summarize(study, "smoke", plan, rows)
    assert summary.failed == 1
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
    """Errors of the tries by dropout rate, from nothing but the rows."""
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
