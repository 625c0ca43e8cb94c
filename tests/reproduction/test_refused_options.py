"""Errors of trials, trainings, data and patterns: a row for each of their rules.

``reproduction.checks`` checks ranges of single fields; a few rows test it.
"""

import numpy as np
import pytest
import torch

from mcover import Messages, lift
from refusals.rows import check_refusal, every_row
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


ROWS = [
    # Trials and trainings.
    ("1.5 epochs", lambda: Training(epochs=1.5), "epochs is 1.5"),
    ("a rate of NaN", lambda: Training(lr=float("nan")), "lr is nan"),
    ("momentum of 1", lambda: Training(optimizer="adam", momentum=1.0), "momentum is 1.0"),
    ("all weights dropped", lambda: Training(drop_connect=1.0), "drop_connect is 1.0"),
    ("a word for a topology", lambda: Lifted(topology="ring"),
     "topology is 'ring'; write mcover.Uniform"),
    ("a word for a routing", lambda: Lifted(routing="messages"),
     "routing is 'messages'; write mcover.Directed"),
    ("a word for noise", lambda: Lifted(noise="much"), "noise is 'much'"),
    ("noise of independent covers", lambda: Lifted(noise=0.1, start="independent"),
     "write noise=0"),
    ("a trial of unknown data", lambda: NetworkTrial(data="cifar"), "no data set 'cifar'"),
    ("a network that is a committee", lambda: NetworkTrial(model="committee"),
     "model is 'committee'"),
    ("a training that is a dictionary", lambda: NetworkTrial(training={}), "training is {}"),
    ("flips of a network", lambda: NetworkTrial(method=Flips()), "method is Flips"),
    ("Entropy-SGD with Adam",
     lambda: NetworkTrial(training=Training(2, optimizer="adam"), method=Entropy()),
     "Entropy-SGD supports 'sgd'"),
    ("a word for a method", lambda: CommitteeTrial(method="sgd"),
     "method is 'sgd'; write one of Lifted(), SGD()"),
    ("messages of a committee", lambda: CommitteeTrial(method=Lifted(routing=Messages())),
     "routes weights"),
    ("a committee of ten classes", lambda: CommitteeTrial("digits", method=SGD()).run(0),
     "two classes, digits has 10…digits:3"),
    ("a distilled method on covers", lambda: DistilledTrial(method=RSGD()), "plain networks"),
    ("a student of covers",
     lambda: DistillingObjective(lift(torch.nn.Linear(2, 2), 2), [], 1.0, 0.5), "is covered"),
    ("a method for a trial", lambda: RepeatedTrial(SGD()), "trial is"),
    ("an unknown policy", lambda: BinaryTrial(policy="mean"), "policy is 'mean'"),
    ("a binary network that stops", lambda: BinaryTrial(training=Training(stop_error=0.1)),
     "leave stop_loss and stop_error"),
    # Models.
    ("sharpness as text", lambda: Sharpening("0.5"), "beta is '0.5'; write"),
    ("sharpness of 0", lambda: Sharpening(0.5, 0.1, 0), "gamma is 0; write"),
    ("the machine of a layer", lambda: machine_of(torch.nn.Linear(2, 2)),
     "a committee machine, or covers of one"),
    ("a word for a schedule", lambda: CommitteeMachine(4, schedule="slow"),
     "schedule is 'slow'; write Sharpening"),
    ("a layer of no units", lambda: Mlp((3, 0, 1)), "sizes is (3, 0, 1); write"),
    ("images too small", lambda: Conv((8, 3), (4, 4)), "images of (8, 3)…write"),
    ("no classes", lambda: BinaryMlp((64,)), "sizes is"),
    ("no convolutions", lambda: BinaryConv((8, 8), ()), "channels is"),
    ("a height that does not divide", lambda: Transformer((7, 4)), "a divisor of the height"),
    ("heads that do not divide", lambda: Transformer((8, 8), heads=3), "a divisor of the width"),
    # Perceptrons and patterns.
    ("a word for an annealer", lambda: PerceptronTrial(9, 1.0, method="mcover"),
     "method is 'mcover'"),
    ("a list for a schedule", lambda: PerceptronTrial(9, 1.0, schedule=[0.1]), "schedule is"),
    ("an even number of inputs", lambda: Patterns("iid", 50, 1.0), "odd"),
    ("an even number of units", lambda: Patterns("iid", 51, 1.0, hidden=2), "odd"),
    ("strength of independent patterns", lambda: Patterns("iid", 51, 1.0, strength=0.5),
     "strength is 0.5"),
    ("full correlation", lambda: Patterns("ar1", 51, 1.0, 1.0), "strength is 1"),
    ("half a factor", lambda: Patterns("low-rank", 51, 1.0, 0.5), "strength is 0.5"),
    ("an unknown family", lambda: Patterns("fractal", 51, 1.0), "family is 'fractal'"),
    ("more patterns than images", lambda: Patterns("digits", 41, 1000).problem(0),
     "images of digits"),
    ("more inputs than pixels", lambda: Patterns("digits", 65, 1).problem(0), "64 pixels"),
    ("an unknown solver", lambda: Program("gurobi"), "solver is 'gurobi'"),
    ("a word for patterns", lambda: PlantedTrial("iid", Annealed()), "patterns is 'iid'"),
    ("a logistic committee",
     lambda: PlantedTrial(Patterns("iid", 31, 4.0, hidden=3), Logistic()), "one unit"),
    # Data.
    ("unknown data", lambda: load("cifar"), "'digits', 'mnist' or 'fashion-mnist'"),
    ("one class", lambda: load("digits:3"), "is one class"),
    ("no class", lambda: load("digits:"), "no class ''"),
    ("a class twice", lambda: load("digits:3,3"), "'3' and '3' are one class"),
    ("an unknown class", lambda: load("digits:3,10"),
     "no class '10'; write a number from 0 to 9"),
    ("binarized and normalized",
     lambda: load("digits:3,8", binarize="median", normalize=True), "normalize=False"),
    ("squares that do not divide", lambda: pooled(load("digits"), 3),
     "pool is 3, and images of digits are 8 x 8"),
    ("a subset larger than the data", lambda: subset(few(9, 2), 12, 0), "write 1 to 11"),
    ("a subset larger than a class", lambda: subset(few(9, 2), 8, 0),
     "need 4 of class 1; there are 2: write at most 4"),
    ("all images held out", lambda: holdout(few(2, 2), 4, 0), "leaves none"),
    ("more labels than images",
     lambda: Dataset("d", *[np.zeros((2, 1, 1)), np.zeros(3)] * 2), "one label for each image"),
    ("a label out of range",
     lambda: Dataset("d", *[np.zeros((1, 1, 1)), np.array([9])] * 2, 3), "must lie in 0 … 2"),
    # Executors and studies.
    ("an unknown engine", lambda: executor("cloud", 1), "one of local"),
    ("a negative number of workers", lambda: executor("local", -1), "at least 0"),
    ("an address of this machine", lambda: executor("local", 1, "x:1"), "address"),
    ("an unknown study", lambda: find_study("table-7"), "table-1"),
    ("an unknown cell", lambda: find_study("covers").at("smoke", only="banana"), "no cell"),
    ("no trials", lambda: find_study("covers").at("smoke", trials=0), "at least 1"),
    ("an unknown scale", lambda: find_study("covers").at("tiny"), "scale is 'tiny'"),
]  # fmt: skip


@every_row(options=ROWS)
def test_what_is_refused_names_the_remedy(call, text):
    check_refusal(call, text)


@pytest.mark.parametrize(
    ("cls", "options"),
    [(SGD, {"covers": 3}), (RSGD, {"bank": 3}), (NetworkTrial, {"hidden": 5})],
)
def test_options_of_something_else_cannot_be_written(cls, options):
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        cls(**options)
