"""The paper's perceptron column at N = 1000, α = 1.58: rows, table and picture.

    python results/perceptron.py --trials 200        # run what is missing, then print the table

Rows go to ``perceptron.csv`` beside this file as they finish; what is there is not run again, so it
may be stopped and started at will. All methods meet the same teachers and patterns.
"""

import argparse
import csv
import math
import time
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
from scipy.stats import permutation_test

import mcover
from mcover import GaussianRing, statistics
from mcover.discrete.amp import amp
from mcover.discrete.bayes import algorithmic_threshold, information_threshold, state_evolution
from mcover.discrete.trials import Trial, run_trials, summarize
from mcover.figures.annealing import outcome_figure
from mcover.figures.style import save

ALPHA = 1.58
HERE = Path(__file__).parent
ROWS = HERE / "perceptron.csv"
TABLE = HERE / "perceptron.md"
PICTURE = HERE / "perceptron.png"

TABLE_1 = {"topology": GaussianRing(sigma=3, shift=2), "covers": 3}
DEFAULT = {"topology": GaussianRing(sigma=1.5, shift=2), "bank": 10}
METHODS = {
    "vanilla": {"method": "vanilla"},
    "RSA M=3": {"method": "rsa", "covers": 3, "coupling": 1.0},
    "M-cover M=3 S=10": {"method": "mcover", "bank": 10, **TABLE_1},
    "M-cover M=3 S=2": {"method": "mcover", "bank": 2, **TABLE_1},
    "M-cover M=5 S=10": {"method": "mcover", "covers": 5, **DEFAULT},
    "M-cover M=7 S=10": {"method": "mcover", "covers": 7, **DEFAULT},
    "M-cover M=9 S=10": {"method": "mcover", "covers": 9, **DEFAULT},
}
TABLE_1_METHODS = dict(list(METHODS.items())[:3])
# What the outcome owes to patterns on which the teacher is undecided: none with N odd.
GROUPS = {
    "": (1000, "redraw", METHODS),
    ", N=1001": (1001, "redraw", TABLE_1_METHODS),
    ", ties +1": (1000, "plus", TABLE_1_METHODS),
}
MESSAGE_PASSING = "AMP"
PAPER = {
    "vanilla": "0.1936 ± 0.0113",
    "RSA M=3": "0.0539 ± 0.0329",
    "M-cover M=3 S=10": "0.0420 ± 0.0319",
}
NUMBERS = {"trial": int, "training_errors": int, "proposals": int, "method": str, "version": str}
HEADER = [field.name for field in fields(Trial)] + ["version"]


def read_rows() -> dict[str, dict[int, Trial]]:
    """Rows by method and trial."""
    rows: dict[str, dict[int, Trial]] = {}
    if ROWS.exists():
        with ROWS.open(newline="") as file:
            for line in csv.DictReader(file):
                typed = {key: NUMBERS.get(key, float)(text) for key, text in line.items()}
                del typed["version"]
                rows.setdefault(typed["method"], {})[typed["trial"]] = Trial(**typed)
    return rows


def append(row: Trial) -> None:
    """One whole line at a time, so that a killed run leaves a readable file."""
    new = not ROWS.exists()
    with ROWS.open("a", newline="") as file:
        writer = csv.DictWriter(file, HEADER)
        if new:
            writer.writeheader()
        writer.writerow(asdict(row) | {"version": mcover.__version__})


def message_passing(trial: int, n: int, ties: str, name: str) -> Trial:
    """AMP on the same instance: what the data allow without any annealing."""
    problem = mcover.teacher_student(n, ALPHA, seed=[trial, 0], ties=ties)
    begin = time.perf_counter()
    found = amp(problem.patterns, problem.labels, seed=[trial, 2])
    seconds = time.perf_counter() - begin
    return Trial(
        method=name,
        trial=trial,
        generalization_error=float(problem.generalization_error(found.magnetization)),
        generalization_error_sign=float(problem.generalization_error(found.weights)),
        training_errors=int(problem.training_errors(found.weights)),
        collapsed_energy=float(problem.energy(found.weights)),
        energy=math.nan,
        proposals=0,
        seconds=seconds,
    )


