"""Estimators of mcover.sklearn against those of scikit-learn, on its data and a ±1 teacher.

Every estimator has its defaults and the same folds of repeated, stratified cross-validation. A
StandardScaler precedes scikit-learn's estimators and our network. The teacher is a random ±1
perceptron of 401 inputs with 1.6 training patterns per weight, near the capacity, and a new one for
each repeat. Times are CPU seconds on one thread. Bytes are those of the arrays that ``predict``
reads (``weights`` alone, and with thresholds or scaler), and of the pickled estimator. Folds share
samples, so the intervals are narrower than for new data.

    python bench/sklearn_estimators.py --quick
"""

import argparse
import pickle
import time
import warnings

import numpy as np
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Perceptron
from sklearn.metrics import recall_score
from sklearn.model_selection import StratifiedKFold
from sklearn.multiclass import OutputCodeClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits

import mcover
from mcover.annealing.packed import pack_signs, packed_fields
from mcover.sklearn import (
    MCoverCommitteeClassifier,
    MCoverMLPClassifier,
    MCoverPerceptronClassifier,
)
from timing import Times, best_in_turns, rows, shown

FOLDS = 5
INPUTS, ALPHA = 401, 1.6
SIGNS = {
    "MCoverPerceptron": MCoverPerceptronClassifier(random_state=0),
    "MCoverCommittee": MCoverCommitteeClassifier(random_state=0),
}
OTHERS = {
    "MCoverMLP": MCoverMLPClassifier(random_state=0),
    "Perceptron": Perceptron(random_state=0),
    "LogisticRegression": LogisticRegression(),
    "LinearSVC": LinearSVC(random_state=0),
    "MLPClassifier": MLPClassifier(random_state=0),
}
SCALED = {name: make_pipeline(StandardScaler(), model) for name, model in OTHERS.items()}
CODES = {
    "one-vs-rest, 1 student a class": MCoverPerceptronClassifier(students=1, random_state=0),
    "one-vs-rest, 3 students a class": MCoverPerceptronClassifier(students=3, random_state=0),
    "output codes, 3 students a class": OutputCodeClassifier(
        MCoverPerceptronClassifier(students=1, random_state=0), code_size=3, random_state=0
    ),
}


def teacher(repeat: int):
    problem = mcover.teacher_student(INPUTS, ALPHA * FOLDS / (FOLDS - 1), seed=repeat)
    return problem.patterns.astype(float), problem.labels


def noisy_teacher(repeat: int):
    """101 inputs, five patterns a weight, and 10 % of the labels flipped."""
    problem, rng = mcover.teacher_student(101, 5.0, seed=repeat), np.random.default_rng(repeat)
    labels = np.where(rng.random(len(problem.labels)) < 0.1, -problem.labels, problem.labels)
    return problem.patterns.astype(float), labels


def overlapping(repeat: int):
    how = {"n_informative": 4, "class_sep": 0.5, "flip_y": 0.1}
    return make_classification(600, 10, **how, random_state=repeat)


def rare(repeat: int):
    """Overlapping classes; one of them has a tenth of the samples."""
    how = {"n_informative": 4, "class_sep": 0.5, "flip_y": 0.1, "weights": [0.9]}
    return make_classification(1000, 10, **how, random_state=repeat)


DATA = {
    "digits": (lambda repeat: load_digits(return_X_y=True), 2),
    "breast cancer": (lambda repeat: load_breast_cancer(return_X_y=True), 4),
    "wine": (lambda repeat: load_wine(return_X_y=True), 4),
    "±1 teacher": (teacher, 4),
}


NOISY = {"noisy teacher": (noisy_teacher, 4), "overlapping classes": (overlapping, 4)}


def folds(name: str, quick: bool):
    load, repeats = (DATA | NOISY)[name]
    for repeat in range(1 if quick else repeats):
        X, y = load(repeat)
        cut = StratifiedKFold(FOLDS, shuffle=True, random_state=repeat)
        for train, test in cut.split(X, y):
            yield X[train], y[train], X[test], y[test]


