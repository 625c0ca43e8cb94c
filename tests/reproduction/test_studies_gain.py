"""When the lift pays: gains over the better of the rivals, and the study that maps them."""

from dataclasses import replace

import numpy as np
import pytest

from mcover.statistics import holm, mean, paired
from reproduction.rows import by_key, make_row
from reproduction.studies import find_study
from reproduction.study import Cell, Plan, Study
from reproduction.summary import gain_title, summarize
from reproduction.training import NetworkTrial

ERRORS = {
    # By place: plain is better at 10 and dropout at 20.
    ("plain", 10): [0.2, 0.3, 0.25, 0.2],
    ("dropout", 10): [0.3, 0.2, 0.3, 0.3],
    ("SAM", 10): [0.2, 0.25, 0.3, 0.2],
    ("lift", 10): [0.1, 0.2, 0.2, 0.1],
    ("plain", 20): [0.2, 0.2, 0.1, 0.2],
    ("dropout", 20): [0.1, 0.2, 0.1, 0.1],
    ("SAM", 20): [0.1, 0.2, 0.1, 0.1],
    ("lift", 20): [0.15, 0.2, 0.15, 0.2],
}


def study_of(errors):
    cells = tuple(
        Cell(NetworkTrial(images=100 * number + x), series, "net", x, trials=4)
        for number, (series, x) in enumerate(errors, start=1)
    )
    rows = by_key(
        make_row(cell.trial, seed, {"error": error}, "", 1.0)
        for cell, found in zip(cells, errors.values(), strict=True)
        for seed, error in enumerate(found)
        if error is not None
    )
    words = {"name": "s", "title": "t", "source": "", "about": "a", "x_label": "images"}
    gains = {"rivals": ("plain", "dropout"), "gains": ("lift",), "picture": "gain"}
    study = Study(**words, cells={"paper": cells}, **gains)
    return summarize(study, "paper", Plan(cells), rows)


def test_gains_are_over_the_better_rival_of_each_place_and_paired():
    summary = study_of(ERRORS)
    found = {(one.cell.series, one.cell.x): one for one in summary.gains}
    assert set(found) == {(series, x) for series in ("SAM", "lift") for x in (10, 20)}
    for (series, x), one in found.items():
        over = {10: "plain", 20: "dropout"}[x]
        differences = np.array(ERRORS[over, x]) - np.array(ERRORS[series, x])
        assert one.over == over
        assert one.test.difference == mean(differences)
        assert one.test == paired(ERRORS[over, x], ERRORS[series, x])
    assert found["lift", 10].test.difference.value == pytest.approx(0.0875)
    assert found["lift", 20].test.difference.value < 0


def test_the_table_has_the_tested_gains_with_interval_p_and_n():
    summary = study_of(ERRORS)
    (table,) = summary.tables[-1:]
    assert table.title == gain_title(summary.study) == "Gain over the better of plain and dropout"
    assert table.header == (
        "panel", "images", "line", "over", "gain, mean [95 % interval]", "p", "p, Holm", "n",
    )  # fmt: skip
    tests = [paired(ERRORS["plain", 10], ERRORS["lift", 10])]
    tests += [paired(ERRORS["dropout", 20], ERRORS["lift", 20])]
    assert [line[1:4] for line in table.lines] == [
        ("10", "lift", "plain"),
        ("20", "lift", "dropout"),
    ]
    for line, test, corrected in zip(table.lines, tests, holm([t.p for t in tests]), strict=True):
        assert line[4].startswith(f"{test.difference.value:.4f} [".replace("-", "−"))
        assert line[5:] == (f"{test.p:.2g}", f"{corrected:.2g}", "4")


def test_the_better_rival_is_told_on_the_seeds_that_both_have():
    """A rival with fewer seeds could be better by chance."""
    errors = ERRORS | {("dropout", 10): [None, 0.2, None, None]}
    found = {(g.cell.series, g.cell.x): g for g in study_of(errors).gains}
    assert found["lift", 10].over == "dropout"
    assert found["lift", 10].test.difference.n == 1
    gone = ERRORS | {("dropout", 10): [None] * 4}
    assert {one.cell.x for one in study_of(gone).gains} == {20}


@pytest.mark.parametrize("scale", ["smoke", "quick", "paper"])
def test_lines_of_a_place_differ_in_what_they_are_named_for_only(scale):
    places = {}
    for cell in find_study("when").at(scale):
        for trial in (cell.trial, *cell.choices.values()):
            assert trial.training.evaluate_every == trial.training.epochs
            same = replace(trial.training, epochs=1, evaluate_every=1)
            bare = replace(trial, training=same, method=NetworkTrial().method, dropout=0.0)
            places.setdefault((cell.panel, cell.x), set()).add(bare)
    assert all(len(of) == 1 for of in places.values())
    assert len({repr(of) for of in places.values()}) == len(places)