def run(trials: int, workers: int | None) -> None:
    """Runs what is missing, group by group and trial by trial."""
    have = read_rows()
    for suffix, (n, ties, options) in GROUPS.items():
        methods = {name + suffix: chosen for name, chosen in options.items()}
        todo: dict[tuple[str, ...], list[int]] = {}
        for trial in range(trials):
            missing = tuple(name for name in methods if trial not in have.get(name, {}))
            if missing:
                todo.setdefault(missing, []).append(trial)
            if trial not in have.get(MESSAGE_PASSING + suffix, {}):
                append(message_passing(trial, n, ties, MESSAGE_PASSING + suffix))
        for names, numbers in todo.items():
            chosen = {name: methods[name] for name in names}
            total, begin = len(names) * len(numbers), time.perf_counter()
            rows = run_trials(chosen, n, ALPHA, numbers, workers, ties)
            for done, (row, _) in enumerate(rows, start=1):
                append(row)
                elapsed = time.perf_counter() - begin
                print(f"\r{done}/{total} rows{suffix}, {elapsed:.0f} s", end="", flush=True)
            print()


def report() -> None:
    """Writes and prints the table, and draws the picture."""
    rows = {name: list(of.values()) for name, of in read_rows().items()}
    lines = [
        "| method | paper ε_g (20 trials) | ε_g of the mean | ε_g of the majority | solved | "
        "TTS99, 10⁶ proposals | TTS99, core seconds | n |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    names = [
        name + suffix
        for suffix, (_, _, options) in GROUPS.items()
        for name in [*options, MESSAGE_PASSING]
    ]
    for name in names:
        one = summarize(name, rows[name])
        cost = f"{in_millions(one.tts_proposals)} | {one.tts_seconds:.2f}"
        if name.startswith(MESSAGE_PASSING):
            cost = "– | –"  # no proposals, and its seconds are not of one core
        lines.append(
            f"| {name} | {PAPER.get(name, '–')} | {one.generalization_error:.4f} | "
            f"{one.generalization_error_sign:.4f} | {one.solved:.3f} | {cost} | "
            f"{one.solved.n} |"
        )
    lines += ["", *comparisons(rows), "", *limits()]
    TABLE.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    outcomes = {
        name: np.array([row.generalization_error for row in rows[name]])
        for name in [*METHODS, MESSAGE_PASSING]
    }
    title = f"±1 perceptron, N = 1000, α = {ALPHA}, paired teachers"
    save(outcome_figure(outcomes, title), PICTURE)


def in_millions(value: statistics.Estimate) -> str:
    """An estimate in millions."""
    scaled = statistics.Estimate(value.value / 1e6, value.low / 1e6, value.high / 1e6, value.n)
    return f"{scaled:.1f}"


def comparisons(rows: dict[str, list[Trial]]) -> list[str]:
    """Paired differences of ε_g, with a permutation test (sign flips within pairs)."""
    lines = [
        "| paired difference of ε_g (mean) | mean [95 % interval] | p (permutation) | n |",
        "| --- | --- | --- | --- |",
    ]
    pairs = [
        (f"M-cover M=3 S=10{suffix}", f"{rival}{suffix}")
        for suffix in GROUPS
        for rival in ("vanilla", "RSA M=3")
    ]
    pairs += [("M-cover M=3 S=10", "M-cover M=3 S=2")]
    pairs += [(f"M-cover M={m} S=10", "M-cover M=3 S=10") for m in (5, 7, 9)]
    for first, second in pairs:
        ours = {row.trial: row.generalization_error for row in rows[first]}
        theirs = {row.trial: row.generalization_error for row in rows[second]}
        both = sorted(set(ours) & set(theirs))
        difference = np.array([ours[t] - theirs[t] for t in both])
        test = permutation_test(
            (difference,),
            np.mean,
            permutation_type="samples",
            n_resamples=99_999,
            rng=np.random.default_rng(0),
        )
        mean = statistics.mean(difference)
        lines.append(f"| {first} − {second} | {mean:.4f} | {test.pvalue:.1e} | {mean.n} |")
    return lines


def limits() -> list[str]:
    """Where the limits lie for N → ∞."""
    here = state_evolution(ALPHA)
    return [
        f"N → ∞: the data determine the teacher above α = {information_threshold():.4f}; message "
        f"passing finds it above α = {algorithmic_threshold():.4f}. At α = {ALPHA} the "
        f"Bayes-optimal error is {here.bayes_error:.4f}, reached by message passing.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200, help="trials of each method")
    parser.add_argument("--workers", type=int, help="threads; all cores by default")
    given = parser.parse_args()
    try:
        run(given.trials, given.workers)
    except KeyboardInterrupt:
        print("\nstopped; what is finished is kept")
    report()


if __name__ == "__main__":
    main()
