"""Callbacks of scikit-learn 1.9 and later are called at every step, and may end a training."""

import math

import pytest

from mcover.sklearn import MCoverMLPClassifier, MCoverPerceptronClassifier

ScoringMonitor = pytest.importorskip("sklearn.callback").ScoringMonitor


class Recorder:
    """Counts its calls, and may request an end."""

    def __init__(self, most=math.inf):
        self.most, self.calls = most, []

    def setup(self, estimator, context):
        self.calls.append("setup")

    def teardown(self, estimator, context):
        self.calls.append("teardown")

    def on_fit_task_begin(self, estimator, context):
        self.calls.append(f"begin {context.task_name}")

    def on_fit_task_end(self, estimator, context):
        self.calls.append(f"end {context.task_name}")
        return self.calls.count("end epoch") >= self.most


@pytest.mark.parametrize(
    ("model", "task", "count"),
    [
        (MCoverPerceptronClassifier(restarts=1), "question", 3),
        (MCoverMLPClassifier((4,), max_iter=4), "epoch", 4),
    ],
)
def test_callbacks_hear_of_every_step(model, task, count, wine):
    recorder = Recorder()
    model.set_callbacks(recorder).fit(*wine)
    steps = [f"begin {task}", f"end {task}"] * count
    assert recorder.calls == ["setup", "begin fit", *steps, "end fit", "teardown"]


def test_callbacks_may_end_a_training(wine):
    model = MCoverMLPClassifier((4,), max_iter=9).set_callbacks(Recorder(most=2)).fit(*wine)
    assert model.n_iter_ == 2


def test_scores_are_those_of_the_collapse_after_each_epoch(wine):
    monitor = ScoringMonitor(scoring="accuracy")
    model = MCoverMLPClassifier((8,), max_iter=3, random_state=0).set_callbacks(monitor).fit(*wine)
    rows = monitor.get_logs().data
    scores = [row["accuracy"] for row in rows if row["task_name"] == "epoch"]
    assert len(scores) == 3
    assert scores[-1] == model.score(*wine)
