"""Trials of the perceptron: paired instances, and committed rows that are found and repeated."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mcover import (
    RSA,
    GaussianRing,
    LinearSchedule,
    MCover,
    McoverError,
    Vanilla,
    anneal,
    teacher_student,
)
from mcover.annealing import amp
from mcover.plain import from_plain, to_plain
from reproduction.perceptron import (
    MessagePassingTrial,
    PerceptronTrial,
)
from reproduction.rows import read_csv
from reproduction.studies import STUDIES, find_study

RESULTS = Path(__file__).parents[2] / "reproduction" / "results"
SHORT = LinearSchedule(0.4, 0.01, 0.01)
TRIALS = {
    "vanilla": PerceptronTrial(31, 1.5, method=Vanilla(), schedule=SHORT),
    "M-cover": PerceptronTrial(
        31, 1.5, method=MCover(3, GaussianRing(1.0), bank=3), schedule=SHORT
    ),
}
TIMES = ("core_seconds",)


def without_times(outcome):
    return {name: value for name, value in outcome.items() if name not in TIMES}


def test_of_several_reads_the_one_of_least_training_energy_counts():
    trial = replace(TRIALS["vanilla"], reads=3)
    problem = teacher_student(31, 1.5, seed=[1, 0])
    plain = anneal(problem, Vanilla(), schedule=SHORT, num_reads=3, seed=[1, 1])
    found = trial.run(1)
    assert found["collapsed_energy"] == plain.collapsed_energy.min()
    best = np.argmin(plain.collapsed_energy)
    assert found["generalization_error"] == plain.generalization_error[best]


def test_rule_and_stop_reach_the_annealer():
    trial = PerceptronTrial(31, 4.0, method=Vanilla(), schedule=SHORT)
    problem = teacher_student(31, 4.0, seed=[2, 0])
    for how in ({"rule": "metropolis"}, {"rule": "repair"}, {"stop_at_zero": True}):
        plain = anneal(problem, Vanilla(), schedule=SHORT, seed=[2, 1], **how)
        found = replace(trial, **how).run(2)
        assert found["energy"] == plain.energy[0]
        assert found["proposals"] == plain.proposals[0]
    assert found["proposals"] < trial.run(2)["proposals"]


def test_message_passing_is_reinforced_and_stopped_as_the_trial_says():
    problem = teacher_student(101, 1.2, seed=[4, 0])
    how = {"reinforcement": 0.05, "max_iterations": 20}
    found = MessagePassingTrial(101, 1.2, **how).run(4)
    plain = amp(problem.patterns, problem.labels, seed=[4, 2], **how)
    assert found["generalization_error"] == problem.generalization_error(plain.magnetization)
    assert found["training_errors"] == plain.errors
    easy = MessagePassingTrial(101, 3.0, stop_at_zero=True)
    problem = teacher_student(101, 3.0, seed=[4, 0])
    stopped = amp(problem.patterns, problem.labels, seed=[4, 2], stop_at_zero=True)
    error = problem.generalization_error(stopped.magnetization)
    assert easy.run(4)["generalization_error"] == error


def test_trials_are_values_with_one_wire_form():
    for trial in (
        PerceptronTrial(1000, 1.58, method=MCover(3, GaussianRing(3, shift=2))),
        PerceptronTrial(11, 2, "plus", RSA(5, coupling=0.5), SHORT, reads=3),
        PerceptronTrial(11, 2, rule="repair", stop_at_zero=True),
        MessagePassingTrial(1000, 1.58, "plus"),
        MessagePassingTrial(11, 2, reinforcement=0.01, max_iterations=9, stop_at_zero=True),
    ):
        assert from_plain(type(trial), to_plain(trial)) == trial
    assert to_plain(PerceptronTrial(11, 2.0, method=RSA())) == {
        "kind": "perceptron",
        "n": 11,
        "alpha": 2.0,
        "method": {"kind": "rsa"},
    }


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PerceptronTrial(0, 1.0), "n is 0"),
        (lambda: PerceptronTrial(9, -1.0), "alpha is -1"),
        (lambda: PerceptronTrial(9, 1.0, ties="drop"), "ties is 'drop'"),
        (lambda: PerceptronTrial(9, 1.0, method="mcover"), "method is 'mcover'"),
        (lambda: PerceptronTrial(9, 1.0, schedule=[0.1]), "schedule is"),
        (lambda: PerceptronTrial(9, 1.0, reads=1.5), "reads is 1.5"),
        (lambda: PerceptronTrial(9, 1.0, rule="greedy"), "rule is 'greedy'"),
        (lambda: PerceptronTrial(9, 1.0, stop_at_zero=1.5), "stop_at_zero is 1.5"),
        (lambda: MessagePassingTrial(9, np.nan), "alpha is nan"),
        (lambda: MessagePassingTrial(9, 1.0, reinforcement=1.0), "reinforcement is 1.0"),
        (lambda: MessagePassingTrial(9, 1.0, max_iterations=0), "max_iterations is 0"),
        (lambda: MessagePassingTrial(9, 1.0, stop_at_zero="no"), "stop_at_zero is 'no'"),
    ],
)
def test_bad_trials_are_refused(call, message):
    with pytest.raises(McoverError, match=message):
        call()


@pytest.fixture(scope="module")
def committed():
    """Committed rows of the perceptron by config and seed."""
    names = ["covers", "equal-budget", "loading", "perceptron-topology", "perceptron-variants"]
    found = {}
    for name in [*names, "sweeps-per-temperature"]:
        for row in read_csv(RESULTS / f"{name}.csv"):
            if row.kind in ("perceptron", "message-passing"):
                found.setdefault(row.trial_id, {})[row.seed] = row
    return found


def test_every_cell_of_the_paper_finds_its_committed_rows(committed):
    counted = {}
    for name, study in STUDIES.items():
        cells = [one for one in study.at("paper") if one.kind in ("perceptron", "message-passing")]
        cells = [one for one in cells if not one.choices]
        if cells:
            counted[name] = [len(committed.get(cell.trial_id, ())) for cell in cells]
            assert all(n >= cell.trials for n, cell in zip(counted[name], cells, strict=True))
    assert {name: sum(counts) for name, counts in counted.items()} == {
        "table-1": 600,
        "loading": 2280,
        "perceptron-topology": 1265,
        "covers": 2300,
        "perceptron-variants": 3400,
        "sweeps-per-temperature": 1000,
        "equal-budget": 800,
    }
    every = Counter(n for counts in counted.values() for n in counts)
    assert every == {15: 71, 20: 49, 200: 38, 100: 20}
    configs = {cell.trial_id for study in STUDIES.values() for cell in study.at("paper")}
    assert set(committed) <= configs


@pytest.mark.parametrize(
    ("study", "only", "seed"),
    [
        ("table-1", "perceptron: vanilla", 3),
        ("table-1", "perceptron: RSA", 1),
        ("table-1", "perceptron: M-cover", 2),
        ("equal-budget", "3 restarts", 0),
        ("equal-budget", "slower", 4),
        ("perceptron-variants", "ties +1: message passing", 7),
        ("perceptron-variants", "N odd: no ties: message passing", 5),
    ],
)
def test_a_rerun_of_a_committed_row_gives_the_same_values(committed, study, only, seed):
    cell = find_study(study).at("paper", only=only)[0]
    row = committed[cell.trial_id][seed]
    again, then = without_times(cell.trial.run(seed)), without_times(row.outcome)
    assert then.keys() <= again.keys()
    for name, value in then.items():
        # Weights are the same bits; the arc cosine of their overlap differs in its last ones
        # between CPUs.
        assert again[name] == (pytest.approx(value, rel=1e-9) if "error" in name else value), name
