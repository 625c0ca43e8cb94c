"""Reruns of committed rows agree: one of each kind of trial and revision, and most methods."""

import numpy as np
import pytest

from mcover import McoverError
from mcover.plain import from_plain
from reproduction import data
from reproduction.perceptron import MessagePassingTrial, PerceptronTrial
from reproduction.planted import PlantedTrial
from reproduction.rows import KINDS, trial_id
from reproduction.studies.costs import CostTrial
from reproduction.training import (
    BinaryTrial,
    CommitteeTrial,
    CoverTrial,
    DistilledTrial,
    NetworkTrial,
    RepeatedTrial,
)

CLASSES = {
    one.kind: one
    for one in (
        *(PerceptronTrial, MessagePassingTrial, NetworkTrial, RepeatedTrial, CommitteeTrial),
        *(CostTrial, CoverTrial, DistilledTrial, BinaryTrial, PlantedTrial),
    )
}  # fmt: skip
# Kind, revision and what computes, as `way` names it. Of methods that share their code with
# another one, and of slow ones, only one is here.
RERUN = [
    ("perceptron", 1, "vanilla glauber"), ("perceptron", 1, "vanilla repair"),
    ("perceptron", 1, "vanilla glauber reads"), ("perceptron", 1, "rsa glauber"),
    ("perceptron", 1, "rsa repair"), ("perceptron", 1, "mcover glauber"),
    ("perceptron", 1, "mcover repair"),
    ("message-passing", 1, ""), ("message-passing", 1, "reinforced"),
    ("planted", 2, "annealed vanilla"), ("planted", 2, "annealed rsa"),
    ("planted", 2, "annealed mcover"), ("planted", 2, "annealed mcover fixed"),
    ("planted", 2, "message-passing"), ("planted", 2, "expectation-propagation"),
    ("planted", 2, "solve"), ("planted", 2, "logistic"),
    ("network", 1, "sgd"), ("network", 2, "sgd"), ("network", 2, "lifted"),
    ("network", 2, "ema"), ("network", 2, "sam"),
    ("committee", 1, "sgd"), ("committee", 2, "sgd"), ("committee", 2, "rsgd"),
    ("committee", 2, "entropy"), ("committee", 2, "elastic"),
    ("cover", 2, "lifted"), ("distilled", 2, ""), ("repeated", 2, "sgd"),
    ("binary-network", 1, "bop"),
]  # fmt: skip
NOT_AGAIN = {
    ("cost", 1): "its only outcome is a time",
    ("repeated", 1): "an older revision, ten seconds a row",
}
EXACT = (
    "perceptron",
    "message-passing",
    "planted",
)  # whole numbers, but for the last bits of cos⁻¹


def way(row):
    """What computed a row: its method, rule or solver."""
    given = row.settings
    if row.kind == "planted":
        solver = given["solver"]
        method = solver.get("method", {}).get("kind", "")
        fixed = " fixed" if not solver.get("automatic", True) else ""
        return f"{solver['kind']} {method}{fixed}".strip()
    if row.kind == "message-passing":
        return "reinforced" if given.get("reinforcement") else ""
    if row.kind == "repeated":
        given = given["trial"]
    method = given.get("method", {}).get("kind", "mcover" if row.kind == "perceptron" else "")
    if row.kind == "perceptron":
        return f"{method} {given.get('rule', 'glauber')}{' reads' * ('reads' in given)}"
    return method


def trial_of(row):
    return from_plain(CLASSES[row.kind], {"kind": row.kind} | dict(row.settings))


def test_settings_of_rows_are_those_of_trials(rows):
    """What a row keeps is enough to run it again."""
    assert set(CLASSES) == set(KINDS)
    for row in {row.trial_id: row for row in rows.values()}.values():
        assert trial_id(trial_of(row)) == row.trial_id


def test_a_row_of_every_kind_and_revision_is_rerun(rows):
    found = {(row.kind, row.revision) for row in rows.values()}
    assert found == {one[:2] for one in RERUN} | set(NOT_AGAIN)
    left_out = {kind for kind, revision in NOT_AGAIN if revision == CLASSES[kind].revision}
    assert left_out == {"cost"}


def needs(settings):
    """The data set that a trial reads, if it is one that has to be downloaded."""
    for name in ("data", "trial", "patterns"):
        if isinstance(settings.get(name), dict):
            return needs(settings[name])
    named = settings.get("data", settings.get("family", "digits"))
    return named if named.partition(":")[0] in ("mnist", "fashion-mnist") else None


@pytest.mark.parametrize(("kind", "revision", "what"), RERUN)
def test_reruns_of_rows_give_the_same_numbers(kind, revision, what, rows):
    """The row with most proposals among the quickest rows, or the quickest row."""
    kept = [
        row
        for row in rows.values()
        if (row.kind, row.revision, way(row), row.status) == (kind, revision, what, "done")
        and (kind != "planted" or needs(row.settings) is None)
    ]
    kept.sort(key=lambda row: row.outcome["core_seconds"])
    row = max(kept[: 20 if kind in EXACT else 1], key=lambda one: one.outcome.get("proposals", 0))
    if (wanted := needs(row.settings)) is not None:
        try:
            data.load(wanted)
        except McoverError as error:
            pytest.skip(str(error))
    again = trial_of(row).run(row.seed)
    assert set(row.outcome) <= set(again)
    # Between CPUs overlaps differ in their last bit, which is an error of 1e-8. So do sums, and a
    # training of thousands of steps enlarges that: a few test images of 10,000 may change side.
    rel, of_errors = (1e-9, 1e-7) if kind in EXACT else (1e-4, 5e-4)
    for name in set(row.outcome) - {"core_seconds"}:
        last_bits = of_errors if "error" in name else 0
        assert again[name] == pytest.approx(row.outcome[name], rel=rel, abs=last_bits), name


def test_a_rerun_of_what_is_a_time_has_the_outcomes_of_its_rows(rows):
    row = min((row for row in rows.values() if row.kind == "cost"), key=lambda row: row.seconds)
    again = trial_of(row).run(row.seed)
    assert set(again) == set(row.outcome)
    assert all(np.isfinite(value) and value > 0 for value in again.values())