def judge(model, name: str, quick: bool):
    """Accuracy with its interval, CPU seconds of a fit, and the last fitted model."""
    scores, seconds = [], []
    for X, y, X_test, y_test in folds(name, quick):
        fitted = clone(model)
        begin = time.process_time()
        fitted.fit(X, y)
        seconds.append(time.process_time() - begin)
        scores.append(fitted.score(X_test, y_test))
    return mcover.statistics.mean(scores), float(np.median(seconds)), fitted


def model_bytes(fitted) -> tuple[int, int]:
    """Bytes of the weights, and of all arrays that predict reads."""
    if isinstance(fitted, MCoverPerceptronClassifier):
        return fitted.packed_.nbytes, sum(
            array.nbytes for array in (fitted.packed_, fitted.thresholds_, fitted.columns_)
        )
    scaler, model = fitted
    if isinstance(model, MCoverMLPClassifier):
        weights = sum(value.nbytes for value in model.collapsed_.parameters())
    elif isinstance(model, MLPClassifier):
        weights = sum(array.nbytes for array in model.coefs_ + model.intercepts_)
    else:
        weights = model.coef_.nbytes + model.intercept_.nbytes
    return weights, weights + scaler.mean_.nbytes + scaler.scale_.nbytes


def compare(quick: bool) -> None:
    next(iter(SIGNS.values())).fit([[0.0], [1.0]], [0, 1])  # compiles
    header = ["estimator", "accuracy [95 %]", "n", "fit s", "weights B", "predict B", "pickle B"]
    for name in DATA:
        lines = []
        for label, model in (SIGNS | SCALED).items():
            accuracy, seconds, fitted = judge(model, name, quick)
            sizes = (*model_bytes(fitted), len(pickle.dumps(fitted)))
            cells = [f"{accuracy:.4f}", str(accuracy.n), f"{seconds:.3f}"]
            lines.append([label, *cells, *(f"{size:,}" for size in sizes)])
        rows(name, header, lines)


def codes(quick: bool) -> None:
    lines = []
    for label, model in CODES.items():
        accuracy, seconds, _ = judge(model, "digits", quick)
        lines.append([label, f"{accuracy:.4f}", str(accuracy.n), f"{seconds:.3f}"])
    rows("ten classes from ±1 perceptrons: digits", ["how", "accuracy [95 %]", "n", "fit s"], lines)


def readouts(quick: bool) -> None:
    """The student with the fewest training errors against the majority of the covers."""
    lines = []
    for label, model in SIGNS.items():
        for name in DATA | NOISY:
            if name == "digits" and "Committee" in label:
                continue  # as long as all others together
            scores = {
                readout: [
                    clone(model).set_params(readout=readout).fit(X, y).score(X_test, y_test)
                    for X, y, X_test, y_test in folds(name, quick)
                ]
                for readout in ("majority", "best")
            }
            difference = mcover.statistics.paired(scores["best"], scores["majority"]).difference
            cells = (f"{mcover.statistics.mean(of):.4f}" for of in scores.values())
            lines.append([label, name, *cells, f"{difference:+.4f}", str(difference.n)])
    header = ["estimator", "data", "majority", "best", "best - majority", "n"]
    rows("accuracy by readout", header, lines)
    lines = []
    for label, model in SIGNS.items():
        recalls: dict[object, list[float]] = {None: [], "balanced": []}
        for repeat in range(4 if quick else 20):
            X, y = rare(repeat)
            for weight, found in recalls.items():
                fitted = clone(model).set_params(class_weight=weight).fit(X[:600], y[:600])
                found.append(recall_score(y[600:], fitted.predict(X[600:])))
        difference = mcover.statistics.paired(recalls["balanced"], recalls[None]).difference
        lower = sum(b < a for a, b in zip(*recalls.values(), strict=True))
        cells = (f"{mcover.statistics.mean(of):.3f}" for of in recalls.values())
        lines.append([label, *cells, f"{difference:+.3f}", f"{lower} of {difference.n}"])
    header = ["estimator", "recall", "balanced", "difference", "lowered in"]
    rows("class_weight='balanced' and a rare class", header, lines)


