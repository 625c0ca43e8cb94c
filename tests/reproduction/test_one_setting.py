"""One setting for all families: it is chosen by the stated rule, and its cost is a ratio."""

import re

import numpy as np
import pytest

from mcover import anneal
from mcover.annealing import RECOMMENDED
from mcover.statistics import paired_time_to_solution
from reproduction import one_setting
from reproduction.families import ATTRACTING, FAMILIES, ONE, SETTINGS, label_of, plain
from reproduction.one_setting import choose, farthest, score
from reproduction.planted import PlantedTrial
from reproduction.rows import by_key, make_row
from reproduction.studies.structured import STRUCTURED
from reproduction.summary import summarize


@pytest.mark.parametrize("series", ONE)
def test_the_setting_is_the_one_that_the_rows_choose(series, rows):
    seeds = STRUCTURED.choosing["paper"].own_seeds
    assert choose(SETTINGS[series].values(), rows, seeds) == ONE[series]


def test_the_default_is_the_setting_that_is_never_far_behind_the_best(rows):
    settings = [one for given in SETTINGS.values() for one in given.values()]
    ratios = farthest(settings, rows, STRUCTURED.choosing["paper"].own_seeds)
    safest = min(ratios, key=ratios.get)
    assert safest == label_of(ONE[ATTRACTING])
    assert RECOMMENDED.method == ONE[ATTRACTING].method
    assert RECOMMENDED.schedule.sweeps == ONE[ATTRACTING].sweeps
    problem = FAMILIES["committee, K = 3"].problem(0)
    how = {"seed": 0, "workers": 1}
    ours = anneal(problem, ONE[ATTRACTING].method, schedule=ONE[ATTRACTING].schedule, **how)
    assert anneal(problem, **how).options == ours.options


def row(trial, seed, solved, seconds=1.0):
    outcome = {"solved": float(solved), "core_seconds": seconds, "overlap": 1.0, "proposals": 1.0}
    return make_row(trial, seed, outcome, "", 0.0)


def test_what_never_solves_has_a_finite_score_that_grows_with_its_cost():
    trial = PlantedTrial(FAMILIES["iid, N = 501"], plain(1.0))
    never = [row(trial, seed, False) for seed in range(8)]
    dear = [row(trial, seed, False, 2.0) for seed in range(8)]
    half = [row(trial, seed, seed % 2) for seed in range(8)]
    assert score(half) == pytest.approx(np.log(0.01) / np.log(0.5))
    assert score(half) < score(never) < score(dear) < np.inf


def test_the_geometric_mean_weighs_families_alike():
    fast, steady = plain(0.3), plain(0.6)
    made = []
    for number, family in enumerate(FAMILIES.values()):
        for seed in range(6):
            made.append(row(PlantedTrial(family, fast), seed, seed % 2, 100 if number else 1e-3))
            made.append(row(PlantedTrial(family, steady), seed, seed % 2, 90))
    assert choose([fast, steady], by_key(made), range(6)) == fast
    assert choose([fast, steady], by_key(made), range(1, 6, 2)) == fast


def test_ratios_are_over_the_own_best_on_the_same_instances(rows):
    summary = summarize(STRUCTURED, "paper", STRUCTURED.plan("paper"), rows)
    table = one_setting.table(summary)
    found = {(line[0], line[1]): line for line in table.lines}
    assert len(found) == 2 * len(SETTINGS)
    costs = one_setting.costs(summary)
    of = {(point.cell.panel, point.cell.series): point.rows for point in summary.points}
    family, series = "iid, N = 501", "RSA"
    ours, best = of[family, f"{series}, one setting"], of[family, series]
    both = sorted({one.seed for one in ours} & {one.seed for one in best})

    def side(some):
        kept = {one.seed: one for one in some}
        return (
            [kept[seed].outcome["solved"] > 0 for seed in both],
            [kept[seed].outcome["core_seconds"] for seed in both],
        )

    wanted = paired_time_to_solution(side(ours), side(best)).difference
    (cost,) = [one for one in costs[series, "one setting"] if one.family == family]
    assert cost.ratio == wanted


def test_over_all_families_the_ratio_is_a_geometric_mean():
    """RSA costs twice as much in half of the families and as much in the others."""
    ours, theirs = "M-cover that attracts, one setting", "RSA, one setting"
    plan = STRUCTURED.plan("paper")
    made = []
    for cell in plan.cells:
        if cell.series in (ours, theirs):
            twice = cell.series == theirs and list(FAMILIES).index(cell.panel) % 2
            cost = 2 if twice else 1
            made += [row(cell.trial, s, s % 3 > 0, cost * (1 + s % 2)) for s in range(12)]
    summary = summarize(STRUCTURED, "paper", plan, by_key(made))
    (line,) = one_setting.overall(summary).lines
    assert line[:2] == ("M-cover that attracts / RSA", "one setting")
    value, low, high = map(float, re.findall(r"[\d.]+", line[2]))
    assert value == pytest.approx(np.sqrt(0.5), rel=0.01)
    assert low <= value <= high
    assert line[3] == str(12 * len(FAMILIES))
