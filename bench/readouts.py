"""Readouts of ±1 students, and weights of more bits, for data that no ±1 student fits.

Two sources of such labels:

- **units**: ±1 weights imitate each hidden unit of a real-valued network, trained on scikit-learn's
  digits, on the same binarized pixels. The held-out score is the agreement with the unit on unseen
  images.
- **flips**: a ±1 teacher, with 10 % of the labels flipped. The held-out score is 1 − arccos(R)/π,
  the agreement with the teacher on new patterns.

Every method of the portfolio of ``solve`` anneals once with the same number of sweeps.

    python bench/readouts.py          # about three minutes of one core; --quick: a few instances
"""

import argparse
import time
from collections import Counter

import numpy as np
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

import mcover
from mcover.annealing.portfolio import PORTFOLIO
from mcover.annealing.readouts import best_student, read_out
from mcover.annealing.states import compile_kernels, pack_columns
from mcover.statistics import mean, paired
from timing import rows

THRESHOLDS = (1.5, 4.5, 8.5, 12.5)  # of pixels, which go from 0 to 16
SEEN, INSTANCES = 1200, 32  # as many units as teachers
N, ALPHA, FLIPPED = 201, 4.0, 0.1
SWEEPS, RESTARTS, BITS = 1000, 15, (1, 2, 3, 4)
METHODS = {"covers, M = 5": PORTFOLIO[0], "RSA": PORTFOLIO[1], "covers, M = 9": PORTFOLIO[2]}
METHODS |= {"plain": mcover.Vanilla(), "plain, 9 x sweeps": mcover.Vanilla()}


class Task:
    """Labels that no ±1 student fits, and a function that scores real-valued weights."""

    def __init__(self, problem, score):
        self.problem, self.score = problem, score
        self.columns = pack_columns(problem.patterns, problem.labels)
        self.size = len(problem.patterns), 1, problem.inputs


def units(count: int) -> list[Task]:
    images, digits = load_digits(return_X_y=True)
    bits = np.concatenate([images > level for level in THRESHOLDS], axis=1)
    share = bits[:SEEN].mean(axis=0)
    bits = bits[:, (share > 0.02) & (share < 0.98)]
    signs = np.where(bits, 1, -1)
    bias = np.ones((len(signs), 1 + signs.shape[1] % 2))  # an odd number of inputs
    signs = np.concatenate([signs, bias], axis=1)
    network = MLPClassifier((INSTANCES,), "tanh", max_iter=300, random_state=0)
    network.fit(signs[:SEEN], digits[:SEEN])
    print(f"network: accuracy {network.score(signs[SEEN:], digits[SEEN:]):.3f} on unseen images")
    fields = signs @ network.coefs_[0] + network.intercepts_[0]
    tasks = []
    for unit in range(count):
        labels = np.where(fields[:, unit] > 0, 1, -1)

        def score(weights, labels=labels):
            return float(np.mean(np.sign(signs[SEEN:] @ weights) == labels[SEEN:]))

        tasks.append(Task(mcover.Perceptron(signs[:SEEN], labels[:SEEN]), score))
    by_sign = [task.score(np.sign(network.coefs_[0][:, u])) for u, task in enumerate(tasks)]
    print(f"signs of the unit's own weights: agreement {mean(by_sign):.3f}")
    return tasks


def flips(count: int) -> list[Task]:
    tasks = []
    for seed in range(count):
        clean = mcover.teacher_student(N, ALPHA, seed=[seed, 17])
        flip = np.random.default_rng([seed, 18]).random(len(clean.labels)) < FLIPPED
        problem = mcover.Perceptron(
            clean.patterns, np.where(flip, -clean.labels, clean.labels), clean.teacher
        )

        def score(weights, problem=problem):
            return 1 - float(problem.generalization_error(weights.astype(float)))

        tasks.append(Task(problem, score))
    return tasks


