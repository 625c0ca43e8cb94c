"""Errors of trials, trainings, data and patterns: one row for each of their rules.

``reproduction.checks`` checks ranges of single fields; a few rows test it.
"""

import numpy as np
import pytest
import torch

from mcover import McoverError, Messages, lift
from reproduction.binary_models import BinaryConv, BinaryMlp
from reproduction.committee import CommitteeMachine, Sharpening, machine_of
from reproduction.data import Dataset, holdout, load, pooled, subset
from reproduction.executors import make_executor
from reproduction.models import Conv, Mlp, Transformer
from reproduction.patterns import Patterns
from reproduction.perceptron import PerceptronTrial
from reproduction.planted import Annealed, Logistic, PlantedTrial, Program
from reproduction.studies import find_study
from reproduction.training import (
    RSGD,
    SGD,
    BinaryTrial,
    CommitteeTrial,
    DistilledTrial,
    Entropy,
    Flips,
    Lifted,
    NetworkTrial,
    RepeatedTrial,
    Training,
)
from reproduction.training.objectives import DistillingObjective


def few(zeros, ones):
    labels = np.array([0] * zeros + [1] * ones)
    images = np.zeros((len(labels), 1, 1), dtype=np.float32)
    return Dataset("few", images, labels, images, labels, 2)


def executor(*given):
    with make_executor(*given):
        pass


TABLE = [
    (lambda: Training(epochs=1.5), "epochs is 1.5"),
    (lambda: Training(lr=float("nan")), "lr is nan"),
    (lambda: Training(optimizer="adam", momentum=1.0), "momentum is 1.0"),
    (lambda: Training(drop_connect=1.0), "drop_connect is 1.0"),
    (lambda: Lifted(topology="ring"), "topology is 'ring'; write mcover.Uniform"),
    (lambda: Lifted(routing="messages"), r"routing is 'messages'; write mcover.Directed"),
    (lambda: Lifted(noise="much"), "noise is 'much'"),
    (lambda: Lifted(noise=0.1, start="independent"), "write noise=0"),
    (lambda: NetworkTrial(data="cifar"), "no data set 'cifar'"),
    (lambda: NetworkTrial(model="committee"), "model is 'committee'"),
    (lambda: NetworkTrial(training={}), "training is {}"),
    (lambda: NetworkTrial(method=Flips()), "method is Flips"),
    (
        lambda: NetworkTrial(training=Training(2, optimizer="adam"), method=Entropy()),
        "Entropy-SGD supports 'sgd'",
    ),
    (lambda: CommitteeTrial(method="sgd"), r"method is 'sgd'; write one of Lifted\(\), SGD\(\)"),
    (lambda: CommitteeTrial(method=Lifted(routing=Messages())), "routes weights"),
    (lambda: CommitteeTrial("digits", method=SGD()).run(0), "two classes, digits has 10.*digits:3"),
    (lambda: DistilledTrial(method=RSGD()), "plain networks"),
    (lambda: DistillingObjective(lift(torch.nn.Linear(2, 2), 2), [], 1.0, 0.5), "is covered"),
    (lambda: RepeatedTrial(SGD()), "trial is"),
    (lambda: BinaryTrial(policy="mean"), "policy is 'mean'"),
    (lambda: BinaryTrial(training=Training(stop_error=0.1)), "leave stop_loss and stop_error"),
    (lambda: Sharpening("0.5"), "write"),
    (lambda: Sharpening(0.5, 0.1, 0), "write"),
    (lambda: machine_of(torch.nn.Linear(2, 2)), "a committee machine, or covers of one"),
    (lambda: CommitteeMachine(4, schedule="slow"), "schedule is 'slow'; write Sharpening"),
    (lambda: Mlp((3, 0, 1)), "write"),
    (lambda: Conv((8, 3), (4, 4)), "write"),
    (lambda: BinaryMlp((64,)), "sizes is"),
    (lambda: BinaryConv((8, 8), ()), "channels is"),
    (lambda: Transformer((7, 4)), "a divisor of the height"),
    (lambda: Transformer((8, 8), heads=3), "a divisor of the width"),
    (lambda: PerceptronTrial(9, 1.0, method="mcover"), "method is 'mcover'"),
    (lambda: PerceptronTrial(9, 1.0, schedule=[0.1]), "schedule is"),
    (lambda: Patterns("iid", 50, 1.0), "odd"),
    (lambda: Patterns("iid", 51, 1.0, hidden=2), "odd"),
    (lambda: Patterns("iid", 51, 1.0, strength=0.5), "strength is 0.5"),
    (lambda: Patterns("ar1", 51, 1.0, 1.0), "strength is 1"),
    (lambda: Patterns("low-rank", 51, 1.0, 0.5), "strength is 0.5"),
    (lambda: Patterns("fractal", 51, 1.0), "family is 'fractal'"),
    (lambda: Patterns("digits", 41, 1000).problem(0), "images of digits"),
    (lambda: Patterns("digits", 65, 1).problem(0), "64 pixels"),
    (lambda: Program("gurobi"), "solver is 'gurobi'"),
    (lambda: PlantedTrial("iid", Annealed()), "patterns is 'iid'"),
    (lambda: PlantedTrial(Patterns("iid", 31, 4.0, hidden=3), Logistic()), "one unit"),
    (lambda: load("cifar"), "'digits', 'mnist' or 'fashion-mnist'"),
    (lambda: load("digits:3"), "is one class"),
    (lambda: load("digits:"), "no class ''"),
    (lambda: load("digits:3,3"), "'3' and '3' are one class"),
    (lambda: load("digits:3,10"), "no class '10'; write a number from 0 to 9"),
    (lambda: load("digits:3,8", binarize="median", normalize=True), "normalize=False"),
    (lambda: pooled(load("digits"), 3), "pool is 3, and images of digits are 8 x 8"),
    (lambda: subset(few(9, 2), 12, 0), "write 1 to 11"),
    (lambda: subset(few(9, 2), 8, 0), "need 4 of class 1; there are 2: write at most 4"),
    (lambda: holdout(few(2, 2), 4, 0), "leaves none"),
    (lambda: Dataset("d", *[np.zeros((2, 1, 1)), np.zeros(3)] * 2), "one label for each image"),
    (lambda: Dataset("d", *[np.zeros((1, 1, 1)), np.array([9])] * 2, 3), "0 … 2"),
    (lambda: executor("cloud", 1), "one of local"),
    (lambda: executor("local", -1), "at least 0"),
    (lambda: executor("local", 1, "x:1"), "address"),
    (lambda: find_study("table-7"), "table-1"),
    (lambda: find_study("covers").at("smoke", only="banana"), "no cell"),
    (lambda: find_study("covers").at("smoke", trials=0), "at least 1"),
    (lambda: find_study("covers").at("tiny"), "scale is 'tiny'"),
]


@pytest.mark.parametrize(("call", "message"), TABLE, ids=[message for _, message in TABLE])
def test_what_cannot_be_is_refused(call, message):
    with pytest.raises(McoverError, match=message):
        call()


@pytest.mark.parametrize(
    ("cls", "options"),
    [(SGD, {"covers": 3}), (RSGD, {"bank": 3}), (NetworkTrial, {"hidden": 5})],
)
def test_options_of_something_else_cannot_be_written(cls, options):
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        cls(**options)