def fits(quick: bool) -> None:
    """CPU seconds of a fit with the epochs, batch and layers of MLPClassifier, in alternation."""
    X, y = load_breast_cancer(return_X_y=True)
    X, alike = StandardScaler().fit_transform(X), {"max_iter": 100, "batch_size": 64}
    plain = MLPClassifier(**alike, tol=0.0, n_iter_no_change=1000)
    covers = {f"MCoverMLP, M = {m}": MCoverMLPClassifier(covers=m, **alike) for m in (1, 4)}
    models = {"MLPClassifier": plain} | covers
    times = {name: Times([]) for name in models}
    for _ in range(3 if quick else 15):
        for name, model in models.items():
            begin = time.process_time()
            clone(model).fit(X, y)
            times[name].each.append(time.process_time() - begin)
    lines = []
    for name, own in times.items():
        low, middle, high = np.quantile(own.each, [0.25, 0.5, 0.75])
        seconds = f"{middle:.2f} ({low:.2f}–{high:.2f})"
        lines.append([name, str(len(own.each)), seconds, shown(own.ratio(times["MLPClassifier"]))])
    header = ["estimator", "n", "CPU s, median (quartiles)", "ratio in each turn"]
    rows("fit of breast cancer, 100 epochs of 9 batches", header, lines)


def prediction(quick: bool) -> None:
    """Packed fields against a float32 product of the same signs, and predict against predict."""
    rng, seconds, samples = np.random.default_rng(0), 0.5 if quick else 3.0, 10_000
    lines, rates = [], []
    for inputs, students in ((449, 30), (1001, 1), (1001, 30), (1001, 150)):
        x, w = (
            (2 * rng.integers(0, 2, (rows, inputs)) - 1).astype(np.int8)
            for rows in (samples, students)
        )
        bits, words = pack_signs(x), pack_signs(w)
        floats, matrix = x.astype(np.float32), np.ascontiguousarray(w.T, dtype=np.float32)
        took = best_in_turns(
            {
                "packed": lambda b=bits, w=words, n=inputs: packed_fields(b, w, n),
                "float32": lambda x=floats, w=matrix: x @ w,
            },
            seconds,
        )
        rates.append(words.size * samples / 8 / took["packed"])
        times = [f"{1e3 * took[key]:.3f} ms" for key in took]
        ratio = f"{took['float32'] / took['packed']:.1f}"
        lines.append([str(inputs), str(students), *times, ratio])
    header = ["inputs", "students", "packed", "float32 product", "float32 / packed"]
    rows(f"fields of {samples:,} patterns", header, lines)
    print(f"512-bit words a second: {max(rates):.2e} in predict, {annealer_rate():.2e} in anneal")

    X, y = load_digits(return_X_y=True)
    many = np.tile(X, (6, 1))
    models = {label: clone(model).fit(X, y) for label, model in (SIGNS | SCALED).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        took = best_in_turns({k: lambda m=m: m.predict(many) for k, m in models.items()}, seconds)
    lines = [[label, f"{1e9 * took[label] / len(many):.0f} ns"] for label in models]
    rows("predict of digits, from floats to classes", ["estimator", "a sample"], lines)


def annealer_rate() -> float:
    """Contexts times words of 512 patterns that the annealer processes per second."""
    problem = mcover.teacher_student(1000, 1.58, seed=0)
    temperatures = np.linspace(0.4, 0.01, 500)
    method = mcover.MCover(3, bank=10)
    result = mcover.anneal(problem, method, schedule=temperatures, workers=1, seed=0)
    words = -(-len(problem.patterns) // 512)
    return float(result.proposals[0] * 10 * words / result.seconds[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one repeat of everything")
    given = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)  # defaults are what is compared
    torch.set_num_threads(1)
    with threadpool_limits(limits=1):
        compare(given.quick)
        codes(given.quick)
        readouts(given.quick)
        fits(given.quick)
        prediction(given.quick)


if __name__ == "__main__":
    main()