def readouts(task: Task, name: str, seed: int):
    """Errors, held-out score of each readout, and CPU seconds of the annealing."""
    sweeps = 9 * SWEEPS if "9 x sweeps" in name else SWEEPS
    result = mcover.anneal(task.problem, METHODS[name], num_sweeps=sweeps, seed=seed, workers=1)
    covers = result.weights[0]
    own = np.random.SeedSequence([seed, 1])
    students = {
        "majority": result.collapsed_sign[0],
        "best cover": covers[task.problem.training_errors(covers).argmin()],
        "majority or cover": best_student(task.columns, task.size, covers)[0],
        "and polished": read_out(task.columns, task.size, covers, sweeps, own)[0],
    }
    wrong = {of: int(task.problem.training_errors(one)) for of, one in students.items()}
    scores = {of: task.score(one) for of, one in students.items()}
    return wrong, scores, float(result.seconds[0])


def compare(name: str, tasks: list[Task]) -> None:
    patterns = tasks[0].size[0]
    lines, by_method = [], {}
    for method in METHODS:
        found = [readouts(task, method, seed) for seed, task in enumerate(tasks)]
        seconds = f"{np.mean([one[2] for one in found]):.2f}"
        for of in found[0][0] if "plain" not in method else ("majority", "and polished"):
            wrong = np.array([one[0][of] for one in found]) / patterns
            scores = np.array([one[1][of] for one in found])
            by_method[method, of] = wrong, scores
            student = "the copy" if "plain" in method and of == "majority" else of
            lines.append([method, student, f"{mean(wrong):.4f}", f"{mean(scores):.4f}", seconds])
    header = ["method", "student", "training error [95 %]", "held-out agreement [95 %]", "core s"]
    n, inputs = len(tasks), tasks[0].size[2]
    rows(f"{name}: N = {inputs}, P = {patterns}, {SWEEPS} sweeps, n = {n}", header, lines)
    for method in tuple(METHODS)[:3]:
        for one, other in (("and polished", "majority"), ("and polished", "majority or cover")):
            pairs = zip(by_method[method, one], by_method[method, other], strict=True)
            fewer, better = (paired(a, b).difference for a, b in pairs)
            print(f"{method}, {one!r} less {other!r}: error {fewer:+.4f}, agreement {better:+.4f}")


def bits(name: str, tasks: list[Task]) -> None:
    lines, base, chosen = [], None, Counter()
    for count in BITS:
        begin = time.process_time()
        how = {"restarts": RESTARTS, "time_limit": None, "workers": 1, "bits": count}
        found = [mcover.solve(task.problem, seed=i, **how) for i, task in enumerate(tasks)]
        seconds = (time.process_time() - begin) / len(tasks)
        wrong = np.array([one.errors / one.patterns for one in found])
        scores = np.array([task.score(one.weights) for task, one in zip(tasks, found, strict=True)])
        base = (wrong, scores) if base is None else base
        more = ["", ""]
        if count > 1:
            pairs = zip((wrong, scores), base, strict=True)
            more = [f"{paired(a, b).difference:+.4f}" for a, b in pairs]
        kinds = Counter(one.readout.split()[0] for one in found).most_common()
        if count == 1:
            chosen = Counter(repr(one.options.method) for one in found)
        shown = ", ".join(f"{kind} {often}" for kind, often in kinds)
        cells = f"{mean(wrong):.4f}", more[0], f"{mean(scores):.4f}", more[1]
        lines.append([str(count), *cells, shown, f"{seconds:.2f}"])
    header = ["bits", "training error", "less one bit", "agreement", "less one bit", "readouts",
              "core s"]  # fmt: skip
    rows(f"{name}: solve, {RESTARTS} restarts, n = {len(tasks)}", header, lines)
    print("methods of the one-bit students:", dict(chosen))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="four instances of each")
    given = parser.parse_args()
    compile_kernels()
    for name, make in (("units", units), ("flips", flips)):
        tasks = make(4 if given.quick else INSTANCES)
        compare(name, tasks)
        bits(name, tasks)


if __name__ == "__main__":
    main()
